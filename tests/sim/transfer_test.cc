// Two streams of known bytes, one each way, over links with every fault at once: they arrive whole, in order,
// ended by FIN, and nothing is left behind. Each seed is another world.
#include <gtest/gtest.h>

#include "seeds.h"
#include "sim.h"

namespace accel::sim {
namespace {

template <class T>
T pick(Rng& rng, std::initializer_list<T> of) {
  return of.begin()[rng.below(of.size())];
}

HostOptions random_host(Rng& rng) {
  HostOptions o;
  o.mtu = pick<uint32_t>(rng, {1500, 1500, 1500, 9000, 1280, 4000});
  o.buffer_size = pick<uint32_t>(rng, {2048, 4096});
  o.frames = pick<uint32_t>(rng, {4096, 4096, 512, 128});
  o.tx_checksum = rng.chance(0.3);
  o.tso = o.tx_checksum && rng.chance(0.5);
  if (rng.chance(0.1)) o.vlan = 5;
  o.knows_neighbours = true;
  o.config.ecn_ask = rng.chance(0.3);
  o.config.receive_buffer = pick<uint32_t>(rng, {8192, 65536, 262144, 1048576});
  o.config.send_buffer = pick<uint32_t>(rng, {8192, 65536, 262144, 1048576});
  return o;
}

Link random_link(Rng& rng) {
  Link l;
  l.delay = Duration(rng.below(rng.chance(0.2) ? 100'000'000 : 5'000'000));
  l.bits_per_second = pick<uint64_t>(rng, {0, 0, 10'000'000, 100'000'000, 1'000'000'000});
  l.queue_frames = pick<uint32_t>(rng, {10, 100, 1000});
  if (rng.chance(0.5)) l.loss = static_cast<double>(rng.below(80)) / 1000;
  if (rng.chance(0.5)) l.reorder = static_cast<double>(rng.below(200)) / 1000;
  if (rng.chance(0.3)) l.duplicate = static_cast<double>(rng.below(100)) / 1000;
  if (rng.chance(0.3)) l.corrupt = static_cast<double>(rng.below(30)) / 1000;
  if (rng.chance(0.3)) l.mark = static_cast<double>(rng.below(200)) / 1000;
  l.reorder_by = Duration(rng.below(20'000'000) + 1);
  l.vouch = l.corrupt == 0 && rng.chance(0.3);
  return l;
}

TcpSettings random_settings(Rng& rng) {
  TcpSettings s;
  s.nodelay = rng.chance(0.3);
  s.quickack = rng.chance(0.1);
  s.congestion = Congestion(rng.below(3));
  if (rng.chance(0.1)) s.max_pacing_rate = pick<uint64_t>(rng, {50'000, 500'000, 5'000'000});
  s.keepalive = rng.chance(0.1);
  if (rng.chance(0.1)) s.max_segment = 300;
  return s;
}

void randomise(Rng& rng, End& e) {
  e.write_chunk = pick<size_t>(rng, {1, 100, 1448, 10000, 65536});
  e.read_chunk = pick<size_t>(rng, {100, 1448, 10000, 65536});
  if (e.write_chunk == 1) e.to_write = std::min<uint64_t>(e.to_write, 5000);
  if (rng.chance(0.2)) e.read_pause = Duration(rng.below(5'000'000));
}

/// A world with a connection being opened.
struct World {
  explicit World(uint64_t seed) : rng(seed * 77), sim(seed, 2, random_host(rng)) {
    sim[0].link = random_link(rng);
    sim[1].link = random_link(rng);
    v6 = rng.chance(0.4);
    const uint64_t most = rng.chance(0.05) ? 4'000'000 : 200'000;
    // Many bytes through a thin, lossy, long pipe are hours of virtual time; the machine's time is what
    // counts.
    client = std::make_unique<End>(sim[0], seed, seed + 1000, rng.below(most));
    server = std::make_unique<End>(sim[1], seed + 1000, seed, rng.chance(0.3) ? 0 : rng.below(most));
    randomise(rng, *client);
    randomise(rng, *server);
    acceptor = std::make_unique<Acceptor>(sim[1], Endpoint{v6 ? sim[1].v6() : sim[1].v4(), 80}, 16,
                                          random_settings(rng));
    acceptor->accepted = [this](TcpConn* c) { server->attach(c); };
    auto c = sim[0].stack->tcp().connect({v6 ? sim[0].v6() : sim[0].v4(), 4000},
                                         {v6 ? sim[1].v6() : sim[1].v4(), 80}, sim[0].route_to(sim[1], v6),
                                         random_settings(rng), static_cast<Actor*>(client.get()), sim.now);
    if (c) client->attach(*c);
  }
  void expect_nothing_left() {
    acceptor.reset();
    sim.run_for(200s);  // TIME-WAIT
    for (auto& h : sim.hosts) {
      EXPECT_EQ(h->pool.available(), h->pool.size());
      EXPECT_TRUE(h->steered.empty());
      EXPECT_EQ(h->stack->tcp().lingering(), 0u);
      int left = 0;
      h->stack->tcp().for_each([](TcpConn&, void* n) { ++*static_cast<int*>(n); }, &left);
      EXPECT_EQ(left, 0);
      EXPECT_EQ(h->stack->next_deadline(), kNever);
    }
  }

  Rng rng;
  Sim sim;
  bool v6;
  std::unique_ptr<End> client, server;
  std::unique_ptr<Acceptor> acceptor;
};

TEST(Transfer, ArrivesWholeUnderEveryFault) {
  for (uint64_t seed = first_seed(); seed < first_seed() + seeds(2000); ++seed) {
    SCOPED_TRACE("ACCEL_SIM_SEEDS=1 ACCEL_SIM_FIRST=" + std::to_string(seed));
    World w(seed);
    ASSERT_TRUE(w.sim.run_until([&] { return w.client->finished() && w.server->finished(); }, 7200s))
        << "client wrote " << w.client->written << " read " << w.client->read << ", server wrote "
        << w.server->written << " read " << w.server->read << " of " << w.client->to_write << ", "
        << w.server->to_write;
    EXPECT_EQ(w.client->error, 0);
    EXPECT_EQ(w.server->error, 0);
    EXPECT_FALSE(w.client->wrong);
    EXPECT_FALSE(w.server->wrong);
    EXPECT_EQ(w.client->read, w.server->to_write);
    EXPECT_EQ(w.server->read, w.client->to_write);
    w.expect_nothing_left();
    if (HasFailure()) break;
  }
}

TEST(Transfer, AnAbruptEndLeavesNothing) {
  for (uint64_t seed = first_seed(); seed < first_seed() + seeds(1000); ++seed) {
    SCOPED_TRACE("ACCEL_SIM_SEEDS=1 ACCEL_SIM_FIRST=" + std::to_string(seed));
    World w(seed + 1'000'000);
    End& victim = w.rng.chance(0.5) ? *w.client : *w.server;
    const bool abort = w.rng.chance(0.5);
    w.sim.after(Duration(w.rng.below(300'000'000)), [&] {
      if (victim.conn) victim.host.stack->tcp().close(std::exchange(victim.conn, nullptr), abort, w.sim.now);
      victim.opened = true;
    });
    // An aborted handshake may leave the other side without a connection; a lost RST, with one that ends by
    // its own send or by the reset that answers it. A side that only reads has nothing to find out by: it is
    // closed at the end.
    w.sim.run_until([&] { return w.client->finished() && w.server->finished(); }, 2000s);
    EXPECT_FALSE(w.client->wrong);
    EXPECT_FALSE(w.server->wrong);
    w.client->abandon();
    w.server->abandon();
    w.sim.run_for(2000s);
    w.expect_nothing_left();
    if (HasFailure()) break;
  }
}

}  // namespace
}  // namespace accel::sim
