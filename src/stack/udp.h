// UDP of one stack (RFC 768): demultiplexing as the kernel scores it, receive queues, sending, errors from
// ICMP.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "stack/core.h"

namespace accel {

/// A datagram's facts from ingress; its frame is trimmed to the payload and has its checksum verified.
struct UdpArrival {
  Endpoint local, remote;
  InterfaceId interface = 0;
  uint8_t tos = 0, ttl = 0;
  bool group = false;  ///< multicast or broadcast
  uint32_t size = 0;   ///< payload bytes over the whole chain
};

/// A queued datagram: its payload stays in the frame while the pool is well filled, else it moves to the
/// heap.
struct QueuedDatagram {
  Datagram info;
  Packet* frame = nullptr;
  std::unique_ptr<uint8_t[]> heap;
  QueuedDatagram* next = nullptr;
};

/// A UDP socket as the protocol sees it. Owned by UdpLayer from open to close.
struct UdpPcb : StackSocket {
  Endpoint local, remote;  ///< remote.port 0: unconnected
  bool v6_only = false;
  bool placing = false;    ///< IP_PKTINFO
  bool blocked = false;    ///< a send found no room; flush() tells when there is some
  int error = 0;           ///< pending, errno
  uint32_t flow_hash = 0;  ///< of the flow that it was connected to last, Linux' sk_txhash; 0: never was
  uint32_t receive_buffer = 0;
  uint64_t queued_bytes = 0;   ///< payload
  uint64_t charged_bytes = 0;  ///< payload and what it takes to keep it, as SO_RCVBUF counts
  uint64_t drops = 0;
  QueuedDatagram* head = nullptr;
  QueuedDatagram* tail = nullptr;

  bool connected() const { return remote.port != 0; }
};

class UdpLayer {
 public:
  explicit UdpLayer(StackCore& core) : core_(core), connected_(16, FlowHash{core.config.secret[0]}) {}
  ~UdpLayer();
  UdpLayer(const UdpLayer&) = delete;
  UdpLayer& operator=(const UdpLayer&) = delete;

  // ---- from ingress ----
  /// Takes ownership of the frame.
  void on_datagram(Packet* frame, const UdpArrival& in);
  /// False: no socket has the flow. `fatal`: connected sockets get it. `mtu` not 0: remembered for the
  /// destination.
  bool on_icmp_error(const Endpoint& local, const Endpoint& remote, int error, bool fatal, uint32_t mtu);

  // ---- Stack's calls, same contracts ----
  Result<UdpPcb*> open(const Endpoint& local, const Endpoint& remote, bool v6_only, void* owner);
  void connect(UdpPcb& pcb, const Endpoint& local, const Endpoint& remote);
  void close(UdpPcb* pcb);
  void take_queue(UdpPcb& to, UdpPcb& from);
  Result<size_t> send(UdpPcb& pcb, std::span<const iovec> data, const Endpoint& from, const Endpoint& to,
                      const Route& route, uint8_t tos, uint8_t ttl, uint32_t flow_label);
  size_t receive(UdpPcb& pcb, std::span<const iovec> into, bool pop);
  uint32_t readiness(const UdpPcb& pcb) const;
  int take_error(UdpPcb& pcb);
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
    size_t operator()(const IpAddress& a) const { return static_cast<size_t>(hash_tuple({a, 0}, {}, 0)); }
  };
  struct PathMtu {
    uint32_t mtu;
    Instant until;
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
  void pop(UdpPcb& pcb);
  Packet* build(std::span<const iovec> data, size_t size, const Endpoint& from, const Endpoint& to,
                const HeaderTemplate& headers, bool offload);
  uint32_t path_mtu(const IpAddress& destination, const Route& route);

  StackCore& core_;
  std::unordered_map<std::pair<Endpoint, Endpoint>, Group, FlowHash> connected_;  ///< both ends specific
  std::unordered_map<uint16_t, Group> by_port_;                                   ///< the rest
  std::unordered_map<IpAddress, PathMtu, AddressHash> path_mtus_;
  Group blocked_;
  QueuedDatagram* spare_ = nullptr;  ///< nodes for reuse
  uint32_t spares_ = 0;
};

}  // namespace accel
