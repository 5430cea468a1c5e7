// Options of a UDP socket.
#include <errno.h>
#include <linux/net_tstamp.h>
#include <linux/udp.h>
#include <netinet/in.h>
#include <sys/epoll.h>

#include <algorithm>

#include "base/real.h"
#include "base/user_memory.h"
#include "posix/flow_label.h"
#include "posix/option_name.h"
#include "posix/options.h"
#include "posix/udp_socket.h"
#include "stack/udp.h"

namespace accel::posix {
namespace {

using enum OptionEffect;

bool queues_errors(const Socket& s) {
  return s.shadow_option(IPPROTO_IP, IP_RECVERR) != 0 ||
         (s.v6() && s.shadow_option(IPPROTO_IPV6, IPV6_RECVERR) != 0);
}

/// The kernel gets ICMP errors from us by its loopback device, where it finds no socket that is bound to
/// another.
bool kernel_finds_errors_socket(const Socket& s) {
  return s.shadow_option(SOL_SOCKET, SO_BINDTOIFINDEX) == 0 || !queues_errors(s);
}

// kKeep: read_options() looks at them again.
constexpr Option kOptions[] = {
    {SOL_SOCKET, SO_DEBUG, kShadow, false},
    {SOL_SOCKET, SO_REUSEADDR, kShadow, false},
    {SOL_SOCKET, SO_REUSEPORT, kShadow, false},
    {SOL_SOCKET, SO_BROADCAST, kShadow, false},  // broadcasts leave by the shadow
    {SOL_SOCKET, SO_PRIORITY, kShadow, false},
    {SOL_SOCKET, SO_KEEPALIVE, kShadow, false},
    {SOL_SOCKET, SO_OOBINLINE, kShadow, false},
    {SOL_SOCKET, SO_LINGER, kShadow, false},
    {SOL_SOCKET, SO_RCVLOWAT, kShadow, false},
    {SOL_SOCKET, SO_BUSY_POLL, kShadow, false},
    {SOL_SOCKET, SO_PREFER_BUSY_POLL, kShadow, false},
    {SOL_SOCKET, SO_BUSY_POLL_BUDGET, kShadow, false},
    {SOL_SOCKET, SO_INCOMING_CPU, kKeep, false},
    {SOL_SOCKET, SO_PASSCRED, kShadow, false},
    {SOL_SOCKET, SO_BUF_LOCK, kShadow, false},
    {SOL_SOCKET, SO_TXREHASH, kShadow, false},
    {SOL_SOCKET, SO_BSDCOMPAT, kShadow, false},
    {SOL_SOCKET, SO_DETACH_FILTER, kShadow, false},
    {SOL_SOCKET, SO_SNDBUF, kShadow, false},
    {SOL_SOCKET, SO_SNDBUFFORCE, kShadow, false},
    {SOL_SOCKET, SO_RCVBUF, kKeep, false},
    {SOL_SOCKET, SO_RCVBUFFORCE, kKeep, false},
    {SOL_SOCKET, SO_RCVTIMEO, kKeep, false},
    {SOL_SOCKET, SO_SNDTIMEO, kKeep, false},
    {SOL_SOCKET, SO_RCVTIMEO_NEW, kKeep, false},
    {SOL_SOCKET, SO_SNDTIMEO_NEW, kKeep, false},
    {SOL_SOCKET, SO_TIMESTAMP, kKeep, false},
    {SOL_SOCKET, SO_TIMESTAMPNS, kKeep, false},
    {SOL_SOCKET, SO_TIMESTAMPING, kKeep, false},
    {SOL_SOCKET, SO_TIMESTAMP_NEW, kKeep, false},
    {SOL_SOCKET, SO_TIMESTAMPNS_NEW, kKeep, false},
    {SOL_SOCKET, SO_TIMESTAMPING_NEW, kKeep, false},
    {SOL_SOCKET, SO_RXQ_OVFL, kKeep, false},
    {SOL_SOCKET, SO_DONTROUTE, kRoute, false},
    {SOL_SOCKET, SO_MARK, kRoute, false},
    {SOL_SOCKET, SO_BINDTODEVICE, kRoute, false, nullptr, 0, kernel_finds_errors_socket},
    {SOL_SOCKET, SO_BINDTOIFINDEX, kRoute, false, nullptr, 0, kernel_finds_errors_socket},
    {SOL_SOCKET, SO_ZEROCOPY, kKernel, false},
    {SOL_SOCKET, SO_PEEK_OFF, kKernel, false, nullptr, '\xff'},  // -1
    {SOL_SOCKET, SO_NO_CHECK, kKernel, false},

    {IPPROTO_UDP, UDP_CORK, kKeep, false},
    {IPPROTO_UDP, UDP_SEGMENT, kKeep, false},
    {IPPROTO_UDP, UDP_GRO, kKeep, false},
    {IPPROTO_UDP, UDP_ENCAP, kKernel, false},
    {IPPROTO_UDP, UDP_NO_CHECK6_TX, kKernel, false},
    {IPPROTO_UDP, UDP_NO_CHECK6_RX, kKernel, false},

    {IPPROTO_IP, IP_TOS, kKeep, false},
    {IPPROTO_IP, IP_TTL, kKeep, false},
    {IPPROTO_IP, IP_PKTINFO, kKeep, false},
    {IPPROTO_IP, IP_RECVTOS, kKeep, false},
    {IPPROTO_IP, IP_RECVTTL, kKeep, false},
    {IPPROTO_IP, IP_RECVORIGDSTADDR, kKeep, false},
    {IPPROTO_IP, IP_MTU_DISCOVER, kKeep, false},
    {IPPROTO_IP, IP_RECVERR, kKeep, false, nullptr, 0, kernel_finds_errors_socket},
    {IPPROTO_IP, IP_FREEBIND, kShadow, false},
    {IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, kShadow, false},
    {IPPROTO_IP, IP_LOCAL_PORT_RANGE, kShadow, false},
    {IPPROTO_IP, IP_MULTICAST_TTL, kKeep, false},
    {IPPROTO_IP, IP_MULTICAST_LOOP, kKeep, false},
    {IPPROTO_IP, IP_MULTICAST_IF, kKeep, false},
    {IPPROTO_IP, IP_MULTICAST_ALL, kShadow, false},
    {IPPROTO_IP, IP_ADD_MEMBERSHIP, kShadow, false},
    {IPPROTO_IP, IP_DROP_MEMBERSHIP, kShadow, false},
    {IPPROTO_IP, IP_ADD_SOURCE_MEMBERSHIP, kShadow, false},
    {IPPROTO_IP, IP_DROP_SOURCE_MEMBERSHIP, kShadow, false},
    {IPPROTO_IP, IP_BLOCK_SOURCE, kShadow, false},
    {IPPROTO_IP, IP_UNBLOCK_SOURCE, kShadow, false},
    {IPPROTO_IP, IP_MSFILTER, kShadow, false},
    {IPPROTO_IP, MCAST_JOIN_GROUP, kShadow, false},
    {IPPROTO_IP, MCAST_LEAVE_GROUP, kShadow, false},
    {IPPROTO_IP, MCAST_JOIN_SOURCE_GROUP, kShadow, false},
    {IPPROTO_IP, MCAST_LEAVE_SOURCE_GROUP, kShadow, false},
    {IPPROTO_IP, MCAST_BLOCK_SOURCE, kShadow, false},
    {IPPROTO_IP, MCAST_UNBLOCK_SOURCE, kShadow, false},
    {IPPROTO_IP, MCAST_MSFILTER, kShadow, false},
    {IPPROTO_IP, IP_OPTIONS, kKernel, false},
    {IPPROTO_IP, IP_RECVOPTS, kKernel, false},
    {IPPROTO_IP, IP_RETOPTS, kKernel, false},
    {IPPROTO_IP, IP_TRANSPARENT, kKernel, false},
    {IPPROTO_IP, IP_UNICAST_IF, kKernel, false},

    {IPPROTO_IPV6, IPV6_TCLASS, kKeep, false},
    {IPPROTO_IPV6, IPV6_UNICAST_HOPS, kKeep, false},
    {IPPROTO_IPV6, IPV6_RECVPKTINFO, kKeep, false},
    {IPPROTO_IPV6, IPV6_RECVHOPLIMIT, kKeep, false},
    {IPPROTO_IPV6, IPV6_RECVTCLASS, kKeep, false},
    {IPPROTO_IPV6, IPV6_MTU_DISCOVER, kKeep, false},
    {IPPROTO_IPV6, IPV6_MTU, kKeep, false},
    {IPPROTO_IPV6, IPV6_RECVERR, kKeep, false, nullptr, 0, kernel_finds_errors_socket},
    {IPPROTO_IPV6, IPV6_V6ONLY, kShadow, false},
    {IPPROTO_IPV6, IPV6_FREEBIND, kShadow, false},
    {IPPROTO_IPV6, IPV6_AUTOFLOWLABEL, kKeep, false},
    {IPPROTO_IPV6, kFlowInfoSend, kKeep, false},
    {IPPROTO_IPV6, kFlowLabelManager, kKernel, false},
    {IPPROTO_IPV6, IPV6_MULTICAST_HOPS, kKeep, false},
    {IPPROTO_IPV6, IPV6_MULTICAST_LOOP, kKeep, false},
    {IPPROTO_IPV6, IPV6_MULTICAST_IF, kKeep, false},
    {IPPROTO_IPV6, IPV6_MULTICAST_ALL, kShadow, false},
    {IPPROTO_IPV6, IPV6_ADD_MEMBERSHIP, kShadow, false},
    {IPPROTO_IPV6, IPV6_DROP_MEMBERSHIP, kShadow, false},
    {IPPROTO_IPV6, MCAST_JOIN_GROUP, kShadow, false},
    {IPPROTO_IPV6, MCAST_LEAVE_GROUP, kShadow, false},
    {IPPROTO_IPV6, MCAST_JOIN_SOURCE_GROUP, kShadow, false},
    {IPPROTO_IPV6, MCAST_LEAVE_SOURCE_GROUP, kShadow, false},
    {IPPROTO_IPV6, IPV6_TRANSPARENT, kKernel, false},
};

/// Options that are a control message of recvmsg().
constexpr struct {
  int level, name;
  uint32_t bits;
} kControl[] = {
    {SOL_SOCKET, SO_TIMESTAMP, kTimestamp},
    {SOL_SOCKET, SO_TIMESTAMPNS, kTimestampNs},
    {SOL_SOCKET, SO_TIMESTAMP_NEW, kTimestamp | kStampNew},
    {SOL_SOCKET, SO_TIMESTAMPNS_NEW, kTimestampNs | kStampNew},
    {SOL_SOCKET, SO_TIMESTAMPING_NEW, kStampNew},
    {SOL_SOCKET, SO_RXQ_OVFL, kOverflow},
    {IPPROTO_UDP, UDP_GRO, kMerged},
    {IPPROTO_IP, IP_PKTINFO, kPktInfo},
    {IPPROTO_IP, IP_RECVTOS, kRecvTos},
    {IPPROTO_IP, IP_RECVTTL, kRecvTtl},
    {IPPROTO_IP, IP_RECVORIGDSTADDR, kOrigDst},
    {IPPROTO_IPV6, IPV6_RECVPKTINFO, kPktInfo6},
    {IPPROTO_IPV6, IPV6_RECVTCLASS, kTrafficClass},
    {IPPROTO_IPV6, IPV6_RECVHOPLIMIT, kHopLimit},
};

/// Flags of SO_TIMESTAMPING that are about what is received, and those that mean nothing without stamps of
/// what is sent. The others are the kernel's: what is sent comes back by its error queue, a clock of its own
/// (BIND_PHC), the frame's length (OPT_PKTINFO).
constexpr int kOptIdTcp = 1 << 16, kOptRxFilter = 1 << 17;  // younger than the distribution's headers
constexpr int kServedStamps =
    SOF_TIMESTAMPING_RX_SOFTWARE | SOF_TIMESTAMPING_RX_HARDWARE | SOF_TIMESTAMPING_SOFTWARE |
    SOF_TIMESTAMPING_RAW_HARDWARE | SOF_TIMESTAMPING_SYS_HARDWARE | SOF_TIMESTAMPING_OPT_ID |
    SOF_TIMESTAMPING_OPT_CMSG | SOF_TIMESTAMPING_OPT_TSONLY | SOF_TIMESTAMPING_OPT_STATS |
    SOF_TIMESTAMPING_OPT_TX_SWHW | kOptIdTcp | kOptRxFilter;

/// __sock_recv_timestamp(): what is stamped is told unless OPT_RX_FILTER wants only what this socket has
/// asked for.
uint32_t stamps_told(int flags, uint32_t control) {
  const bool all = (flags & kOptRxFilter) == 0;
  const bool software =
      (flags & SOF_TIMESTAMPING_RX_SOFTWARE) != 0 || (all && (control & (kTimestamp | kTimestampNs)) != 0);
  const bool hardware = (flags & SOF_TIMESTAMPING_RX_HARDWARE) != 0 || all;
  return (software && (flags & SOF_TIMESTAMPING_SOFTWARE) != 0 ? kStampSoftware : 0u) |
         (hardware && (flags & SOF_TIMESTAMPING_RAW_HARDWARE) != 0 ? kStampHardware : 0u);
}

}  // namespace

/// IP_MULTICAST_IF as do_ip_setsockopt() reads it: the device's index, which getsockopt() does not tell.
int UdpSocket::device_named(const void* value, socklen_t length) {
  ip_mreqn by{};
  if (length < sizeof by || !get_user(by, value)) return 0;
  return by.imr_ifindex;
}

UdpSocket::ToGroups UdpSocket::group_options() const {
  ToGroups now;
  in_addr by{};
  socklen_t length = sizeof by;
  if (real.getsockopt(shadow(), IPPROTO_IP, IP_MULTICAST_IF, &by, &length) == 0)
    now.source = IpAddress::from_v4_bytes(&by);
  now.loops_v4 = shadow_option(IPPROTO_IP, IP_MULTICAST_LOOP, 1) != 0;
  now.ttl = static_cast<uint8_t>(shadow_option(IPPROTO_IP, IP_MULTICAST_TTL, 1));
  if (!v6()) return now;
  now.loops_v6 = shadow_option(IPPROTO_IPV6, IPV6_MULTICAST_LOOP, 1) != 0;
  now.hops = shadow_option(IPPROTO_IPV6, IPV6_MULTICAST_HOPS, 1);
  now.device_v6 = shadow_option(IPPROTO_IPV6, IPV6_MULTICAST_IF);
  return now;
}

std::span<const Option> udp_options() { return kOptions; }

/// What the shadow's options mean for what we do ourselves.
void UdpSocket::read_options(Pass& pass) {
  control_ = 0;
  for (const auto& c : kControl)
    if ((c.level != IPPROTO_IPV6 || v6()) && shadow_option(c.level, c.name) != 0) control_ |= c.bits;
  control_ |= stamps_told(shadow_option(SOL_SOCKET, SO_TIMESTAMPING), control_);
  receive_timeout = shadow_timeout(SO_RCVTIMEO);
  send_timeout = shadow_timeout(SO_SNDTIMEO);
  tos_ = static_cast<uint8_t>(shadow_option(IPPROTO_IP, IP_TOS));
  ttl_ = static_cast<uint8_t>(shadow_option(IPPROTO_IP, IP_TTL, 64));
  v6_only_ = v6() && shadow_option(IPPROTO_IPV6, IPV6_V6ONLY) != 0;
  if (v6()) {
    traffic_class_ = static_cast<uint8_t>(std::max(0, shadow_option(IPPROTO_IPV6, IPV6_TCLASS)));
    hop_limit_ = static_cast<uint8_t>(shadow_option(IPPROTO_IPV6, IPV6_UNICAST_HOPS, 64));
    auto_flow_label_ = shadow_option(IPPROTO_IPV6, IPV6_AUTOFLOWLABEL, 1) != 0;
    flowinfo_send_ = shadow_option(IPPROTO_IPV6, kFlowInfoSend) != 0;
  }
  to_groups_ = group_options();
  corked_ = shadow_option(IPPROTO_UDP, UDP_CORK) != 0;
  segment_ = static_cast<uint16_t>(shadow_option(IPPROTO_UDP, UDP_SEGMENT));
  UdpMtuOptions mtu;
  mtu.v4 = static_cast<MtuDiscovery>(shadow_option(IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_WANT));
  if (v6())
    mtu.v6 = static_cast<MtuDiscovery>(shadow_option(IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_WANT));
  mtu.most_v6 = most6_;
  UdpPcb* p = pcb(pass);
  if (p == nullptr) return;
  pass.stack().udp().set_mtu_options(*p, mtu);
  pass.stack().udp().set_placing(*p, (control_ & (kPktInfo | kPktInfo6)) != 0);
  p->counts_drops = (control_ & kOverflow) != 0;
  p->incoming_cpu = shadow_option(SOL_SOCKET, SO_INCOMING_CPU, -1);
  p->wants_errors = queues_errors(*this);
  const bool locked =
      (shadow_option(SOL_SOCKET, SO_BUF_LOCK) & 2) != 0;  // SOCK_RCVBUF_LOCK: SO_RCVBUF was set
  if (locked)
    pass.stack().udp().set_receive_buffer(*p, static_cast<uint32_t>(shadow_option(SOL_SOCKET, SO_RCVBUF)));
}

/// Whether SO_TIMESTAMPING is set to what only the kernel's path can tell.
bool UdpSocket::stamps_are_kernels(Pass& pass) const {
  const int flags = shadow_option(SOL_SOCKET, SO_TIMESTAMPING);
  if ((flags & ~kServedStamps) != 0) return true;
  if ((stamps_told(flags, 0) & kStampHardware) == 0) return false;
  for (InterfaceId id = 0; id < pass.engine().interface_count(pass); ++id)
    if (const PortInfo* port = pass.engine().port_info(pass, id); port != nullptr && port->kernel_has_stamps)
      return true;
  return false;
}

Result<int> UdpSocket::setsockopt(Pass& pass, int level, int name, const void* value, socklen_t length) {
  if (state_ != State::kOpen && flow_ == nullptr) return kOnKernel;
  if (Result<int> r = from_libc(real.setsockopt(shadow(), level, name, value, length)); !r) return r;
  if (level == SOL_SOCKET && (name == SO_SNDBUF || name == SO_SNDBUFFORCE) && (readiness() & EPOLLOUT) != 0)
    notify(kWritable);  // sk_setsockopt()
  option_was_set(level, name, value, length);
  if (is_group_option(level, name))
    if (Result<void> r = groups_were_set(pass); !r) return r.error();
  const Option* option = find_option(kOptions, level, name);
  switch (option == nullptr ? kKernel : option->effect) {
    case kMirror:
    case kShadow:
      return 0;
    case kKeep: {
      const uint8_t before = tos_;
      read_options(pass);
      if (stamps_are_kernels(pass) || !kernel_finds_errors_socket(*this)) break;
      if (tos_ != before) route_kept_ = false;  // __ip_sock_set_tos()
      request_ = flow_request(request_.role, local_, remote_);
      return 0;
    }
    case kRoute:
      break;
    case kKernel:
      if (!vetoes(kOptions, level, name, value, length)) return 0;
      break;
  }
  return detach_for(pass, OptionName(level, name).text) ? Result<int>(0) : err(ENOPROTOOPT);
}

void UdpSocket::option_was_set(int level, int name, const void* value, socklen_t length) {
  int number = 0;
  joined_.option_was_set(level, name, value);
  if (level == IPPROTO_IP && name == IP_MULTICAST_IF) group_device_ = device_named(value, length);
  if (level == IPPROTO_IPV6 && name == IPV6_MTU && v6() && get_user(number, value))
    most6_ = static_cast<uint32_t>(number);
}

Result<int> UdpSocket::getsockopt(Pass& pass, int level, int name, void* value, socklen_t* length) {
  UdpPcb* p = pcb(pass);
  const bool mtu = (level == IPPROTO_IP && name == IP_MTU) || (level == IPPROTO_IPV6 && name == IPV6_MTU);
  if (p != nullptr && mtu && route_kept_ && remote_.port != 0) {  // the shadow may have none, since we send
    Result<int> r = from_libc(real.getsockopt(shadow(), level, name, value, length));
    const int bytes = static_cast<int>(choice.route.mtu);
    return r.is(ENOTCONN) ? put_option(&bytes, sizeof bytes, value, length) : r;
  }
  if (p == nullptr || level != SOL_SOCKET) return kOnKernel;
  if (name == SO_INCOMING_CPU && remote_.port != 0 && p->rx_bytes > 0) {  // __udp_queue_rcv_skb()
    const int cpu = pass.engine().receiving_cpu(pass);
    return put_option(&cpu, sizeof cpu, value, length);
  }
  if (name != SO_ERROR) return kOnKernel;
  const int error = pass.stack().udp().take_error(*p);
  return error != 0 ? put_option(&error, sizeof error, value, length) : Result<int>(kOnKernel);
}

}  // namespace accel::posix
