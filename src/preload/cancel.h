// The edge of a call that is served here rather than by libc: errno is left alone by success, and a thread
// is not cancelled at any instruction.
//
// Cancelled threads in calls of ours (base/cancellation.h has those inside the lock). A thread of
// PTHREAD_CANCEL_ASYNCHRONOUS may be cancelled at any instruction: in ours it would unwind from where the
// compiler has not said how. So it is deferred within a call of ours, and cancelled where that sleeps, as any
// other thread is, or at its end.
#pragma once

#include <cerrno>
#include <new>
#include <string_view>
#include <type_traits>

#include "base/cancellation.h"
#include "base/result.h"
#include "base/served_call.h"

namespace accel::preload {

/// Of the table's calls, those that pthreads(7) says are cancellation points in glibc.
constexpr bool is_cancellation_point(std::string_view name) {
  for (std::string_view point :
       {"connect",    "accept",      "accept4",     "read",     "write",      "readv",      "writev",
        "preadv2",    "pwritev2",    "recv",        "recvfrom", "recvmsg",    "recvmmsg",   "send",
        "sendto",     "sendmsg",     "sendmmsg",    "splice",   "__read_chk", "__recv_chk", "__recvfrom_chk",
        "close",      "poll",        "ppoll",       "select",   "pselect",    "__poll_chk", "__ppoll_chk",
        "epoll_wait", "epoll_pwait", "epoll_pwait2"})
    if (name == point) return true;
  return false;
}

/// What this thread has set by pthread_setcanceltype().
extern constinit thread_local bool cancelled_asynchronously [[gnu::tls_model("initial-exec")]];
/// Of the frame that stays until resume_cancellation(): true when that is to be called.
bool defer_cancellation(const void* frame, bool point);
/// As the program has set it again; does not come back where the thread is cancelled.
void resume_cancellation();

/// No destructors here: this frame is unwound from any instruction while the thread is not deferred.
template <bool kPoint, class Call>
[[gnu::noinline]] auto deferring_cancellation(Call call) {
  const bool ours = defer_cancellation(__builtin_frame_address(0), kPoint);
  if constexpr (std::is_void_v<decltype(call())>) {
    call();
    if (ours) resume_cancellation();
  } else {
    auto result = call();
    if (ours) resume_cancellation();
    return result;
  }
}

/// libc's way to say that errno counts: -1. Anything else (Result, bool) has not been told by errno.
template <class T>
constexpr bool says_errno(const T& result) {
  if constexpr (std::is_integral_v<T> && std::is_signed_v<T>)
    return result == -1;
  else
    return false;
}

/// `call` takes its arguments by value: that keeps them in registers where there is nothing to defer.
/// kPoint: it begins with a look at whether the thread has been cancelled.
/// Failed system calls on the way to a success are none of the program's: errno is as before then.
template <bool kPoint = false, class Call>
inline auto deferred(Call call) {
  int& error = errno;
  const int before = error;
  const auto made = [&] {
    if (cancelled_asynchronously || cancellation_used.load(std::memory_order_relaxed)) [[unlikely]]
      return deferring_cancellation<kPoint>(call);
    return call();
  };
  if constexpr (std::is_void_v<decltype(call())>) {
    made();
    error = before;
  } else {
    auto result = made();
    if (!says_errno(result)) [[likely]]
      error = before;
    return result;
  }
}

/// What a call returns that had no memory for its own books, not even the reserve (base/memory.h).
template <class T>
T without_memory() {
  if constexpr (std::is_constructible_v<T, Errno>) {
    return err(ENOMEM);
  } else if constexpr (std::is_integral_v<T> && std::is_signed_v<T>) {
    errno = ENOMEM;
    return -1;
  } else {
    return T();
  }
}

/// Apart: a function with a destructor cannot be unwound from any instruction, as those above may have to be.
template <class Call>
[[gnu::noinline]] auto inside_served_call(Call& call) {
  const ServedCall inside;
  try {
    return call();
  } catch (const std::bad_alloc&) {
    return without_memory<decltype(call())>();
  }
}

/// The same where `call` is the library's own work: what it calls on the way is not served again.
template <bool kPoint = false, class Call>
inline auto served(Call call) {
  return deferred<kPoint>([call]() mutable { return inside_served_call(call); });
}

}  // namespace accel::preload
