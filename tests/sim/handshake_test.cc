// Opening: RFC 9293 section 3.5, RFC 6298 section 5 for the SYN, the listener's backlog.
#include <gtest/gtest.h>

#include "sim.h"

namespace accel::sim {
namespace {

using Seconds = std::vector<int64_t>;

Result<TcpConn*> dial(Sim& sim, Recorder& owner, uint16_t port = 4000, TcpSettings settings = {}) {
  return sim[0].stack->tcp().connect({sim[0].v4(), port}, {sim[1].v4(), 80}, sim[0].route_to(sim[1]),
                                     settings, static_cast<Actor*>(&owner), sim.now);
}

TEST(Handshake, ThreeSegments) {
  for (bool v6 : {false, true}) {
    Sim sim;
    sim.tracing = true;
    Pairs pairs(sim, {.v6 = v6});
    Pair p = pairs.connect();
    ASSERT_TRUE(p.a && p.b);
    ASSERT_GE(sim.trace.size(), 3u);
    EXPECT_EQ(sim.trace[0].flags & (kSyn | kAck), kSyn);
    EXPECT_EQ(sim.trace[1].flags & (kSyn | kAck), kSyn | kAck);
    EXPECT_EQ(sim.trace[1].ack, sim.trace[0].seq + 1);
    EXPECT_EQ(sim.trace[2].flags & (kSyn | kAck), kAck);
    EXPECT_EQ(sim[0].stack->tcp().state(*p.a), TcpState::kEstablished);
    EXPECT_EQ(sim[1].stack->tcp().state(*p.b), TcpState::kEstablished);
    EXPECT_TRUE(pairs.recorder(p.a).edges & kWritable);
    EXPECT_EQ(sim[0].stack->tcp().remote(*p.a), sim[1].stack->tcp().local(*p.b));
    const TcpInfo info = sim[0].stack->tcp().info(*p.a, sim.now);
    EXPECT_TRUE(info.timestamps && info.sack);
    EXPECT_NEAR(info.rtt_us, 10000, 1000);
    ASSERT_TRUE(write(sim[0], p.a, "hello"));
    sim.run_for(100ms);
    EXPECT_EQ(*read(sim[1], p.b), "hello");
    EXPECT_TRUE(sim[0].stack->tcp().all_acked(*p.a));
    EXPECT_EQ(sim[1].steered.size(), 1u);  // who connects steers before it does
  }
}

TEST(Handshake, RefusedWhereNobodyListens) {
  Sim sim;
  Pairs pairs(sim);
  Pair kept = pairs.connect();
  sim[1].stack->tcp().close_listener(std::exchange(pairs.acceptor.listener, nullptr));
  ASSERT_TRUE(kept.b);
  Recorder owner;
  auto c = dial(sim, owner);
  ASSERT_TRUE(c);
  sim.run_for(100ms);
  ASSERT_EQ(sim[1].to_kernel.size(), 1u);
  sim.refuse(1, 0);
  ASSERT_TRUE(sim.run_until([&] { return (owner.edges & kError) != 0; }, 10s));
  EXPECT_TRUE(owner.edges & kHangUp);
  EXPECT_EQ(sim[0].stack->tcp().take_error(**c), ECONNREFUSED);
  EXPECT_EQ(sim[1].counter(Counter::tcp_resets_sent), 0u);
  sim[0].stack->tcp().close(*c, false, sim.now);
  sim.settle();
  EXPECT_FALSE(sim[0].stack->tcp().port_in_use(sim[0].v4(), 4000));
}

TEST(Handshake, SynIsSentAgainAndGivesUp) {
  Sim sim;
  sim.tracing = true;
  sim.links([](Link& l) { l.cut = true; });
  Recorder owner;
  sim.clear_trace();
  auto c = dial(sim, owner);
  ASSERT_TRUE(c);
  ASSERT_TRUE(sim.run_until([&] { return (owner.edges & kError) != 0; }, 1000s));
  EXPECT_EQ(sim[0].stack->tcp().take_error(**c), ETIMEDOUT);
  EXPECT_NEAR((sim.now - sim.trace_start) / 1ms, 127000, 200);
  Seconds times;
  for (const Sent& s : sim.trace) times.push_back((s.at - sim.trace_start + 500ms) / 1s);
  EXPECT_EQ(times, (Seconds{0, 1, 3, 7, 15, 31, 63}));
  sim[0].stack->tcp().close(*c, false, sim.now);
}

TEST(Handshake, WhereRepliesMayBeMisdirectedTheFirstTimeoutIsToldAndNothingSent) {
  Sim sim;
  sim.tracing = true;
  sim.links([](Link& l) { l.cut = true; });
  Recorder owner;
  sim.clear_trace();
  TcpSettings settings;
  settings.replies_may_be_misdirected = true;
  auto c = dial(sim, owner, 4000, settings);
  ASSERT_TRUE(c);
  ASSERT_TRUE(sim.run_until([&] { return owner.edges != 0; }, 10s));
  EXPECT_EQ(owner.edges, kUnanswered);
  EXPECT_EQ(sim.trace.size(), 1u);
  sim.run_for(3s);  // nobody gave it up: it goes on
  EXPECT_EQ(sim.trace.size(), 2u);
  sim[0].stack->tcp().close(*c, false, sim.now);
}

TEST(Handshake, ALostSynAckIsSentAgain) {
  Sim sim;
  int dropped = 0;
  sim.filter = [&](int host, std::span<const uint8_t>) { return host != 1 || ++dropped > 1; };
  Pairs pairs(sim);
  Pair p = pairs.connect();
  EXPECT_TRUE(p.a && p.b);
}

TEST(Handshake, ALostLastAckIsMadeUpByData) {
  Sim sim;
  int from_client = 0;
  sim.filter = [&](int host, std::span<const uint8_t>) { return host != 0 || ++from_client != 2; };
  Acceptor acceptor(sim[1], {sim[1].v4(), 80});
  End server(sim[1], 1, 2, 0);
  acceptor.accepted = [&](TcpConn* c) { server.attach(c); };
  End client(sim[0], 2, 1, 1000);
  auto c = sim[0].stack->tcp().connect({sim[0].v4(), 4000}, {sim[1].v4(), 80}, sim[0].route_to(sim[1]), {},
                                       static_cast<Actor*>(&client), sim.now);
  client.attach(*c);
  EXPECT_TRUE(sim.run_until([&] { return client.finished() && server.finished(); }, 60s));
  EXPECT_EQ(server.read, 1000u);
}

TEST(Handshake, SimultaneousOpen) {
  Sim sim;
  Recorder a, b;
  auto ca = sim[0].stack->tcp().connect({sim[0].v4(), 100}, {sim[1].v4(), 200}, sim[0].route_to(sim[1]), {},
                                        static_cast<Actor*>(&a), sim.now);
  auto cb = sim[1].stack->tcp().connect({sim[1].v4(), 200}, {sim[0].v4(), 100}, sim[1].route_to(sim[0]), {},
                                        static_cast<Actor*>(&b), sim.now);
  ASSERT_TRUE(ca && cb);
  ASSERT_TRUE(sim.run_until(
      [&] {
        return sim[0].stack->tcp().state(**ca) == TcpState::kEstablished &&
               sim[1].stack->tcp().state(**cb) == TcpState::kEstablished;
      },
      30s));
  ASSERT_TRUE(write(sim[0], *ca, "x"));
  ASSERT_TRUE(write(sim[1], *cb, "y"));
  sim.run_for(1s);
  EXPECT_EQ(*read(sim[0], *ca), "y");
  EXPECT_EQ(*read(sim[1], *cb), "x");
  sim[0].stack->tcp().close(*ca, true, sim.now);
  sim[1].stack->tcp().close(*cb, true, sim.now);
}

TEST(Handshake, ATupleIsTakenOnce) {
  Sim sim;
  Recorder owner;
  auto c = dial(sim, owner);
  ASSERT_TRUE(c);
  EXPECT_TRUE(dial(sim, owner).is(EADDRINUSE));
  EXPECT_TRUE(sim[0].stack->tcp().port_in_use(sim[0].v4(), 4000));
  sim[0].stack->tcp().close(*c, true, sim.now);
}

TEST(Handshake, BacklogHoldsBackAndCatchesUp) {
  Sim sim;
  Recorder listener_owner, owner;
  auto listener = sim[1].stack->tcp().listen({sim[1].v4(), 80}, false, false, 3, {},
                                             static_cast<Actor*>(&listener_owner));
  ASSERT_TRUE(listener);
  std::vector<TcpConn*> dialled;
  for (uint16_t i = 0; i < 10; ++i) dialled.push_back(*dial(sim, owner, static_cast<uint16_t>(5000 + i)));
  sim.run_for(500ms);
  const uint32_t waiting = sim[1].stack->tcp().accept_queue_length(**listener);
  EXPECT_GE(waiting, 3u);
  EXPECT_LE(waiting, 4u);  // the kernel takes one more than it was told
  EXPECT_TRUE(listener_owner.edges & kReadable);
  std::vector<TcpConn*> accepted;
  EXPECT_TRUE(sim.run_until(
      [&] {
        while (TcpConn* c = sim[1].stack->tcp().accept(**listener)) accepted.push_back(c);
        return accepted.size() == 10;
      },
      100s));
  EXPECT_GT(sim[1].counter(Counter::drop_tcp_backlog), 0u);
  for (TcpConn* c : dialled) sim[0].stack->tcp().close(c, true, sim.now);
  for (TcpConn* c : accepted) sim[1].stack->tcp().close(c, true, sim.now);
  sim[1].stack->tcp().close_listener(*listener);
}

// net.ipv4.tcp_abort_on_overflow: who finds the queue full at the end of the handshake is reset.
TEST(Handshake, AFullBacklogMayReset) {
  HostOptions options;
  options.config.abort_on_overflow = true;
  Sim sim(1, 2, options);
  Recorder listener_owner, owner;
  auto listener = sim[1].stack->tcp().listen({sim[1].v4(), 80}, false, false, 1, {},
                                             static_cast<Actor*>(&listener_owner));
  ASSERT_TRUE(listener);
  std::vector<TcpConn*> dialled;
  for (uint16_t i = 0; i < 4; ++i) dialled.push_back(*dial(sim, owner, static_cast<uint16_t>(5000 + i)));
  sim.run_for(500ms);
  EXPECT_EQ(sim[1].stack->tcp().accept_queue_length(**listener), 2u);
  int reset = 0;
  for (TcpConn* c : dialled) {
    reset += sim[0].stack->tcp().peek_error(*c) == ECONNRESET;
    sim[0].stack->tcp().close(c, true, sim.now);
  }
  EXPECT_EQ(reset, 2);
  sim[1].stack->tcp().close_listener(*listener);
}

// accept() tells of a connection with what has come for it: close() with unread text is a reset then.
TEST(Handshake, TextBeforeAcceptIsKnown) {
  Sim sim;
  Recorder listener_owner, owner;
  auto listener = sim[1].stack->tcp().listen({sim[1].v4(), 80}, false, false, 3, {},
                                             static_cast<Actor*>(&listener_owner));
  ASSERT_TRUE(listener);
  TcpConn* const near = *dial(sim, owner, 5000);
  sim.run_for(100ms);
  ASSERT_TRUE(write(sim[0], near, "early"));
  sim.run_for(100ms);
  TcpConn* const far = sim[1].stack->tcp().accept(**listener);
  ASSERT_NE(far, nullptr);
  ASSERT_EQ(sim[1].stack->tcp().unread(*far), 5u);
  sim[1].stack->tcp().close(far, false, sim.now);
  sim.run_for(100ms);
  EXPECT_TRUE(read(sim[0], near).is(ECONNRESET));
  sim[0].stack->tcp().close(near, false, sim.now);
  sim[1].stack->tcp().close_listener(*listener);
}

TEST(Handshake, WhatWasPutBackIsAcceptedFirst) {
  Sim sim;
  Recorder listener_owner, owner;
  auto listener = sim[1].stack->tcp().listen({sim[1].v4(), 80}, false, false, 3, {},
                                             static_cast<Actor*>(&listener_owner));
  ASSERT_TRUE(listener);
  TcpConn* const first = *dial(sim, owner, 5000);
  sim.run_for(100ms);
  auto put_back_one = [&] {
    TcpConn* c = sim[1].stack->tcp().accept(**listener);
    sim[1].stack->tcp().put_back(**listener, *c);
    return c;
  };
  TcpConn* const one = put_back_one();  // alone in the queue
  TcpConn* const second = *dial(sim, owner, 5001);
  sim.run_for(100ms);
  EXPECT_EQ(put_back_one(), one);
  EXPECT_EQ(sim[1].stack->tcp().accept_queue_length(**listener), 2u);
  EXPECT_EQ(sim[1].stack->tcp().accept(**listener), one);
  TcpConn* const two = sim[1].stack->tcp().accept(**listener);
  ASSERT_NE(two, nullptr);
  EXPECT_EQ(sim[1].stack->tcp().accept(**listener), nullptr);
  for (TcpConn* c : {first, second}) sim[0].stack->tcp().close(c, true, sim.now);
  for (TcpConn* c : {one, two}) sim[1].stack->tcp().close(c, true, sim.now);
  sim[1].stack->tcp().close_listener(*listener);
}

/// `lost`: the host whose frames from the second (the client's ACK) or first (the SYN-ACK) on do not arrive
/// in time.
void complete_without_the_last_ack(int lost, int from, Duration late) {
  Sim sim;
  int frames = 0;
  sim.filter = [&](int host, std::span<const uint8_t>) { return host != lost || ++frames < from; };
  Recorder listener_owner, owner, accepted;
  auto listener = sim[1].stack->tcp().listen({sim[1].v4(), 80}, false, false, 0, {},
                                             static_cast<Actor*>(&listener_owner));
  TcpConn* c = *dial(sim, owner);
  sim.run_for(late);
  ASSERT_EQ(sim[1].stack->tcp().accept_queue_length(**listener), 0u);
  sim.filter = nullptr;
  sim[1].stack->tcp().complete_handshakes(**listener, sim.now);
  TcpConn* s = sim[1].stack->tcp().accept(**listener);
  ASSERT_NE(s, nullptr);
  s->owner = static_cast<Actor*>(&accepted);
  ASSERT_TRUE(sim[1].stack->tcp().snapshot(*s, sim.now));
  ASSERT_TRUE(write(sim[1], s, "who speaks first"));
  sim.run_for(3s);
  EXPECT_EQ(*read(sim[0], c), "who speaks first");
  ASSERT_TRUE(write(sim[0], c, "and the answer"));
  sim.run_for(3s);
  EXPECT_EQ(*read(sim[1], s), "and the answer");
  sim[0].stack->tcp().close(c, false, sim.now);
  sim[1].stack->tcp().close(s, false, sim.now);
  sim[1].stack->tcp().close_listener(*listener);
}

TEST(Handshake, MayBeTakenForCompleteWithoutTheLastAck) {
  for (const Duration late : {200ms, 1500ms, 5000ms}) {  // the SYN-ACK has been sent once, twice, thrice
    complete_without_the_last_ack(0, 2, late);
    complete_without_the_last_ack(1, 1, late);
  }
}

TEST(Handshake, IsNotTakenForCompleteWhereThePeerHasLongBeenSilent) {
  Sim sim;
  int frames = 0;
  sim.filter = [&](int host, std::span<const uint8_t>) { return host != 0 || ++frames < 2; };
  Recorder listener_owner, owner;
  auto listener = sim[1].stack->tcp().listen({sim[1].v4(), 80}, false, false, 0, {},
                                             static_cast<Actor*>(&listener_owner));
  TcpConn* c = *dial(sim, owner);
  sim.run_for(8s);
  sim[1].stack->tcp().complete_handshakes(**listener, sim.now);
  EXPECT_EQ(sim[1].stack->tcp().accept_queue_length(**listener), 0u);
  sim[0].stack->tcp().close(c, true, sim.now);
  sim[1].stack->tcp().close_listener(*listener);
}

TEST(Handshake, OneTakenForCompleteEndsAsItsListenerWasShutDown) {
  Sim sim;
  sim.filter = [](int host, std::span<const uint8_t>) { return host != 1; };
  Recorder listener_owner, owner;
  auto listener = sim[1].stack->tcp().listen({sim[1].v4(), 80}, false, false, 0, {},
                                             static_cast<Actor*>(&listener_owner));
  sim[1].stack->tcp().listen_shut(**listener, false, true);
  TcpConn* c = *dial(sim, owner);
  sim.run_for(200ms);
  sim.filter = nullptr;
  sim[1].stack->tcp().complete_handshakes(**listener, sim.now);
  sim.run_for(3s);
  EXPECT_EQ(sim[0].stack->tcp().state(*c), TcpState::kCloseWait);
  sim[0].stack->tcp().close(c, false, sim.now);
  sim[1].stack->tcp().close_listener(*listener);
}

TEST(Handshake, ClosingAListenerResetsWhatNobodyAccepted) {
  Sim sim;
  Recorder listener_owner, owner;
  auto listener = sim[1].stack->tcp().listen({sim[1].v4(), 80}, false, false, 3, {},
                                             static_cast<Actor*>(&listener_owner));
  TcpConn* c = *dial(sim, owner);
  sim.run_for(1s);
  ASSERT_EQ(sim[0].stack->tcp().state(*c), TcpState::kEstablished);
  sim[1].stack->tcp().close_listener(*listener);
  sim.run_for(1s);
  EXPECT_EQ(sim[0].stack->tcp().take_error(*c), ECONNRESET);
  sim[0].stack->tcp().close(c, false, sim.now);
}

TEST(Handshake, TheLimitOfConnectionsHolds) {
  HostOptions options;
  options.config.max_connections = 5;
  Sim sim(1, 2, options);
  Recorder listener_owner, owner;
  auto listener = sim[1].stack->tcp().listen({sim[1].v4(), 80}, false, false, 100, {},
                                             static_cast<Actor*>(&listener_owner));
  std::vector<TcpConn*> made;
  for (uint16_t i = 0; i < 5; ++i) made.push_back(*dial(sim, owner, static_cast<uint16_t>(5000 + i)));
  auto sixth = dial(sim, owner, 6000);
  EXPECT_TRUE(sixth.is(ENOBUFS) || sixth.is(ENOMEM));
  sim.run_for(1s);
  for (TcpConn* c : made) sim[0].stack->tcp().close(c, true, sim.now);
  sim[1].stack->tcp().close_listener(*listener);
}

TEST(Handshake, ListenersByWildcardAndFamily) {
  Sim sim;
  Recorder any, four;
  auto dual =
      sim[1].stack->tcp().listen({IpAddress::any_v6(), 80}, false, false, 8, {}, static_cast<Actor*>(&any));
  auto specific =
      sim[1].stack->tcp().listen({sim[1].v4(), 80}, false, false, 8, {}, static_cast<Actor*>(&four));
  ASSERT_TRUE(dual && specific);
  EXPECT_TRUE(sim[1].stack->tcp().listen({sim[1].v4(), 80}, false, false, 8, {}, nullptr).is(EADDRINUSE));
  Recorder owner;
  TcpConn* a = *dial(sim, owner);
  TcpConn* b =
      *sim[0].stack->tcp().connect({sim[0].v6(), 4000}, {sim[1].v6(), 80}, sim[0].route_to(sim[1], true), {},
                                   static_cast<Actor*>(&owner), sim.now);
  sim.run_for(1s);
  EXPECT_EQ(sim[1].stack->tcp().accept_queue_length(**specific), 1u);
  EXPECT_EQ(sim[1].stack->tcp().accept_queue_length(**dual), 1u);
  sim[0].stack->tcp().close(a, true, sim.now);
  sim[0].stack->tcp().close(b, true, sim.now);
  sim[1].stack->tcp().close_listener(*dual);
  sim[1].stack->tcp().close_listener(*specific);
}

TEST(Handshake, ListenersOfDevices) {
  Sim sim;
  Recorder l1, l2, owner;
  const Endpoint at{IpAddress::any_v4(), 80};
  auto here = sim[1].stack->tcp().listen(at, false, false, 8, {}, static_cast<Actor*>(&l1), 0);
  auto elsewhere = sim[1].stack->tcp().listen(at, false, false, 8, {}, static_cast<Actor*>(&l2), 1);
  ASSERT_TRUE(here && elsewhere);
  TcpConn* c = *dial(sim, owner);
  sim.run_for(1s);
  EXPECT_EQ(sim[1].stack->tcp().accept_queue_length(**here), 1u);
  EXPECT_EQ(sim[1].stack->tcp().accept_queue_length(**elsewhere), 0u);
  sim[0].stack->tcp().close(c, true, sim.now);
  sim[1].stack->tcp().close_listener(*here);
  sim[1].stack->tcp().close_listener(*elsewhere);
}

TEST(Handshake, ReusePortSpreads) {
  Sim sim;
  Recorder l1, l2, owner;
  auto one = sim[1].stack->tcp().listen({sim[1].v4(), 80}, false, true, 100, {}, static_cast<Actor*>(&l1));
  auto two = sim[1].stack->tcp().listen({sim[1].v4(), 80}, false, true, 100, {}, static_cast<Actor*>(&l2));
  ASSERT_TRUE(one && two);
  std::vector<TcpConn*> made;
  for (uint16_t i = 0; i < 64; ++i) made.push_back(*dial(sim, owner, static_cast<uint16_t>(5000 + i)));
  sim.run_for(1s);
  const uint32_t n1 = sim[1].stack->tcp().accept_queue_length(**one),
                 n2 = sim[1].stack->tcp().accept_queue_length(**two);
  EXPECT_EQ(n1 + n2, 64u);
  EXPECT_GT(n1, 10u);
  EXPECT_GT(n2, 10u);
  for (TcpConn* c : made) sim[0].stack->tcp().close(c, true, sim.now);
  sim[1].stack->tcp().close_listener(*one);
  sim[1].stack->tcp().close_listener(*two);
}

// SO_INCOMING_CPU: who names the CPU that brings the SYN; where nobody does, one by hash.
TEST(Handshake, ReusePortChoosesByCpu) {
  Sim sim;
  Recorder owner, owners[3];
  TcpListener* group[3];
  for (int i = 0; i < 3; ++i) {
    TcpSettings settings;
    settings.incoming_cpu = static_cast<int16_t>(i - 1);
    group[i] = *sim[1].stack->tcp().listen({sim[1].v4(), 80}, false, true, 100, settings,
                                           static_cast<Actor*>(&owners[i]));
  }
  const auto counts = [&](int cpu, uint16_t from) {
    sim[1].cpu = cpu;
    std::vector<TcpConn*> made;
    for (uint16_t i = 0; i < 64; ++i) made.push_back(*dial(sim, owner, static_cast<uint16_t>(from + i)));
    sim.run_for(1s);
    std::array<uint32_t, 3> n{};
    for (size_t i = 0; i < 3; ++i) {
      n[i] = sim[1].stack->tcp().accept_queue_length(*group[i]);
      while (TcpConn* c = sim[1].stack->tcp().accept(*group[i])) sim[1].stack->tcp().close(c, true, sim.now);
    }
    for (TcpConn* c : made) sim[0].stack->tcp().close(c, true, sim.now);
    return n;
  };
  using Counts = std::array<uint32_t, 3>;
  EXPECT_EQ(counts(0, 5000), (Counts{0, 64, 0}));
  EXPECT_EQ(counts(1, 6000), (Counts{0, 0, 64}));
  for (const uint32_t n : counts(7, 7000)) EXPECT_GT(n, 5u);
  sim[1].stack->tcp().settings(*group[0]).incoming_cpu = 7;
  EXPECT_EQ(counts(7, 8000), (Counts{64, 0, 0}));
  for (TcpListener* l : group) sim[1].stack->tcp().close_listener(l);
}

TEST(Handshake, WaitsForAnUnknownNeighbour) {
  HostOptions options;
  options.knows_neighbours = false;
  Sim sim(1, 2, options);
  Acceptor acceptor(sim[1], {sim[1].v4(), 80});
  End server(sim[1], 1, 2, 10), client(sim[0], 2, 1, 10);
  acceptor.accepted = [&](TcpConn* c) { server.attach(c); };
  client.attach(*sim[0].stack->tcp().connect({sim[0].v4(), 4000}, {sim[1].v4(), 80}, sim[0].route_to(sim[1]),
                                             {}, static_cast<Actor*>(&client), sim.now));
  sim.run_for(100ms);
  auto asked = sim[0].stack->take_unresolved();
  ASSERT_EQ(asked.size(), 1u);
  EXPECT_EQ(asked[0].address, sim[1].v4());
  EXPECT_TRUE(sim[0].stack->take_unresolved().empty());  // once a second at most
  sim[0].stack->set_neighbour(0, sim[1].v4(), sim[1].mac());
  sim.run_for(100ms);
  asked = sim[1].stack->take_unresolved();  // a SYN tells no MAC address
  ASSERT_EQ(asked.size(), 1u);
  EXPECT_EQ(asked[0].address, sim[0].v4());
  sim[1].stack->set_neighbour(0, sim[0].v4(), sim[0].mac());
  EXPECT_TRUE(sim.run_until([&] { return client.finished() && server.finished(); }, 10s));
}

/// A connection whose first SYNs get lost, and then a long write that finds a dead link: when does it send?
std::vector<Duration> sends_after_lost_syns(int lost, bool timestamps) {
  HostOptions options;
  options.config.timestamps = timestamps;
  Sim sim(1, 2, options);
  sim.tracing = true;
  sim.links([](Link& l) { l.delay = 25ms; });
  int syns = 0;
  sim.filter = [&](int host, std::span<const uint8_t> f) {
    const auto& tcp = wire_at<TcpHeader>(&f[34]);
    return host != 0 || !(tcp.flags & kSyn) || ++syns > lost;
  };
  Pairs pairs(sim);
  const Pair p = pairs.connect();
  EXPECT_TRUE(p.b);
  sim.run_for(100ms);
  sim.clear_trace();
  sim[0].link.cut = true;
  EXPECT_TRUE(write(sim[0], p.a, std::string(30'000, 'x')));
  sim.run_for(5s);
  return sim.data_times(0);
}

size_t at_once(const std::vector<Duration>& times) {
  return static_cast<size_t>(std::count(times.begin(), times.end(), Duration{0}));
}

// tcp_init_transfer(), and the round trip by the echoed timestamp.
TEST(LostSyn, CostsNeitherTheWindowNorTheTimeout) {
  const auto times = sends_after_lost_syns(1, true);
  EXPECT_EQ(at_once(times), 10u);
  EXPECT_NEAR(times.at(10) / 1ms, 102, 5) << "a probe two round trips later";
}

TEST(LostSyn, TwiceLeavesOneSegment) {
  const auto times = sends_after_lost_syns(2, true);
  EXPECT_EQ(at_once(times), 1u);
}

// RFC 6298 section 5.7.
TEST(LostSyn, LeavesThreeSecondsWithoutTimestamps) {
  const auto times = sends_after_lost_syns(1, false);
  EXPECT_EQ(at_once(times), 10u);
  EXPECT_NEAR(times.at(10) / 1ms, 1000, 5) << "a probe after a second, where no round trip is known";
}

}  // namespace
}  // namespace accel::sim
