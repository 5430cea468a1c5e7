// The protocol stack: Ethernet, IPv4, IPv6, ICMP errors, UDP and TCP for the flows that a worker owns.
//
// Pure: no clock, system call, thread or randomness; time and secrets come in as arguments,
// memory from the FramePool and operator new. One owner at a time (the worker's lock). Nothing calls upward:
// what changed is collected and taken with take_ready() and tx_queue().
//
// A pass of the worker is: on_packets() for each port, on_deadlines(), the sockets' calls, then flush(), then
// the frames of tx_queue() go to the ports and take_ready() wakes those who wait.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "base/counters.h"
#include "base/instant.h"
#include "base/ip.h"
#include "base/result.h"
#include "stack/frame_pool.h"
#include "stack/memory_account.h"
#include "stack/packet.h"
#include "stack/tcp/tcp.h"
#include "stack/types.h"

namespace accel {

struct StackCore;
class UdpLayer;  // stack/udp.h

class Stack {
 public:
  Stack(const StackConfig& config, FramePool& pool, Counters& counters);
  ~Stack();
  Stack(const Stack&) = delete;
  Stack& operator=(const Stack&) = delete;

  // ---- interfaces, routes, neighbours: told by the engine ----
  void set_interface(InterfaceId id, const Interface& info);
  const Interface& interface(InterfaceId id) const;
  /// Frames to it are dropped from now on; its connections stay (retransmission finds another way or they are
  /// moved).
  void remove_interface(InterfaceId id);
  /// `ask`: policy routing, so that the table does not tell all: see take_route_questions().
  void set_routes(std::vector<RouteEntry> routes, bool ask = false);
  /// The name of metrics for RouteEntry::metrics and Route::metrics. nullopt: there are too many different
  /// ones.
  std::optional<MetricsId> metrics_id(const RouteMetrics& metrics);
  /// The host's settings are others from now on, as the kernel heeds them where it uses them. Secrets stay.
  void follow_host(const StackConfig& config);
  const StackConfig& config() const;
  /// What leaves from `local` to `remote`: packets are kept until learn_route() tells, or resume() is called
  /// without that, which drops them.
  using RouteQuestion = RouteLookup;
  std::vector<RouteQuestion> take_route_questions();
  bool has_route_questions() const;
  void learn_route(const RouteQuestion& question, const RouteEntry& answer);
  void resume(Instant now);
  /// A neighbour's address, or nullopt when the kernel has lost it. Frames that waited for it leave with the
  /// next flush.
  void set_neighbour(InterfaceId id, const IpAddress& address, std::optional<MacAddress> mac);
  using Unresolved = UnresolvedNeighbour;
  /// Neighbours that frames are waiting for, each given once a second at most; the engine has the kernel
  /// resolve them.
  std::vector<Unresolved> take_unresolved();
  bool has_unresolved() const;
  /// Neighbours that sockets send through; the engine keeps the kernel from forgetting them.
  std::vector<Unresolved> neighbours_in_use() const;

  // ---- a pass of the worker ----
  /// Takes ownership of the frames. `cpu` brings them: SO_INCOMING_CPU prefers sockets that name it; -1: not
  /// known.
  void on_packets(std::span<Packet* const> frames, InterfaceId id, Instant now, int cpu = -1);
  /// The program is told what is readable. Text that comes between this and a close() is not unread text, for
  /// which RFC 2525 section 2.17 has a reset: it counts as later than the FIN, as if it had been on the wire.
  void note_look();
  uint16_t looks() const;     ///< how often, modulo 2^16
  int receiving_cpu() const;  ///< that which last did; -1: none has
  void on_deadlines(Instant now);
  /// There are route questions, frames for the kernel, or a deadline is over.
  bool has_work(Instant now) const;
  /// flush() has something to do, or frames wait.
  bool has_to_send() const;
  /// kNever when nothing is due.
  Instant next_deadline() const;
  /// Builds the segments that became possible (ACKs owed, data allowed by window, Nagle and cork). Cheap when
  /// there are none.
  void flush(Instant now);
  /// Frames to send on an interface, in order. The worker pops what the port takes and leaves the rest; TCP
  /// stops building data segments while more than kTxBacklog frames wait.
  PacketQueue& tx_queue(InterfaceId id);
  static constexpr uint32_t kTxBacklog = accel::kTxBacklog;
  /// Sockets whose `edges` are not 0, each once; the caller reads and clears `edges`. nullptr: no more.
  StackSocket* take_ready();

  // ---- what the engine takes ----
  /// Connections in SYN-RECEIVED or later that steering must know of: filled by on_packets for each SYN
  /// taken. kOpened: steer this connected flow now, before flush(). kFinSent: it is in FIN-WAIT-2, its
  /// numbers are noted no more (tcp_note_numbers()). kResting: it is in TIME-WAIT. kClosed: unsteer, the
  /// tuple is free. kTakesAcks: a listener's local end has sent SYN cookies, and ACKs without a connection
  /// are to come as SYNs do; kLeavesAcks: no longer.
  using Flow = FlowEvent;
  using FlowChange = accel::FlowChange;
  std::vector<FlowChange>& flow_changes();
  /// What came for connections soon after they were forgotten, SYNs that no listener here is for (another
  /// process's may be), with what follows them, and ICMP errors that a UDP socket's kernel socket is to
  /// have; from the IP header on, with the interface that it came in by. The engine empties it.
  PacketQueue& frames_for_kernel();

  // ---- the sockets' calls ----
  TcpLayer& tcp() { return *tcp_; }
  const TcpLayer& tcp() const { return *tcp_; }
  UdpLayer& udp() { return *udp_; }  ///< stack/udp.h
  const UdpLayer& udp() const { return *udp_; }

 private:
  const std::unique_ptr<StackCore> core_;
  UdpLayer* const udp_;
  TcpLayer* const tcp_;
};

}  // namespace accel
