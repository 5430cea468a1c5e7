// Reassembly against a model that remembers each byte, and its cost in memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <new>
#include <optional>
#include <random>
#include <vector>

#include "stack/tcp/context.h"
#include "stack/tcp/reassembly.h"

namespace accel {
namespace {

constexpr MemoryLimits kNoLimits{1ull << 40, 1ull << 40, 1ull << 40};

uint8_t byte_at(uint32_t seq) { return static_cast<uint8_t>(seq * 2654435761u >> 13); }

std::vector<uint8_t> text_at(uint32_t seq, uint32_t n) {
  std::vector<uint8_t> text(n);
  for (uint32_t i = 0; i < n; ++i) text[i] = byte_at(seq + i);
  return text;
}

/// Bytes by their distance from where the test began, so that sequence numbers may wrap.
struct Model {
  uint32_t start = 0;
  uint32_t next = 0;
  std::vector<bool> here = std::vector<bool>(400'000);

  SackBlock run_of(uint32_t begin, uint32_t end) const {
    while (begin > 0 && here[begin - 1]) --begin;
    while (here[end]) ++end;
    return {start + begin, start + end};
  }
  SackBlock present_in(uint32_t begin, uint32_t end) const {
    while (begin < end && !here[begin]) ++begin;
    if (begin == end) return {};
    uint32_t last = begin;
    while (last < end && here[last]) ++last;
    return {start + begin, start + last};
  }
  uint32_t bytes() const { return static_cast<uint32_t>(std::count(here.begin(), here.end(), true)); }
};

/// Everything from next() on that has come, as a connection takes it; checks each byte.
uint32_t drain(Reassembly& r) {
  uint32_t taken = 0;
  for (auto text = r.front(); !text.empty(); text = r.front()) {
    const uint32_t at = r.next();
    const auto n = static_cast<uint32_t>(text.size());
    for (uint32_t i = 0; i < n; ++i)
      if (text[i] != byte_at(at + i)) ADD_FAILURE() << "wrong byte " << at + i;
    if (Packet* p = r.detach_front()) {
      EXPECT_EQ(p->seq, at);
      EXPECT_EQ(p->length, n);
      EXPECT_EQ(p->data()[0], byte_at(at));
      tcp::release_packet(p);
    } else {
      r.advance(at + n);
    }
    taken += n;
  }
  return taken;
}

TEST(Reassembly, AgreesWithAModel) {
  for (uint32_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    MemoryAccount account(kNoLimits);
    Model m;
    m.start =
        seed % 2 ? 0xfffff000u - static_cast<uint32_t>(random() % 100000) : static_cast<uint32_t>(random());
    {
      Reassembly r(account, m.start);
      const uint32_t most = seed % 3 ? 6000 : 3;
      for (int step = 0; step < 1500 && m.next < 200'000; ++step) {
        const uint32_t at = m.next + 1 + static_cast<uint32_t>(random() % (random() % 4 ? 30'000 : 150'000));
        const uint32_t n = 1 + static_cast<uint32_t>(random() % most);
        const uint32_t seq = m.start + at;
        ASSERT_EQ(r.present_in(seq, seq + n), m.present_in(at, at + n));
        const uint32_t memory = r.memory(), cost = r.cost(seq, seq + n);
        ASSERT_TRUE(r.insert(seq, text_at(seq, n)));
        ASSERT_LE(r.memory(), memory + cost);
        std::fill_n(m.here.begin() + at, n, true);
        ASSERT_EQ(r.run_of(seq, seq + n), m.run_of(at, at + n));
        if (random() % 8 == 0) {  // text in order, over what is here or not
          const uint32_t in_order = 1 + static_cast<uint32_t>(random() % 9000);
          r.advance(m.start + m.next + in_order);
          std::fill_n(m.here.begin() + m.next, in_order, false);
          m.next += in_order;
          uint32_t follows = 0;
          while (m.here[m.next + follows]) ++follows;
          ASSERT_EQ(drain(r), follows);
          std::fill_n(m.here.begin() + m.next, follows, false);
          m.next += follows;
          ASSERT_EQ(r.next(), m.start + m.next);
        } else if (random() % 50 == 0 && !r.empty()) {
          r.drop_top();
          for (uint32_t i = r.top() - m.start; i < m.here.size(); ++i) m.here[i] = false;
        }
        if (step % 128 == 0) {  // it counts them one by one
          ASSERT_EQ(r.bytes(), m.bytes());
        }
        ASSERT_EQ(account.used(), r.memory());
        ASSERT_TRUE(r.empty() || m.here[r.top() - m.start - 1]);
      }
    }
    EXPECT_EQ(account.used(), 0u);
    if (HasFailure()) break;
  }
}

TEST(Reassembly, OneByteHolesCostNoMoreThanTheWindow) {
  MemoryAccount account(kNoLimits);
  Reassembly r(account, 1000);
  constexpr uint32_t kWindow = 1 << 20;
  const uint8_t byte = 7;
  for (uint32_t at = 1; at < kWindow; at += 2) ASSERT_TRUE(r.insert(1000 + at, {&byte, 1}));
  EXPECT_EQ(r.bytes(), kWindow / 2);
  EXPECT_LE(r.memory(), kWindow + kWindow / 5);
}

TEST(Reassembly, ALoneFarByteCostsABlockAndItsDirectory) {
  MemoryAccount account(kNoLimits);
  Reassembly r(account, 0);
  const uint8_t byte = 7;
  ASSERT_TRUE(r.insert(32 << 20, {&byte, 1}));
  EXPECT_LE(r.memory(), 140'000u);
  r.drop_top();
  EXPECT_TRUE(r.empty());
  EXPECT_EQ(r.top(), 0u);
}

}  // namespace
}  // namespace accel
