// A UDP socket over its shadow. The shadow is bound and connected as ours is: the kernel keeps the port,
// checks addresses, and delivers what does not come through a device of ours (loopback, other interfaces,
// reassembled fragments, multicast).
#pragma once

#include <optional>

#include "posix/joined_groups.h"
#include "posix/socket.h"
#include "posix/udp_port_owners.h"

namespace accel::posix {

/// Control messages that recvmsg() adds, as bits.
enum UdpControl : uint32_t {
  kPktInfo = 1,
  kRecvTos = 2,
  kRecvTtl = 4,
  kOrigDst = 8,
  kPktInfo6 = 16,
  kTrafficClass = 32,
  kHopLimit = 64,
  kTimestamp = 128,       ///< SO_TIMESTAMP, microseconds
  kTimestampNs = 256,     ///< SO_TIMESTAMPNS
  kOverflow = 512,        ///< SO_RXQ_OVFL
  kStampSoftware = 1024,  ///< SO_TIMESTAMPING: when it arrived
  kStampHardware = 2048,  ///< and by the device's clock, where the port has that
  kMerged = 8192,         ///< UDP_GRO
  kStampNew = 4096,       ///< asked for by an option of SO_TIMESTAMP_NEW's generation
};

/// What a datagram's own control messages want otherwise than the socket's options.
struct SendControl {
  std::optional<IpAddress> source;  ///< any(): as routing chooses, also where the socket is bound
  int ifindex = 0;
  std::optional<uint8_t> tos, ttl;
  std::optional<uint16_t> segment;  ///< 0: in one
  bool by_ip = false;               ///< the kernel looks for a route of the datagram's own
};
/// nullopt: there is something that the kernel serves, or refuses. `v4`: by what the datagram travels.
std::optional<SendControl> read_send_control(const msghdr& message, bool v4, bool v6_socket);

/// When that was, in ns since 1970.
int64_t wall_clock_at(Instant then);

class UdpSocket final : public Socket {
 public:
  UdpSocket(int fd, int domain) : Socket(FileKind::kUdp, fd, domain) {}

  /// A bound socket of the kernel's that came in a message. nullptr: no memory.
  static UdpSocket* received(int fd, int domain);

  // udp_socket.cc
  uint32_t readiness() override;
  int kernel_fd() override { return shadow(); }
  void on_last_close(Pass* pass) override;
  Inherited after_fork_in_child() override;
  void revive(Pass& pass) override;
  void ports_opened(Pass& pass) override;
  BoundFlow* releasable_flow() override;
  BoundFlow* bound_flow() const override { return state_ == State::kOpen ? flow_ : nullptr; }
  void queues_released() override { flow_ = nullptr; }
  void share_accept_queue() override;
  void hand_off_queue(Pass& pass) override;
  void queue_for_program(Pass& pass) override { give_queue_to_shadow(pass); }
  Result<void> detach(Pass& pass, Reason reason) override;
  Result<int> bind(Pass& pass, const sockaddr* address, socklen_t length) override;
  Result<int> connect(Pass& pass, const sockaddr* address, socklen_t length) override;
  Result<int> listen(Pass&, int) override { return kOnKernel; }                         // EOPNOTSUPP
  Result<int> accept(Pass&, sockaddr*, socklen_t*, int) override { return kOnKernel; }  // EOPNOTSUPP
  Result<int> shutdown(Pass& pass, int how) override;
  Result<int> getsockname(Pass&, sockaddr*, socklen_t*) override { return kOnKernel; }
  Result<int> getpeername(Pass&, sockaddr*, socklen_t*) override { return kOnKernel; }
  Result<int> ioctl(Pass& pass, unsigned long request, void* argument) override;
  Endpoint local_endpoint() const override { return local_; }
  Endpoint remote_endpoint() const override { return remote_; }

  // udp_transfer.cc
  Result<ssize_t> recvmsg(Pass& pass, msghdr* message, int flags) override;
  Result<ssize_t> sendmsg(Pass& pass, const msghdr* message, int flags) override;
  Result<ssize_t> lend(Pass& pass, LeaseCall& call) override;
  void keep_error(Pass& pass, Errno error) override;

  // udp_options.cc
  Result<int> getsockopt(Pass& pass, int level, int name, void* value, socklen_t* length) override;
  Result<int> setsockopt(Pass& pass, int level, int name, const void* value, socklen_t length) override;
  void option_was_set(int level, int name, const void* value, socklen_t length) override;

  BoundFlow* flow() const { return flow_; }
  /// Others have its port, or had: it takes what comes if that is its own (posix/udp_port_owners.h).
  void settle_ownership(Pass& pass);
  bool port_is_shared() const { return port_is_shared_; }

  // udp_groups.cc
  bool in_group() const { return joined_.any(); }
  bool brings_groups(Pass& pass) const;
  bool may_take_groups() const;
  void end_lending();
  /// As its options are, what it sends to the group may leave by a device. Without a Pass.
  bool may_send_to_group(const Endpoint& to) const;
  /// Memberships, or who else has the port, may be others than before.
  void follow_groups(Pass& pass);
  /// setsockopt() of the shadow has been about groups. Errors: ACCEL_REQUIRE forbids what that leads to.
  Result<void> groups_were_set(Pass& pass);

 private:
  enum class State : uint8_t { kUndecided, kOpen, kKernel };
  /// How a datagram to a group leaves.
  struct ToGroups {
    IpAddress source;                       ///< IP_MULTICAST_IF by an address; any(): as routing chooses
    int device_v6 = 0;                      ///< IPV6_MULTICAST_IF
    int hops = 1;                           ///< IPV6_MULTICAST_HOPS; -1: the route's
    uint8_t ttl = 1;                        ///< IP_MULTICAST_TTL
    bool loops_v4 = true, loops_v6 = true;  ///< IP_MULTICAST_LOOP, IPV6_MULTICAST_LOOP
    bool loops(const IpAddress& group) const { return group.is_v4() ? loops_v4 : loops_v6; }
  };

  UdpPcb* pcb(Pass& pass) const { return flow_ != nullptr ? pass.engine().udp(*flow_) : nullptr; }
  Result<void> open(Pass& pass, Role role, const Endpoint& local, const Endpoint& remote);
  void close_flow(Pass& pass);
  /// Among those that have its port, if that may be shared.
  PortOwnership port_ownership() const;
  /// The kernel serves from now on.
  void hand_over_to_shadow(Pass& pass);
  /// Before close_flow() (udp_return.cc). What cannot be given is counted.
  void give_queue_to_shadow(Pass& pass);
  Result<int> disconnect(Pass& pass, const sockaddr* address, socklen_t length);

  // udp_transfer.cc
  /// The pending error, of the flow or of the shadow (an ICMP error that the kernel was given); 0: none.
  int take_error(Pass& pass, UdpPcb& p) const;
  Result<void> open_to_send(Pass& pass);
  Result<ssize_t> deliver(Pass& pass, msghdr* message, size_t room, int flags);
  Result<ssize_t> lend_front(Pass& pass, UdpPcb& p, LeaseCall& call);
  template <class Kernels, class Ours, class Ended>
  Result<ssize_t> receive(Pass& pass, bool wait, Instant deadline, const Kernels& kernels, const Ours& ours,
                          const Ended& ended);
  Errno look_at_kernels() const;
  size_t merge(Pass& pass, const Datagram& first, std::span<const iovec> into, size_t room);
  /// How a datagram leaves by our stack.
  struct Sending {
    Endpoint to;
    Route route;  ///< its source is the datagram's
    UdpFields fields;
  };
  Result<ssize_t> send_ours(Pass& pass, std::span<const iovec> data, const Sending& how, bool wait);
  bool mixes_families(const Endpoint& to) const;
  bool kernel_sends_to_group(const Endpoint& to) const;
  static bool leaves_by_device(const IpAddress& group, const ToGroups& how);
  bool is_refused(const Endpoint& to, size_t size, int flags) const;
  /// The question of path selection for one datagram. nullopt: as read_send_control() says.
  std::optional<FlowRequest> request_for(Pass& pass, const msghdr& message, const Endpoint& to,
                                         const SendControl& control) const;
  Result<ssize_t> send_kernels(Pass& pass, const msghdr* message, int flags) const;

  // udp_options.cc
  Groups groups_now(Pass& pass, uint16_t port);
  static int device_named(const void* value, socklen_t length);
  ToGroups group_options() const;  ///< as the shadow has them
  void read_options(Pass& pass);
  bool stamps_are_kernels(Pass& pass) const;

  State state_ = State::kUndecided;
  BoundFlow* flow_ = nullptr;
  Endpoint local_;
  Endpoint remote_;       ///< port 0: not connected
  FlowRequest request_;   ///< selection's view of the options, for each new destination
  uint32_t control_ = 0;  ///< UdpControl
  uint8_t tos_ = 0;       ///< IP_TOS, IP_TTL and the IPv6 twins
  uint8_t ttl_ = 64;
  uint8_t traffic_class_ = 0;
  uint8_t hop_limit_ = 64;
  bool auto_flow_label_ = true;         ///< IPV6_AUTOFLOWLABEL
  bool flowinfo_send_ = false;          ///< IPV6_FLOWINFO_SEND
  uint32_t flow_label_ = kNoFlowLabel;  ///< of connect()'s sin6_flowinfo
  uint16_t segment_ = 0;                ///< UDP_SEGMENT
  uint32_t most6_ = 0;                  ///< IPV6_MTU, which getsockopt() does not tell
  bool v6_only_ = false;
  JoinedGroups joined_;
  ToGroups to_groups_;
  int group_device_ = 0;      ///< IP_MULTICAST_IF by an index
  bool groups_lent_ = false;  ///< other processes have had it by fork(): what comes to groups is the shadow's
  bool corked_ = false;       ///< UDP_CORK: the kernel collects the datagram
  bool route_kept_ = false;   ///< by a send to the peer since IP_TOS changed: the kernel knows its MTU
  bool collecting_ = false;   ///< by MSG_MORE it may have begun one
  bool shadows_first_ = false;   ///< what the shadow has queued is older than what we have
  bool port_is_shared_ = false;  ///< others have taken what it would, or may
  bool shared_ = false;          ///< there was a fork(): another process may have it, too
  bool waited_on_ = false;       ///< this process has sent by it or waited on it
  bool look_at_shadow_ = true;   ///< before waiting: the last datagram came there, or none has come yet
  std::optional<Instant>
      last_arrived_;  ///< SIOCGSTAMP's: of the last that came without its time as a message
};

/// Writes the control messages that `control` asks for (posix/udp_control.cc).
struct DatagramFacts {
  const Datagram& datagram;
  int ifindex;
  int64_t timestamp;      ///< of its arrival, ns since the epoch
  int64_t device_time;    ///< by the device's clock; 0: not to be told
  IpAddress answered_by;  ///< this host's address for an answer; where it was sent to a group it is another
  uint32_t merged = 0;    ///< size of each datagram of several in one message; 0: it is one
};
void put_control_messages(msghdr* message, uint32_t control, const DatagramFacts& facts);

}  // namespace accel::posix
