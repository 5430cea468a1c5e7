#include "siw_fallback/channel.h"

#include <errno.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <string>

#include "base/log.h"
#include "base/real.h"
#include "siw_fallback/reactor.h"

namespace accel::siw {
namespace {

// How long things may take: the kernel's siw has the same 10 s and 5 s (siw_cm.h MPAREQ_TIMEOUT,
// MPAREP_TIMEOUT).
constexpr Duration kRequiredPatience = 10s;
constexpr Duration kRequestPatience = 5s;
constexpr Duration kLeastPatience = 250ms;
constexpr Duration kKickAfter = 100ms, kKickUntil = 5s;
constexpr Duration kLeastHold = 5ms, kLongestHold = 50ms;
/// As long as the kernel sends for a closed socket whose peer does not answer (tcp_orphan_retries: 100 s).
constexpr Duration kOrphanFor = 100s;
constexpr size_t kMaxPending = 128 << 10;
constexpr size_t kBesidePlace = 4 << 10;  ///< bytes read behind those that go to their place
constexpr size_t kMostPieces = 256;       ///< of memory for one sendmsg(); a frame of one TCP segment has two

Counter counter_of(Violation v) {
  switch (v) {
    case Violation::none:
      break;
#define VIOLATION(name, layer, type, code, help) \
  case Violation::name:                          \
    return Counter::iwarp_##name;
#include "siw_fallback/violations.def"
#undef VIOLATION
  }
  return Counter::kCount;
}

Duration round_trip(int fd) {
  tcp_info info{};
  socklen_t length = sizeof info;
  if (real.getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return Duration{0};
  return std::chrono::microseconds(info.tcpi_rtt);
}

int socket_int(int fd, int level, int name) {
  int value = 0;
  socklen_t length = sizeof value;
  return real.getsockopt(fd, level, name, &value, &length) == 0 ? value : 0;
}

// The lock is held, so these must not be cancellation points as libc's are.
ssize_t receive_now(int fd, MutableBytes into, int flags = 0) {
  return real.syscall(SYS_recvfrom, static_cast<long>(fd), into.data(), into.size(),
                      static_cast<long>(flags | MSG_DONTWAIT), nullptr, nullptr);
}

/// Enough of a frame to tell what it was: its first bytes, and its last, which are the CRC.
std::string hex_ends(Bytes frame) {
  constexpr size_t kHead = 40, kTail = 8;
  std::string text;
  auto add = [&](Bytes bytes) {
    char pair[3];
    for (const uint8_t byte : bytes) {
      snprintf(pair, sizeof pair, "%02x", byte);
      text += pair;
    }
  };
  if (frame.size() <= kHead + kTail) return add(frame), text;
  add(frame.first(kHead));
  text += "...";
  add(frame.last(kTail));
  return text;
}

/// First into `place`, the rest into `more`.
ssize_t receive_now(int fd, MutableBytes place, MutableBytes more) {
  if (place.empty()) return receive_now(fd, more);
  iovec vector[] = {{place.data(), place.size()}, {more.data(), more.size()}};
  msghdr message{};
  message.msg_iov = vector;
  message.msg_iovlen = 2;
  return real.syscall(SYS_recvmsg, static_cast<long>(fd), &message, static_cast<long>(MSG_DONTWAIT));
}

ssize_t send_now(int fd, const OutQueue& out) {
  constexpr long kFlags = MSG_DONTWAIT | MSG_NOSIGNAL;
  if (const Bytes own = out.own(); own.size() == out.size())
    return real.syscall(SYS_sendto, static_cast<long>(fd), own.data(), own.size(), kFlags, nullptr, 0L);
  std::array<Bytes, kMostPieces> pieces;
  const size_t count = out.gather(pieces);
  std::array<iovec, kMostPieces> vector;
  for (size_t i = 0; i < count; ++i) vector[i] = {const_cast<uint8_t*>(pieces[i].data()), pieces[i].size()};
  msghdr message{};
  message.msg_iov = vector.data();
  message.msg_iovlen = count;
  return real.syscall(SYS_sendmsg, static_cast<long>(fd), &message, kFlags);
}

}  // namespace

Channel::Channel(Reactor& reactor, int fd, bool required, void* owner_file)
    : owner(owner_file), reactor_(&reactor), fd_(fd), required_(required) {
  if (!reactor_->watch(*this)) fail(err(ENOBUFS));
}

Channel::~Channel() {
  if (reactor_ == nullptr) return;
  end_pending();
  schedule(kNever);
  reactor_->unwatch(*this);
  reactor_->release(reserved_);
}

void Channel::count(Counter c) { reactor_->counters_.add(c); }

void Channel::explain_failure() {
  const Violation v = conn_->violation();
  if (v != Violation::none) count(counter_of(v));
  log(LogLevel::kInfo, "iWARP connection broken off: %s",
      v == Violation::none ? "TCP reset" : name_of(v).data());
  if (v == Violation::rdmap_terminated) {
    const Terminate& t = conn_->endpoint().peers_terminate();
    log(LogLevel::kInfo, "iWARP: the peer's Terminate says layer %d, type %d, code %d%s", t.code.layer,
        t.code.type, t.code.code, t.siw_form ? ", in the form of the kernel's siw" : "");
  }
  if (const Bytes frame = conn_->endpoint().bad_frame(); !frame.empty())
    log(LogLevel::kInfo, "iWARP: a frame of %zu bytes with a wrong CRC: %s", frame.size(),
        hex_ends(frame).c_str());
}

void Channel::schedule(Instant when) {
  if (when == deadline_) return;
  reactor_->schedule(*this, deadline_, when);
  deadline_ = when;
}

void Channel::end_pending() {
  if (pending_mpa_) reactor_->end_pending();
  pending_mpa_ = false;
}

// ---- what it becomes ----

void Channel::begin_client(Instant now) {
  if (stage_ == Stage::kFailed) return;
  reactor_->set_output_watch(*this, output_watched_ = true);
  progress(now);
}

void Channel::begin_server(Instant now) {
  if (stage_ == Stage::kFailed) return;
  server_ = true;
  stage_ = Stage::kUndecided;
  schedule(now + std::clamp<Duration>(2 * round_trip(fd_), kLeastHold, kLongestHold));
  progress(now);
}

void Channel::decide(Stage stage) {
  end_pending();
  stage_ = stage;
  if (stage != Stage::kOpen) schedule(kNever);
  if (shut_later_ != 0 && stage == Stage::kPlain) real.shutdown(fd_, shut_later_ - 1);
  if (shut_later_ != 0 && stage == Stage::kOpen) (void)conn_->shutdown(shut_later_ - 1);
  raise(kDecided | kIn | kOut);
}

void Channel::fail(Errno error) {
  error_ = error;
  real.shutdown(fd_, SHUT_RDWR);  // the peer shall not wait for a program that was told
  decide(Stage::kFailed);
  raise(kErr | kHup | kEnd);
}

/// The peer of a client does not speak iWARP, or not with us.
void Channel::unsuitable(Errno error) {
  if (required_) return fail(error);
  count(Counter::iwarp_fallbacks);
  decide(Stage::kPlain);
}

void Channel::finish_tcp(Instant now) {
  pollfd p{fd_, POLLOUT, 0};
  if (real.poll(&p, 1, 0) <= 0) return;
  if (const int error = socket_int(fd_, SOL_SOCKET, SO_ERROR); error != 0) return fail(err(error));
  reactor_->set_output_watch(*this, output_watched_ = false);
  request(now);
}

bool Channel::open_conn(Role role) {
  ConnOptions o;
  o.role = role;
  o.ring = std::bit_ceil(reactor_->options_.ring);
  o.max_pending = kMaxPending;
  o.offer.crc = reactor_->options_.crc;
  o.offer.long_frames = true;
  o.max_fpdu = static_cast<size_t>(std::max(socket_int(fd_, IPPROTO_TCP, TCP_MAXSEG), 0));
  const size_t bytes = o.ring + kMaxPending;
  uint8_t random[24];
  if (!reactor_->reserve(bytes) || getrandom(random, sizeof random, 0) != sizeof random) return false;
  reserved_ = bytes;
  o.identity = make_identity(random);
  conn_.emplace(o);
  // Credits and answers must not wait for an ACK (Nagle's algorithm) when the program is silent.
  const int on = 1;
  real.setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  stage_ = Stage::kNegotiating;
  return true;
}

void Channel::request(Instant now) {
  if (!open_conn(Role::kInitiator)) return unsuitable(err(ENOBUFS));
  const Duration patience = required_ ? kRequiredPatience : std::max(3 * round_trip(fd_), kLeastPatience);
  schedule(now + patience);
  flush(now);
}

void Channel::answer(Instant now) {
  if (!pending_mpa_ && !(pending_mpa_ = reactor_->begin_pending())) return fail(err(ECONNRESET));
  if (!open_conn(Role::kResponder)) return fail(err(ECONNRESET));
  schedule(now + kRequestPatience);
  read_socket(now, true);
  flush(now);
}

/// Plain TCP at the first byte that is not of MPA's key (reference: siw waits for no byte after its request).
void Channel::classify(Instant now) {
  uint8_t first[kMpaKeySize];
  const ssize_t n = receive_now(fd_, first, MSG_PEEK);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n < 0) return fail(err(errno));  // the socket tells it but once
  switch (n == 0 ? FirstBytes::kPlain : accel::siw::classify({first, static_cast<size_t>(n)})) {
    case FirstBytes::kMpa:
      return answer(now);
    case FirstBytes::kUndecided:
      if (pending_mpa_) return;
      if (!(pending_mpa_ = reactor_->begin_pending())) return fail(err(ECONNRESET));
      return schedule(now + kRequestPatience);
    case FirstBytes::kPlain:
      break;
  }
  commit_plain();
}

void Channel::shutdown_later(int how) {
  shut_later_ |= static_cast<uint8_t>(how + 1);
  uint32_t bits = 0;
  if (read_shut()) bits |= kIn | kEnd;
  if (write_shut()) bits |= kOut;
  if (read_shut() && write_shut()) bits |= kHup;
  raise(bits);
}

void Channel::commit_plain() {
  if (stage_ != Stage::kUndecided) return;
  count(required_ ? Counter::iwarp_plain_refused : Counter::iwarp_plain_accepted);
  if (required_) return fail(err(ECONNRESET));
  decide(Stage::kPlain);
}

// ---- progress ----

void Channel::progress(Instant now, bool to_the_end) {
  if (reactor_ == nullptr) return;
  switch (stage_) {
    case Stage::kConnecting:
      return finish_tcp(now);
    case Stage::kUndecided:
      return classify(now);
    case Stage::kNegotiating:
    case Stage::kOpen:
      read_socket(now, to_the_end);
      if (stage_ == Stage::kOpen || stage_ == Stage::kNegotiating) flush(now);
      return;
    case Stage::kPlain:
    case Stage::kFailed:
      return;
  }
}

void Channel::on_deadline(Instant now) {
  deadline_ = kNever;
  switch (stage_) {
    case Stage::kUndecided:
      if (pending_mpa_) return commit_plain();  // the beginning of MPA's key, and then nothing: chance
      return end_hold();
    case Stage::kNegotiating:
      count(Counter::iwarp_deadlines);
      return server_ ? fail(err(ECONNRESET)) : unsuitable(err(ETIMEDOUT));
    case Stage::kOpen:
      return kick(now);
    default:
      return;
  }
}

void Channel::end_hold() {
  hold_over_ = true;
  if (owner == nullptr || (shut_later_ != 0 && !required_)) return commit_plain();
  raise(kOut);
}

/// The kernel's siw may have slept through what came soon after its reply (siw_qp.c:93): more bytes wake it.
/// That it speaks proves nothing: its program writes until it misses our credits. So what was sent gets one
/// kick; a peer that is wholly silent, more.
void Channel::kick(Instant now) {
  if (now >= kick_until_ || (conn_->endpoint().heard() && bytes_out_ == kicked_)) return;
  conn_->kick();
  count(Counter::iwarp_kicks);
  flush(now);
  kicked_ = bytes_out_;
  schedule(now + kKickAfter);
}

/// A short read means that the socket is empty, and what comes later is a new event, its end included.
void Channel::read_socket(Instant now, bool to_the_end) {
  const size_t before = conn_->available();
  const bool was_failed = conn_->failed();
  while (!conn_->failed() && !lost_) {
    // What follows a payload on its way to its place is the next frame's header, and so on: a long read
    // beside it would bring bytes that had to be copied.
    const MutableBytes place = conn_->landing();
    const auto buffer =
        MutableBytes(reactor_->buffer_).first(conn_->expects_long() ? kBesidePlace : kReadBuffer);
    const ssize_t n = receive_now(fd_, place, buffer);
    if (n > 0) {
      bytes_in_ += static_cast<uint64_t>(n);
      const size_t placed = std::min(static_cast<size_t>(n), place.size());
      conn_->landed(placed);
      conn_->receive(buffer.first(static_cast<size_t>(n) - placed));
      if (now < kick_until_ && deadline_ != kNever && owner != nullptr) schedule(now + kKickAfter);
      if (static_cast<size_t>(n) < place.size() + buffer.size() && !to_the_end) break;
      continue;
    }
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) break;
    lose(n == 0 ? Errno{} : err(errno));
  }
  if (conn_->failed() && !was_failed) explain_failure();
  if (conn_->available() > before) raise(kIn);
  converse(now);
}

/// Nothing more can come. A send may have been told of it first (broken_), and the socket says end then.
void Channel::lose(Errno why) {
  lost_ = true;
  if (broken_ != Errno{}) why = broken_;
  why == Errno{} ? conn_->receive_end() : conn_->receive_reset();
  if (conn_->failed() && why != Errno{} && why != err(ECONNRESET) && why != err(EPIPE)) error_ = why;
}

/// What follows from what was read.
void Channel::converse(Instant now) {
  if (stage_ == Stage::kNegotiating) {
    if (conn_->established() && !conn_->failed()) {
      count(server_ ? Counter::iwarp_accepted : Counter::iwarp_connected);
      const bool may_sleep = !server_ && !conn_->peer_lingers();
      if (may_sleep) kick_until_ = now + kKickUntil;
      schedule(owner == nullptr ? now + kOrphanFor : may_sleep ? now + kKickAfter : kNever);
      decide(Stage::kOpen);
    } else if (conn_->failed() || lost_) {
      flush(now);  // the refusal
      if (stage_ != Stage::kNegotiating) return;
      return server_ ? fail(err(ECONNRESET)) : unsuitable(err(ECONNREFUSED));
    }
  }
  raise_changes();
}

void Channel::flush(Instant now) {
  if (!conn_) return;
  if (reactor_ == nullptr) return conn_->keep();
  bool blocked = false;
  // Who says farewell first has the TIME-WAIT, as with TCP. So the FIN goes with the farewell, not behind it,
  // where the peer could answer before, and does not go at the peer's.
  auto ends = [&] { return !shut_ && conn_->wants_close() && (owner == nullptr || conn_->failed()); };
  // MSG_MORE would not do: an ACK that comes in between sends what it holds back.
  if (ends() && unsent()) {
    const int on = 1;
    real.setsockopt(fd_, IPPROTO_TCP, TCP_CORK, &on, sizeof on);
  }
  while (unsent() && !blocked) {
    const OutQueue& out = conn_->out();
    const bool reset = lost_ && conn_->failed() && conn_->violation() == Violation::none;
    const ssize_t n = reset ? static_cast<ssize_t>(out.size()) : send_now(fd_, out);
    if (n > 0) {
      bytes_out_ += static_cast<uint64_t>(n);
      conn_->sent(static_cast<size_t>(n));
      if (now < kick_until_ && deadline_ == kNever && owner != nullptr) schedule(now + kKickAfter);
    } else if (errno == EAGAIN) {
      blocked = true;
    } else if (errno != EINTR) {
      const Errno why = err(errno);
      conn_->sent(out.size());
      if (lost_ || shut_) break;
      broken_ = why;
      read_socket(now, true);  // what came before, the peer's farewell perhaps
      if (!lost_) lose(why), converse(now);
    }
  }
  conn_->keep();
  if (blocked != output_watched_) {
    reactor_->set_output_watch(*this, output_watched_ = blocked);
    blocked ? void(reactor_->blocked_.insert(this)) : void(reactor_->blocked_.erase(this));
  }
  if (!blocked && ends()) {
    shut_ = true;
    real.shutdown(fd_, SHUT_WR);
  }
  raise_changes();
}

// ---- edges ----

void Channel::raise(uint32_t bits) {
  if (edges == 0) reactor_->ready(*this);
  edges |= bits;
}

void Channel::raise_changes() {
  if (stage_ != Stage::kOpen) return;
  const bool writable = conn_->writable() || conn_->write_over();
  const bool over = conn_->read_over();
  if (writable && !was_writable_) raise(kOut);
  if (over && !was_over_) raise(kIn | kEnd | (conn_->write_over() ? uint32_t{kHup} : 0));
  if (conn_->failed() && stage_ == Stage::kOpen && !was_failed_) raise(kErr | kHup | kIn | kOut);
  was_writable_ = writable;
  was_over_ = over;
  was_failed_ = conn_->failed();
}

Errno Channel::error() const {
  if (error_ != Errno{}) return error_;
  return conn_ && conn_->failed() ? conn_->error() : Errno{};
}

// ---- the end, and other hands ----

bool Channel::over() const {
  switch (stage_) {
    case Stage::kConnecting:
    case Stage::kPlain:
    case Stage::kFailed:
      return true;
    case Stage::kUndecided:
      return false;
    case Stage::kNegotiating:
    case Stage::kOpen:
      break;
  }
  return lost_ || conn_->failed();
}

bool Channel::delivered() const {
  if (stage_ == Stage::kUndecided || stage_ == Stage::kNegotiating) return false;
  int unacknowledged = 0;
  return !unsent() && (real.ioctl(fd_, SIOCOUTQ, &unacknowledged) != 0 || unacknowledged == 0);
}

void Channel::close(Instant now) {
  owner = nullptr;
  if (reactor_ == nullptr) return;
  shut_later_ = 3;
  if (stage_ == Stage::kUndecided) progress(now);
  if (stage_ == Stage::kUndecided && !pending_mpa_) {
    if (!required_) {
      if (hold_over_) commit_plain();
      return;
    }
    if (!(pending_mpa_ = reactor_->begin_pending())) return fail(err(ECONNRESET));
    schedule(now + kRequestPatience);
  }
  if (stage_ != Stage::kOpen) return;
  schedule(now + kOrphanFor);
  (void)conn_->shutdown(SHUT_RDWR);
  flush(now);
}

void Channel::move_to(int other) {
  if (reactor_ != nullptr) reactor_->unwatch(*this);
  fd_ = other;
  if (reactor_ != nullptr) reactor_->watch(*this);
}

void Channel::suspend() {
  if (reactor_ == nullptr) return;
  end_pending();
  schedule(kNever);
  reactor_->unwatch(*this);
  reactor_->release(reserved_);
  reactor_ = nullptr;
}

/// The parent's descriptors are not to be touched.
void Channel::leave_parents_reactor() {
  reactor_ = nullptr;
  deadline_ = kNever;
  watched_ = false;
}

void Channel::wake(Reactor& reactor, Instant now) {
  reactor_ = &reactor;
  edges = 0;
  if (!reactor_->reserve(reserved_)) reserved_ = 0;
  if (!reactor_->watch(*this)) return fail(err(ENOBUFS));
  if (stage_ == Stage::kNegotiating) schedule(now + kRequestPatience);
  if (output_watched_) reactor_->set_output_watch(*this, true);
  progress(now);
  if (stage_ == Stage::kUndecided) end_hold();
}

}  // namespace accel::siw
