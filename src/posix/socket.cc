// What TCP and UDP sockets of ours have in common: the shadow, and how they leave for the kernel.
#include "posix/socket.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/time.h>

#include <utility>

#include "base/config.h"
#include "base/log.h"
#include "base/private_fds.h"
#include "base/real.h"
#include "base/socket_option.h"
#include "base/user_memory.h"
#include "engine/shown_socket.h"
#include "engine/stats.h"
#include "posix/epoll_set.h"
#include "posix/reuseport_markers.h"

namespace accel::posix {
namespace {

/// Reasons that `require` lets pass: the operator asked for the kernel, or no device could have a part in it.
bool excused(Reason reason) {
  switch (reason) {
    case Reason::rule:
    case Reason::path_setting:
    case Reason::device_setting:
    case Reason::loopback:
    case Reason::local_address:
    case Reason::not_internet:
    case Reason::other_network:
      return true;
    default:
      return false;
  }
}

/// What the clock's nanoseconds hold with room to spare: 30 years.
constexpr std::chrono::seconds kLongestTimeout{8'000'000'000};

Errno refuse(const char* why, const char* detail = "") {
  log(LogLevel::kError, "ACCEL_REQUIRE: a socket cannot be accelerated: %s%s%s", why,
      *detail != 0 ? ": " : "", detail);
  return err(EPROTONOSUPPORT);
}

}  // namespace

std::atomic<Reason> sockets_stay_on_kernel{Reason::accelerated};

bool undecided(const File& file) {
  return file.kind() == FileKind::kTcp &&
         static_cast<const Socket&>(file).choice.reason == Reason::not_decided;
}

Socket* find_socket(int fd) {
  File* file = fds.find(fd);
  return file == nullptr || file->kind() == FileKind::kEpoll ? nullptr : static_cast<Socket*>(file);
}

Socket::~Socket() {
  if (private_fd_) close_private(fd_);
}

void Socket::keep_shadow(int fd) {
  if (fd != fd_ || closed) return;
  int other = -1;
  if (descriptors > 1) {
    for (int i = 0; other < 0 && i < fds.size(); ++i)
      if (i != fd && fds.find(i) == this) other = i;
  } else if (kernel_fd() == fd || (carried_by_shadow() && !last_reference())) {
    // Perhaps a call that blocks waits on it: the number may soon be another file's.
    other = keep_private(real.fcntl(fd, F_DUPFD_CLOEXEC, 3));
    private_fd_ = other >= 0;
  }
  if (other < 0) return;
  fd_ = other;
  if (BoundFlow* flow = bound_flow()) ShownSocket::move(*flow, fd_);
  shadow_moved();
  ++readiness_epoch;  // the sets stay as they are: the kernel knows a member by its file
}

Result<void> Socket::may_use_kernel(Reason reason, const char* detail) {
  if (excused(reason) || config().settings.require == Require::kOff) return {};
  return refuse(reason_text(reason), detail);
}

void Socket::veto_for(const char* what) {
  veto = Reason::option;
  unserved_ = stats::note_detail(what);
}

Result<void> Socket::detach_for(Pass& pass, const char* what) {
  unserved_ = stats::note_detail(what);
  return detach(pass, Reason::option);
}

Errno Socket::detach_undecided(Pass* pass, Reason reason) {
  const uint8_t detail = detail_of(reason);
  const std::string about = reason == Reason::option ? stats::detail_text(detail) : "";
  if (Result<void> r = may_use_kernel(reason, about.c_str()); !r) return r.error();
  choice.path = PathKind::kKernel;
  choice.reason = reason;
  if (pass != nullptr) pass->engine().counters().add(Counter::sockets_kernel);
  stats::note_kernel(fd_, reason, detail);
  fds.forget(this);
  return kOnKernel;
}

Reason Socket::decide_veto(Pass& pass) {
  if (!std::exchange(network_asked_, true) && !pass.engine().is_of_our_network(fd_))
    veto = Reason::other_network;
  if (group_has_program(fd_)) veto_for(kGroupProgram);
  return veto;
}

Result<void> Socket::check_required() {
  const Require require = config().settings.require;
  if ((require == Require::kXdp && choice.path != PathKind::kXdp) ||
      (require == Require::kMlx5 && choice.path != PathKind::kMlx5))
    return refuse(path_name(choice.path));
  return {};
}

Endpoint Socket::shadow_name() const { return kernel_name(fd_); }

int Socket::shadow_option(int level, int name, int otherwise) const {
  return int_option(fd_, level, name, otherwise);
}

Duration Socket::shadow_timeout(int name) const {
  const Duration timeout = timeout_of(fd_, name);
  const bool no_wait = name == SO_RCVTIMEO ? receive_no_wait_ : send_no_wait_;
  return timeout == Duration{0} && no_wait ? kNoWait : timeout;
}

Duration Socket::timeout_of(int fd, int name) {
  timeval t{};
  socklen_t length = sizeof t;
  if (real.getsockopt(fd, SOL_SOCKET, name, &t, &length) != 0) return Duration{0};
  const std::chrono::seconds seconds(std::min<time_t>(t.tv_sec, kLongestTimeout.count()));
  return seconds + std::chrono::microseconds(t.tv_usec);
}

void Socket::set_timeout_of(int fd, int name, Duration timeout) {
  const auto us = std::chrono::duration_cast<std::chrono::microseconds>(timeout).count();
  const timeval t = timeout < Duration{0} ? timeval{-1, 0} : timeval{us / 1000000, us % 1000000};
  real.setsockopt(fd, SOL_SOCKET, name, &t, sizeof t);
}

/// sock_set_timeout().
void Socket::timeout_was_set(int name, const void* value) {
  timeval t;
  if (!get_user(t, value)) return;
  const bool receive = name == SO_RCVTIMEO || name == SO_RCVTIMEO_NEW;
  (receive ? receive_no_wait_ : send_no_wait_) = t.tv_sec < 0;
  (receive ? receive_timeout : send_timeout) = shadow_timeout(receive ? SO_RCVTIMEO : SO_SNDTIMEO);
}

void Socket::inherit_timeouts(Duration receive, Duration send) {
  receive_timeout = receive;
  send_timeout = send;
  receive_no_wait_ = receive == kNoWait;
  send_no_wait_ = send == kNoWait;
}

void Socket::refresh_nonblocking() {
  const int flags = real.fcntl(fd_, F_GETFL);
  nonblocking = flags >= 0 && (flags & O_NONBLOCK) != 0;
}

void Socket::refresh_from_shadow() {
  refresh_nonblocking();
  receive_timeout = shadow_timeout(SO_RCVTIMEO);
  send_timeout = shadow_timeout(SO_SNDTIMEO);
}

FlowRequest Socket::flow_request(Role role, const Endpoint& local, const Endpoint& remote) const {
  FlowRequest request;
  request.role = role;
  request.local = local;
  request.remote = remote;
  request.bound_ifindex = shadow_option(SOL_SOCKET, SO_BINDTOIFINDEX);
  request.mark = static_cast<uint32_t>(shadow_option(SOL_SOCKET, SO_MARK));
  const bool v4 = !v6() || remote.address.is_v4();
  request.tos =
      static_cast<uint8_t>(v4 ? shadow_option(IPPROTO_IP, IP_TOS) : shadow_option(IPPROTO_IPV6, IPV6_TCLASS));
  return request;
}

}  // namespace accel::posix
