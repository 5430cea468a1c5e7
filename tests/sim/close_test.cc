// Closing and resetting: RFC 9293 section 3.6 and 3.10.7, RFC 2525 section 2.17, RFC 5961.
#include <gtest/gtest.h>

#include "sim.h"
#include "stack/wire/checksum.h"
#include "stack/wire/tcp.h"

namespace accel::sim {
namespace {

struct CloseTest : testing::Test, TracedPair {
  CloseTest() : TracedPair(5) {}
  bool reset_sent_by(int host) const {
    for (const Sent& s : sim.sent_by(host))
      if (s.flags & kRst) return true;
    return false;
  }
  Stack& a() { return *sim[0].stack; }
  Stack& b() { return *sim[1].stack; }
};

TEST_F(CloseTest, HalfClose) {
  Pair p = open();
  ASSERT_TRUE(write(sim[0], p.a, "question"));
  ASSERT_TRUE(a().tcp().shutdown(*p.a, SHUT_WR, sim.now).ok());
  sim.run_for(1s);
  EXPECT_EQ(*read(sim[1], p.b), "question");
  EXPECT_EQ(*read(sim[1], p.b), "");
  EXPECT_TRUE(b().tcp().readiness(*p.b) & kReadClosed);
  EXPECT_EQ(b().tcp().state(*p.b), TcpState::kCloseWait);
  EXPECT_EQ(a().tcp().state(*p.a), TcpState::kFinWait2);
  EXPECT_TRUE(write(sim[0], p.a, "no").is(EPIPE));
  ASSERT_TRUE(write(sim[1], p.b, "answer"));
  sim.run_for(1s);
  EXPECT_EQ(*read(sim[0], p.a), "answer");
  ASSERT_TRUE(b().tcp().shutdown(*p.b, SHUT_WR, sim.now).ok());
  sim.run_for(1s);
  EXPECT_EQ(*read(sim[0], p.a), "");
  EXPECT_TRUE(a().tcp().readiness(*p.a) & kHangUp);
  a().tcp().close(p.a, false, sim.now);
  b().tcp().close(p.b, false, sim.now);
  sim.run_for(1s);
  EXPECT_FALSE(reset_sent_by(0) || reset_sent_by(1));
}

// tcp_fin(): the answer is likely to be a FIN, which carries the ACK.
TEST_F(CloseTest, AFinIsAcknowledgedWithTheAnswer) {
  Pair p = open();
  ASSERT_TRUE(write(sim[0], p.a, "question"));
  sim.run_for(100ms);
  ASSERT_TRUE(read(sim[1], p.b));
  sim.clear_trace();
  ASSERT_TRUE(a().tcp().shutdown(*p.a, SHUT_WR, sim.now).ok());
  ASSERT_TRUE(sim.run_until([&] { return b().tcp().state(*p.b) == TcpState::kCloseWait; }, 1s));
  EXPECT_TRUE(sim.sent_by(1).empty());
  ASSERT_TRUE(b().tcp().shutdown(*p.b, SHUT_WR, sim.now).ok());
  ASSERT_TRUE(sim.run_until([&] { return a().tcp().state(*p.a) == TcpState::kClosed; }, 1s));
  ASSERT_EQ(sim.sent_by(1).size(), 1u);
  EXPECT_EQ(sim.sent_by(1)[0].flags, kFin | kAck);
}

/// Where no text has come, nothing says that an answer will: tcp_send_delayed_ack() waits for an ato of 0.
TEST_F(CloseTest, AFinWithoutTextIsAcknowledgedAtOnce) {
  Pair p = open();
  ASSERT_TRUE(a().tcp().shutdown(*p.a, SHUT_WR, sim.now).ok());
  ASSERT_TRUE(sim.run_until([&] { return a().tcp().state(*p.a) == TcpState::kFinWait2; }, 15ms));
  ASSERT_EQ(sim.sent_by(1).size(), 1u);
  EXPECT_EQ(sim.sent_by(1)[0].flags, kAck);
}

TEST_F(CloseTest, AFinIsAcknowledgedSoonAnyway) {
  Pair p = open();
  ASSERT_TRUE(a().tcp().shutdown(*p.a, SHUT_WR, sim.now).ok());
  EXPECT_TRUE(sim.run_until([&] { return a().tcp().state(*p.a) == TcpState::kFinWait2; }, 200ms));
  EXPECT_EQ(sim.sent_by(1).size(), 1u);
}

TEST_F(CloseTest, WhatWasAcceptedArrivesAfterClose) {
  Pair p = open();
  auto sent = write(sim[0], p.a, std::string(500000, 'x'));
  ASSERT_TRUE(sent);
  a().tcp().close(p.a, false, sim.now);
  EXPECT_EQ(a().tcp().lingering(), 1u);
  size_t got = 0;
  bool ended = false;
  EXPECT_TRUE(sim.run_until(
      [&] {
        while (auto r = read(sim[1], p.b)) {
          got += r->size();
          if (r->empty()) {
            ended = true;
            break;
          }
        }
        return ended;
      },
      60s));
  EXPECT_EQ(got, *sent);
  sim.run_for(1s);
  EXPECT_EQ(a().tcp().lingering(), 0u);
}

TEST_F(CloseTest, UnreadDataMeansReset) {
  Pair p = open();
  ASSERT_TRUE(write(sim[1], p.b, "unread"));
  sim.run_for(1s);
  a().note_look();
  a().tcp().close(p.a, false, sim.now);
  sim.run_for(1s);
  EXPECT_TRUE(reset_sent_by(0));
  EXPECT_EQ(b().tcp().take_error(*p.b), ECONNRESET);
  EXPECT_EQ(b().tcp().take_error(*p.b), 0);
  EXPECT_TRUE(pairs->recorder(p.b).edges & kHangUp);
  EXPECT_TRUE(write(sim[1], p.b, "x").is(EPIPE));
}

// It came behind the last epoll_wait(), in which the program could have learned of it.
TEST_F(CloseTest, TextThatNobodyCouldKnowOfCrossesTheFin) {
  Pair p = open();
  a().note_look();
  ASSERT_TRUE(write(sim[1], p.b, "late"));
  sim.run_for(1s);
  ASSERT_EQ(a().tcp().unread(*p.a), 4u);
  sim.clear_trace();
  a().tcp().close(p.a, false, sim.now);
  sim.run_for(1s);
  const auto sent = sim.sent_by(0);
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(sent[0].flags & (kFin | kRst), kFin);
  EXPECT_TRUE(sent[1].flags & kRst);
  EXPECT_EQ(*read(sim[1], p.b), "");
  EXPECT_EQ(b().tcp().take_error(*p.b), EPIPE);  // as of a reset in CLOSE-WAIT
  EXPECT_FALSE(a().tcp().port_in_use(sim[0].v4(), 40000));
}

TEST_F(CloseTest, UrgentDataThatIsReadMakesTheTextKnown) {
  Pair p = open();
  char text[] = "text!";
  const iovec from{text, 5};
  ASSERT_TRUE(b().tcp().send(*p.b, {&from, 1}, {.urgent = true}, sim.now));
  sim.run_for(1s);
  uint8_t byte = 0;
  ASSERT_EQ(*a().tcp().receive_urgent(*p.a, &byte, false), 1u);
  a().tcp().close(p.a, false, sim.now);
  sim.run_for(1s);
  EXPECT_TRUE(read(sim[1], p.b).is(ECONNRESET));
}

TEST_F(CloseTest, TextIsKnownOnceSomeOfItIsRead) {
  Pair p = open();
  ASSERT_TRUE(write(sim[1], p.b, "known"));
  sim.run_for(1s);
  char first;
  const iovec into{&first, 1};
  ASSERT_EQ(*a().tcp().receive(*p.a, {&into, 1}, false, 0, sim.now), 1u);
  a().tcp().close(p.a, false, sim.now);
  sim.run_for(1s);
  EXPECT_TRUE(read(sim[1], p.b).is(ECONNRESET));
}

TEST_F(CloseTest, AbortResets) {
  Pair p = open();
  a().tcp().close(p.a, true, sim.now);
  sim.run_for(1s);
  EXPECT_TRUE(read(sim[1], p.b).is(ECONNRESET));
  EXPECT_EQ(*read(sim[1], p.b), "");  // once; then the end
  EXPECT_FALSE(a().tcp().port_in_use(sim[0].v4(), 40000));
}

TEST_F(CloseTest, DataForAClosedReceiverIsReset) {
  Pair p = open();
  a().tcp().close(p.a, false, sim.now);
  sim.run_for(1s);
  ASSERT_TRUE(write(sim[1], p.b, "late"));
  sim.run_for(1s);
  EXPECT_TRUE(reset_sent_by(0));
  // In CLOSE-WAIT the kernel says EPIPE (net/ipv4/tcp_input.c tcp_reset).
  EXPECT_EQ(b().tcp().take_error(*p.b), EPIPE);
}

TEST_F(CloseTest, SimultaneousClose) {
  Pair p = open();
  a().tcp().close(p.a, false, sim.now);
  b().tcp().close(p.b, false, sim.now);
  sim.run_for(1s);
  EXPECT_FALSE(reset_sent_by(0) || reset_sent_by(1));
  EXPECT_EQ(a().tcp().lingering(), 0u);
  EXPECT_TRUE(a().tcp().port_in_use(sim[0].v4(), 40000));  // both wait
  sim.run_for(70s);
  EXPECT_FALSE(a().tcp().port_in_use(sim[0].v4(), 40000));
  EXPECT_TRUE(sim[0].steered.empty() && sim[1].steered.empty());
}

TEST_F(CloseTest, ALostFinIsSentAgain) {
  Pair p = open();
  sim[0].link.cut = true;
  a().tcp().close(p.a, false, sim.now);
  sim.run_for(1s);
  sim[0].link.cut = false;
  sim.run_for(2s);
  EXPECT_TRUE(pairs->recorder(p.b).edges & kReadClosed);
}

TEST_F(CloseTest, ShutdownBothAndReadSide) {
  Pair p = open();
  ASSERT_TRUE(a().tcp().shutdown(*p.a, SHUT_RD, sim.now).ok());
  EXPECT_EQ(*read(sim[0], p.a), "");
  EXPECT_TRUE(a().tcp().readiness(*p.a) & kReadClosed);
  ASSERT_TRUE(
      write(sim[1], p.b, "still"));  // the kernel takes and drops nothing: it acknowledges and may be read
  sim.run_for(1s);
  EXPECT_EQ(b().tcp().peek_error(*p.b), 0);
  ASSERT_TRUE(a().tcp().shutdown(*p.a, SHUT_RDWR, sim.now).ok());
  sim.run_for(1s);
  EXPECT_EQ(b().tcp().state(*p.b), TcpState::kCloseWait);
}

/// The next frame that host 0 sends on an established connection, to be forged from.
std::vector<uint8_t> capture(Sim& sim, TcpConn* c) {
  std::vector<uint8_t> frame;
  sim.filter = [&](int host, std::span<const uint8_t> f) {
    if (host == 0 && frame.empty()) frame.assign(f.begin(), f.end());
    return true;
  };
  (void)write(sim[0], c, "z");
  sim.settle();
  sim.filter = nullptr;
  sim.run_for(1s);
  return frame;
}

void forge(Sim& sim, std::vector<uint8_t> frame, uint8_t flags, uint32_t seq, uint32_t ack,
           Duration then = 100ms) {
  frame.resize(14 + 20 + 20);
  frame[16] = 0;
  frame[17] = 40;
  frame[24] = frame[25] = 0;
  store_checksum(&frame[24], finish_sum(sum_bytes(&frame[14], 20)));
  auto& tcp = wire_at<TcpHeader>(&frame[34]);
  tcp.data_offset = 5 << 4;
  tcp.flags = flags;
  tcp.sequence = seq;
  tcp.acknowledgment = ack;
  tcp.checksum = 0;
  store_checksum(&tcp.checksum,
                 finish_sum(sum_bytes(&frame[26], 8) + sum_of(6) + sum_of(20) + sum_bytes(&frame[34], 20)));
  sim.inject(1, frame);
  sim.run_for(then);
}

TEST_F(CloseTest, ABlindResetIsChallenged) {
  Pair p = open();
  auto frame = capture(sim, p.a);
  (void)read(sim[1], p.b);
  const uint32_t next = p.b->rcv_nxt;
  forge(sim, frame, kRst, next + 1000, 0);  // in the window, not exact: RFC 5961 section 3.2
  EXPECT_EQ(b().tcp().state(*p.b), TcpState::kEstablished);
  EXPECT_EQ(sim[1].counter(Counter::tcp_challenge_acks), 1u);
  EXPECT_EQ(sim[1].counter(Counter::drop_tcp_bad_reset), 1u);
  forge(sim, frame, kRst, next + 100'000'000, 0);  // beyond it
  EXPECT_EQ(b().tcp().state(*p.b), TcpState::kEstablished);
  forge(sim, frame, kSyn, next + 1000, 0);  // section 4.2
  EXPECT_EQ(b().tcp().state(*p.b), TcpState::kEstablished);
  forge(sim, frame, kAck, next, p.b->snd_nxt + 5000);  // ACK of what was never sent
  EXPECT_EQ(b().tcp().state(*p.b), TcpState::kEstablished);
  forge(sim, frame, kRst, next, 0);
  EXPECT_EQ(b().tcp().take_error(*p.b), ECONNRESET);
}

/// A SYN that came twice reached us and another process, or the kernel.
TEST_F(CloseTest, AHandshakeMakesWayForTheOneThatThePeerTook) {
  Pair p = open();
  auto frame = capture(sim, p.a);
  sim[0].link.cut = true;  // it knows nothing of the forged ones
  frame[34] ^= 1;          // another port
  sim.clear_trace();
  forge(sim, frame, kSyn, 5000, 0, 10ms);
  ASSERT_EQ(sim.sent_by(1).size(), 1u);
  forge(sim, frame, kAck, 5001, 7777, 10ms);
  forge(sim, frame, kSyn, 5000, 0, 10ms);
  forge(sim, frame, kAck, 5001, 7777);
  EXPECT_EQ(sim.sent_by(1).size(), 1u) << "the SYN-ACK alone";
  EXPECT_EQ(sim[1].counter(Counter::drop_tcp_bad_ack), 2u);
  forge(sim, frame, kAck, 5001, 7777);
  const auto sent = sim.sent_by(1);
  ASSERT_EQ(sent.size(), 2u) << "nobody's now";
  EXPECT_EQ(sent[1].flags, kRst);
}

/// A reset, but of a SYN: another process may listen, which the kernel knows, and has what follows.
TEST_F(CloseTest, SegmentsForNobodyAreResetAsRfc9293SaysOrAreTheKernels) {
  Pair p = open();
  Pair kept = pairs->connect();  // so that the port is still ours to speak for
  ASSERT_TRUE(kept.b);
  auto frame = capture(sim, p.a);
  a().tcp().close(p.a, true, sim.now);
  sim.run_for(1s);
  sim[0].link.cut = true;
  b().tcp().close(p.b, true, sim.now);
  b().tcp().close_listener(std::exchange(pairs->acceptor.listener, nullptr));
  sim.clear_trace();
  forge(sim, frame, kAck, 5000, 7777);
  forge(sim, frame, kSyn, 5000, 0);
  forge(sim, frame, kAck, 5001, 7777);
  auto sent = sim.sent_by(1);
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].flags, kRst);  // SEQ=SEG.ACK
  EXPECT_EQ(sent[0].seq, 7777u);
  ASSERT_EQ(sim[1].to_kernel.size(), 2u);
  EXPECT_EQ(tcp_of(sim[1].to_kernel[0]).flags, kSyn);
  EXPECT_EQ(tcp_of(sim[1].to_kernel[1]).flags, kAck);
  EXPECT_EQ(sim[1].to_kernel[0].size(), 40u);
}

/// Its process hands off what has come, and would never accept a handshake that begins now.
TEST_F(CloseTest, AListenerThatHasStoppedEndsItsHandshakesAndLeavesSynsToTheKernel) {
  Pair p = open();
  auto frame = capture(sim, p.a);
  a().tcp().close(p.a, true, sim.now);
  sim.run_for(1s);
  b().tcp().close(p.b, true, sim.now);
  sim[0].link.cut = true;
  sim.clear_trace();
  TcpListener& listener = *pairs->acceptor.listener;
  forge(sim, frame, kSyn, 5000, 0);
  ASSERT_EQ(listener.embryo_size, 1u);
  listener.stopped = true;
  const uint32_t iss = sim.sent_by(1).at(0).seq;
  forge(sim, frame, kAck, 5001, iss + 1);
  EXPECT_EQ(listener.embryo_size, 0u);
  EXPECT_TRUE(sim[1].to_kernel.empty());
  forge(sim, frame, kRst, 5001, 0);
  sim.clear_trace();
  forge(sim, frame, kSyn, 9000, 0);
  forge(sim, frame, kAck, 9001, 7777);
  EXPECT_TRUE(sim.sent_by(1).empty());
  ASSERT_EQ(sim[1].to_kernel.size(), 2u);
  EXPECT_EQ(tcp_of(sim[1].to_kernel[0]).flags, kSyn);
  EXPECT_EQ(tcp_of(sim[1].to_kernel[1]).flags, kAck);
}

}  // namespace
}  // namespace accel::sim
