// A deterministic world for stacks: virtual time, hosts on a switch, links that delay, lose, reorder,
// duplicate and corrupt. A seed reproduces a run to the last bit.
#pragma once

#include <sys/socket.h>

#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <string>
#include <vector>

#include "stack/stack.h"
#include "stack/tcp/conn.h"
#include "stack/tcp/segment.h"
#include "stack/udp.h"

namespace accel::sim {

/// splitmix64: the same on every library.
class Rng {
 public:
  explicit Rng(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15ULL;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ z >> 27) * 0x94d049bb133111ebULL;
    return z ^ z >> 31;
  }
  uint64_t below(uint64_t n) { return n ? next() % n : 0; }
  bool chance(double p) { return p > 0 && static_cast<double>(next() >> 11) * 0x1p-53 < p; }

 private:
  uint64_t state_;
};

/// What happens to frames that a host sends.
struct Link {
  Duration delay = 5ms;
  uint64_t bits_per_second = 0;  ///< 0: no limit
  /// Behind the rate, in bytes: room for so many frames of 1500 bytes; beyond it the tail drops.
  uint32_t queue_frames = 1000;
  /// Behind the rate, in bytes: room for so many frames waiting, ECN-capable packets get CE beyond it; 0:
  /// none do.
  uint32_t mark_frames = 0;
  double mark = 0;  ///< ECN-capable packets get CE
  double loss = 0, duplicate = 0, corrupt = 0, reorder = 0;
  Duration reorder_by = 3ms;  ///< at most, extra delay of a reordered frame
  uint32_t mtu = 65535;       ///< IP packets beyond it do not pass ...
  bool icmp = true;           ///< ... and their sender is told
  bool cut = false;           ///< nothing passes
  bool vouch = false;         ///< frames arrive with Packet::checksum_good, as from a NIC that verifies
};

/// A TCP segment as it left a host.
struct Sent {
  Instant at;
  int host;
  uint8_t flags;
  uint32_t seq, ack, window, payload;
  uint8_t ecn;  ///< as it left
  bool dropped;
  bool marked = false;  ///< on its way
};

/// Who owns a socket in the simulation: told of edges as the layer above would be, and of nothing else.
struct Actor {
  virtual ~Actor() = default;
  virtual void on_ready(uint32_t edges) = 0;
};

struct HostOptions {
  uint32_t mtu = 1500;
  uint32_t frames = 4096;
  uint32_t buffer_size = 2048;
  bool tx_checksum = false;
  bool tso = false;
  uint32_t tso_max = kTsoPayload;
  std::optional<uint16_t> vlan;
  bool knows_neighbours = true;
  StackConfig config{};
};

class Sim;

class Host {
 public:
  Host(Sim& sim, int number, const HostOptions& options);

  IpAddress v4() const { return IpAddress::v4(0x0a000001u + static_cast<uint32_t>(number)); }
  IpAddress v6() const;
  MacAddress mac() const { return {2, 0, 0, 0, 0, static_cast<uint8_t>(number + 1)}; }
  Route route_to(const Host& other, bool v6 = false) const;
  uint64_t counter(Counter c) const { return counters.get(c); }

  Sim& sim;
  const int number;
  const HostOptions options;
  Counters counters;
  std::vector<uint8_t> memory;
  FramePool pool;
  std::unique_ptr<Stack> stack;
  int cpu = -1;                                 ///< that brings frames to its stack
  Link link;                                    ///< of what it sends
  Instant link_free{};                          ///< when the last queued frame has left
  uint64_t lost_frames = 0;                     ///< that its link has dropped, for whatever reason
  uint64_t marked_frames = 0;                   ///< that its link gave CE
  uint64_t cut_frames = 0;                      ///< frames that its device cut into segments
  std::map<FlowKey, int> steered;               ///< how often, from flow_changes()
  std::vector<std::vector<uint8_t>> to_kernel;  ///< from frames_for_kernel(): whole IP packets
};

class Sim {
 public:
  explicit Sim(uint64_t seed = 1, int host_count = 2, HostOptions options = {});
  ~Sim();

  Host& operator[](int i) { return *hosts[static_cast<size_t>(i)]; }
  /// Both directions of a two-host world (all links).
  void links(const std::function<void(Link&)>& change);
  /// Runs until `done` says so, or `limit` of virtual time has passed. Returns whether done.
  bool run_until(const std::function<bool()>& done, Duration limit = 600s);
  void run_for(Duration d) {
    run_until([] { return false; }, d);
  }
  /// Calls `what` at a later time.
  void after(Duration d, std::function<void()> what);
  /// Puts a frame on the wire to a host as it is, at once.
  void inject(int to, std::vector<uint8_t> frame);
  /// What a host's kernel says to the first IPv4 SYN that it was given, where nobody listens (RFC 9293
  /// section 3.10.7.1): SEQ=0, ACK=SEG.SEQ+1.
  void refuse(int at, int to);
  /// One pass of every host at the present time; sends what became possible. Called by tests after socket
  /// calls.
  void settle();

  /// Times, since the trace was cleared, at which a host sent segments with payload.
  std::vector<Duration> data_times(int host) const;
  std::vector<Sent> sent_by(int host) const;
  void clear_trace() {
    trace.clear();
    trace_start = now;
  }

  Rng rng;
  Instant now = Instant{} + 1000s;
  std::vector<std::unique_ptr<Host>> hosts;
  std::vector<Sent> trace;
  bool tracing = false;
  Instant trace_start{};
  /// Sees each frame before the link's faults; false drops it.
  std::function<bool(int host, std::span<const uint8_t> frame)> filter;

 private:
  struct Event {
    Instant at;
    uint64_t order;
    int to;  ///< -1: call `what`
    std::vector<uint8_t> frame;
    bool vouched = false;
    std::function<void()> what;
    bool operator<(const Event& o) const { return at != o.at ? at > o.at : order > o.order; }
  };
  void pass(Host& host);
  void drain(Host& host);
  void to_wire(Host& host, std::vector<uint8_t> frame);
  void deliver(Host& host, const Event& event);
  void too_big(Host& sender, const std::vector<uint8_t>& frame, uint32_t mtu);
  void push(Event event);

  std::priority_queue<Event> events_;
  uint64_t order_ = 0;
};

/// Whether a frame's IPv4 and transport checksums are right, by luck or not.
bool sums_hold(std::span<const uint8_t> frame);

/// Byte `i` of the stream that a seed names.
uint8_t stream_byte(uint64_t seed, uint64_t i);

/// One end of a TCP conversation: writes a known stream in random pieces, checks what it reads against
/// another.
struct End : Actor {
  End(Host& host_in, uint64_t out_seed, uint64_t in_seed, uint64_t bytes)
      : host(host_in), out(out_seed), in(in_seed), to_write(bytes) {}
  ~End() override { abandon(); }
  /// Resets what is open.
  void abandon();
  void on_ready(uint32_t edges) override;
  void attach(TcpConn* c);
  void write_some();
  void read_some();
  /// Both streams have ended and the socket is closed.
  bool finished() const { return !conn && opened; }

  Host& host;
  TcpConn* conn = nullptr;
  uint64_t out, in;
  uint64_t to_write;  ///< then shutdown(SHUT_WR)
  uint64_t written = 0, read = 0;
  size_t write_chunk = 65536, read_chunk = 65536;  ///< at most, random below
  Duration read_pause{0};                          ///< sleeps so long between reads
  bool shut_after_write = true;
  bool close_when_done = true;
  bool opened = false, shut = false, end_seen = false, wrong = false, paused = false;
  int error = 0;
};

/// Accepts onto Ends that `make` gives.
struct Acceptor : Actor {
  Acceptor(Host& host_in, const Endpoint& local, uint32_t backlog = 128, TcpSettings settings = {},
           bool v6_only = false);
  ~Acceptor() override;
  void on_ready(uint32_t edges) override;
  Host& host;
  TcpListener* listener = nullptr;
  std::function<void(TcpConn*)> accepted;
};

/// A connected pair without Ends: what most tests of details start with. Both conns have a Recorder as owner.
struct Recorder : Actor {
  void on_ready(uint32_t e) override { edges |= e; }
  uint32_t edges = 0;
};
struct Pair {
  TcpConn* a = nullptr;  ///< on host 0, active
  TcpConn* b = nullptr;  ///< on host 1, passive
};
struct PairOptions {
  bool v6 = false;
  TcpSettings a{}, b{};
  uint16_t port_a = 40000, port_b = 80;
};

/// Keeps listener and recorders alive for the pairs it makes.
class Pairs {
 public:
  explicit Pairs(Sim& sim, PairOptions options = {});
  Pair connect();
  Sim& sim;
  PairOptions options;
  Acceptor acceptor;
  std::vector<std::unique_ptr<Recorder>> recorders;
  Recorder& recorder(TcpConn* c);

 private:
  std::vector<TcpConn*> accepted_;
  uint16_t next_port_;
};

/// A simulation whose trace begins when a pair is connected and at rest.
struct TracedPair {
  explicit TracedPair(uint64_t seed, const HostOptions& options = {}) : sim(seed, 2, options) {
    sim.tracing = true;
  }
  Pair open(const PairOptions& options = {}) {
    pairs = std::make_unique<Pairs>(sim, options);
    const Pair p = pairs->connect();
    sim.run_for(1s);
    sim.clear_trace();
    return p;
  }
  Sim sim;
  std::unique_ptr<Pairs> pairs;
};

/// Sends and receives of strings, at the simulation's time.
Result<size_t> write(Host& host, TcpConn* conn, std::string_view text, TcpWrite how = {});
Result<std::string> read(Host& host, TcpConn* conn, size_t at_most = 1 << 20);

/// The TCP header of an IPv4 packet without options.
TcpHeader tcp_of(std::span<const uint8_t> packet);

}  // namespace accel::sim
