// Wrappers of calls on descriptors that are the kernel's, and that may be in shared memory later
// (posix/same_host.h).
#pragma once

#include <fcntl.h>
#include <linux/sockios.h>
#include <sys/ioctl.h>

#include <string_view>
#include <tuple>

#include "base/real.h"
#include "base/served_call.h"
#include "posix/file.h"
#include "posix/same_host.h"
#include "preload/cancel.h"
#include "preload/ring_calls.h"

namespace accel::preload {

enum class CandidateUse : uint8_t {
  kNone,
  kTransfer,   ///< counted
  kAccept,     ///< what a listener's connections are
  kDuplicate,  ///< two descriptors of one socket
  kReplace,    ///< likewise, and the second number is another file's from now on
  kEnd,        ///< the number is another file's from now on
  kMember,     ///< of a set that is not known here
  kSplice,     ///< its third argument is one, too
  kControl,    ///< fcntl() and ioctl(), of which some duplicate, or have the kernel send signals
  kOption,     ///< one that the kernel does not show
};

constexpr CandidateUse candidate_use(std::string_view name) {
  for (std::string_view transfer :
       {"read", "write", "readv", "writev", "preadv2", "pwritev2", "recv", "recvfrom", "send", "sendto",
        "sendfile", "__read_chk", "__recv_chk", "__recvfrom_chk"})
    if (name == transfer) return CandidateUse::kTransfer;
  if (name == "accept" || name == "accept4") return CandidateUse::kAccept;
  if (name == "dup") return CandidateUse::kDuplicate;
  if (name == "splice") return CandidateUse::kSplice;
  if (name == "fcntl" || name == "ioctl") return CandidateUse::kControl;
  if (name == "dup2" || name == "dup3") return CandidateUse::kReplace;
  if (name == "close") return CandidateUse::kEnd;
  if (name == "setsockopt") return CandidateUse::kOption;
  return name == "epoll_ctl" ? CandidateUse::kMember : CandidateUse::kNone;
}

/// Commands of fcntl() and requests of ioctl() that only the kernel's connection can serve.
inline bool needs_kernel(unsigned long command, const void* argument) {
  switch (command) {
    case F_DUPFD:
    case F_DUPFD_CLOEXEC:
    case F_SETOWN:
    case F_SETOWN_EX:
    case FIOASYNC:
    case FIOSETOWN:
    case SIOCSPGRP:
      return true;
    case F_SETFL:
      return (reinterpret_cast<intptr_t>(argument) & O_ASYNC) != 0;
    default:
      return false;
  }
}

/// It stays with the kernel. True: it has just entered the table, so the call is the library's.
[[gnu::noinline]] inline bool forgotten_too_late(int fd) {
  posix::candidates.forget(fd);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return posix::fds.owns(fd) && !ServedCall::inside();
}

/// A transfer on a candidate: by the kernel, or by the library where that has just taken the descriptor.
template <class Make, class Serve>
[[gnu::noinline]] auto transfer_on_candidate(int fd, Make make, Serve serve) {
  if (ServedCall::inside()) return make();
  {
    posix::Candidates::Call call(posix::candidates, fd);
    // In this order: who takes the descriptor enters it before it looks for calls.
    if (!posix::fds.owns(fd) && call.precedes()) return make();
  }
  if (ring_count.load(std::memory_order_relaxed) != 0) posix::candidates.forget(fd);
  if (!posix::fds.owns(fd)) served([fd] { posix::take_candidate(fd); });
  {
    posix::Candidates::Call call(posix::candidates, fd);
    if (!posix::fds.owns(fd)) return make();
  }
  return serve();
}

/// The kernel's call. `serve`: the library's, should the descriptor have become the library's.
template <CandidateUse kUse, class Make, class Serve, class... Arguments>
inline auto on_kernel(Make make, Serve serve, Arguments... arguments) {
  using posix::candidates;
  const std::tuple all(arguments...);
  if constexpr (kUse == CandidateUse::kTransfer) {
    if (candidates.has(std::get<0>(all))) [[unlikely]]
      return transfer_on_candidate(std::get<0>(all), make, serve);
  } else if constexpr (kUse == CandidateUse::kAccept) {
    const int fd = make();
    if (fd >= 0 && candidates.any()) [[unlikely]]
      candidates.accepted(std::get<0>(all), fd);
    return fd;
  } else if constexpr (kUse == CandidateUse::kMember) {
    if (candidates.has(std::get<2>(all)) && forgotten_too_late(std::get<2>(all))) [[unlikely]]
      return serve();
  } else if constexpr (kUse == CandidateUse::kControl) {
    if (candidates.has(std::get<0>(all)) && needs_kernel(std::get<1>(all), std::get<2>(all)) &&
        forgotten_too_late(std::get<0>(all))) [[unlikely]]
      return serve();
  } else if constexpr (kUse == CandidateUse::kOption) {
    if (candidates.has(std::get<0>(all))) [[unlikely]]
      candidates.note_option(std::get<0>(all), std::get<1>(all), std::get<2>(all), std::get<3>(all),
                             std::get<4>(all));
  } else if constexpr (kUse == CandidateUse::kEnd) {
    if (candidates.has(std::get<0>(all))) [[unlikely]] {
      candidates.closes(std::get<0>(all));
      if (forgotten_too_late(std::get<0>(all))) return serve();
    }
  } else if constexpr (kUse != CandidateUse::kNone) {
    bool late = candidates.has(std::get<0>(all)) && forgotten_too_late(std::get<0>(all));
    if constexpr (kUse == CandidateUse::kReplace)
      late |= candidates.has(std::get<1>(all)) && forgotten_too_late(std::get<1>(all));
    if constexpr (kUse == CandidateUse::kSplice)
      late |= candidates.has(std::get<2>(all)) && forgotten_too_late(std::get<2>(all));
    if (late) [[unlikely]]
      return serve();
  }
  return make();
}

/// The call comes by its number, past what is counted.
template <CandidateUse kUse, class First, class... Rest>
inline void forget_candidate(First first, Rest...) {
  if constexpr (kUse != CandidateUse::kNone && kUse != CandidateUse::kAccept) posix::candidates.forget(first);
}

}  // namespace accel::preload
