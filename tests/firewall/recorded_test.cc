// The rule files as a kernel told them once: no privilege, no tools. And rules cut short or changed at any
// byte, which the parsers must take without harm.
#include "tests/firewall/cases.h"
#include "tests/firewall/recording.h"

namespace accel::firewall::test {
namespace {

class Recorded : public testing::TestWithParam<RuleFile> {
 protected:
  Recording recording() {
    Recording r;
    EXPECT_TRUE(r.read(std::string(DATA_FOLDER) + "/" + GetParam().name + ".rules"));
    return r;
  }
};

TEST_P(Recorded, MeansWhatItShould) { check(recording().rules(), GetParam()); }

/// The bytes come from the kernel, but a parser that trusts lengths is one that fails some day.
TEST_P(Recorded, AnyByteMayBeWrong) {
  Recording whole = recording();
  const auto disturb = [&](Bytes& bytes) {
    const size_t step = bytes.size() / 400 + 1;
    for (size_t i = 0; i < bytes.size(); i += step) {
      const uint8_t was = bytes[i];
      for (const uint8_t other : {0x00, 0x7f, 0xff}) {
        bytes[i] = other;
        const Ruleset rules = whole.rules();
        for (const Case& c : GetParam().cases) (void)evaluate(rules, c.question);
      }
      bytes[i] = was;
    }
    const Bytes all = bytes;
    for (size_t i = 0; i < all.size(); i += step) {
      bytes.assign(all.begin(), all.begin() + static_cast<long>(i));
      (void)evaluate(whole.rules(), GetParam().cases.front().question);
    }
    bytes = all;
  };
  disturb(whole.nft);
  for (LegacyTable& t : whole.legacy) disturb(t.entries);
}

INSTANTIATE_TEST_SUITE_P(Rules, Recorded, testing::ValuesIn(rule_files()),
                         [](const auto& file) { return std::string(file.param.name); });

}  // namespace
}  // namespace accel::firewall::test
