// Bytes in and out of a connection in shared memory, as tcp_recvmsg() and tcp_sendmsg() mean them.
#include <errno.h>
#include <linux/sockios.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <array>

#include "base/config.h"
#include "base/log.h"
#include "base/real.h"
#include "base/user_memory.h"
#include "posix/iov_cursor.h"
#include "posix/pieces.h"
#include "posix/shm_socket.h"
#include "posix/wait.h"

namespace accel::posix {
namespace {

/// With same_host = require: so long a call waits for the meeting.
constexpr Duration kRequiredWithin = 1s;
constexpr size_t kMostPieces = 64;

/// At most `most` bytes of the vector beyond the first `skip`, as a vector of its own.
struct Part {
  Part(const msghdr& of, size_t skip, size_t most) {
    message.msg_iov = pieces.data();
    for_each_piece(of, skip, [&](std::span<uint8_t> piece) {
      const size_t n = std::min(piece.size(), most);
      pieces[message.msg_iovlen++] = {piece.data(), n};
      most -= n;
      return most > 0 && message.msg_iovlen < pieces.size();
    });
  }
  std::array<iovec, kMostPieces> pieces;
  msghdr message{};
};

int unread_in_kernel(int fd) {
  int unread = 0;
  return real.ioctl(fd, SIOCINQ, &unread) == 0 ? unread : 0;
}

}  // namespace

/// Errors: kOnKernel, and the one of `require`.
Result<void> ShmSocket::settle(Pass& pass) {
  if (stage_ == Stage::kOpen) {
    look();
    return {};
  }
  if (stage_ != Stage::kKernel) {
    meet();
    if (config().settings.same_host == SameHost::kRequire && stage_ != Stage::kKernel) {
      const Instant deadline = pass.now() + kRequiredWithin;
      while (stage_ != Stage::kOpen && stage_ != Stage::kKernel && pass.now() < deadline) {
        auto met = [&] { return stage_ == Stage::kOpen || stage_ == Stage::kKernel; };
        // Calls of the kernel's that are under way end without a word of theirs.
        if (Result<Woke> woke = wait_for(pass, std::min(deadline, pass.now() + 1ms), met);
            !woke && !woke.is(EAGAIN))
          return woke.error();
        meet();
      }
    }
  }
  if (stage_ == Stage::kOpen) {
    look();
    return {};
  }
  if (config().settings.same_host == SameHost::kRequire) {
    log(LogLevel::kError, "ACCEL_REQUIRE: a connection of this host cannot be in shared memory: %s",
        reason_text(Reason::same_host_unmet));
    return err(EPROTONOSUPPORT);
  }
  if (stage_ == Stage::kKernel) return kOnKernel;
  return {};
}

size_t ShmSocket::readable() const {
  const auto in_kernel = [this] { return static_cast<size_t>(unread_in_kernel(shadow())); };
  if (!link_.rings) return in_kernel();
  const shm::Receiver& receiver = *link_.rings->receiver;
  if (receiver.way() == Receives::kRing)
    return receiver.available() + (receiver.kernel_follows() || alone_ ? in_kernel() : 0);
  if (receiver.way() != Receives::kKernel) return 0;
  const uint64_t limit = receiver.kernel_limit();
  const uint64_t before_ring = std::min<uint64_t>(in_kernel(), limit);
  return before_ring + (before_ring == limit ? receiver.available() : 0);
}

// ---- in ----

/// Copies what is there into the vector beyond `got` bytes, or drops it where MSG_TRUNC says so. Errors:
/// EAGAIN, where nothing is there now; 0: nothing comes any more.
Result<size_t> ShmSocket::take(msghdr& message, size_t size, size_t got, int flags) {
  if (!link_.rings) return *take_from_kernel(message, size, got, flags);
  shm::Receiver& receiver = *link_.rings->receiver;
  for (;;) {
    const Receives way = receiver.look();
    if (way == Receives::kRing && receiver.available() > 0) return take_from_ring(message, size, got, flags);
    if (way == Receives::kEnd) return size_t{0};
    if (way != Receives::kKernel) {
      if (own_error() != Errno{}) {
        const Errno error = own_error();
        reset_told_ = true;
        return error;
      }
      if (reset_told_ || read_shut_) return size_t{0};
      // Whoever filled the ring is there, and may go on. Else the kernel has the end, or why it has failed,
      // or what another process has sent that has the connection as well.
      if (!lost_ && !alone_) return err(EAGAIN);
    }
    if (std::optional<Result<size_t>> n = take_from_kernel(message, size, got, flags)) return *n;
  }
}

/// nullopt: the way has changed, which it does a few times at most.
std::optional<Result<size_t>> ShmSocket::take_from_kernel(msghdr& message, size_t size, size_t got,
                                                          int flags) {
  shm::Receiver* receiver = link_.rings ? &*link_.rings->receiver : nullptr;
  const bool peeks = (flags & MSG_PEEK) != 0;
  uint64_t most = size - (peeks ? 0 : got);
  if (receiver != nullptr && receiver->bounded()) {
    // What the kernel has before this look precedes the ring's bytes, where the look finds none of those.
    // What comes later may be what follows them.
    auto unread = static_cast<uint64_t>(unread_in_kernel(shadow()));
    bool same = receiver->look() == Receives::kKernel && receiver->bounded();
    if (same && unread == 0) {
      if (!kernel_is(POLLRDHUP | POLLHUP | POLLERR)) return err(EAGAIN);
      // The sender may have filled the ring and ended since the look: that comes first.
      unread = static_cast<uint64_t>(unread_in_kernel(shadow()));
      same = receiver->look() == Receives::kKernel && receiver->bounded() && unread == 0;
    }
    if (!same) return std::nullopt;
    if (unread > 0) most = std::min({most, unread, receiver->kernel_limit()});
  }
  if (size == 0) most = 0;
  Part part(message, peeks ? 0 : got, most);
  const int kept = flags & (MSG_PEEK | MSG_TRUNC);
  const Result<ssize_t> n = from_libc(real.recvmsg(shadow(), &part.message, kept | MSG_DONTWAIT));
  if (!n) return n.error();
  auto bytes = static_cast<size_t>(*n);
  if (!peeks) {
    if (receiver != nullptr) {
      receiver->took_from_kernel(bytes);
      receiver->look();  // what follows may be in the ring
    }
    return bytes;
  }
  if (bytes == 0) return bytes;
  if (receiver != nullptr && bytes == receiver->kernel_limit())
    bytes += copy_of_ring(message, size, bytes, flags);
  return bytes > got ? Result<size_t>(bytes - got) : err(EAGAIN);
}

/// Into the vector beyond the first `skip` bytes, without taking them. Returns how many there are.
size_t ShmSocket::copy_of_ring(msghdr& message, size_t size, size_t skip, int flags) {
  const shm::Receiver& receiver = *link_.rings->receiver;
  const size_t most = std::min(size - skip, receiver.available());
  if (most == 0 || (flags & MSG_TRUNC) != 0) return most;
  size_t done = 0;
  for_each_piece(message, skip, [&](std::span<uint8_t> piece) {
    done += receiver.copy(piece.first(std::min(piece.size(), most - done)), done);
    return done < most;
  });
  return done;
}

Result<size_t> ShmSocket::take_from_ring(msghdr& message, size_t size, size_t got, int flags) {
  shm::Receiver& receiver = *link_.rings->receiver;
  const bool peeks = (flags & MSG_PEEK) != 0;
  const size_t skip = peeks ? 0 : got;
  const size_t most = std::min(size - skip, receiver.available());
  if ((flags & MSG_TRUNC) == 0 && !all_pieces(message, skip, most, can_overwrite)) return err(EFAULT);
  size_t there = copy_of_ring(message, size, skip, flags);
  if (!peeks) {
    if (receiver.consume(there)) ring();
    return there;
  }
  if (receiver.kernel_follows() && there == receiver.available() && there < size) {
    Part part(message, there, size - there);
    const ssize_t n = real.recvmsg(shadow(), &part.message, (flags & MSG_TRUNC) | MSG_PEEK | MSG_DONTWAIT);
    if (n > 0) there += static_cast<size_t>(n);
  }
  return there > got ? Result<size_t>(there - got) : err(EAGAIN);
}

/// For a call that has found `seen` bytes, and not enough.
bool ShmSocket::may_be_more(size_t seen) {
  if (stage_ == Stage::kKernel || read_shut_ || lost_ || own_error() != Errno{}) return true;
  Receives way = Receives::kKernel;
  if (link_.rings) way = link_.rings->receiver->look();
  if (way == Receives::kEnd || way == Receives::kBroken) return true;
  if (readable() > seen) return true;
  return (way == Receives::kKernel || alone_) && kernel_is(POLLRDHUP | POLLERR | POLLHUP);
}

Result<ssize_t> ShmSocket::recvmsg(Pass& pass, msghdr* message, int flags) {
  if ((flags & (MSG_OOB | MSG_ERRQUEUE)) != 0) return kOnKernel;
  Result<size_t> size = iov_bytes(*message);
  if (!size) return size.error();
  if (Result<void> r = settle(pass); !r) return r.error();
  message->msg_namelen = 0;
  message->msg_flags = 0;
  message->msg_controllen = 0;
  const bool wait = !nonblocking && (flags & MSG_DONTWAIT) == 0;
  const size_t target = std::max<size_t>((flags & MSG_WAITALL) != 0 ? *size : std::min(low_water_, *size), 1);
  const Instant deadline = deadline_after(pass, receive_timeout);
  size_t got = 0;
  auto so_far = [&](Result<ssize_t> otherwise) {
    return got > 0 ? Result<ssize_t>(static_cast<ssize_t>(got)) : otherwise;
  };
  for (bool asked = false;;) {
    if (stage_ == Stage::kKernel) return so_far(kOnKernel);
    if (*size == 0 && readable() > 0) return 0;
    const Result<size_t> n = take(*message, *size, got, flags);
    if (n && *n == 0) return so_far(0);
    if (n) got += *n;
    if (got >= target) return static_cast<ssize_t>(got);
    if (n) continue;
    if (!n.is(EAGAIN)) return so_far(n.error());
    if (!wait && !std::exchange(asked, true)) {  // the kernel may know of its end; a wait asks it in time
      pass.engine().catch_up(pass);
      continue;
    }
    if (!wait || !may_wait()) return so_far(err(EAGAIN));
    if (stage_ == Stage::kOpen) Engine::get()->links()->heat(link_);
    const size_t seen = (flags & MSG_PEEK) != 0 ? readable() : 0;
    auto more = [&] { return may_be_more(seen); };
    Result<Woke> woke = wait_for(pass, deadline, more, {}, got > 0);
    if (!woke) return so_far(woke.error());
  }
}

// ---- out ----

Result<size_t> ShmSocket::put_into_ring(const msghdr& message, size_t done) {
  shm::Sender& sender = *link_.rings->sender;
  size_t taken = 0;
  bool fault = false;
  for_each_piece(message, done, [&](std::span<uint8_t> piece) {
    while (!piece.empty() && sender.room() > 0) {
      const auto some = piece.first(std::min({piece.size(), sender.room(), kCopiedAtOnce}));
      if (!can_read(some.data(), some.size())) {
        fault = true;
        return false;
      }
      sender.put(some);
      taken += some.size();
      piece = piece.subspan(some.size());
    }
    return sender.room() > 0;
  });
  if (taken == 0) return fault ? err(EFAULT) : err(EAGAIN);
  if (sender.publish()) ring();
  watch_rest();
  return taken;
}

Result<size_t> ShmSocket::put(const msghdr& message, size_t size, size_t done, int flags) {
  if (ending_) return err(EPIPE);
  if (stage_ == Stage::kOpen && !lost_) {
    switch (link_.rings->sender->look()) {
      case Sends::kRing:
        if (alone_) break;  // nobody takes it: the kernel has the error
        if (done == size) return size_t{0};
        return put_into_ring(message, done);
      case Sends::kReturning:
        if (!return_bytes()) return err(EAGAIN);
        break;
      case Sends::kEnded:
        return err(EPIPE);
      case Sends::kBroken:
        return err(EPIPE);
      case Sends::kKernel:
        break;
    }
  }
  Part part(message, done, size - done);
  const int kept = flags & (MSG_MORE | MSG_EOR | MSG_DONTROUTE | MSG_CONFIRM);
  Result<ssize_t> n = from_libc(real.sendmsg(shadow(), &part.message, kept | MSG_DONTWAIT | MSG_NOSIGNAL));
  if (!n) return n.error();
  return static_cast<size_t>(*n);
}

Result<ssize_t> ShmSocket::sendmsg(Pass& pass, const msghdr* message, int flags) {
  Result<size_t> size = iov_bytes(*message);
  if (!size) return size.error();
  // Of urgent data the mark is the kernel's, of MSG_ZEROCOPY the word that memory is free, of control
  // messages what they say.
  const bool zerocopy = (flags & MSG_ZEROCOPY) != 0 && shadow_option(SOL_SOCKET, SO_ZEROCOPY) != 0;
  if ((flags & (MSG_OOB | MSG_FASTOPEN)) != 0 || zerocopy || message->msg_controllen != 0) {
    const char* const what = (flags & MSG_OOB) != 0        ? "MSG_OOB"
                             : (flags & MSG_FASTOPEN) != 0 ? "MSG_FASTOPEN"
                             : zerocopy                    ? "MSG_ZEROCOPY"
                                                           : kControlMessage;
    if (Result<void> r = detach_for(pass, what); !r) return r.error();
    return kOnKernel;
  }
  if (Result<void> r = settle(pass); !r) return r.error();
  const bool wait = !nonblocking && (flags & MSG_DONTWAIT) == 0;
  const Instant deadline = deadline_after(pass, send_timeout);
  size_t sent = 0;
  auto so_far = [&](Errno otherwise) {
    return sent > 0 ? Result<ssize_t>(static_cast<ssize_t>(sent)) : otherwise;
  };
  for (;;) {
    if (stage_ == Stage::kKernel) return so_far(kOnKernel);
    const Result<size_t> n = put(*message, *size, sent, flags);
    if (n) {
      sent += *n;
      if (sent == *size) return static_cast<ssize_t>(sent);
      continue;
    }
    if (!n.is(EAGAIN)) return so_far(n.error());
    wait_for_room();
    if (!wait || !may_wait()) return so_far(err(EAGAIN));
    if (stage_ == Stage::kOpen) Engine::get()->links()->heat(link_);
    auto room = [&] {
      if (stage_ == Stage::kKernel || lost_ || alone_ || ending_) return true;
      if (stage_ == Stage::kOpen) {
        const Sends way = link_.rings->sender->look();
        if (way == Sends::kRing) return link_.rings->sender->writable();
        if (way == Sends::kEnded || way == Sends::kBroken) return true;
      }
      return kernel_is(POLLOUT);
    };
    Result<Woke> woke = wait_for(pass, deadline, room, {}, sent > 0);
    if (!woke) return so_far(woke.error());
  }
}

}  // namespace accel::posix
