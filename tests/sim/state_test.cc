// Hand-back and adoption in the middle of things, bounds of memory, hostile frames.
#include <gtest/gtest.h>

#include "seeds.h"
#include "sim.h"
#include "stack/udp.h"

namespace accel::sim {
namespace {

TEST(Snapshot, ACutOverInTheMiddleIsNotNoticed) {
  for (uint64_t seed = first_seed(); seed < first_seed() + seeds(200); ++seed) {
    SCOPED_TRACE(seed);
    Sim sim(seed);
    sim.links([&](Link& l) { l.loss = seed % 3 ? 0.02 : 0; });
    End client(sim[0], 1, 2, 400000), server(sim[1], 2, 1, 300000);
    server.read_chunk = 5000;
    server.read_pause = 1ms;
    Acceptor acceptor(sim[1], {sim[1].v4(), 80});
    acceptor.accepted = [&](TcpConn* c) { server.attach(c); };
    client.attach(*sim[0].stack->tcp().connect({sim[0].v4(), 4000}, {sim[1].v4(), 80},
                                               sim[0].route_to(sim[1]), {}, static_cast<Actor*>(&client),
                                               sim.now));
    const uint64_t at = sim.rng.below(400000);
    sim.run_until([&] { return server.opened && (server.read >= at || !server.conn); }, 600s);
    if (server.conn) {
      const TcpSettings settings = sim[1].stack->tcp().settings(*server.conn);
      auto state = sim[1].stack->tcp().snapshot(*server.conn, sim.now);
      if (state.is(ENOTCONN)) continue;  // closed both ways by then
      ASSERT_TRUE(state);
      sim[1].stack->tcp().forget(server.conn);
      sim.settle();
      EXPECT_TRUE(sim[1].steered.empty());
      auto adopted = sim[1].stack->tcp().adopt(*state, sim[1].route_to(sim[0]), settings,
                                               static_cast<Actor*>(&server), sim.now);
      ASSERT_TRUE(adopted);
      server.attach(*adopted);
    }
    ASSERT_TRUE(sim.run_until([&] { return client.finished() && server.finished(); }, 600s));
    EXPECT_FALSE(client.wrong || server.wrong);
    EXPECT_EQ(client.error, 0);
    EXPECT_EQ(server.error, 0);
    EXPECT_EQ(server.read, 400000u);
    EXPECT_EQ(client.read, 300000u);
    if (HasFailure()) break;
  }
}

TEST(Snapshot, AnAdoptedConnectionOutlivesALossOfEverything) {
  Sim sim;
  Pairs pairs(sim);
  Pair p = pairs.connect();
  sim[0].link.cut = true;
  ASSERT_TRUE(write(sim[0], p.a, "in flight"));
  sim.settle();
  void* owner = p.a->owner;
  auto state = sim[0].stack->tcp().snapshot(*p.a, sim.now);
  ASSERT_TRUE(state);
  sim[0].stack->tcp().forget(p.a);
  auto adopted = sim[0].stack->tcp().adopt(*state, sim[0].route_to(sim[1]), {}, owner, sim.now);
  ASSERT_TRUE(adopted);
  sim.run_for(20s);  // several timeouts
  EXPECT_EQ(sim[0].stack->tcp().peek_error(**adopted), 0);
  sim[0].link.cut = false;
  sim.run_for(60s);
  EXPECT_EQ(*read(sim[1], p.b), "in flight");
  EXPECT_TRUE(sim[0].stack->tcp().all_acked(**adopted));
}

TEST(Snapshot, NotBeforeTheHandshake) {
  Sim sim;
  sim.links([](Link& l) { l.cut = true; });
  Recorder owner;
  TcpConn* c = *sim[0].stack->tcp().connect({sim[0].v4(), 4000}, {sim[1].v4(), 80}, sim[0].route_to(sim[1]),
                                            {}, static_cast<Actor*>(&owner), sim.now);
  EXPECT_TRUE(sim[0].stack->tcp().snapshot(*c, sim.now).is(ENOTCONN));
  sim[0].stack->tcp().close(c, true, sim.now);
}

TEST(Memory, ASlowReaderHoldsABoundedQueue) {
  HostOptions options;
  options.config.receive_buffer = 100000;
  options.config.send_buffer = 100000;
  Sim sim(1, 2, options);
  Pairs pairs(sim);
  Pair p = pairs.connect();
  size_t sent = 0;
  for (int i = 0; i < 600; ++i) {
    if (auto r = write(sim[0], p.a, std::string(100000, 'x'))) sent += *r;
    sim.run_for(100ms);
  }
  EXPECT_LE(sim[1].stack->tcp().readable_bytes(*p.b), 200000u);
  EXPECT_LE(sent, 400000u);
  EXPECT_GT(sim[1].pool.available(), sim[1].pool.size() / 4);
  size_t got = 0;
  EXPECT_TRUE(sim.run_until(
      [&] {
        if (auto r = read(sim[1], p.b)) got += r->size();
        return got == sent;
      },
      60s));
}

TEST(Memory, TinySegmentsDoNotEatThePool) {
  HostOptions options;
  options.frames = 512;
  Sim sim(1, 2, options);
  PairOptions pair_options;
  pair_options.a.nodelay = true;
  Pairs pairs(sim, pair_options);
  Pair hog = pairs.connect(), other = pairs.connect();
  ASSERT_TRUE(hog.b && other.b);
  for (int i = 0; i < 5000; ++i) {
    (void)write(sim[0], hog.a, "x");
    if (i % 10 == 0) sim.run_for(1ms);
    sim.settle();
  }
  sim.run_for(2s);
  EXPECT_GT(sim[1].pool.available(), 100u);
  ASSERT_TRUE(write(sim[0], other.a, "still here"));
  sim.run_for(1s);
  EXPECT_EQ(*read(sim[1], other.b), "still here");
  EXPECT_EQ(sim[1].stack->tcp().readable_bytes(*hog.b), 5000u);
}

TEST(Memory, HolesDoNotEatThePool) {
  HostOptions options;
  options.frames = 512;
  Sim sim(1, 2, options);
  Pairs pairs(sim);
  Pair p = pairs.connect(), other = pairs.connect();
  sim.filter = [&, n = 0](int host, std::span<const uint8_t> f) mutable {
    return host != 0 || f.size() < 1000 || ++n % 2 == 0;
  };
  (void)write(sim[0], p.a, std::string(1000000, 'x'));
  sim.run_for(3s);
  EXPECT_GT(sim[1].pool.available(), 64u);
  sim.filter = nullptr;
  ASSERT_TRUE(write(sim[0], other.a, "still here"));
  sim.run_for(2s);
  EXPECT_EQ(*read(sim[1], other.b), "still here");
}

TEST(Hostile, MutatedFramesNeverHurt) {
  for (uint64_t seed = first_seed(); seed < first_seed() + seeds(300); ++seed) {
    SCOPED_TRACE(seed);
    HostOptions options;
    options.frames = 1024;
    Sim sim(seed, 2, options);
    Rng rng(seed * 31);
    std::vector<std::vector<uint8_t>> seen;
    sim.filter = [&](int host, std::span<const uint8_t> f) {
      if (host == 0 && seen.size() < 200) seen.emplace_back(f.begin(), f.end());
      if (host == 0 && rng.chance(0.5)) {
        std::vector<uint8_t> bad(f.begin(), f.end());
        for (uint64_t n = rng.below(6) + 1; n > 0; --n)
          bad[14 + rng.below(bad.size() - 14)] = static_cast<uint8_t>(rng.next());
        if (rng.chance(0.2)) bad.resize(rng.below(bad.size()) + 1);
        if (!sums_hold(bad)) sim.inject(1, bad);  // TCP cannot know better than its checksum
      }
      return true;
    };
    sim[0].link.vouch = false;
    End client(sim[0], 1, 2, 50000), server(sim[1], 2, 1, 50000);
    Acceptor acceptor(sim[1], {sim[1].v4(), 80});
    acceptor.accepted = [&](TcpConn* c) {
      if (!server.opened)
        server.attach(c);
      else
        sim[1].stack->tcp().close(c, true, sim.now);
    };
    auto udp = sim[1].stack->udp().open({IpAddress::any_v6(), 80}, {}, false, nullptr);
    client.attach(*sim[0].stack->tcp().connect({sim[0].v4(), 4000}, {sim[1].v4(), 80},
                                               sim[0].route_to(sim[1]), {}, static_cast<Actor*>(&client),
                                               sim.now));
    ASSERT_TRUE(sim.run_until([&] { return client.finished() && server.finished(); }, 600s));
    EXPECT_FALSE(client.wrong || server.wrong);
    EXPECT_EQ(client.error, 0);
    sim[1].stack->udp().close(*udp);
    if (HasFailure()) break;
  }
}

}  // namespace
}  // namespace accel::sim
