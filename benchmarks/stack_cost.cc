// What the protocol costs, without device, kernel or threads: two stacks on a link in memory that hands over
// the frames themselves. Every check is on (checksums too), time goes on by a microsecond a pass. The least
// of many rounds counts: what else the machine does only adds.   stack_cost [idle connections beside]
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "stack/stack.h"
#include "stack/udp.h"

namespace {

using namespace accel;

double now_ns() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) * 1e9 + static_cast<double>(t.tv_nsec);
}

struct Host {
  explicit Host(uint8_t number) : memory(4096 * 2048), pool(memory, 2048), stack(config(), pool, counters) {
    Interface i;
    i.mac = {2, 0, 0, 0, 0, number};
    stack.set_interface(0, i);
    address = IpAddress::v4(0x0a000000u + number);
  }
  static StackConfig config() {
    StackConfig c;
    c.secret = {1, 2};
    return c;
  }
  Route route(const Host& to) const {
    Route r;
    r.source = address;
    r.next_hop = to.address;
    return r;
  }
  Counters counters;
  std::vector<uint8_t> memory;
  FramePool pool;
  Stack stack;
  IpAddress address;
};

struct World {
  World() {
    a.stack.set_neighbour(0, b.address, MacAddress{2, 0, 0, 0, 0, 2});
    b.stack.set_neighbour(0, a.address, MacAddress{2, 0, 0, 0, 0, 1});
    RouteEntry r;
    r.prefix = IpAddress::v4(0x0a000000);
    r.prefix_length = 104;
    r.gateway = IpAddress::any_v4();
    a.stack.set_routes({r});
    b.stack.set_routes({r});
    listener = *b.stack.tcp().listen({b.address, 80}, false, false, 4096, {}, this);
  }

  /// One pass of a worker: builds, hands over, wakes.
  void pass(Host& from, Host& to) {
    from.stack.flush(now);
    PacketQueue& q = from.stack.tx_queue(0);
    Packet* burst[32];
    while (!q.empty()) {
      size_t n = 0;
      while (n < 32 && !q.empty()) burst[n++] = q.pop_front();
      to.stack.on_packets({burst, n}, 0, now);
    }
    while (StackSocket* s = to.stack.take_ready()) s->edges = 0;
    now += 1us;
    if (to.stack.next_deadline() <= now) to.stack.on_deadlines(now);
  }
  void settle() {
    for (int i = 0; i < 4; ++i) {
      pass(a, b);
      pass(b, a);
    }
    a.stack.flow_changes().clear();
    b.stack.flow_changes().clear();
  }
  struct Pair {
    TcpConn *a, *b;
  };
  Pair connect() {
    TcpSettings s;
    s.nodelay = true;
    Pair p{};
    p.a = *a.stack.tcp().connect({a.address, next_port}, {b.address, 80}, a.route(b), s, this, now);
    if (++next_port == 0) {
      next_port = 1024;
      a.address = IpAddress::v4(a.address.v4_host_order() + 256);
      b.stack.set_neighbour(0, a.address, MacAddress{2, 0, 0, 0, 0, 1});
    }
    settle();
    p.b = b.stack.tcp().accept(*listener);
    return p;
  }

  Host a{1}, b{2};
  Instant now = Instant{} + 1000s;
  TcpListener* listener = nullptr;
  uint16_t next_port = 1024;
  uint8_t data[65536] = {};
};

void must(bool held, const char* what) {
  if (held) return;
  fprintf(stderr, "stack_cost: %s\n", what);
  exit(1);
}

size_t receive(Host& h, TcpConn* c, World& w, size_t most) {
  const iovec v{w.data, most};
  auto r = h.stack.tcp().receive(*c, {&v, 1}, false, 0, w.now);
  return r ? *r : 0;
}

double request_response(World& w, World::Pair p, int times) {
  const iovec v{w.data, 64};
  const double start = now_ns();
  for (int i = 0; i < times; ++i) {
    must(w.a.stack.tcp().send(*p.a, {&v, 1}, {}, w.now).ok(), "send");
    w.pass(w.a, w.b);
    must(receive(w.b, p.b, w, 64) == 64, "request");
    must(w.b.stack.tcp().send(*p.b, {&v, 1}, {}, w.now).ok(), "send");
    w.pass(w.b, w.a);
    must(receive(w.a, p.a, w, 64) == 64, "response");
  }
  return (now_ns() - start) / times;
}

/// A full segment from send() to recv(), with its share of the ACKs.
double bulk(World& w, World::Pair p, int times) {
  constexpr size_t kBurst = 8, kSegment = 1448;
  const iovec v{w.data, kBurst * kSegment};
  const double start = now_ns();
  for (int i = 0; i < times; i += kBurst) {
    must(w.a.stack.tcp().send(*p.a, {&v, 1}, {}, w.now).ok(), "send");
    w.pass(w.a, w.b);
    must(receive(w.b, p.b, w, kBurst * kSegment) == kBurst * kSegment, "bulk");
    w.pass(w.b, w.a);
  }
  return (now_ns() - start) / times;
}

double udp_datagram(World& w, UdpPcb* from, UdpPcb* to, int times) {
  const iovec v{w.data, 64};
  const Route route = w.a.route(w.b);
  const double start = now_ns();
  for (int i = 0; i < times; ++i) {
    must(w.a.stack.udp()
             .send(*from, {&v, 1}, {w.a.address, 9}, {w.b.address, 9}, route, {0, 64, kAutoFlowLabel}, w.now)
             .ok(),
         "udp_send");
    w.pass(w.a, w.b);
    must(w.b.stack.udp().receive(*to, {&v, 1}, true) == 64, "udp_receive");
  }
  return (now_ns() - start) / times;
}

/// Handshake, accept, and a reset by the client.
double open_and_abort(World& w, int times) {
  const double start = now_ns();
  for (int i = 0; i < times; ++i) {
    World::Pair p = w.connect();
    must(p.b != nullptr, "accept");
    w.a.stack.tcp().close(p.a, true, w.now);
    w.b.stack.tcp().close(p.b, true, w.now);
    w.settle();
  }
  return (now_ns() - start) / times;
}

template <class F>
double least(int rounds, F round) {
  double best = 1e18;
  for (int i = 0; i < rounds; ++i) best = std::min(best, round());
  return best;
}

}  // namespace

int main(int count, char** arguments) {
  const int idle = count > 1 ? atoi(arguments[1]) : 10000;
  static World w;
  World::Pair p = w.connect();
  must(p.b != nullptr, "connect");
  UdpPcb* from = *w.a.stack.udp().open({w.a.address, 9}, {}, false, &w);
  UdpPcb* to = *w.b.stack.udp().open({w.b.address, 9}, {}, false, &w);

  request_response(w, p, 20000);  // past slow start
  bulk(w, p, 80000);
  const double rr = least(200, [&] { return request_response(w, p, 500); });
  const double segment = least(200, [&] { return bulk(w, p, 800); });
  const double datagram = least(200, [&] { return udp_datagram(w, from, to, 500); });
  const double open = least(50, [&] { return open_and_abort(w, 50); });

  const size_t before = mallinfo2().uordblks;
  for (int i = 0; i < idle; ++i) must(w.connect().b != nullptr, "connect");
  const double each = idle ? static_cast<double>(mallinfo2().uordblks - before) / idle / 2 : 0;
  const double rr_beside = least(100, [&] { return request_response(w, p, 500); });
  const double open_beside = least(50, [&] { return open_and_abort(w, 50); });

  printf(
      "{\"benchmark\": \"stack_cost\", \"request_response_64_ns\": %.0f, \"segment_1448_ns\": %.0f, "
      "\"udp_datagram_64_ns\": %.0f, \"open_accept_abort_ns\": %.0f, \"idle_connections\": %d, "
      "\"bytes_per_idle_connection\": %.0f, \"request_response_64_beside_idle_ns\": %.0f, "
      "\"open_accept_abort_beside_idle_ns\": %.0f}\n",
      rr, segment, datagram, open, idle, each, rr_beside, open_beside);
}
