// Bytes in and out of a TCP connection: tcp_recvmsg() and tcp_sendmsg() of net/ipv4/tcp.c around the stack's
// queues.
#include <errno.h>
#include <netinet/in.h>

#include "base/real.h"
#include "base/user_memory.h"
#include "engine/leases.h"
#include "posix/iov_cursor.h"
#include "posix/tcp_socket.h"
#include "posix/wait.h"

namespace accel::posix {
namespace {

constexpr int kTcpInq = 36;  // TCP_INQ and TCP_CM_INQ of linux/tcp.h, which does not go with netinet/tcp.h
constexpr uint32_t kOver = kReadClosed | kHangUp | kError;

std::span<const iovec> vector_of(const msghdr& m) { return {m.msg_iov, m.msg_iovlen}; }

enum class Control { kNothing, kHeeded, kInvalid };

/// What tcp_sendmsg() makes of control messages: it heeds time stamps, mark, priority (__sock_cmsg_send())
/// and refuses lengths that cannot be (CMSG_OK()).
Control control_of(const msghdr& m) {
  if (!can_read(m.msg_control, m.msg_controllen)) return Control::kHeeded;  // its EFAULT
  for (const cmsghdr* c = CMSG_FIRSTHDR(&m); c != nullptr;
       c = CMSG_NXTHDR(const_cast<msghdr*>(&m), const_cast<cmsghdr*>(c))) {
    const auto at = static_cast<size_t>(reinterpret_cast<const char*>(c) - static_cast<char*>(m.msg_control));
    if (c->cmsg_len < sizeof(cmsghdr) || c->cmsg_len > m.msg_controllen - at) return Control::kInvalid;
    if (c->cmsg_level == SOL_SOCKET && c->cmsg_type != SCM_RIGHTS && c->cmsg_type != SCM_CREDENTIALS)
      return Control::kHeeded;
  }
  return Control::kNothing;
}

}  // namespace

/// One helping from the receive queue: copied, or dropped where MSG_TRUNC says so.
Result<size_t> TcpSocket::take(Pass& pass, std::span<const iovec> into, size_t want, size_t peeked,
                               int flags) {
  Stack& stack = pass.stack();
  const bool peek = (flags & MSG_PEEK) != 0;
  if ((flags & MSG_TRUNC) == 0) return stack.tcp().receive(*conn_, into, peek, peeked, pass.now());
  if (!peek) return stack.tcp().discard(*conn_, want, pass.now());
  char unseen[4096];
  const iovec v{unseen, std::min(want, sizeof unseen)};
  return stack.tcp().receive(*conn_, std::span(&v, 1), true, peeked, pass.now());
}

/// For sockets that are not connected: the error that a disconnected one still owes; for the rest the kernel
/// has the answer.
Errno TcpSocket::take_pending_error() {
  const int error = std::exchange(pending_error_, 0);
  return error != 0 ? err(error) : kOnKernel;
}

Result<ssize_t> TcpSocket::recvmsg(Pass& pass, msghdr* message, int flags) {
  if (!live() && (flags & (MSG_OOB | MSG_ERRQUEUE)) != 0) return kOnKernel;
  Result<size_t> size = iov_bytes(*message);
  if (!size) return size.error();
  if (state_ == State::kListening) return kOnKernel;  // ENOTCONN; an error is kept
  if (!live()) return take_pending_error();
  message->msg_namelen = 0;
  message->msg_flags = 0;
  if ((flags & MSG_ERRQUEUE) != 0) return err(EAGAIN);
  if ((flags & MSG_OOB) != 0) return receive_urgent(pass, message, flags);

  pass.in_turn();
  Stack& stack = pass.stack();
  TcpLayer& tcp = stack.tcp();
  const bool peek = (flags & MSG_PEEK) != 0;
  const bool wait = !nonblocking && (flags & MSG_DONTWAIT) == 0;
  const size_t low_water = std::min<size_t>(stack.tcp().settings(*conn_).receive_low_water, *size);
  const size_t target = std::max<size_t>((flags & MSG_WAITALL) != 0 ? *size : low_water, 1);
  const size_t first = peek && peek_offset_ > 0 ? static_cast<size_t>(peek_offset_) : 0;
  const Instant deadline = deadline_after(pass, receive_timeout);
  IovCursor into(vector_of(*message));
  size_t got = 0;
  // Where a peek goes on: an urgent byte right at its start was skipped (tcp_recvmsg_locked's urg_hole).
  auto place = [&] {
    const bool hole =
        got > 0 && !tcp.settings(*conn_).oob_inline && tcp.urgent_at(*conn_, static_cast<uint32_t>(first));
    return peek ? first + got + hole : 0;
  };
  for (;;) {
    const size_t seen = place();
    if (*size == 0 && tcp.unread(*conn_) > seen) break;
    Result<size_t> n = take(pass, into.window(), *size - got, seen, flags);
    if (n && *n == 0) break;  // the end
    if (n) {
      got += *n;
      into.advance(*n);
      if (got == *size) break;
      // A pending error is kept for the next call, urgent data too (tcp_recvmsg_locked's "if (copied)").
      const size_t next = place();
      const bool at_mark = tcp.urgent_at(*conn_, static_cast<uint32_t>(next));
      // take() stops short with what it has to read to drop it.
      const bool cut = peek && (flags & MSG_TRUNC) != 0 && tcp.unread(*conn_) > next;
      if (at_mark || (stack.tcp().peek_error(*conn_) != 0 && !cut)) break;
      // take() may have stopped short: a window of the vector or of its own was full.
      if ((got < target || (flags & MSG_TRUNC) != 0) && tcp.unread(*conn_) > next) continue;
      if (got >= target) break;
    } else if (!n.is(EAGAIN) && !(n.is(ENOTCONN) && in_handshake(stack))) {
      if (n.is(EFAULT) && got > 0) break;
      return n.error();
    }
    if (!wait || !may_wait()) {
      if (got > 0) break;
      return err(EAGAIN);
    }
    const uint32_t had = tcp.unread(*conn_);
    auto more = [&] {
      return !live() || tcp.unread(*conn_) != had || (stack.tcp().readiness(*conn_) & kOver) != 0;
    };
    Result<Woke> woke = wait_for(pass, deadline, more, {}, got > 0, static_cast<File*>(this));
    if (got == 0 && !woke) return woke.error();
    if (got == 0 && !live()) return kOnKernel;
    if (!woke || !live()) break;
  }
  if (peek_offset_ >= 0) peek_offset_ = std::max(0, peek_offset_ + static_cast<int>(peek ? got : 0 - got));
  put_control(pass, message);
  return static_cast<ssize_t>(got);
}

/// The text that is there, in as many buffers as the call has room for.
static Result<size_t> lend_text(Pass& pass, TcpConn& conn, LeaseCall& call) {
  if (!call.can_tell()) return err(EFAULT);
  Leases& leases = pass.engine().leases(pass);
  if (!leases.make_room()) return err(ENOBUFS);
  Lent lent;
  Result<size_t> n = pass.stack().tcp().lend(conn, {call.room, leases.room()}, pass.now(), lent);
  if (n && call.from != nullptr) *call.from_length = 0;  // as inet_recvmsg() leaves it
  if (!n || *n == 0) return n;
  call.tell(lent);
  call.number = leases.begin(std::move(lent));
  pass.engine().counters().add(Counter::leases);
  return n;
}

Result<ssize_t> TcpSocket::lend(Pass& pass, LeaseCall& call) {
  if (!live()) return kOnKernel;
  pass.in_turn();
  Stack& stack = pass.stack();
  TcpLayer& tcp = stack.tcp();
  const bool wait = !nonblocking && (call.flags & MSG_DONTWAIT) == 0;
  const Instant deadline = deadline_after(pass, receive_timeout);
  auto enough = [&] { return (tcp.readiness(*conn_) & (kReadable | kOver)) != 0; };
  for (;;) {
    Result<size_t> n = err(EAGAIN);
    if (!wait || enough()) n = lend_text(pass, *conn_, call);
    if (n) {
      if (peek_offset_ >= 0) peek_offset_ = std::max(0, peek_offset_ - static_cast<int>(*n));
      return static_cast<ssize_t>(*n);
    }
    if (!n.is(EAGAIN) && !(n.is(ENOTCONN) && in_handshake(stack))) return n.error();
    if (!wait || !may_wait()) return err(EAGAIN);
    const uint32_t had = tcp.unread(*conn_);
    auto more = [&] { return !live() || tcp.unread(*conn_) != had || enough(); };
    Result<Woke> woke = wait_for(pass, deadline, more, {}, false, static_cast<File*>(this));
    if (!woke) return woke.error();
    if (!live()) return kOnKernel;
  }
}

void TcpSocket::keep_error(Pass& pass, Errno error) {
  if (live()) pass.stack().tcp().keep_error(*conn_, static_cast<int>(error));
}

/// tcp_recv_urg().
Result<ssize_t> TcpSocket::receive_urgent(Pass& pass, msghdr* message, int flags) {
  uint8_t byte = 0;
  Result<size_t> n = pass.stack().tcp().receive_urgent(*conn_, &byte, (flags & MSG_PEEK) != 0);
  if (!n) return n.error();
  message->msg_controllen = 0;
  if (*n == 0) return 0;
  message->msg_flags = MSG_OOB;
  for (const iovec& v : vector_of(*message)) {
    if (v.iov_len == 0) continue;
    if ((flags & MSG_TRUNC) == 0 && !put_user(v.iov_base, byte)) return err(EFAULT);
    return 1;
  }
  message->msg_flags |= MSG_TRUNC;
  return 0;
}

/// TCP_INQ's control message; a stream has no other.
void TcpSocket::put_control(Pass& pass, msghdr* message) {
  const size_t room = message->msg_controllen;
  message->msg_controllen = 0;
  if (!inq_ || !live()) return;
  // tcp_inq_hint(): behind the peer's FIN there is one more, so that the program reads on to the end.
  const int queued = static_cast<int>(pass.stack().tcp().readable_bytes(*conn_)) +
                     (pass.stack().tcp().fin_received(*conn_) ? 1 : 0);
  if (room < CMSG_LEN(sizeof queued) || !can_overwrite(message->msg_control, CMSG_LEN(sizeof queued))) {
    message->msg_flags |= MSG_CTRUNC;
    return;
  }
  auto* c = static_cast<cmsghdr*>(message->msg_control);
  c->cmsg_level = IPPROTO_TCP;
  c->cmsg_type = kTcpInq;
  c->cmsg_len = CMSG_LEN(sizeof queued);
  std::memcpy(CMSG_DATA(c), &queued, sizeof queued);
  message->msg_controllen = std::min(room, CMSG_SPACE(sizeof queued));
}

bool TcpSocket::wants_completions(Pass& pass) {
  if (pass.stack().tcp().state(*conn_) == TcpState::kClosed) return false;
  write_inherited_options();
  return shadow_option(SOL_SOCKET, SO_ZEROCOPY) != 0;
}

/// tcp_sendmsg_fastopen(), as far as it connects: the SYN waits for the text then. 0: goes on as a write.
Errno TcpSocket::open_by_message(Pass& pass, const msghdr* message, int flags, bool wait) {
  constexpr uint32_t kClientEnable = 1;
  Stack& stack = pass.stack();
  if (state_ == State::kKernel || (!live() && state_ != State::kUndecided)) return kOnKernel;
  if (live() && stack.tcp().state(*conn_) == TcpState::kClosed) return {};
  if (live() && stack.tcp().waits_for_text(*conn_)) return {};
  if (live() && !in_handshake(stack)) return err(EISCONN);
  if (live()) {
    if (!wait) return err(EALREADY);
    const Result<int> r = finish_connect(pass, err(EALREADY));
    return r ? Errno{} : r.error();
  }
  if ((stack.config().fast_open & kClientEnable) == 0) return kOnKernel;  // EOPNOTSUPP
  const auto* address = static_cast<const sockaddr*>(message->msg_name);
  sa_family_t family = AF_UNSPEC;
  if (address == nullptr || message->msg_namelen < sizeof family || !get_user(family, &address->sa_family) ||
      family == AF_UNSPEC)
    return kOnKernel;
  if (message->msg_controllen != 0) veto_for(kControlMessage);
  if ((flags & (MSG_ZEROCOPY | MSG_OOB)) != 0) veto_for((flags & MSG_OOB) != 0 ? "MSG_OOB" : "MSG_ZEROCOPY");
  fast_open_ = true;
  const Result<int> r = connect(pass, address, message->msg_namelen);
  fast_open_ = false;
  return r ? Errno{} : r.error();
}

/// The first write of a connection whose SYN waits for it. Returns what the SYN has taken along; where it may
/// wait the handshake is over.
Result<size_t> TcpSocket::send_with_syn(Pass& pass, std::span<const iovec> data, bool wait) {
  const Result<size_t> taken = pass.stack().tcp().send(*conn_, data, {}, pass.now());
  if (!taken) return taken.error();
  if (!wait) return *taken > 0 ? taken : err(EINPROGRESS);
  const Result<int> r = finish_connect(pass, err(EINPROGRESS));
  if (r || (r.is(EINPROGRESS) && *taken > 0)) return taken;
  return r.error();
}

Result<ssize_t> TcpSocket::sendmsg(Pass& pass, const msghdr* message, int flags) {
  Result<size_t> size = iov_bytes(*message);
  if (!size) return size.error();
  const bool wait = !nonblocking && (flags & MSG_DONTWAIT) == 0;
  if ((flags & MSG_FASTOPEN) != 0)
    if (Errno refused = open_by_message(pass, message, flags, wait); refused != Errno{}) return refused;
  if (!live()) return take_pending_error();
  if (message->msg_controllen != 0 && pass.stack().tcp().state(*conn_) != TcpState::kClosed) {
    const Control control = control_of(*message);
    if (control == Control::kInvalid) return err(EINVAL);
    if (control == Control::kHeeded)
      return detach_for(pass, kControlMessage) ? Result<ssize_t>(kOnKernel) : err(EOPNOTSUPP);
  }
  // tcp_sendmsg_locked(): what is empty, or sent without SO_ZEROCOPY, is sent as without the flag.
  if ((flags & MSG_ZEROCOPY) != 0 && *size > 0 && wants_completions(pass))
    return detach_for(pass, "MSG_ZEROCOPY") ? Result<ssize_t>(kOnKernel) : err(EOPNOTSUPP);
  pass.in_turn(this);
  Stack& stack = pass.stack();
  TcpWrite how{.more = (flags & MSG_MORE) != 0, .urgent = (flags & MSG_OOB) != 0};
  const Instant deadline = deadline_after(pass, send_timeout);
  IovCursor from(vector_of(*message));
  size_t sent = 0;
  if (stack.tcp().waits_for_text(*conn_)) {
    Result<size_t> first = send_with_syn(pass, from.window(), wait);
    if (!first) return first.error();
    sent = *first;
    from.advance(sent);
    if (!wait || sent == *size || !live()) return static_cast<ssize_t>(sent);
  }
  for (;;) {
    how.record_end = (flags & MSG_EOR) != 0 && from.whole();
    Result<size_t> n = stack.tcp().send(*conn_, from.window(), how, pass.now());
    if (n) {
      sent += *n;
      from.advance(*n);
      if (sent == *size) return static_cast<ssize_t>(sent);
      if (*n > 0 && (wait || !how.urgent) && stack.tcp().peek_error(*conn_) == 0) continue;
    } else if (!n.is(EAGAIN) && !(n.is(ENOTCONN) && in_handshake(stack))) {
      if (sent > 0) return static_cast<ssize_t>(sent);
      return n.error();
    }
    if (stack.tcp().peek_error(*conn_) != 0 && sent > 0) return static_cast<ssize_t>(sent);
    if (!wait || !may_wait()) return sent > 0 ? Result<ssize_t>(static_cast<ssize_t>(sent)) : err(EAGAIN);
    auto room = [&] {
      return !live() || (stack.tcp().readiness(*conn_) & (kWritable | kHangUp | kError)) != 0;
    };
    Result<Woke> woke = wait_for(pass, deadline, room, {}, sent > 0, static_cast<File*>(this));
    if (sent == 0 && !woke) return woke.error();
    if (sent == 0 && !live()) return kOnKernel;
    if (!woke || !live()) return static_cast<ssize_t>(sent);
  }
}

}  // namespace accel::posix
