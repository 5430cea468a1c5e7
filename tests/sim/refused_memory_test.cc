// Every allocation of the stack's that may be refused (the nothrow forms of operator new) is refused: one
// alone, and all from one on for a while. After one alone both streams arrive whole, or connect() or listen()
// said so; after more a connection may end by an error. Nothing is wrong, and nothing is left behind.
#include <gtest/gtest.h>

#include <array>
#include <new>
#include <utility>

#include "sim.h"
#include "stack/udp.h"

namespace {

/// Which of the nothrow allocations are refused, counted from 0.
struct Refusal {
  uint64_t seen = 0, from = ~0ull, count = 0;
  bool next() {
    const uint64_t number = seen++;
    return number >= from && number - from < count;
  }
};
Refusal refusal;

void* unless_refused(size_t size, std::align_val_t alignment) noexcept {
  if (refusal.next()) return nullptr;
  try {
    return static_cast<size_t>(alignment) <= __STDCPP_DEFAULT_NEW_ALIGNMENT__
               ? ::operator new(size)
               : ::operator new(size, alignment);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

}  // namespace

void* operator new(size_t size, const std::nothrow_t&) noexcept {
  return unless_refused(size, std::align_val_t{1});
}
void* operator new[](size_t size, const std::nothrow_t&) noexcept {
  return unless_refused(size, std::align_val_t{1});
}
void* operator new(size_t size, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return unless_refused(size, alignment);
}

namespace accel::sim {
namespace {

constexpr uint64_t kForLong = 400;
constexpr uint64_t kBytes = 40000;

/// A connection over a link with faults, and datagrams beside it.
class World {
 public:
  World() : sim_(7) {
    sim_.links([](Link& l) {
      l.delay = 2ms;
      l.loss = 0.03;
      l.reorder = 0.1;
    });
  }
  /// Runs with the refusal as set, then without one. True: connect() and listen() had their memory.
  bool run(Refusal refused) {
    refusal = refused;
    const bool begun = begin();
    sim_.run_until([this] { return ended(); }, 60s);
    seen_ = refusal.seen;
    refusal = {};
    if (begun) {
      EXPECT_TRUE(sim_.run_until([this] { return ended(); }, 3600s));
    }
    EXPECT_FALSE(client_.wrong || server_.wrong);
    return begun;
  }
  uint64_t seen() const { return seen_; }
  bool whole() const {
    return client_.finished() && server_.finished() && client_.read == kBytes && server_.read == kBytes &&
           client_.error == 0 && server_.error == 0;
  }
  void expect_nothing_left() {
    client_.abandon();
    server_.abandon();
    acceptor_.reset();
    for (int i : {0, 1})
      if (udp_[i] != nullptr) host(i).stack->udp().close(std::exchange(udp_[i], nullptr));
    sim_.run_for(400s);  // TIME-WAIT, and what an aborted connection's peer waits for
    for (auto& h : sim_.hosts) {
      EXPECT_EQ(h->pool.available(), h->pool.size());
      EXPECT_TRUE(h->steered.empty());
      EXPECT_EQ(h->stack->tcp().lingering(), 0u);
      EXPECT_EQ(h->stack->next_deadline(), kNever);
    }
  }

 private:
  Host& host(int i) { return sim_[i]; }

  bool begin() {
    acceptor_ = std::make_unique<Acceptor>(host(1), Endpoint{host(1).v4(), 80});
    if (acceptor_->listener == nullptr) return false;
    acceptor_->accepted = [this](TcpConn* c) { server_.attach(c); };
    auto conn =
        host(0).stack->tcp().connect({host(0).v4(), 4000}, {host(1).v4(), 80}, host(0).route_to(host(1)), {},
                                     static_cast<Actor*>(&client_), sim_.now);
    if (!conn) {
      EXPECT_TRUE(conn.is(ENOMEM) || conn.is(ENOBUFS)) << static_cast<int>(conn.error());
      return false;
    }
    client_.attach(*conn);
    for (int i : {0, 1}) {
      auto pcb =
          host(i).stack->udp().open({host(i).v4(), 7000}, {}, false, static_cast<Actor*>(&datagram_owner_));
      if (pcb) udp_[i] = *pcb;
      EXPECT_TRUE(pcb || pcb.is(ENOMEM));
    }
    if (udp_[0] != nullptr && udp_[1] != nullptr) send_datagram(0);
    return true;
  }
  /// One every 3 ms, which is read only when ten of them may be there.
  void send_datagram(size_t number) {
    if (number == 40 || udp_[0] == nullptr) return;
    std::array<uint8_t, 1200> text;
    text.fill(static_cast<uint8_t>(number));
    const iovec out{text.data(), text.size()};
    (void)host(0).stack->udp().send(*udp_[0], {&out, 1}, {host(0).v4(), 7000}, {host(1).v4(), 7000},
                                    host(0).route_to(host(1)), {0, 64, kAutoFlowLabel}, sim_.now);
    while (number % 10 == 9 && host(1).stack->udp().front(*udp_[1]) != nullptr) {
      const iovec in{text.data(), text.size()};
      EXPECT_EQ(host(1).stack->udp().receive(*udp_[1], {&in, 1}, true), text.size());
      EXPECT_EQ(text.front(), text.back());
    }
    sim_.after(3ms, [this, number] { send_datagram(number + 1); });
  }
  bool ended() const {
    return (client_.finished() || client_.error != 0) && (server_.finished() || server_.error != 0);
  }

  Sim sim_;
  std::unique_ptr<Acceptor> acceptor_;
  End client_{sim_[0], 1, 2, kBytes}, server_{sim_[1], 2, 1, kBytes};
  Recorder datagram_owner_;
  UdpPcb* udp_[2] = {};
  uint64_t seen_ = 0;
};

uint64_t allocations_of_a_run() {
  World w;
  EXPECT_TRUE(w.run({}) && w.whole());
  w.expect_nothing_left();
  return w.seen();
}

TEST(RefusedMemory, OneAllocationAlone) {
  uint64_t most = allocations_of_a_run();
  EXPECT_GT(most, 30u);
  for (uint64_t n = 0; n < most; ++n) {
    SCOPED_TRACE(n);
    World w;
    const bool begun = w.run({.from = n, .count = 1});
    most = std::max(most, w.seen());
    if (begun) {
      EXPECT_TRUE(w.whole());
    }
    w.expect_nothing_left();
    if (HasFailure()) break;
  }
}

TEST(RefusedMemory, AllForAWhile) {
  const uint64_t most = std::min(allocations_of_a_run(), 2 * kForLong);
  for (uint64_t n = 0; n < most; ++n) {
    SCOPED_TRACE(n);
    World w;
    w.run({.from = n, .count = kForLong});
    w.expect_nothing_left();
    if (HasFailure()) break;
  }
}

/// A write has found no memory, with nothing in flight.
struct RefusedWrite : testing::Test {
  RefusedWrite() {
    refusal = {.seen = 0, .from = 0, .count = 1};
    EXPECT_TRUE(write(host, p.a, "refused").is(EAGAIN));
    refusal = {};
    EXPECT_FALSE(host.stack->tcp().readiness(*p.a) & kWritable);
  }
  TracedPair w{1};
  Pair p = w.open();
  Host& host = w.sim[0];
};

TEST_F(RefusedWrite, IsToldToTryAgain) {
  w.pairs->recorder(p.a).edges = 0;
  w.sim.run_for(10ms);
  EXPECT_TRUE(w.pairs->recorder(p.a).edges & kWritable);
  EXPECT_TRUE(host.stack->tcp().readiness(*p.a) & kWritable);
}

TEST_F(RefusedWrite, MayTryAgainAtOnce) {
  EXPECT_EQ(*write(host, p.a, "again"), 5u);
  EXPECT_TRUE(host.stack->tcp().readiness(*p.a) & kWritable);
  w.sim.run_for(1s);
  EXPECT_EQ(*read(w.sim[1], p.b), "again");
}

TEST_F(RefusedWrite, IsToldWhateverOptionsAreSetMeanwhile) {
  host.stack->tcp().settings_changed(*p.a, w.sim.now);
  w.pairs->recorder(p.a).edges = 0;
  w.sim.run_for(10ms);
  EXPECT_TRUE(w.pairs->recorder(p.a).edges & kWritable);
}

}  // namespace
}  // namespace accel::sim
