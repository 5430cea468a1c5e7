// Many at once, too little memory, floods, interfaces that come and go.
#include <gtest/gtest.h>

#include "seeds.h"
#include "sim.h"
#include "stack/wire/checksum.h"
#include "stack/wire/tcp.h"

namespace accel::sim {
namespace {

/// Short conversations one after the other on `wide` connections at a time.
struct Churn {
  Churn(Sim& sim_in, int total_in, int wide)
      : sim(sim_in), total(total_in), acceptor(sim[1], {sim[1].v4(), 80}, 1024) {
    acceptor.accepted = [this](TcpConn* c) {
      servers.push_back(std::make_unique<End>(sim[1], 7, 9, 2000));
      servers.back()->attach(c);
    };
    for (int i = 0; i < wide; ++i) next();
  }
  void next() {
    if (started == total) return;
    ++started;
    clients.push_back(std::make_unique<End>(sim[0], 9, 7, 500));
    End& e = *clients.back();
    auto c = sim[0].stack->tcp().connect({sim[0].v4(), static_cast<uint16_t>(1024 + started % 60000)},
                                         {sim[1].v4(), 80}, sim[0].route_to(sim[1]), {},
                                         static_cast<Actor*>(&e), sim.now);
    if (c)
      e.attach(*c);
    else
      e.error = static_cast<int>(c.error());
  }
  bool step() {
    for (size_t i = 0; i < clients.size();) {
      End& e = *clients[i];
      if (!e.finished() && !e.error) {
        ++i;
        continue;
      }
      good += !e.error && !e.wrong && e.read == 2000;
      ++ended;
      clients[i] = std::move(clients.back());
      clients.pop_back();
      next();
    }
    std::erase_if(servers, [](const auto& s) { return s->finished(); });
    return ended == total;
  }
  Sim& sim;
  int total, started = 0, ended = 0, good = 0;
  std::vector<std::unique_ptr<End>> clients, servers;
  Acceptor acceptor;
};

TEST(Pressure, ThousandsOfShortConnections) {
  Sim sim(3);
  sim.links([](Link& l) { l.loss = 0.01; });
  Churn churn(sim, 5000, 200);
  EXPECT_TRUE(sim.run_until([&] { return churn.step(); }, 3600s));
  EXPECT_EQ(churn.good, 5000);
  churn.acceptor.accepted = nullptr;
  sim.run_for(200s);
  for (auto& h : sim.hosts) {
    EXPECT_EQ(h->pool.available(), h->pool.size());
    EXPECT_EQ(h->stack->next_deadline(), kNever);
    EXPECT_TRUE(h->steered.empty());
  }
}

TEST(Pressure, ATinyPoolStarvesNobody) {
  for (uint64_t seed = first_seed(); seed < first_seed() + seeds(100); ++seed) {
    SCOPED_TRACE(seed);
    HostOptions options;
    options.frames = 64;
    Sim sim(seed, 2, options);
    sim.links([&](Link& l) {
      l.loss = seed % 2 ? 0.02 : 0;
      l.reorder = 0.05;
    });
    std::vector<std::unique_ptr<End>> clients, servers;
    Acceptor acceptor(sim[1], {sim[1].v4(), 80});
    acceptor.accepted = [&](TcpConn* c) {
      servers.push_back(std::make_unique<End>(sim[1], 2, 1, 60000));
      servers.back()->read_pause = Duration(sim.rng.below(2'000'000));
      servers.back()->attach(c);
    };
    for (uint16_t i = 0; i < 8; ++i) {
      clients.push_back(std::make_unique<End>(sim[0], 1, 2, 60000));
      clients.back()->attach(*sim[0].stack->tcp().connect(
          {sim[0].v4(), static_cast<uint16_t>(4000 + i)}, {sim[1].v4(), 80}, sim[0].route_to(sim[1]), {},
          static_cast<Actor*>(clients.back().get()), sim.now));
    }
    auto all_done = [&] {
      for (auto* ends : {&clients, &servers})
        for (auto& e : *ends)
          if (!e->finished()) return false;
      return servers.size() == clients.size();
    };
    ASSERT_TRUE(sim.run_until(all_done, 3600s));
    for (auto* ends : {&clients, &servers})
      for (auto& e : *ends) {
        EXPECT_EQ(e->read, 60000u);
        EXPECT_EQ(e->error, 0);
        EXPECT_FALSE(e->wrong);
      }
    if (HasFailure()) break;
  }
}

/// A SYN from a made-up peer on link.
std::vector<uint8_t> spoofed_syn(Sim& sim, uint32_t source, uint16_t port) {
  std::vector<uint8_t> f(54);
  std::copy_n(sim[1].mac().begin(), 6, f.begin());
  f[6] = 2;
  f[11] = 77;
  f[12] = 0x08;
  f[14] = 0x45;
  f[17] = 40;
  f[22] = 64;
  f[23] = 6;
  std::memcpy(&f[26], IpAddress::v4(source).v4_bytes(), 4);
  std::memcpy(&f[30], sim[1].v4().v4_bytes(), 4);
  store_checksum(&f[24], finish_sum(sum_bytes(&f[14], 20)));
  auto& tcp = wire_at<TcpHeader>(&f[34]);
  tcp.source = port;
  tcp.destination = 80;
  tcp.sequence = static_cast<uint32_t>(sim.rng.next());
  tcp.data_offset = 5 << 4;
  tcp.flags = kSyn;
  tcp.window = 65535;
  store_checksum(&tcp.checksum,
                 finish_sum(sum_bytes(&f[26], 8) + sum_of(6) + sum_of(20) + sum_bytes(&f[34], 20)));
  return f;
}

TEST(Pressure, ASynFloodIsBoundedAndPasses) {
  HostOptions options;
  options.config.max_connections = 1000;
  Sim sim(3, 2, options);
  Recorder listening;
  auto listener =
      *sim[1].stack->tcp().listen({sim[1].v4(), 80}, false, false, 128, {}, static_cast<Actor*>(&listening));
  for (int i = 0; i < 50000; ++i) {
    sim.inject(1, spoofed_syn(sim, 0x0a010000u + static_cast<uint32_t>(sim.rng.below(60000)),
                              static_cast<uint16_t>(1024 + sim.rng.below(60000))));
    if (i % 100 == 0) sim.run_for(1ms);
  }
  int embryos = 0;
  sim[1].stack->tcp().for_each([](TcpConn&, void* n) { ++*static_cast<int*>(n); }, &embryos);
  EXPECT_LE(embryos, 1000);
  EXPECT_GT(sim[1].pool.available(), sim[1].pool.size() / 2);
  // While it lasts, an honest client gets in.
  Recorder owner;
  TcpConn* c = *sim[0].stack->tcp().connect({sim[0].v4(), 4000}, {sim[1].v4(), 80}, sim[0].route_to(sim[1]),
                                            {}, static_cast<Actor*>(&owner), sim.now);
  TcpConn* accepted = nullptr;
  for (int ms = 0; ms < 30000 && !accepted; ++ms) {
    for (int i = 0; i < 5; ++i)
      sim.inject(1, spoofed_syn(sim, 0x0a010000u + static_cast<uint32_t>(sim.rng.below(60000)),
                                static_cast<uint16_t>(1024 + sim.rng.below(60000))));
    sim.run_for(1ms);
    accepted = sim[1].stack->tcp().accept(*listener);
  }
  EXPECT_TRUE(accepted);
  sim[0].stack->tcp().close(c, true, sim.now);
  if (accepted) sim[1].stack->tcp().close(accepted, true, sim.now);
  sim[1].stack->tcp().close_listener(listener);
  sim.run_for(200s);
  // The kernel has found that none of them is there.
  for (const auto& wanted : sim[1].stack->take_unresolved())
    sim[1].stack->set_neighbour(wanted.interface, wanted.address, std::nullopt);
  EXPECT_TRUE(sim[1].steered.empty());
  EXPECT_EQ(sim[1].pool.available(), sim[1].pool.size());
}

TEST(Pressure, AnInterfaceMayGoAndComeBack) {
  Sim sim(3);
  End client(sim[0], 1, 2, 3'000'000), server(sim[1], 2, 1, 0);
  Acceptor acceptor(sim[1], {sim[1].v4(), 80});
  acceptor.accepted = [&](TcpConn* c) { server.attach(c); };
  sim.links([](Link& l) { l.bits_per_second = 100'000'000; });
  client.attach(*sim[0].stack->tcp().connect({sim[0].v4(), 4000}, {sim[1].v4(), 80}, sim[0].route_to(sim[1]),
                                             {}, static_cast<Actor*>(&client), sim.now));
  sim.run_for(100ms);
  const Interface info = sim[0].stack->interface(0);
  sim[0].stack->remove_interface(0);
  sim.run_for(3s);
  EXPECT_GT(sim[0].counter(Counter::drop_no_interface), 0u);
  sim[0].stack->set_interface(0, info);
  EXPECT_TRUE(sim.run_until([&] { return client.finished() && server.finished(); }, 60s));
  EXPECT_EQ(server.read, 3'000'000u);
  EXPECT_FALSE(server.wrong);
}

TEST(Pressure, ALostNeighbourIsAskedForAndTheConnectionGoesOn) {
  Sim sim(3);
  Pairs pairs(sim);
  Pair p = pairs.connect();
  sim[0].stack->set_neighbour(0, sim[1].v4(), std::nullopt);
  ASSERT_TRUE(write(sim[0], p.a, "waits"));
  sim.run_for(50ms);
  EXPECT_TRUE(read(sim[1], p.b).is(EAGAIN));
  auto asked = sim[0].stack->take_unresolved();
  ASSERT_EQ(asked.size(), 1u);
  sim[0].stack->set_neighbour(0, sim[1].v4(), sim[1].mac());
  sim.run_for(50ms);
  EXPECT_EQ(*read(sim[1], p.b), "waits");
}

/// A connection of host 0 to host 1, whose route changes. Host 2 can be the gateway: it forwards nothing, but
/// the frames show its MAC address.
class ChangedRoute : public testing::Test {
 protected:
  ChangedRoute() {
    sim.filter = [this](int host, std::span<const uint8_t> f) {
      const bool to_two = host == 0 && std::equal(f.begin(), f.begin() + 6, sim[2].mac().begin());
      by_two += to_two;
      longest = host == 0 ? std::max(longest, f.size()) : longest;
      return !to_two;
    };
  }
  RouteEntry route(const IpAddress& gateway = {}) {
    RouteEntry row;
    row.prefix = sim[1].v4();
    row.prefix_length = 128;
    row.gateway = gateway;
    return row;
  }
  Followed follow(std::vector<RouteEntry> rows, bool ask = false) {
    sim[0].stack->set_routes(std::move(rows), ask);
    return sim[0].stack->tcp().follow_route(*p.a);
  }
  void send(const std::string& text) {
    ASSERT_TRUE(write(sim[0], p.a, text));
    sim.run_for(100ms);
  }

  Sim sim{3, 3};
  Pairs pairs{sim};
  Pair p = pairs.connect();
  int by_two = 0;
  size_t longest = 0;
};

TEST_F(ChangedRoute, LeadsToAnotherNextHopAndBack) {
  EXPECT_EQ(follow({route(sim[2].v4())}), Followed::kStays);
  send("x");
  EXPECT_GT(by_two, 0);
  EXPECT_EQ(follow({route()}), Followed::kStays);
  sim.run_for(10s);
  EXPECT_EQ(*read(sim[1], p.b), "x");
}

TEST_F(ChangedRoute, HasAsManyMetricsAsThereAreNames) {
  Stack& stack = *sim[0].stack;
  EXPECT_EQ(stack.metrics_id({}), 0);
  for (int i = 1; i <= 255; ++i) EXPECT_EQ(stack.metrics_id({.initial_window = static_cast<uint32_t>(i)}), i);
  EXPECT_EQ(stack.metrics_id({.initial_window = 256}), std::nullopt);
  EXPECT_EQ(stack.metrics_id({.initial_window = 7}), 7);
}

TEST_F(ChangedRoute, BringsAShorterTimeout) {
  RouteEntry row = route();
  row.metrics = *sim[0].stack->metrics_id({.min_rto = 20ms});
  EXPECT_EQ(follow({row}), Followed::kStays);
  send("x");  // a round trip's sample
  EXPECT_LT(sim[0].stack->tcp().info(*p.a, sim.now).rto_us, 200'000u);
  EXPECT_EQ(follow({route()}), Followed::kStays);
  send("x");
  EXPECT_GE(sim[0].stack->tcp().info(*p.a, sim.now).rto_us, 200'000u);
}

TEST_F(ChangedRoute, StaysWithItsNextHopAmongSeveral) {
  EXPECT_EQ(follow({route(sim[2].v4()), route()}), Followed::kStays);
  send("x");
  EXPECT_EQ(by_two, 0);
  EXPECT_EQ(*read(sim[1], p.b), "x");
}

TEST_F(ChangedRoute, HasAnotherMtu) {
  send(std::string(8000, 'x'));
  EXPECT_EQ(longest, 1514u);
  RouteEntry row = route();
  row.mtu = 1000;
  EXPECT_EQ(follow({row}), Followed::kStays);
  longest = 0;
  send(std::string(8000, 'x'));
  EXPECT_EQ(longest, 1014u);
}

TEST_F(ChangedRoute, IsGoneForAWhile) {
  RouteEntry blackhole = route();
  blackhole.kind = RouteKind::kUnreachable;
  for (const auto& rows : {std::vector<RouteEntry>{}, std::vector{blackhole}}) {
    const uint64_t dropped = sim[0].counter(Counter::drop_no_way_back);
    EXPECT_EQ(follow(rows), Followed::kStays);
    send("x");
    EXPECT_GT(sim[0].counter(Counter::drop_no_way_back), dropped);
    EXPECT_TRUE(read(sim[1], p.b).is(EAGAIN));
    EXPECT_EQ(follow({route()}), Followed::kStays);
    sim.run_for(10s);
    EXPECT_EQ(*read(sim[1], p.b), "x");
  }
}

TEST_F(ChangedRoute, LeadsElsewhere) {
  RouteEntry other = route(), tunnel = route();
  other.interface = kAnyInterface;
  tunnel.kind = RouteKind::kOther;
  EXPECT_EQ(follow({other}), Followed::kLeaves);
  EXPECT_EQ(follow({tunnel}), Followed::kLeaves);
}

TEST_F(ChangedRoute, IsAskedForWithPolicyRouting) {
  EXPECT_EQ(follow({}, true), Followed::kQuestion);
  sim[0].stack->learn_route({sim[1].v4(), sim[0].v4()}, route(sim[2].v4()));
  EXPECT_EQ(sim[0].stack->tcp().follow_route(*p.a), Followed::kStays);
  send("x");
  EXPECT_GT(by_two, 0);
}

}  // namespace
}  // namespace accel::sim
