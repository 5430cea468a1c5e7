// Datagrams in and out: our flow's queue and the shadow's; each destination by the path that its route
// allows.
#include <errno.h>
#include <linux/udp.h>
#include <netinet/in.h>
#include <netinet/ip.h>
#include <poll.h>
#include <time.h>

#include <utility>

#include "base/real.h"
#include "base/user_memory.h"
#include "engine/group_members.h"
#include "engine/leases.h"
#include "posix/flow_label.h"
#include "posix/iov_cursor.h"
#include "posix/udp_socket.h"
#include "posix/wait.h"
#include "stack/udp.h"

namespace accel::posix {
namespace {

std::span<const iovec> vector_of(const msghdr& m) { return {m.msg_iov, m.msg_iovlen}; }

constexpr int kProbe = 0x10;             // MSG_PROBE of linux/socket.h: nothing is sent
constexpr size_t kMostDatagram = 65535;  // a larger one is refused unread

int64_t read_clock(clockid_t which) {
  timespec t{};
  real.clock_gettime(which, &t);
  return int64_t{t.tv_sec} * 1000000000 + t.tv_nsec;
}

/// sin6_scope_id of the destination, 0 where there is none.
int scope_of(const msghdr& message) {
  sockaddr_in6 in6;
  if (message.msg_name == nullptr || message.msg_namelen < sizeof in6) return 0;
  memcpy(&in6, message.msg_name, sizeof in6);
  return static_cast<int>(in6.sin6_scope_id);
}

/// UDP_GRO_CNT_MAX, and what an IP packet can have.
constexpr int kMostMerged = 64;
constexpr size_t kMostMergedBytes = 65507;

/// The datagrams are one flow's and have the same headers.
bool continues(const Datagram& first, const Datagram& next) {
  return next.size > 0 && next.size <= first.size && next.from == first.from && next.to == first.to &&
         next.interface == first.interface && next.tos == first.tos && next.ttl == first.ttl &&
         next.placed == first.placed;
}

}  // namespace

/// ns since the epoch of a moment of ours. One clock is read between two readings of the other: where the
/// thread lost its CPU meanwhile, again.
int64_t wall_clock_at(Instant then) {
  constexpr int64_t kTight = 1000;
  int64_t between = 0, wall = 0, before = 0;
  for (int i = 0; i < 4 && (i == 0 || between > kTight); ++i) {
    before = read_clock(CLOCK_MONOTONIC);
    wall = read_clock(CLOCK_REALTIME);
    between = read_clock(CLOCK_MONOTONIC) - before;
  }
  return wall - (before + between / 2 - then.time_since_epoch().count());
}

int UdpSocket::take_error(Pass& pass, UdpPcb& p) const {
  if (const int error = pass.stack().udp().take_error(p); error != 0 || !p.kernel_has_error) return error;
  const int error = shadow_option(SOL_SOCKET, SO_ERROR);
  pollfd kernel{shadow(), 0, 0};  // the error queue: what is read from it makes the next one pending
  p.kernel_has_error = real.poll(&kernel, 1, 0) > 0;
  return error;
}

/// The way of a receiving call to the next datagram. `kernels` takes one that has come by the kernel, or
/// gives EAGAIN; `ours` takes the socket's first. `ended`: there is none, and the socket is shut down.
template <class Kernels, class Ours, class Ended>
Result<ssize_t> UdpSocket::receive(Pass& pass, bool wait, Instant deadline, const Kernels& kernels,
                                   const Ours& ours, const Ended& ended) {
  bool read_anew = false;
  auto ready = [&] {
    const UdpPcb* p = pcb(pass);
    return state_ == State::kKernel || shut_read_ ||
           (p != nullptr && (pass.stack().udp().readiness(*p) & (kReadable | kError)) != 0);
  };
  for (;;) {
    if (UdpPcb* p = pcb(pass)) {
      if (const int error = take_error(pass, *p)) return err(error);
      if (shadows_first_) {
        Result<ssize_t> r = kernels();
        if (!r.is(EAGAIN)) return r;
        shadows_first_ = false;
      }
      if (UdpLayer::front(*p) != nullptr) return ours(*p);
    }
    if (!wait || look_at_shadow_) {
      Result<ssize_t> r = kernels();
      if (!r.is(EAGAIN) || !wait) return r;
      if (shut_read_) {  // __skb_wait_for_more_packets(): who would wait has the end
        ended();
        return 0;
      }
    }
    if (elsewhere_too && !std::exchange(read_anew, true)) {  // as another process may have set them
      refresh_from_shadow();
      wait = !nonblocking;
      deadline = deadline_after(pass, receive_timeout);
      if (!wait) continue;
    }
    pollfd kernel{shadow(), POLLIN, 0};
    const WaitsOn waiting(*this);
    Result<Woke> woke = wait_for(pass, deadline, ready, std::span(&kernel, 1));
    look_at_shadow_ = !woke || *woke == Woke::kKernel || state_ != State::kOpen || shut_read_;
    if (!woke) return woke.error();
    if (state_ == State::kKernel) return kOnKernel;
  }
}

Result<ssize_t> UdpSocket::recvmsg(Pass& pass, msghdr* message, int flags) {
  const bool wait = !nonblocking && (flags & (MSG_DONTWAIT | MSG_ERRQUEUE)) == 0;
  if (state_ == State::kKernel || (flow_ == nullptr && !wait)) return kOnKernel;
  waited_on_ = served = true;
  if ((flags & MSG_ERRQUEUE) != 0) return kOnKernel;
  if (flow_ == nullptr && shadow_name().port != 0 && state_ == State::kUndecided) return kOnKernel;
  Result<size_t> room = iov_bytes(*message);
  if (!room) return room.error();
  const Instant deadline =
      deadline_after(pass, flow_ != nullptr ? receive_timeout : shadow_timeout(SO_RCVTIMEO));
  const msghdr asked = *message;
  const auto kernels = [&] {
    *message = asked;
    Result<ssize_t> r = from_libc(real.recvmsg(shadow(), message, flags | MSG_DONTWAIT));
    if (r.is(EAGAIN)) *message = asked;
    return r;
  };
  const auto ours = [&](UdpPcb&) { return deliver(pass, message, *room, flags); };
  const auto ended = [&] {
    message->msg_namelen = 0;
    message->msg_controllen = 0;
    message->msg_flags = 0;
  };
  return receive(pass, wait, deadline, kernels, ours, ended);
}

/// kOnKernel: the next datagram has come by the kernel. EAGAIN: none has. Others: the shadow's pending error,
/// which this call takes.
Errno UdpSocket::look_at_kernels() const {
  msghdr nothing{};
  const Result<ssize_t> peeked = from_libc(real.recvmsg(shadow(), &nothing, MSG_PEEK | MSG_DONTWAIT));
  return peeked ? kOnKernel : peeked.error();
}

Result<ssize_t> UdpSocket::lend_front(Pass& pass, UdpPcb& p, LeaseCall& call) {
  if (!call.can_tell()) return err(EFAULT);
  Leases& leases = pass.engine().leases(pass);
  if (!leases.make_room()) return err(ENOBUFS);
  const Datagram datagram = *UdpLayer::front(p);
  Lent lent;
  Result<void> taken = pass.stack().udp().lend(p, {call.room, leases.room()}, lent, call.buffers);
  if (!taken) return taken.error();
  const PortInfo* port = pass.engine().port_info(pass, datagram.interface);
  call.tell(datagram.from, domain(), port != nullptr ? port->ifindex : 0);
  call.tell(lent);
  call.number = leases.begin(std::move(lent));
  pass.engine().counters().add(Counter::leases);
  last_arrived_ = datagram.arrived;
  return static_cast<ssize_t>(datagram.size);
}

Result<ssize_t> UdpSocket::lend(Pass& pass, LeaseCall& call) {
  if (state_ == State::kKernel || flow_ == nullptr) return kOnKernel;
  waited_on_ = served = true;
  const bool wait = !nonblocking && (call.flags & MSG_DONTWAIT) == 0;
  const auto kernels = [&] { return Result<ssize_t>(look_at_kernels()); };
  const auto ours = [&](UdpPcb& p) { return lend_front(pass, p, call); };
  return receive(pass, wait, deadline_after(pass, receive_timeout), kernels, ours, [] {});
}

void UdpSocket::keep_error(Pass& pass, Errno error) {
  if (UdpPcb* p = pcb(pass)) p->error = static_cast<int>(error);
}

/// IPv4 by a socket that is bound to IPv6 only: the kernel has the error.
bool UdpSocket::mixes_families(const Endpoint& to) const {
  return v6() && to.address.is_v4() && (v6_only_ || (!local_.address.is_any() && !local_.address.is_v4()));
}

/// UDP_GRO: behind `first`, which is in the vector's beginning, what follows of its flow in datagrams of its
/// size, the last of which may be shorter (net/ipv4/udp_offload.c, udp_gro_receive_segment()). As far as
/// there is room, so that nothing is cut. Returns the bytes of all.
size_t UdpSocket::merge(Pass& pass, const Datagram& first, std::span<const iovec> into, size_t room) {
  UdpLayer& udp = pass.stack().udp();
  UdpPcb& p = *pcb(pass);
  IovCursor cursor(into);
  cursor.advance(first.size);
  size_t size = first.size;
  for (int n = 1; n < kMostMerged; ++n) {
    const Datagram* next = UdpLayer::front(p);
    if (next == nullptr || !continues(first, *next)) break;
    const uint32_t more = next->size;
    if (size + more > std::min(room, kMostMergedBytes) || !cursor.whole()) break;
    if (!can_overwrite(cursor.window(), more)) break;
    udp.receive(p, cursor.window(), true);
    pass.engine().counters().add(Counter::rx_merged_datagrams);
    cursor.advance(more);
    size += more;
    if (more < first.size) break;
  }
  return size;
}

/// The front of our queue into `message`.
Result<ssize_t> UdpSocket::deliver(Pass& pass, msghdr* message, size_t room, int flags) {
  UdpPcb& p = *pcb(pass);
  const Datagram datagram = *pass.stack().udp().front(p);
  const PortInfo* port = pass.engine().port_info(pass, datagram.interface);
  const int ifindex = port != nullptr ? port->ifindex : 0;
  const bool take = (flags & MSG_PEEK) == 0;
  if (!can_overwrite(vector_of(*message), datagram.size)) {  // udp_recvmsg(): it is lost
    (void)pass.stack().udp().receive(p, {}, take);
    if (take) pass.engine().counters().add(Counter::drop_udp_bad_buffer);
    return err(EFAULT);
  }
  size_t copied = pass.stack().udp().receive(p, vector_of(*message), take);
  const bool merges = take && (control_ & kMerged) != 0 && datagram.size > 0 && datagram.size < room;
  if (merges) copied = merge(pass, datagram, vector_of(*message), room);
  if (message->msg_name != nullptr) {
    socklen_t length = message->msg_namelen;
    Result<void> named = to_sockaddr(datagram.from, domain(), static_cast<sockaddr*>(message->msg_name),
                                     &length, static_cast<uint32_t>(ifindex));
    if (!named) return named.error();
    message->msg_namelen = length;
  } else {
    message->msg_namelen = 0;
  }
  message->msg_flags = datagram.size > room ? MSG_TRUNC : 0;
  // sock_recv_timestamp()
  const bool told = (control_ & (kTimestamp | kTimestampNs | kStampSoftware)) != 0;
  if (!told) last_arrived_ = datagram.arrived;
  IpAddress answered_by = datagram.to.address;
  if ((control_ & kPktInfo) != 0 && answered_by.is_multicast())  // fib_compute_spec_dst()
    answered_by = pass.engine().source_towards(pass, datagram.from.address);
  put_control_messages(message, control_,
                       {datagram, ifindex, told ? wall_clock_at(datagram.arrived) : 0,
                        (control_ & kStampHardware) != 0 ? pass.engine().device_time(pass, datagram) : 0,
                        answered_by, copied > datagram.size ? datagram.size : 0});
  return static_cast<ssize_t>((flags & MSG_TRUNC) != 0 ? std::max<size_t>(datagram.size, copied) : copied);
}

/// inet_send_prepare(): a port is found first.
Result<void> UdpSocket::open_to_send(Pass& pass) {
  if (shadow_name().port == 0) {
    sockaddr_storage name{};
    socklen_t length = sizeof name;
    (void)to_sockaddr({shadow_name().address, 0}, domain(), reinterpret_cast<sockaddr*>(&name), &length);
    if (real.bind(shadow(), reinterpret_cast<sockaddr*>(&name), length) != 0)
      return err(errno == EADDRINUSE ? EAGAIN : errno);
  }
  Result<void> opened = open(pass, Role::kUdpSender, shadow_name(), {});
  if (opened) pass.engine().touch();
  return opened;
}

Result<ssize_t> UdpSocket::sendmsg(Pass& pass, const msghdr* message, int flags) {
  if (state_ == State::kKernel) return kOnKernel;
  waited_on_ = true;
  Result<size_t> size = iov_bytes(*message);
  if (!size) return size.error();
  // A queue that disconnect() left is older than what comes by the new port, also where the send fails.
  if (state_ == State::kUndecided && flow_ != nullptr && veto == Reason::accelerated)
    if (Result<void> r = open_to_send(pass); !r) return r.error();
  Endpoint to = remote_;
  uint32_t label = flow_label_;
  bool leased = false;
  if (message->msg_name != nullptr && message->msg_namelen != 0) {
    Result<Endpoint> named =
        from_sockaddr(static_cast<const sockaddr*>(message->msg_name), message->msg_namelen, domain());
    if (!named) return kOnKernel;
    to = *named;
    label = kNoFlowLabel;
    if (state_ == State::kUndecided || flowinfo_send_)
      leased =
          (flowinfo_to_send(*this, static_cast<const sockaddr*>(message->msg_name)) & kFlowLabelMask) != 0;
  }
  // What the kernel refuses, collects (UDP_CORK), sends with control messages of its own or with a flow label
  // that may take a lease leaves by the shadow: it has the same port.
  const bool more = (flags & MSG_MORE) != 0;
  if (state_ == State::kUndecided) {
    corked_ = shadow_option(IPPROTO_UDP, UDP_CORK) != 0;
    v6_only_ = v6() && shadow_option(IPPROTO_IPV6, IPV6_V6ONLY) != 0;
    if (to.address.is_multicast()) to_groups_ = group_options();
  }
  const bool v4 = to.address.is_v4();
  const bool refused = is_refused(to, *size, flags);
  const bool kernels_group = kernel_sends_to_group(to);
  if (kernels_group && !refused && state_ == State::kUndecided) {
    if (Result<void> r = may_use_kernel(Reason::multicast); !r) return r.error();
    choice.path = PathKind::kKernel;
    choice.reason = Reason::multicast;
  }
  const bool odd = refused || leased || to.address.is_any() || to.address.is_loopback() || kernels_group ||
                   local_.address.is_multicast() || shut_write_ || more || corked_ || collecting_ ||
                   (flags & (MSG_OOB | MSG_DONTROUTE | kProbe)) != 0;
  std::optional<SendControl> control;
  std::optional<FlowRequest> request;
  if (!odd) control = read_send_control(*message, v4, v6());
  if (control) request = request_for(pass, *message, to, *control);
  if (!request) {
    if (!refused) {  // sock_alloc_send_pskb()
      if (UdpPcb* p = pcb(pass))
        if (const int error = take_error(pass, *p)) return err(error);
      collecting_ = more;
    }
    return send_kernels(pass, message, flags);
  }
  if (state_ == State::kUndecided && decide_veto(pass) != Reason::accelerated) {
    const Errno answer = detach_undecided(&pass, veto);
    if (answer == kOnKernel) state_ = State::kKernel;
    return answer;
  }
  const PathChoice path = pass.engine().choose_udp_destination(pass, *request);
  // IPv6 routing takes a device for a wish, and one that is not there for none.
  if (path.accelerated() && control->ifindex != 0 &&
      control->ifindex != pass.engine().port_info(pass, path.route.interface)->ifindex)
    return send_kernels(pass, message, flags);
  if (!path.accelerated()) {
    if (state_ == State::kUndecided && path.reason != Reason::no_route) {
      if (Result<void> r = may_use_kernel(path.reason); !r) return r.error();
      choice = path;
    }
    return send_kernels(pass, message, flags);
  }
  if (state_ == State::kUndecided) {
    if (Result<void> r = open_to_send(pass); !r) return r.error();
  }
  if (flow_ == nullptr) return send_kernels(pass, message, flags);
  if (path.route.mtu != 0 && !control->by_ip) choice.route = path.route;
  if (label == kNoFlowLabel && auto_flow_label_) label = kAutoFlowLabel;
  uint8_t ttl = v4 ? ttl_ : hop_limit_;
  if (to.address.is_multicast()) ttl = v4 ? to_groups_.ttl : static_cast<uint8_t>(to_groups_.hops);
  const UdpFields fields{control->tos.value_or(v4 ? tos_ : traffic_class_), control->ttl.value_or(ttl), label,
                         control->segment.value_or(segment_)};
  const bool wait = !nonblocking && (flags & MSG_DONTWAIT) == 0;
  Result<ssize_t> r = send_ours(pass, vector_of(*message), {to, path.route, fields}, wait);
  route_kept_ |= r.ok() && message->msg_namelen == 0 && !control->by_ip;
  return r.is(EMSGSIZE) ? send_kernels(pass, message, flags) : r;
}

/// Groups of a scope of their own (RFC 4007) are left to the kernel, and a limit of hops that it takes from
/// the route.
bool UdpSocket::kernel_sends_to_group(const Endpoint& to) const {
  return to.address.is_multicast() && (remote_.port != 0 || !leaves_by_device(to.address, to_groups_));
}

bool UdpSocket::leaves_by_device(const IpAddress& group, const ToGroups& how) {
  if (!config().settings.multicast) return false;
  if (group.is_v4()) return how.ttl != 0;
  const uint8_t scope = group.bytes[1] & 0xf;
  return how.hops > 0 && scope > 2;
}

/// Groups of protocols that keep to their link (224.0.0.0/24, RFC 5771) open no engine: few datagrams go to
/// them, of programs that send nothing else.
bool UdpSocket::may_send_to_group(const Endpoint& to) const {
  const ToGroups how = group_options();
  if (!leaves_by_device(to.address, how)) return false;
  const auto& b = to.address.bytes;
  const bool keeps_to_link = to.address.is_v4() && b[12] == 224 && b[13] == 0 && b[14] == 0;
  return !how.loops(to.address) || (!keeps_to_link && GroupMembers::are_told());
}

/// What udp_sendmsg() and its twin refuse before they look at anything else.
bool UdpSocket::is_refused(const Endpoint& to, size_t size, int flags) const {
  const bool v4 = to.address.is_v4();
  const size_t most = kMostDatagram - sizeof(udphdr) - (v4 ? sizeof(iphdr) : 0);
  return ((flags & MSG_OOB) != 0 && v4) || to.port == 0 || size > most || mixes_families(to);
}

std::optional<FlowRequest> UdpSocket::request_for(Pass& pass, const msghdr& message, const Endpoint& to,
                                                  const SendControl& control) const {
  const bool open = state_ == State::kOpen;
  const bool v4 = to.address.is_v4();
  FlowRequest request = open ? request_ : flow_request(Role::kUdpSender, shadow_name(), to);
  request.role = remote_.port != 0 ? Role::kUdpConnect : Role::kUdpSender;
  request.remote = to;
  if (open) {
    request.local = local_;
    request.tos = v4 ? tos_ : traffic_class_;
  }
  request.tos = control.tos.value_or(request.tos);
  // A device that is bound to, a link-local destination's scope and IP_PKTINFO's: the kernel ranks them.
  int device = control.ifindex;
  if (const int scope = v4 ? 0 : scope_of(message); scope != 0 && to.address.is_link_local()) {
    if (device != 0 && device != scope) return {};
    device = scope;
  }
  if (device != 0 && request.bound_ifindex != 0 && device != request.bound_ifindex) return {};
  const bool to_group = to.address.is_multicast();
  request.looped = to_group && to_groups_.loops(to.address);
  if (device == 0 && request.bound_ifindex == 0 && to_group)
    device = v4 ? group_device_ : to_groups_.device_v6;
  if (device == 0 && to_group && v4 && !to_groups_.source.is_any())
    device = pass.engine().device_with(pass, to_groups_.source);
  if (device != 0) request.bound_ifindex = device;
  if (to_group && v4 && request.local.address.is_any()) request.local.address = to_groups_.source;
  if (!v4 && to.address.is_link_local() && request.bound_ifindex == 0) return {};
  if (!control.source) return request;
  // Of IPv4's source routing makes sure.
  if (!v4 && !control.source->is_any() && !pass.engine().has_address(pass, *control.source)) return {};
  request.local.address = *control.source;
  return request;
}

Result<ssize_t> UdpSocket::send_ours(Pass& pass, std::span<const iovec> data, const Sending& how, bool wait) {
  const Instant deadline = deadline_after(pass, send_timeout);
  if (!can_read(data, kMostDatagram)) return err(EFAULT);
  for (;;) {
    UdpPcb* p = pcb(pass);
    if (p == nullptr) return kOnKernel;
    if (const int error = take_error(pass, *p)) return err(error);
    Result<size_t> n = pass.stack().udp().send(*p, data, {how.route.source, local_.port}, how.to, how.route,
                                               how.fields, pass.now());
    if (n) {
      if (watches != nullptr)
        notify(kWritable);  // the kernel's sock_wfree() tells sets of room after each datagram
      return static_cast<ssize_t>(*n);
    }
    if (!(n.is(EAGAIN) || n.is(ENOBUFS)) || !wait || !may_wait())
      return n.is(ENOBUFS) ? err(EAGAIN) : n.error();
    auto room = [&] {
      const UdpPcb* q = pcb(pass);
      return q == nullptr || (pass.stack().udp().readiness(*q) & (kWritable | kError)) != 0;
    };
    Result<Woke> woke = wait_for(pass, deadline, room);
    if (!woke) return woke.error();
  }
}

/// At once where the kernel takes it at once; else the caller waits in the kernel, without the lock.
Result<ssize_t> UdpSocket::send_kernels(Pass& pass, const msghdr* message, int flags) const {
  if (flow_ != nullptr) pass.engine().counters().add(Counter::udp_sent_by_kernel);
  if (nonblocking || (flags & MSG_DONTWAIT) != 0) return kOnKernel;
  Result<ssize_t> r = from_libc(real.sendmsg(shadow(), message, flags | MSG_DONTWAIT));
  return r.is(EAGAIN) ? Result<ssize_t>(kOnKernel) : r;
}

}  // namespace accel::posix
