// A UDP socket's path, names and change of hands.
#include "posix/udp_socket.h"

#include <asm/ioctls.h>
#include <errno.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/time.h>

#include "base/real.h"
#include "base/user_memory.h"
#include "engine/shown_socket.h"
#include "engine/stats.h"
#include "posix/flow_label.h"
#include "posix/group_looks.h"
#include "posix/unix_rendezvous.h"
#include "posix/wait.h"
#include "stack/udp.h"

namespace accel::posix {
namespace {

Endpoint shadow_peer(const Socket& s) {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  if (real.getpeername(s.shadow(), reinterpret_cast<sockaddr*>(&address), &length) != 0) return {};
  Result<Endpoint> peer = from_sockaddr(reinterpret_cast<sockaddr*>(&address), length, s.domain());
  return peer ? *peer : Endpoint{};
}

}  // namespace

UdpSocket* UdpSocket::received(int fd, int domain) {
  auto* s = new (std::nothrow) UdpSocket(fd, domain);
  if (s == nullptr) return nullptr;
  s->state_ = State::kOpen;
  s->inherited = Inherited::kReceived;
  s->local_ = s->shadow_name();
  s->request_ = s->flow_request(Role::kUdpReceiver, s->local_, {});
  s->refresh_from_shadow();
  return s;
}

uint32_t UdpSocket::readiness() {
  Engine* engine = Engine::get();
  if (engine == nullptr || flow_ == nullptr) return 0;
  waited_on_ = true;
  uint32_t ready = engine->stack().udp().readiness(*engine->udp(*flow_));
  if (shut_read_) ready |= kReadable | kReadClosed;
  if (shut_read_ && shut_write_) ready |= kHangUp;
  if (shadows_first_) {
    pollfd kernel{shadow(), POLLIN, 0};
    shadows_first_ = real.poll(&kernel, 1, 0) > 0;
    if (shadows_first_) ready |= kReadable;
  }
  return epoll_bits(ready);
}

void UdpSocket::close_flow(Pass& pass) {
  if (flow_ != nullptr) pass.engine().close(pass, flow_);
  flow_ = nullptr;
}

void UdpSocket::on_last_close(Pass* pass) {
  if (pass == nullptr) return;
  hand_off_queue(*pass);
  close_flow(*pass);
}

File::Inherited UdpSocket::after_fork_in_child() {
  flow_ = nullptr;
  return state_ == State::kOpen ? Inherited::kDormant : Inherited::kNo;
}

BoundFlow* UdpSocket::releasable_flow() {
  Engine* engine = Engine::get();
  if (flow_ == nullptr || waited_on_ || remote_.port != 0 || engine == nullptr) return nullptr;
  return engine->stack().udp().front(*engine->udp(*flow_)) == nullptr ? flow_ : nullptr;
}

void UdpSocket::revive(Pass& pass) {
  if (state_ != State::kOpen || flow_ != nullptr) return;
  if (veto == Reason::accelerated && stamps_are_kernels(pass)) veto_for("SO_TIMESTAMPING");
  if (decide_veto(pass) != Reason::accelerated) {
    if (detach_undecided(&pass, veto) == kOnKernel) state_ = State::kKernel;
    return;
  }
  port_is_shared_ =
      shadow_option(SOL_SOCKET, SO_REUSEADDR) != 0 && port_ownership() == PortOwnership::kNotOwner;
  const ShownSocket shown(pass.engine(), shadow());
  Result<BoundFlow*> flow = pass.engine().bind_udp(
      pass, choice, local_, remote_, v6() && shadow_option(IPPROTO_IPV6, IPV6_V6ONLY) != 0,
      port_is_shared_ ? Engine::Taking::kNotYet : Engine::Taking::kShared, request_.bound_ifindex,
      static_cast<File*>(this));
  if (flow && choice.accelerated()) flow_ = *flow;
  if (flow_ == nullptr) return;
  pcb(pass)->reuse_port = shadow_option(SOL_SOCKET, SO_REUSEPORT) != 0;
  read_options(pass);
  follow_groups(pass);
  shadows_first_ = true;
}

PortOwnership UdpSocket::port_ownership() const {
  if (shadow_option(SOL_SOCKET, SO_REUSEPORT) != 0) return PortOwnership::kSole;
  return ownership_at(shadow_name().port, cookie_of(shadow()));
}

/// It was bound while its device's port was being opened: the shadow alone has received so far.
void UdpSocket::ports_opened(Pass& pass) {
  if (state_ != State::kOpen || flow_ == nullptr) return;
  Engine& engine = pass.engine();
  const PathChoice now =
      engine.is_taking(*flow_) ? engine.path_of(pass, *flow_) : engine.covers(pass, request_, v6_only_);
  if (choice.reason != Reason::port_opening && now.reason != Reason::port_opening &&
      now.reason != Reason::redirected)
    return;
  choice = now;
  if (!choice.accelerated()) return (void)detach(pass, choice.reason);
  follow_groups(pass);
  // What the shadow has came first.
  pollfd kernel{shadow(), POLLIN, 0};
  shadows_first_ = real.poll(&kernel, 1, 0) > 0;
  look_at_shadow_ = true;
}

/// A connected one could have the device bring all that comes to its port, where others hold queues of it.
void UdpSocket::settle_ownership(Pass& pass) {
  const PortOwnership now = port_ownership();
  port_is_shared_ = now != PortOwnership::kSole;
  if (now == PortOwnership::kNotOwner || (port_is_shared_ && remote_.port != 0)) {
    pass.engine().stop_taking(pass, *flow_);
  } else if (!pass.engine().is_taking(*flow_)) {
    pollfd kernel{shadow(), POLLIN, 0};
    shadows_first_ = pass.stack().udp().front(*pcb(pass)) == nullptr && real.poll(&kernel, 1, 0) > 0;
    pass.engine().begin_taking(pass, *flow_);
  }
  look_at_shadow_ = true;
  pass.engine().touch();
}

void UdpSocket::hand_over_to_shadow(Pass& pass) {
  give_queue_to_shadow(pass);
  close_flow(pass);
  state_ = State::kKernel;
  settle_groups(pass, shadow_name().port);  // it is one of the others from now on
}

Result<void> UdpSocket::detach(Pass& pass, Reason reason) {
  if (state_ == State::kKernel) return {};
  if (state_ == State::kUndecided) {
    veto = reason;
    return {};
  }
  hand_over_to_shadow(pass);
  choice.path = PathKind::kKernel;
  choice.reason = reason;
  stats::note_kernel(shadow(), reason, detail_of(reason));
  fds.forget(this);
  pass.engine().touch();
  return {};
}

/// Opens the flow of a shadow that is bound by now. Errors: as detach_undecided().
Result<void> UdpSocket::open(Pass& pass, Role role, const Endpoint& local, const Endpoint& remote) {
  auto decline = [&](Reason reason) {
    const Errno answer = detach_undecided(&pass, reason);
    if (answer != kOnKernel) return answer;
    hand_over_to_shadow(pass);
    return answer;
  };
  if (decide_veto(pass) != Reason::accelerated) return decline(veto);
  if (local.address.is_loopback() || remote.address.is_loopback()) return decline(Reason::loopback);
  if (remote.address.is_multicast()) return decline(Reason::multicast);
  const Groups groups = joined_.touched() ? groups_now(pass, local.port) : Groups{};
  if (local.address.is_multicast() && !groups.taken) {
    if (role == Role::kUdpReceiver && groups.memberships.empty()) return {};  // until it has joined
    return decline(Reason::multicast);
  }
  request_ = flow_request(role, local, remote);
  if (remote.port != 0) {
    choice = pass.engine().choose(pass, request_);
    if (!choice.accelerated() && choice.reason != Reason::port_opening) return decline(choice.reason);
  }
  port_is_shared_ = shadow_option(SOL_SOCKET, SO_REUSEADDR) != 0 && port_ownership() != PortOwnership::kSole;
  using enum Engine::Taking;
  const ShownSocket shown(pass.engine(), shadow());
  Result<BoundFlow*> flow = pass.engine().bind_udp(pass, choice, local, remote,
                                                   v6() && shadow_option(IPPROTO_IPV6, IPV6_V6ONLY) != 0,
                                                   port_is_shared_                                ? kNotYet
                                                   : shadow_option(SOL_SOCKET, SO_REUSEPORT) != 0 ? kShared
                                                                                                  : kAlone,
                                                   request_.bound_ifindex, static_cast<File*>(this), groups);
  if (!flow || !choice.accelerated())
    return decline(choice.accelerated() || choice.reason == Reason::accelerated ? Reason::resources
                                                                                : choice.reason);
  pass.engine().udp(**flow)->reuse_port = shadow_option(SOL_SOCKET, SO_REUSEPORT) != 0;
  if (stamps_are_kernels(pass)) {
    pass.engine().close(pass, *flow);
    veto_for("SO_TIMESTAMPING");
    return decline(veto);
  }
  Result<void> required = check_required();
  if (required && joined_.any() && !pass.engine().brings_groups(pass, **flow) &&
      choice.reason != Reason::port_opening)
    required = may_use_kernel(Reason::multicast);
  if (!required) {
    pass.engine().close(pass, *flow);
    return required;
  }
  shadows_first_ |= flow_ == nullptr || pass.stack().udp().front(*pcb(pass)) == nullptr;
  if (flow_ != nullptr) {  // disconnect() left it for its queue
    pass.stack().udp().take_queue(*pass.engine().udp(**flow), *pcb(pass));
    close_flow(pass);
  }
  pollfd kernel{shadow(), POLLIN, 0};
  shadows_first_ = shadows_first_ && real.poll(&kernel, 1, 0) > 0;
  flow_ = *flow;
  local_ = local;
  remote_ = remote;
  refresh_from_shadow();
  read_options(pass);
  state_ = State::kOpen;
  if (joined_.any()) ask_for_look(pass.engine());
  return {};
}

Result<int> UdpSocket::bind(Pass& pass, const sockaddr* address, socklen_t length) {
  if (state_ != State::kUndecided) return kOnKernel;  // EINVAL
  Result<Endpoint> wanted = from_sockaddr(address, length, domain());
  if (!wanted) return kOnKernel;
  if (Result<int> r = from_libc(real.bind(shadow(), address, length)); !r) return r;
  Result<void> opened = open(pass, Role::kUdpReceiver, shadow_name(), {});
  if (!opened && opened.error() != kOnKernel) return opened.error();
  return 0;
}

Result<int> UdpSocket::connect(Pass& pass, const sockaddr* address, socklen_t length) {
  if (state_ == State::kKernel || address == nullptr || length < sizeof address->sa_family) return kOnKernel;
  if (family_of(address) == AF_UNSPEC) return disconnect(pass, address, length);
  // Connecting the shadow is local: errors, the source address and the port are the kernel's.
  if (Result<int> r = from_libc(real.connect(shadow(), address, length)); !r) return r;
  const Endpoint local = shadow_name();
  const Endpoint remote = shadow_peer(*this);
  flow_label_ = flowinfo_to_send(*this, address) & kFlowLabelMask;
  Result<void> opened;
  if (flow_ == nullptr || state_ == State::kUndecided) {
    opened = open(pass, Role::kUdpConnect, local, remote);
  } else {
    request_ = flow_request(Role::kUdpConnect, local, remote);
    const PathChoice next = remote.address.is_loopback() ? PathChoice{PathKind::kKernel, Reason::loopback, {}}
                                                         : pass.engine().choose(pass, request_);
    if (next.accelerated()) {
      choice = next;
      if (port_is_shared_) pass.engine().stop_taking(pass, *flow_);
      pass.engine().reconnect_udp(pass, *flow_, local, remote);
      local_ = local;
      remote_ = remote;
    } else {
      opened = detach_undecided(&pass, next.reason);
      if (opened.error() == kOnKernel) {
        hand_over_to_shadow(pass);
      }
    }
  }
  if (!opened && opened.error() != kOnKernel) return opened.error();
  return 0;
}

/// connect() to AF_UNSPEC: __udp_disconnect() keeps a port that bind() was given and drops one that was
/// found. What is queued stays readable in both cases.
Result<int> UdpSocket::disconnect(Pass& pass, const sockaddr* address, socklen_t length) {
  Result<int> r = from_libc(real.connect(shadow(), address, length));
  if (!r || flow_ == nullptr) return r;
  // Where ICMP errors are the kernel's (PortInfo::kernel_sees_errors) the shadow has it, and sends look at
  // ours.
  if (const int error = shadow_option(SOL_SOCKET, SO_ERROR); error != 0) pcb(pass)->error = error;
  local_ = shadow_name();
  remote_ = {};
  if (local_.port == 0) {
    pass.engine().stop_taking(pass, *flow_);
    pass.stack().udp().connect(*pcb(pass), {}, {});  // the kernel may give the port to another of our sockets
    state_ = State::kUndecided;
  } else {
    pass.engine().reconnect_udp(pass, *flow_, local_, remote_);
  }
  return r;
}

Result<int> UdpSocket::shutdown(Pass& pass, int how) {
  Result<int> r = from_libc(real.shutdown(shadow(), how));
  // inet_shutdown() says ENOTCONN to a socket that is not connected, and shuts it down all the same.
  if (!r && !r.is(ENOTCONN)) return r;
  note_shut(how);
  if (flow_ == nullptr) return r;
  pass.engine().touch();
  return r;
}

/// udp_ioctl(), over both queues.
Result<int> UdpSocket::ioctl(Pass& pass, unsigned long request, void* argument) {
  if (flow_ == nullptr) return kOnKernel;
  if (request == FIONREAD) {
    const Datagram* front = pass.stack().udp().front(*pcb(pass));
    int queued = 0;
    if (shadows_first_ && real.ioctl(shadow(), FIONREAD, &queued) == 0 && queued > 0) return kOnKernel;
    if (front == nullptr) return kOnKernel;
    const int size = static_cast<int>(front->size);
    return put_user(argument, size) ? Result<int>(0) : err(EFAULT);
  }
  if ((request == SIOCGSTAMP_OLD || request == SIOCGSTAMPNS_OLD) && last_arrived_) {  // sock_gettstamp()
    const int64_t at = wall_clock_at(*last_arrived_);
    const timespec t{at / 1'000'000'000, at % 1'000'000'000};
    const timeval rough{t.tv_sec, t.tv_nsec / 1000};
    const bool put = request == SIOCGSTAMP_OLD ? put_user(argument, rough) : put_user(argument, t);
    return put ? Result<int>(0) : err(EFAULT);
  }
  return kOnKernel;
}

}  // namespace accel::posix
