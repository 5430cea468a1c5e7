// How the helper (main.cc) carries out privileged requests (privileged_request.h). Freestanding: included
// there alone.
#pragma once

#include <fcntl.h>
#include <linux/capability.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "base/uverbs.h"
#include "helper/freestanding.h"
#include "helper/local_ends.h"
#include "helper/privileged_request.h"
#include "helper/shown_socket.h"
#include "helper/steering_rule.h"
#include "helper/table.h"
#include "helper/xdp_ports.h"

namespace accel::helper {

class RequestHandler {
 public:
  /// While the process's own limits are those of its program.
  void begin() {
    user_ = static_cast<uint32_t>(call(SYS_getuid, 0));
    first_free_port_ = number_in("/proc/sys/net/ipv4/ip_unprivileged_port_start", 0, kFirstFreePort);
    most_sent_ = buffer_bound("/proc/sys/net/ipv4/tcp_wmem", "/proc/sys/net/core/wmem_max", kMostSent);
    most_received_ =
        buffer_bound("/proc/sys/net/ipv4/tcp_rmem", "/proc/sys/net/core/rmem_max", kMostReceived);
  }

  /// The process has ended.
  void close_ports() { ports_.close_all(); }

  /// False: the process has closed its end.
  bool serve() {
    PrivilegedRequest request{};
    iovec vector{&request, sizeof request};
    alignas(cmsghdr)
        uint8_t control[CMSG_SPACE(sizeof(ucred)) + CMSG_SPACE(kMostDescriptors * sizeof(int))]{};
    msghdr message{};
    message.msg_iov = &vector;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    const long n = call(SYS_recvmsg, kRequests, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n <= 0) return n == -EAGAIN || n == -EINTR;
    Attached with = attached_to(message);
    const bool whole = n == sizeof request && (message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) == 0;
    const auto answer = static_cast<int32_t>(whole ? run(request, with) : -EINVAL);
    for (const int fd : with.fds)
      if (fd >= 0) call(SYS_close, fd);
    call(SYS_sendto, kRequests, &answer, sizeof answer, MSG_DONTWAIT | MSG_NOSIGNAL, 0, 0);
    return true;
  }

 private:
  /// The defaults of Linux, where /proc cannot be read.
  static constexpr long kFirstFreePort = 1024, kMostSent = 4 << 20, kMostReceived = 6 << 20;
  /// What a socket's queue holds beside its bytes (engine/hand_back.cc).
  static constexpr long kChunk = 64 << 10;

  struct Attached {
    int fds[kMostDescriptors] = {-1, -1, -1, -1};
    ucred from{};
  };

  static Attached attached_to(msghdr& message) {
    Attached found;
    for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = next(message, c)) {
      if (c->cmsg_level != SOL_SOCKET) continue;
      const size_t size = c->cmsg_len - CMSG_LEN(0);
      if (c->cmsg_type == SCM_RIGHTS && size <= sizeof found.fds) memcpy(found.fds, CMSG_DATA(c), size);
      if (c->cmsg_type == SCM_CREDENTIALS && size == sizeof found.from)
        memcpy(&found.from, CMSG_DATA(c), size);
    }
    return found;
  }
  /// CMSG_NXTHDR is a function of libc's.
  static cmsghdr* next(const msghdr& message, cmsghdr* c) {
    auto* const at = reinterpret_cast<uint8_t*>(c) + CMSG_ALIGN(c->cmsg_len);
    auto* const end = static_cast<uint8_t*>(message.msg_control) + message.msg_controllen;
    return at + sizeof(cmsghdr) <= end ? reinterpret_cast<cmsghdr*>(at) : nullptr;
  }

  /// Twice what the kernel lets the buffer of a process without privilege grow to: an entry of the queue may
  /// count twice its bytes.
  static int buffer_bound(const char* tuned, const char* most, long otherwise) {
    const long bytes = number_in(tuned, 2, otherwise), set = number_in(most, 0, 0);
    const long bound = 2 * (bytes > set ? bytes : set) + kChunk;
    return static_cast<int>(bound < (1 << 30) ? bound : 1 << 30);
  }

  long run(const PrivilegedRequest& request, Attached& with) {
    if (caught_) return -EPERM;
    switch (request.type) {
      case RequestType::kRepair:
        if (request.value != TCP_REPAIR_OFF && request.value != TCP_REPAIR_OFF_NO_WP) return -EPERM;
        return set_option(with.fds[0], IPPROTO_TCP, TCP_REPAIR, request.value);
      case RequestType::kSendBuffer:
        return set_buffer(with.fds[0], SO_SNDBUFFORCE, request.value, most_sent_);
      case RequestType::kReceiveBuffer:
        return set_buffer(with.fds[0], SO_RCVBUFFORCE, request.value, most_received_);
      case RequestType::kBind:
        return bind(request, with.fds[0], with.fds[1]);
      case RequestType::kLocalEnd:
        return may_add(with.from) ? ends_.add(request.rule) : -EPERM;
      case RequestType::kSeal:
        sealed_ = true;
        return 0;
      case RequestType::kRule:
        if (!sealed_ || !ends_.has(request.rule)) return -EPERM;
        return make_rule(request.rule, with.fds[0]);
      case RequestType::kPort:
        return may_add(with.from) ? ports_.add(request, with.fds) : -EPERM;
      case RequestType::kEnd:
        return ports_.add_end(request, with.fds[0]);
      case RequestType::kQueue:
        return ports_.claim(request, with.fds[0]);
    }
    return -EINVAL;
  }

  /// In a user namespace of its own a process has every capability there; its user it cannot choose.
  bool may_add(const ucred& from) const {
    if (sealed_ || from.pid == 0 || from.uid != user_) return false;
    __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, from.pid};
    __user_cap_data_struct sets[2] = {};
    return call(SYS_capget, &header, sets) == 0 && (sets[0].permitted & 1u << CAP_NET_RAW) != 0;
  }

  static long set_buffer(int fd, int name, int value, int most) {
    if (!in_repair_mode(fd)) return -EPERM;
    return set_option(fd, SOL_SOCKET, name, value < most ? value : most);
  }

  long bind(const PrivilegedRequest& request, int fd, int listener) {
    LocalEnd end;
    if (!end.read(request.address, request.length) || fd < 0 || state_of(fd) != kTcpClose) return -EPERM;
    // In a network namespace of its own anybody may listen at any port.
    if (!is_of_own_network(fd) || (listener >= 0 && !is_of_own_network(listener))) return -EPERM;
    if (is_unnamed_tcp(fd) && (ends_.covers(end) || listens_at(listener, end)))
      return bind_by_force(request, fd);
    // A socket that has a name gets no other one: -EINVAL. What getsockname() says of a port that was given
    // back counts for nothing.
    if (end.port < first_free_port_ || end.is_loopback()) return -EPERM;
    const long bound = call(SYS_bind, fd, request.address, request.length);
    return bound != 0 ? bound : set_option(fd, IPPROTO_TCP, TCP_REPAIR, TCP_REPAIR_ON);
  }

  /// In repair mode the process itself may bind to any port above the privileged ones, until the socket has a
  /// name. A process that does, between these two calls, is not one that works for its program: it gets
  /// nothing any more.
  long bind_by_force(const PrivilegedRequest& request, int fd) {
    if (const long refused = set_option(fd, IPPROTO_TCP, TCP_REPAIR, TCP_REPAIR_ON)) return refused;
    const long bound = call(SYS_bind, fd, request.address, request.length);
    if (bound == 0) return 0;
    caught_ = !is_unnamed_tcp(fd);
    // A listening socket cannot leave repair mode.
    const sockaddr none{};
    for (int i = 0; i < kMostUndos; ++i) {
      if (set_option(fd, IPPROTO_TCP, TCP_REPAIR, TCP_REPAIR_OFF_NO_WP) == 0) break;
      call(SYS_connect, fd, &none, sizeof none);
    }
    return bound;
  }

  static constexpr int kMostUndos = 100'000;

  LocalEnds ends_;
  XdpPorts ports_;
  bool sealed_ = false;
  bool caught_ = false;
  uint32_t user_ = 0;
  long first_free_port_ = 0;  ///< zero, as all here is: then the program's file need not hold it
  int most_sent_ = 0, most_received_ = 0;
};

}  // namespace accel::helper
