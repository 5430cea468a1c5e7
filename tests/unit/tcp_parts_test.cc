// The parts of TCP that stand alone: send queue, scoreboard, SipHash, congestion windows.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "stack/tcp/context.h"
#include "stack/tcp/siphash.h"

namespace accel {
namespace {

TEST(SipHash, ReferenceVector) {  // Appendix A of the paper
  std::array<uint64_t, 2> key{0x0706050403020100ULL, 0x0f0e0d0c0b0a0908ULL};
  uint8_t in[15];
  for (uint8_t i = 0; i < 15; ++i) in[i] = i;
  EXPECT_EQ(siphash(key, in), 0xa129ca6149be45e5ULL);
}

TEST(SendQueue, AgreesWithAVector) {
  std::mt19937 random(3);
  ChunkCache cache;
  SendQueue queue;
  uint32_t begin = 0xffffff00;
  queue.start(begin);
  std::vector<uint8_t> model;
  for (int step = 0; step < 20000; ++step) {
    if (random() % 2 && model.size() < 300000) {
      std::vector<uint8_t> data(1 + random() % (random() % 8 ? 3000 : 90000));
      for (auto& b : data) b = static_cast<uint8_t>(random());
      ASSERT_EQ(queue.append(cache, data.data(), static_cast<uint32_t>(data.size())), data.size());
      model.insert(model.end(), data.begin(), data.end());
    } else {
      auto n = static_cast<uint32_t>(model.empty() ? 0 : random() % (model.size() + 1));
      if (random() % 4 == 0) n = static_cast<uint32_t>(model.size());
      begin += n;
      queue.acknowledge(cache, begin);
      model.erase(model.begin(), model.begin() + n);
    }
    ASSERT_EQ(queue.size(), model.size());
    for (int k = 0; k < 3 && !model.empty(); ++k) {
      auto offset = static_cast<uint32_t>(random() % model.size());
      auto n = static_cast<uint32_t>(1 + random() % std::min<size_t>(model.size() - offset, 2000));
      std::vector<uint8_t> out(n);
      PartSum sum;
      queue.copy(out.data(), begin + offset, n, sum);
      ASSERT_TRUE(std::equal(out.begin(), out.end(), model.begin() + offset));
      ASSERT_EQ(fold_sum(sum.sum()) % 0xffff, fold_sum(sum_bytes(out.data(), n)) % 0xffff);
    }
  }
  queue.clear(cache);
}

TEST(SentRing, FindAndSplit) {
  SentRing ring;
  for (uint32_t i = 0; i < 100; ++i) {
    ASSERT_TRUE(ring.reserve(1));
    SentSegment s;
    s.begin = 0xfffffe00u + i * 100;
    s.end = s.begin + 100;
    ring.push_back(s);
    if (i % 3 == 0) ring.pop_front();
  }
  uint32_t first = ring.front().begin;
  EXPECT_EQ(ring.find(first), 0u);
  EXPECT_EQ(ring.find(first + 250), 2u);
  ASSERT_TRUE(ring.reserve(1));
  uint32_t size = ring.size();
  ring.split(2, first + 230);
  EXPECT_EQ(ring.size(), size + 1);
  EXPECT_EQ(ring[2].end, first + 230);
  EXPECT_EQ(ring[3].begin, first + 230);
  for (uint32_t i = 1; i < ring.size(); ++i) ASSERT_EQ(ring[i - 1].end, ring[i].begin);
}

/// Grows a window over round trips of `rtt`, an ACK for every two segments.
uint32_t after(TcpConn& c, Duration time, Duration rtt, Instant now = Instant(100s)) {
  c.srtt = rtt;
  c.cwnd_limited = true;
  for (Instant end = now + time; now < end; now += rtt)
    for (uint32_t sent = c.cwnd; sent >= 2u * c.snd_mss; sent -= 2u * c.snd_mss)
      tcp::grow_window(c, {.acked = 2u * c.snd_mss, .delivered = 2u * c.snd_mss, .rtt = rtt}, now);
  return c.cwnd;
}

// Runs of SACKed segments are stepped over, whichever way they have grown together.
TEST(SentRing, SkipsWhatIsSacked) {
  uint32_t random = 1;
  for (int round = 0; round < 20; ++round) {
    SentRing ring;
    std::vector<bool> sacked(500);
    ASSERT_TRUE(ring.reserve(500));
    for (uint32_t i = 0; i < 500; ++i) ring.add(10 * i, 10 * i + 10, 7);
    uint32_t gone = 0;
    for (int step = 0; step < 600; ++step) {
      random = random * 1664525 + 1013904223;
      const uint32_t i = gone + (random >> 16) % (500 - gone);
      if (!sacked[i]) {
        sacked[i] = true;
        ring[i - gone].sacked = true;
        ring[i - gone].sent_us = 1;
      }
      if (random % 37 == 0) {
        ring.pop_front();
        ++gone;
      }
      const uint32_t from = gone + (random >> 8) % (500 - gone);
      uint32_t expected = from;
      while (expected < 500 && sacked[expected]) ++expected;
      ASSERT_EQ(ring.skip_sacked(from - gone) + gone, expected);
    }
  }
}

TEST(Cubic, ComesBackToWmaxAfterK) {
  TcpConn c;
  c.snd_mss = 1448;
  c.cwnd = 1000 * 1448;
  c.ssthresh = tcp::reduced_window(c);
  c.cwnd = c.ssthresh;
  EXPECT_NEAR(c.cwnd / 1448.0, 700, 1);
  // K = cbrt(300 / 0.4) = 9.1 s (RFC 9438 section 4.2); on a long path Reno would be far below.
  EXPECT_NEAR(after(c, 9100ms, 200ms) / 1448.0, 1000, 30);
  uint32_t plateau = c.cwnd;
  EXPECT_GT(after(c, 6s, 200ms, Instant(109100ms)), plateau + 40 * 1448);
}

TEST(Cubic, IsNoSlowerThanRenoOnShortPaths) {
  TcpConn cubic, reno;
  reno.settings.congestion = Congestion::kReno;
  for (TcpConn* c : {&cubic, &reno}) {
    c->snd_mss = 1448;
    c->cwnd = c->snd_nxt = 20 * 1448;
    c->ssthresh = tcp::reduced_window(*c);
    c->cwnd = c->ssthresh;
  }
  after(reno, 200ms, 1ms);
  EXPECT_GE(after(cubic, 200ms, 1ms), reno.cwnd / 2);
}

TEST(NewReno, OneSegmentARoundTrip) {
  TcpConn c;
  c.settings.congestion = Congestion::kReno;
  c.snd_mss = 1000;
  c.cwnd = c.ssthresh = 50000;
  EXPECT_NEAR(after(c, 100ms, 10ms), 60000, 2000);
}

TEST(InitialWindow, IsTenSegmentsWhateverTheirSize) {
  EXPECT_EQ(tcp::initial_window(1448), 14480u);
  EXPECT_EQ(tcp::initial_window(8948), 89480u);
  EXPECT_EQ(tcp::initial_window(536), 5360u);
}

}  // namespace
}  // namespace accel
