// Bytes in and out of an iWARP connection, as tcp_recvmsg() and tcp_sendmsg() mean them.
#include <errno.h>
#include <sys/socket.h>

#include <vector>

#include "base/user_memory.h"
#include "posix/iov_cursor.h"
#include "posix/pieces.h"
#include "posix/siw_socket.h"
#include "posix/wait.h"

namespace accel::posix {
/// Copies what is there into the vector beyond `got` bytes, drops it where MSG_TRUNC says so.
Result<size_t> SiwSocket::take(msghdr& message, size_t size, size_t got, int flags) {
  siw::Conn& conn = *channel_->conn();
  const bool peeks = (flags & MSG_PEEK) != 0;
  uint8_t none = 0;
  if (size == 0) return conn.recv({&none, 1}, true);  // nothing is there: its end
  if ((flags & MSG_TRUNC) == 0) {
    const size_t most = std::min(size - (peeks ? 0 : got), conn.available());
    if (!all_pieces(message, peeks ? 0 : got, most, can_overwrite)) return err(EFAULT);
  }
  if (peeks) {  // always from the front: what was copied before is still there
    std::vector<uint8_t> seen(std::min(size, conn.available()));
    if (seen.empty()) return conn.recv({&seen.emplace_back(), 1}, true);
    Result<size_t> n = conn.recv(seen, true);
    size_t at = 0;
    if (n && (flags & MSG_TRUNC) == 0)
      for_each_piece(message, 0, [&](siw::MutableBytes piece) {
        const size_t part = std::min(piece.size(), *n - at);
        std::copy_n(seen.begin() + static_cast<ptrdiff_t>(at), part, piece.begin());
        at += part;
        return at < *n;
      });
    return n ? Result<size_t>(*n > got ? *n - got : 0) : n;
  }
  if ((flags & MSG_TRUNC) != 0) {
    std::vector<uint8_t> dropped(std::clamp<size_t>(conn.available(), 1, size - got));
    return conn.recv(dropped);
  }
  size_t done = 0;
  Result<size_t> last = size_t{0};
  for_each_piece(message, got, [&](siw::MutableBytes piece) {
    last = conn.recv(piece);
    if (last) done += *last;
    return last && *last == piece.size();
  });
  return done > 0 ? Result<size_t>(done) : last;
}

Result<ssize_t> SiwSocket::recvmsg(Pass& pass, msghdr* message, int flags) {
  if (state_ == State::kIdle || state_ == State::kKernel) return take_left_error();
  Result<size_t> size = iov_bytes(*message);
  if (!size) return size.error();
  message->msg_namelen = 0;
  message->msg_flags = 0;
  message->msg_controllen = 0;
  if ((flags & MSG_ERRQUEUE) != 0) return err(EAGAIN);
  if ((flags & MSG_OOB) != 0) return err(EINVAL);  // rsockets have no urgent data
  const bool wait = !nonblocking && (flags & MSG_DONTWAIT) == 0;
  const size_t target = std::max<size_t>((flags & MSG_WAITALL) != 0 ? *size : std::min(low_water_, *size), 1);
  const Instant deadline = deadline_after(pass, receive_timeout);
  size_t got = 0, seen = 0;
  for (bool looked = false;; looked = true) {
    Result<bool> open = settle(pass);
    if (!open) {
      if (got > 0) return static_cast<ssize_t>(got);
      return open.is(ENOTCONN) ? Result<ssize_t>(0) : open.error();  // its error was told: the end
    }
    if (*open) {
      siw::Conn& conn = *channel_->conn();
      if (*size == 0 && conn.available() > 0) return 0;
      // What the socket holds is looked for when what is here already is not enough. A wait begins with a
      // look of its own, so before one it is left out while it finds nothing.
      if (!looked && conn.available() < target && !conn.peer_ended() && (!wait || look_.pays())) {
        channel_->progress(pass.now());
        look_.record(conn.available() >= target);
      }
      seen = conn.available();
      Errno why = err(EAGAIN);
      if (*size > 0 || conn.read_over()) {
        Result<size_t> n = take(*message, *size, got, flags);
        channel_->flush(pass.now());  // credits
        if (n) got += *n;
        if (n && (*n == 0 || got >= target)) return static_cast<ssize_t>(got);
        if (!n) why = n.error();
      }
      if (why != err(EAGAIN)) {
        if (got > 0) return static_cast<ssize_t>(got);
        if (why == err(EFAULT)) return why;
        const Errno error = take_error();
        return error != Errno{} ? Result<ssize_t>(error) : 0;
      }
      if ((flags & MSG_PEEK) == 0) seen = conn.available();
    } else if (channel_->read_shut()) {
      return 0;
    }
    if (!wait || !may_wait()) return got > 0 ? Result<ssize_t>(static_cast<ssize_t>(got)) : err(EAGAIN);
    const Stage stage = channel_->stage();
    auto more = [&] {
      if (!live() || channel_->stage() != stage || channel_->read_shut()) return true;
      const siw::Conn* c = channel_->conn();
      return stage == Stage::kOpen && (c->available() > seen || c->read_over());
    };
    Result<Woke> woke = wait_for(pass, deadline, more, {}, got > 0);
    if (!woke) return got > 0 ? Result<ssize_t>(static_cast<ssize_t>(got)) : woke.error();
  }
}

/// What Conn takes of the vector beyond `done` bytes, on loan; the flush that has to follow sends all of it
/// in one call of the kernel.
Result<size_t> SiwSocket::put(const msghdr& message, size_t done) {
  siw::Conn& conn = *channel_->conn();
  if (!all_pieces(message, done, kCopiedAtOnce, can_read)) return err(EFAULT);
  size_t taken = 0;
  Result<size_t> last = conn.send({});  // no bytes are sent only where some could be
  for_each_piece(message, done, [&](siw::MutableBytes piece) {
    if (!can_read(piece.data(), piece.size())) {
      last = err(EFAULT);
      return false;
    }
    last = conn.send(piece, true);
    if (last) taken += *last;
    return last && *last == piece.size();
  });
  if (taken > 0 && conn.failed()) return *iov_bytes(message) - done;  // all of it went to nobody
  return taken > 0 ? Result<size_t>(taken) : last;
}

Result<ssize_t> SiwSocket::sendmsg(Pass& pass, const msghdr* message, int flags) {
  if (state_ == State::kIdle || state_ == State::kKernel) return take_left_error();
  Result<size_t> size = iov_bytes(*message);
  if (!size) return size.error();
  if ((flags & MSG_OOB) != 0) return err(EOPNOTSUPP);  // rsockets have no urgent data
  // Nobody would tell when the memory is free again.
  if ((flags & MSG_ZEROCOPY) != 0 && shadow_option(SOL_SOCKET, SO_ZEROCOPY) != 0) return err(EOPNOTSUPP);
  const bool wait = !nonblocking && (flags & MSG_DONTWAIT) == 0;
  const Instant deadline = deadline_after(pass, send_timeout);
  size_t sent = 0;
  auto so_far = [&](Errno otherwise) {
    return sent > 0 ? Result<ssize_t>(static_cast<ssize_t>(sent)) : otherwise;
  };
  for (bool looked = false;;) {
    Result<bool> open = settle(pass);
    if (!open) return so_far(open.is(ENOTCONN) ? err(EPIPE) : open.error());
    if (*open) {
      Result<size_t> n = put(*message, sent);
      channel_->flush(pass.now());
      if (n) {
        sent += *n;
        if (sent == *size) return static_cast<ssize_t>(sent);
        continue;
      }
      if (n.is(EFAULT)) return so_far(n.error());
      if (!n.is(EAGAIN)) {
        const Errno error = take_error();
        return so_far(error != Errno{} ? error : err(EPIPE));
      }
      if (!std::exchange(looked, true)) {  // perhaps the socket holds the credits that are missing
        channel_->progress(pass.now());
        continue;
      }
    } else if (channel_->write_shut()) {
      return err(EPIPE);
    } else if (channel_->stage() == Stage::kUndecided && may_commit()) {
      channel_->commit_plain();
      continue;
    }
    if (!wait || !may_wait()) return so_far(err(EAGAIN));
    const Stage stage = channel_->stage();
    auto room = [&] {
      if (!live() || channel_->stage() != stage) return true;
      if (stage == Stage::kUndecided) return may_commit() || channel_->write_shut();
      return stage == Stage::kOpen && (channel_->conn()->writable() || channel_->conn()->write_over());
    };
    Result<Woke> woke = wait_for(pass, deadline, room, {}, sent > 0);
    if (!woke) return so_far(woke.error());
  }
}

}  // namespace accel::posix
