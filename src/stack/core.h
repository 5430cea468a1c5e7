// What the parts of the stack share: interfaces, next hops, routes, the frames to send, the sockets that
// changed. StackCore is what stack/tcp and stack/udp see; nothing here knows them but by their names.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "stack/frame_pool.h"
#include "stack/ip_reassembly.h"
#include "stack/memory_account.h"
#include "stack/packet.h"
#include "stack/route_table.h"
#include "stack/tcp/segment.h"
#include "stack/types.h"

namespace accel {

class TcpLayer;  // stack/tcp/tcp.h
class UdpLayer;  // stack/udp.h

/// A neighbour on an interface: where frames go next. Owned by StackCore::hops; held by HopRef.
struct Hop {
  InterfaceId interface = 0;
  bool resolved = false;
  uint8_t times_asked = 0;  ///< by take_unresolved() since it was last known; at most kMostAsked
  bool waiting = false;     ///< listed in StackCore::waiting_hops
  IpAddress address;
  std::array<uint8_t, 12> ethernet{};  ///< destination and source MAC as transmit() writes them
  uint32_t users = 0;                  ///< HopRefs; at 0 the entry may be swept
  PacketQueue parked;                  ///< frames that wait for the neighbour; at most kMaxParked
  Instant asked{};                     ///< last given out by take_unresolved()
  static constexpr uint32_t kMaxParked = 64;
  static constexpr uint8_t kMostAsked =
      10;  ///< then nobody is there, even if the kernel's word of it was lost
};

/// Keeps a Hop in the table.
class HopRef {
 public:
  HopRef() = default;
  explicit HopRef(Hop* hop) : hop_(hop) {
    if (hop_) ++hop_->users;
  }
  HopRef(const HopRef& other) : HopRef(other.hop_) {}
  HopRef(HopRef&& other) noexcept : hop_(std::exchange(other.hop_, nullptr)) {}
  HopRef& operator=(HopRef other) noexcept {
    std::swap(hop_, other.hop_);
    return *this;
  }
  ~HopRef() {
    if (hop_) --hop_->users;
  }
  Hop* get() const { return hop_; }
  Hop& operator*() const { return *hop_; }
  Hop* operator->() const { return hop_; }
  explicit operator bool() const { return hop_ != nullptr; }

 private:
  Hop* hop_ = nullptr;
};

/// What a socket chooses of the IP header.
struct HeaderFields {
  uint8_t tos = 0;            ///< without the ECN bits, which are the segment's
  uint8_t ttl = 64;           ///< 0 means 64
  uint32_t flow_label = 0;    ///< as StackCore::flow_label() gave it
  bool dont_fragment = true;  ///< IPv4's DF
};

/// A hop and the path's MTU.
struct Way {
  Hop* hop = nullptr;  ///< nullptr: none of ours
  uint32_t mtu = 0;
  MetricsId metrics = 0;
  bool by_kernel = false;  ///< without a hop: the kernel has a way, by a device or means that are not ours
};

/// A packet between two addresses, which came in by an interface.
struct Passage {
  const IpAddress& source;
  const IpAddress& destination;
  InterfaceId interface;
};

struct StackCore {
  StackCore(const StackConfig& config_in, FramePool& pool_in, Counters& counters_in);
  ~StackCore();
  StackCore(const StackCore&) = delete;
  StackCore& operator=(const StackCore&) = delete;

  // ---- ways (neighbour.cc) ----
  /// The hop of a route; never nullptr, made when it is not there.
  Hop* hop(const Route& route);
  Way way(const Route& route) { return {hop(route), route.mtu, route.metrics}; }
  /// The way to answer a packet: by the routing table alone, whatever MAC address it came from. Of several
  /// next hops one of the interface that it came in by is preferred.
  Way way_back(const Passage& from);
  /// The way of what `hop` leads to already, while the table still has it; else as way_back().
  Way way_on(const Passage& from, const Hop& hop);
  /// The hop by which frames leave for nowhere: each is dropped.
  Hop* nowhere(InterfaceId id) { return find_or_make_hop(id, {}); }
  void set_routes(std::vector<RouteEntry> rows, bool ask);
  std::optional<MetricsId> metrics_id(const RouteMetrics& m);
  void set_neighbour(InterfaceId id, const IpAddress& address, std::optional<MacAddress> mac);
  std::vector<UnresolvedNeighbour> take_unresolved();
  void set_interface(InterfaceId id, const Interface& info);
  void remove_interface(InterfaceId id);

  // ---- sending (egress.cc) ----
  void make_template(const Hop& hop, const IpAddress& local, const IpAddress& remote, Protocol protocol,
                     const HeaderFields& fields, HeaderTemplate& out) const;
  /// What automatic labels come from, as Linux' sk_txhash and skb_get_hash_flowi6(). `turn`: another one for
  /// the same flow.
  uint32_t flow_hash(const Endpoint& local, const Endpoint& remote, uint32_t turn = 0) const {
    return static_cast<uint32_t>(hash_tuple(local, remote, flow_secret ^ turn) >> 32);
  }
  /// The label to send, as ip6_make_flowlabel() decides.
  uint32_t flow_label(uint32_t wanted, uint32_t flow_hash) const;
  /// IPV6_AUTOFLOWLABEL of sockets that say nothing; also of what is sent without a socket.
  uint32_t default_flow_label() const {
    const bool on = config.auto_flow_labels != AutoFlowLabels::kOptIn;
    return on ? kAutoFlowLabel : kNoFlowLabel;
  }
  /// Owns `frame`, a whole one from Ethernet on: to the interface's queue, or parked while the neighbour is
  /// unknown.
  void transmit(Packet* frame, Hop& hop);
  const Interface& of(const Hop& hop) const { return interfaces[hop.interface].info; }
  /// TCP holds back new data while this is true.
  bool tx_full(const Hop& hop) const { return interfaces[hop.interface].tx.size() > kTxBacklog; }

  // ---- source validation (source_validation.cc) ----
  /// Asked for each packet that no connection of ours takes, since none vouches for its source: false: it has
  /// been dropped, counted, or is kept until its route is known. `ip_header`: bytes of the IP header in front
  /// of frame->data().
  bool admit(Packet* frame, const Passage& packet, uint32_t ip_header);
  std::vector<RouteLookup> take_route_questions();
  void resume(Instant at);

  // ---- receiving (ingress.cc) ----
  void on_packets(std::span<Packet* const> frames, InterfaceId id, Instant now);
  /// Nobody answers for the next hop of this frame: its socket hears what the kernel's own would.
  void report_unreachable(const Packet* sent, InterfaceId id);

  // ---- readiness ----
  /// Sockets that the layer above does not know of yet, or no longer, are not listed.
  void mark_ready(StackSocket& socket, uint32_t edges) {
    if (!socket.owner) return;
    socket.edges |= edges;
    if (socket.listed || socket.edges == 0) return;
    socket.listed = true;
    socket.next_ready = nullptr;
    (ready_head ? ready_tail->next_ready : ready_head) = &socket;
    ready_tail = &socket;
  }
  StackSocket* take_ready() {
    StackSocket* s = ready_head;
    if (!s) return nullptr;
    ready_head = s->next_ready;
    s->next_ready = nullptr;
    s->listed = false;
    return s;
  }
  /// Before a socket is destroyed, or when nobody listens to it any more.
  void unlist(StackSocket& socket);

  /// An empty buffer; nullptr, counted, when there is none.
  Packet* new_frame() {
    Packet* p = pool.take();
    if (!p) counters.add(Counter::no_frame);
    return p;
  }
  void count(Counter c, uint64_t n = 1) { counters.add(c, n); }
  /// Drops a frame with its reason.
  void drop(Packet* frame, Counter reason) {
    counters.add(reason);
    FramePool::release(frame);
  }

  struct InterfaceState {
    Interface info;
    bool present = false;
    PacketQueue tx;
  };
  struct HopKey {
    InterfaceId interface;
    IpAddress address;
    bool operator==(const HopKey&) const = default;
  };
  struct HopHash {
    uint64_t secret;
    size_t operator()(const HopKey& k) const {
      return static_cast<size_t>(hash_tuple({k.address, k.interface}, {}, secret));
    }
  };

  std::vector<RouteMetrics> metrics = std::vector<RouteMetrics>(1);  ///< by MetricsId
  StackConfig config;
  uint64_t flow_secret;  ///< keys flow_hash(), whose results others see; from config.secret, which it hides
  FramePool& pool;
  Counters& counters;
  std::array<InterfaceState, kMaxInterfaces> interfaces{};
  struct Tagged {
    InterfaceId lower, id;
    uint16_t vlan;
  };
  std::vector<Tagged> tagged;  ///< those of `interfaces` that have a lower one
  RouteTable routes;
  IpReassembly reassembly{pool, counters};
  PacketQueue awaiting_route;  ///< from the IP header on; at most kMostAwaiting
  static constexpr uint32_t kMostAwaiting = 64;
  std::unordered_map<HopKey, std::unique_ptr<Hop>, HopHash> hops;
  std::vector<Hop*> waiting_hops;  ///< those with parked frames
  uint32_t parked_total = 0;
  size_t sweep_hops_at = kSweepHops;
  std::vector<FlowChange> flow_changes;
  PacketQueue frames_for_kernel;
  StackSocket* ready_head = nullptr;
  StackSocket* ready_tail = nullptr;
  Instant now{};                         ///< of the pass that runs
  int cpu = -1;                          ///< that last brought frames
  uint16_t look = 0;                     ///< Stack::note_look()
  MemoryAccount tcp_memory, udp_memory;  ///< of all sockets' queues, both ways; TCP and UDP keep them
  std::unique_ptr<TcpLayer> tcp;
  std::unique_ptr<UdpLayer> udp;

  static constexpr size_t kSweepHops = 4096;

 private:
  enum class Source : uint8_t { kGood, kMartian, kNotReversePath, kQuestion };
  Source judge(const Passage& packet) const;
  Source judge_by_routes(const Passage& packet, const SourceRules& rules) const;
  /// Sources that were good a moment ago, so that datagrams of one peer cost a comparison each.
  struct GoodSource {
    IpAddress address;
    InterfaceId interface = kAnyInterface;
  };
  std::array<GoodSource, 64> good_sources_{};  ///< by a keyed hash
  GoodSource& good_source(const Passage& packet) {
    return good_sources_[hash_tuple({packet.source, packet.interface}, {}, config.secret[1]) %
                         good_sources_.size()];
  }
  Hop* find_or_make_hop(InterfaceId id, const IpAddress& address);
  Way way_by(const RouteEntry& row, const Passage& from);
  void sweep_hops();
  void resolve(Hop& hop, const MacAddress& mac);
};

}  // namespace accel
