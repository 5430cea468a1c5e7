#include "siw_fallback/out_queue.h"

#include <gtest/gtest.h>

#include <random>

#include "hex.h"

namespace accel::siw {
namespace {

using test::hex;

std::vector<uint8_t> gathered(const OutQueue& q, size_t pieces = 100) {
  std::vector<Bytes> parts(pieces);
  parts.resize(q.gather(parts));
  std::vector<uint8_t> out;
  for (Bytes part : parts) out.insert(out.end(), part.begin(), part.end());
  return out;
}

TEST(OutQueue, LoansStandBetweenOwnBytes) {
  OutQueue q;
  const auto a = hex("'program'"), b = hex("'memory'");
  q.put(hex("'<'"));
  q.lend(a);
  q.put(hex("'>'"));
  q.put(hex("'<'"));
  q.lend(b);
  q.put(hex("'>'"));
  Bytes parts[5];
  ASSERT_EQ(q.gather(parts), 5u);
  EXPECT_EQ(parts[1].data(), a.data());
  EXPECT_EQ(parts[3].data(), b.data());
  EXPECT_EQ(gathered(q), hex("'<program><memory>'"));
  EXPECT_EQ(gathered(q, 2), hex("'<program'"));
  q.sent(10);
  EXPECT_EQ(gathered(q), hex("'memory>'"));
}

TEST(OutQueue, WhatIsKeptIsNotTheProgramsAnyMore) {
  OutQueue q;
  auto a = hex("'one'"), b = hex("'two'");
  q.lend(a);
  q.put(hex("'-'"));
  q.lend(b);
  q.sent(1);
  q.keep();
  a.assign(3, '?'), b.assign(3, '?');
  EXPECT_EQ(test::copy(q.own()), hex("'ne-two'"));
  q.sent(6);
  EXPECT_TRUE(q.empty());
}

TEST(OutQueue, AnyOrderOfCallsSendsTheSameBytes) {
  for (unsigned seed = 0; seed < 300; seed++) {
    std::minstd_rand random(seed);
    std::vector<uint8_t> memory(4000), sent;
    for (auto& byte : memory) byte = static_cast<uint8_t>(random());
    OutQueue q;
    for (size_t at = 0; at < memory.size();) {
      const Bytes next = Bytes(memory).subspan(at, std::min<size_t>(random() % 100, memory.size() - at));
      switch (random() % 4) {
        case 0:
          q.put(next);
          at += next.size();
          break;
        case 1:
          q.lend(next);
          at += next.size();
          break;
        case 2:
          q.keep();
          break;
        default: {
          auto waits = gathered(q, 3);
          waits.resize(random() % (waits.size() + 1));
          sent.insert(sent.end(), waits.begin(), waits.end());
          q.sent(waits.size());
        }
      }
      ASSERT_EQ(sent.size() + q.size(), at);
    }
    q.keep();
    sent.insert(sent.end(), q.own().begin(), q.own().end());
    ASSERT_EQ(sent, memory) << seed;
  }
}

}  // namespace
}  // namespace accel::siw
