#include "tests/engine/fixture.h"

namespace accel::test {
namespace {

PathChoice choose(const IpAddress& to) {
  Pass pass{*world().engine};
  FlowRequest request;
  request.remote = {to, 80};
  return world().engine->choose(pass, request);
}

TEST(Paths, ReasonsOfTheKernelPath) {
  EXPECT_EQ(choose(v4(127, 0, 0, 1)).reason, Reason::loopback);
  EXPECT_EQ(choose(kNear).reason, Reason::local_address);
  EXPECT_EQ(choose(v4(192, 0, 2, 1)).reason, Reason::no_route);
  EXPECT_EQ(choose(v4(224, 0, 0, 5)).reason, Reason::multicast);
  EXPECT_EQ(choose(v4(10, 99, 0, 255)).reason, Reason::broadcast);
}

TEST(Paths, RouteOfAnAcceleratedOne) {
  const PathChoice c = choose(kFar);
  EXPECT_TRUE(c.accelerated());
  EXPECT_EQ(c.reason, Reason::accelerated);
  EXPECT_EQ(c.route.source, kNear);
  EXPECT_EQ(c.route.next_hop, kFar);
  EXPECT_EQ(c.route.mtu, 1500u);
}

TEST(Paths, FollowsRoutes) {
  const IpAddress to = v4(198, 51, 100, 9);
  EXPECT_EQ(choose(to).reason, Reason::no_route);
  ASSERT_TRUE(sh("ip route add 198.51.100.0/24 via 10.99.0.2"));
  EXPECT_TRUE(comes_true([&] { return choose(to).accelerated(); }));
  ASSERT_TRUE(sh("ip route del 198.51.100.0/24"));
  EXPECT_TRUE(comes_true([&] { return choose(to).reason == Reason::no_route; }));
}

TEST(Paths, UnusualDevice) {
  ASSERT_TRUE(sh(
      "ip link add hollow0 type bridge && ip link set hollow0 up && ip addr add 10.98.0.1/24 dev hollow0"));
  EXPECT_TRUE(comes_true([&] { return choose(v4(10, 98, 0, 2)).reason == Reason::no_port; }));
  ASSERT_TRUE(sh("ip link del hollow0"));
}

TEST(Paths, ConnectSteersAndUnsteers) {
  World& w = world();
  Connected c = connect(81);
  ASSERT_TRUE(c.near);
  const FlowKey key{Protocol::kTcp, c.local, {kFar, 81}};
  EXPECT_TRUE(w.port->steers(key));
  {
    Pass pass{*w.engine};
    PathChoice again = w.engine->choose(pass, {Role::kTcpClient, c.local, {kFar, 81}, 0, 0, 0});
    auto second = w.engine->connect(pass, again, c.local, {kFar, 81}, {}, &w);
    EXPECT_TRUE(second.is(EADDRINUSE));
    EXPECT_EQ(again.reason, Reason::duplicate_tuple);
    pass.stack().tcp().close(c.near, true, pass.now());
  }
  EXPECT_FALSE(w.port->steers(key));
  w.far.call([&](Stack& s, Instant now) { s.tcp().close(c.far, true, now); });
}

TEST(Paths, ListenerCoversAddressesAsTheyComeAndGo) {
  World& w = world();
  BoundFlow* flow = nullptr;
  PathChoice choice;
  {
    Pass pass{*w.engine};
    auto listening = w.engine->listen(pass, choice, {IpAddress::any_v4(), 82}, false, false, 8, {}, 0, &w);
    ASSERT_TRUE(listening.ok()) << reason_text(choice.reason);
    flow = *listening;
  }
  EXPECT_TRUE(choice.accelerated());
  const FlowKey first{Protocol::kTcp, {kNear, 82}, {}};
  const FlowKey second{Protocol::kTcp, {v4(10, 99, 0, 40), 82}, {}};
  EXPECT_TRUE(w.port->steers(first));
  EXPECT_FALSE(w.port->steers(second));
  ASSERT_TRUE(sh("ip addr add 10.99.0.40/24 dev near0"));
  EXPECT_TRUE(comes_true([&] { return w.port->steers(second); }));
  ASSERT_TRUE(sh("ip addr del 10.99.0.40/24 dev near0"));
  EXPECT_TRUE(comes_true([&] { return !w.port->steers(second); }));
  Pass pass{*w.engine};
  w.engine->close(pass, flow);
  EXPECT_FALSE(w.port->steers(first));
}

TEST(Paths, IPv6WildcardTakesBothFamilies) {
  World& w = world();
  Pass pass{*w.engine};
  PathChoice choice;
  auto flow =
      w.engine->bind_udp(pass, choice, {IpAddress::any_v6(), 83}, {}, false, Engine::Taking::kAlone, 0, &w);
  ASSERT_TRUE(flow.ok());
  IpAddress six{};
  six.bytes = {0x20, 0x01, 0x0d, 0xb8, 0, 0x99, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1};
  EXPECT_TRUE(w.port->steers({Protocol::kUdp, {kNear, 83}, {}}));
  EXPECT_TRUE(w.port->steers({Protocol::kUdp, {six, 83}, {}}));
  w.engine->close(pass, *flow);
  auto only6 =
      w.engine->bind_udp(pass, choice, {IpAddress::any_v6(), 83}, {}, true, Engine::Taking::kAlone, 0, &w);
  ASSERT_TRUE(only6.ok());
  EXPECT_FALSE(w.port->steers({Protocol::kUdp, {kNear, 83}, {}}));
  w.engine->close(pass, *only6);
}

TEST(Paths, LoopbackListenerStaysInTheKernel) {
  World& w = world();
  Pass pass{*w.engine};
  PathChoice choice;
  auto listening = w.engine->listen(pass, choice, {v4(127, 0, 0, 1), 84}, false, false, 8, {}, 0, &w);
  EXPECT_FALSE(listening.ok());
  EXPECT_EQ(choice.path, PathKind::kKernel);
  EXPECT_EQ(choice.reason, Reason::loopback);
}

/// nullptr: it is not ours.
BoundFlow* listener_at(uint16_t port) {
  World& w = world();
  Pass pass{*w.engine};
  PathChoice choice;
  auto listening = w.engine->listen(pass, choice, {kNear, port}, false, false, 8, {}, 0, &w);
  return listening ? *listening : nullptr;
}

TEST(Paths, AcceptedConnectionIsSteeredBeforeItsSynAckLeaves) {
  World& w = world();
  BoundFlow* const flow = listener_at(85);
  ASSERT_TRUE(flow);
  TcpConn* far = nullptr;
  w.far.call([&](Stack& s, Instant now) {
    auto c = s.tcp().connect({kFar, 4000}, {kNear, 85}, w.far.route(), {}, &w, now);
    ASSERT_TRUE(c.ok());
    far = *c;
  });
  ASSERT_TRUE(
      wait_for([&] { return w.engine->stack().tcp().accept_queue_length(*w.engine->listener(*flow)) == 1; }));
  const FlowKey key{Protocol::kTcp, {kNear, 85}, {kFar, 4000}};
  EXPECT_TRUE(w.port->steers(key));
  {
    Pass pass{*w.engine};
    TcpConn* near = pass.stack().tcp().accept(*w.engine->listener(*flow));
    ASSERT_TRUE(near);
    pass.stack().tcp().close(near, true, pass.now());
    w.engine->close(pass, flow);
  }
  EXPECT_FALSE(w.port->steers(key));
  w.far.call([&](Stack& s, Instant now) { s.tcp().close(far, true, now); });
}

// A server at its end closes its listener, then the connections that it knows as idle: a request that lies in
// the ring is not taken in between, which would make a reset of the connection's end.
TEST(Paths, AListenerThatStopsTakesNothingInForItsConnections) {
  World& w = world();
  BoundFlow* const flow = listener_at(86);
  ASSERT_TRUE(flow);
  const auto waiting = [&] {
    return w.engine->stack().tcp().accept_queue_length(*w.engine->listener(*flow));
  };
  const auto opened = [&](uint16_t from) {
    TcpConn* far = nullptr;
    w.far.call([&](Stack& s, Instant now) {
      if (auto c = s.tcp().connect({kFar, from}, {kNear, 86}, w.far.route(), {}, &w, now)) far = *c;
    });
    return far;
  };
  const auto asks = [&](TcpConn* far) {
    w.far.call([&](Stack& s, Instant now) {
      char text[] = "hello";
      iovec v{text, 5};
      EXPECT_TRUE(s.tcp().send(*far, {&v, 1}, {}, now).ok());
    });
  };
  TcpConn* const far = opened(4001);
  ASSERT_TRUE(far && wait_for([&] { return waiting() == 1; }));
  TcpConn* near = nullptr;
  {
    Pass pass{*w.engine, Pass::Polling::kNo};
    near = w.engine->stack().tcp().accept(*w.engine->listener(*flow));
    ASSERT_TRUE(near);
    asks(far);
    w.engine->stop_taking(pass, *flow);
    EXPECT_EQ(w.engine->stack().tcp().readable_bytes(*near), 0u);
    w.engine->begin_taking(pass, *flow);
  }
  // One that nobody has accepted yet is passed on: what has come for it is in the stack.
  TcpConn* const second = opened(4002);
  ASSERT_TRUE(second && wait_for([&] { return waiting() == 1; }));
  {
    Pass pass{*w.engine, Pass::Polling::kNo};
    asks(second);
    w.engine->stop_taking(pass, *flow);
    TcpConn* const unaccepted = pass.stack().tcp().accept(*w.engine->listener(*flow));
    ASSERT_TRUE(unaccepted);
    EXPECT_EQ(pass.stack().tcp().readable_bytes(*unaccepted), 5u);
    for (TcpConn* c : {near, unaccepted}) pass.stack().tcp().close(c, true, pass.now());
    w.engine->close(pass, flow);
  }
  for (TcpConn* c : {far, second}) w.far.call([&](Stack& s, Instant now) { s.tcp().close(c, true, now); });
}

}  // namespace
}  // namespace accel::test
