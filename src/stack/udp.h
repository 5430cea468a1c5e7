// UDP of one stack (RFC 768): demultiplexing as the kernel scores it, receive queues, sending, errors from
// ICMP.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "stack/core.h"
#include "stack/ip_ids.h"
#include "stack/lent.h"

namespace accel {

/// A datagram's facts from ingress; its frame is trimmed to the payload and has its checksum verified.
struct UdpArrival {
  Endpoint local, remote;
  InterfaceId interface = kAnyInterface;
  uint8_t tos = 0, ttl = 0;
  bool group = false;  ///< multicast or broadcast
  uint32_t size = 0;   ///< payload bytes over the whole chain
};

/// A queued datagram: its payload stays in the frame while frames and memory are plenty, else it moves to the
/// heap.
struct QueuedDatagram {
  Datagram info;
  uint32_t memory = 0;  ///< true size
  Packet* frame = nullptr;
  std::unique_ptr<uint8_t[]> heap;
  QueuedDatagram* next = nullptr;
};

/// What becomes of an ICMP error: kForKernel: the kernel is to have it too, it has the error queue, path
/// MTUs.
enum class IcmpFate : uint8_t { kNotOurs, kTaken, kForKernel };

/// A socket's membership of a group on an interface, with its source filter (RFC 3376 section 3.1, RFC 3810
/// section 4.2).
struct UdpMembership {
  IpAddress group;
  InterfaceId interface = kAnyInterface;
  bool exclude = true;             ///< else `sources` alone may send
  std::vector<IpAddress> sources;  ///< that may not
};

/// What a socket wants of multicast.
struct UdpMemberships {
  std::vector<UdpMembership> list;    ///< by group
  bool all_v4 = true, all_v6 = true;  ///< IP_MULTICAST_ALL and its twin: what others have joined as well

  /// net/ipv4/igmp.c ip_mc_sf_allow(), net/ipv6/mcast.c inet6_mc_check().
  bool allow(const IpAddress& group, InterfaceId interface, const IpAddress& source) const;
};

/// A UDP socket as the protocol sees it. Owned by UdpLayer from open to close.
struct UdpPcb : StackSocket {
  Endpoint local, remote;  ///< remote.port 0: unconnected
  bool v6_only = false;
  bool reuse_port = false;             ///< SO_REUSEPORT when it was bound
  InterfaceId device = kAnyInterface;  ///< SO_BINDTODEVICE
  int incoming_cpu = -1;               ///< SO_INCOMING_CPU: prefers what this CPU brings; -1: none
  bool placing = false;                ///< IP_PKTINFO
  bool blocked = false;                ///< a send found no room; flush() tells when there is some
  bool counts_drops = false;           ///< SO_RXQ_OVFL
  bool wants_errors = false;           ///< IP_RECVERR: every ICMP error is for its kernel socket
  bool kernel_has_error = false;       ///< most likely: one was given there; who has looked clears it
  int error = 0;                       ///< pending, errno
  uint32_t flow_hash = 0;  ///< of the flow that it was connected to last, Linux' sk_txhash; 0: never was
  UdpMtuOptions mtu;
  UdpMemberships memberships;
  uint16_t ip_id = 0;  ///< of the next datagram, while connected
  uint32_t receive_buffer = 0;
  uint64_t queued_bytes = 0;   ///< payload
  uint64_t charged_bytes = 0;  ///< payload and what it takes to keep it, as SO_RCVBUF counts
  uint64_t memory = 0;         ///< true size, as UdpLayer::kOverhead does not tell it
  uint64_t drops = 0;
  QueuedDatagram* head = nullptr;
  QueuedDatagram* tail = nullptr;

  bool connected() const { return remote.port != 0; }
};

class UdpLayer {
 public:
  explicit UdpLayer(StackCore& core);
  ~UdpLayer();
  UdpLayer(const UdpLayer&) = delete;
  UdpLayer& operator=(const UdpLayer&) = delete;

  // ---- from ingress ----
  /// Takes ownership of the frame.
  void on_datagram(Packet* frame, const UdpArrival& in);
  /// What an ICMP error says of the path's MTU.
  struct TooBig {
    bool said = false;  ///< else it is about something else
    uint32_t mtu = 0;
    bool locked = false;  ///< less than is believed (net.ipv4.route.min_pmtu): datagrams go without DF
  };
  /// `fatal`: connected sockets get it. An MTU is remembered for the destination. `kernel_sees`: the kernel
  /// has it already.
  IcmpFate on_icmp_error(const Endpoint& local, const Endpoint& remote, InterfaceId interface, int error,
                         bool fatal, const TooBig& too_big, bool kernel_sees);

  // ---- the sockets' calls ----
  /// `remote.port` 0: unconnected. `local.address` any(): wildcard, with v6_only as for TcpLayer::listen.
  /// Several may share a tuple: unicast goes to the last that came, or to one by hash where that is of a
  /// group (UdpPcb::reuse_port); multicast to all. Errors: ENOMEM.
  Result<UdpPcb*> open(const Endpoint& local, const Endpoint& remote, bool v6_only, void* owner);
  /// Connects, re-connects or (remote.port 0) disconnects; `local` as from then on.
  void connect(UdpPcb& pcb, const Endpoint& local, const Endpoint& remote);
  void close(UdpPcb* pcb);
  /// SO_BINDTODEVICE: only what comes by that.
  static void set_device(UdpPcb& pcb, InterfaceId device) { pcb.device = device; }
  /// What `from` has queued goes to the front of `to`'s queue.
  void take_queue(UdpPcb& to, UdpPcb& from);
  /// Sends one datagram, or with UdpFields::segment several. Errors: EMSGSIZE (one would be larger than
  /// UdpMtuOptions allow, or there would be too many of them: the kernel cuts it into fragments or has an
  /// error for it), EAGAIN/ENOBUFS (no buffer).
  Result<size_t> send(UdpPcb& pcb, std::span<const iovec> data, const Endpoint& from, const Endpoint& to,
                      const Route& route, const UdpFields& fields, Instant now);
  static void set_memberships(UdpPcb& pcb, UdpMemberships memberships);
  static void set_mtu_options(UdpPcb& pcb, const UdpMtuOptions& options) { pcb.mtu = options; }
  /// The next datagram's facts, or nullptr.
  static const Datagram* front(const UdpPcb& pcb) { return pcb.head ? &pcb.head->info : nullptr; }
  /// Copies the next datagram as far as it fits; `pop` takes it off. Returns bytes copied; Datagram::size
  /// tells the rest.
  size_t receive(UdpPcb& pcb, std::span<const iovec> into, bool pop);
  /// Takes the next datagram's buffers off its queue, which the program then reads in place. Errors: EMSGSIZE
  /// (they are `needed`, more than `most`), ENOBUFS (more memory than `most`): it stays.
  Result<void> lend(UdpPcb& pcb, const LendLimit& most, Lent& lent, uint32_t& needed);
  uint32_t readiness(const UdpPcb& pcb) const;
  int take_error(UdpPcb& pcb);
  static void set_receive_buffer(UdpPcb& pcb, uint32_t bytes) { pcb.receive_buffer = bytes; }
  /// Datagram::placed of what comes from now on.
  static void set_placing(UdpPcb& pcb, bool on) { pcb.placing = on; }
  static uint64_t drops(const UdpPcb& pcb) { return pcb.drops; }
  static size_t queued_bytes(const UdpPcb& pcb) { return pcb.queued_bytes; }
  /// Sockets that wait for room get kWritable when there is some.
  void flush();

  /// What a datagram takes beside its payload; charged, so that empty datagrams are bounded too.
  static constexpr uint32_t kOverhead = 256;
  static constexpr Duration kPathMtuAge = 600s;  ///< net.ipv4.route.mtu_expires

 private:
  struct FlowHash {
    uint64_t secret;
    size_t operator()(const std::pair<Endpoint, Endpoint>& f) const {
      return static_cast<size_t>(hash_tuple(f.first, f.second, secret));
    }
  };
  struct AddressHash {
    uint64_t secret;
    size_t operator()(const IpAddress& a) const {
      return static_cast<size_t>(hash_tuple({a, 0}, {}, secret));
    }
  };
  struct PathMtu {
    uint32_t mtu;
    bool locked;  ///< nothing is learned about it
    Instant until;
  };
  /// How far a send has come in the program's vector.
  struct Cursor {
    std::span<const iovec> rest;
    size_t used = 0;  ///< of its first
  };
  using Group = std::vector<UdpPcb*>;

  void add(UdpPcb& pcb);
  void remove(UdpPcb& pcb);
  void hash_flow(UdpPcb& pcb) const;
  /// The list that pcb belongs to: by full tuple, or by local port.
  Group& home(const UdpPcb& pcb);
  UdpPcb* find(const UdpArrival& in);
  void deliver_to_all(Packet* frame, const UdpArrival& in);
  /// `frame`: nullptr, or `bytes` itself to be owned from here on.
  void queue(UdpPcb& pcb, const Packet& bytes, Packet* frame, const UdpArrival& in);
  bool has_memory(const UdpPcb& pcb, uint32_t more) const;
  bool keeps_frame(const UdpPcb& pcb, const Packet* frame) const;
  QueuedDatagram* take_node();
  void give_node(QueuedDatagram* d);
  void pop(UdpPcb& pcb);
  /// A datagram of the cursor's next `size` bytes.
  Packet* build(Cursor& data, size_t size, const Endpoint& from, const Endpoint& to,
                const HeaderTemplate& headers, uint16_t id, bool offload);
  uint16_t reserve_ids(UdpPcb& pcb, const Endpoint& from, const Endpoint& to, size_t count);
  void learn_path_mtu(const IpAddress& destination, const TooBig& told);
  PathMtu path_mtu(const IpAddress& destination, const Route& route);

  StackCore& core_;
  std::unordered_map<std::pair<Endpoint, Endpoint>, Group, FlowHash> connected_;  ///< both ends specific
  std::unordered_map<uint16_t, Group> by_port_;                                   ///< the rest
  std::unordered_map<IpAddress, PathMtu, AddressHash> path_mtus_;
  IpIds ids_;
  Group blocked_;
  QueuedDatagram* spare_ = nullptr;  ///< nodes for reuse
  uint32_t spares_ = 0;
  uint32_t sockets_ = 0;
};

}  // namespace accel
