// A listener's connections that go to other processes when this one stops listening, and those that come from
// them.
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/epoll.h>

#include <new>
#include <utility>

#include "base/private_fds.h"
#include "base/real.h"
#include "engine/stats.h"
#include "posix/acceptor_hints.h"
#include "posix/early_wait.h"
#include "posix/listener_handoff.h"
#include "posix/privilege.h"
#include "posix/request_thread.h"
#include "posix/tcp_socket.h"
#include "posix/unix_rendezvous.h"
#include "posix/wait.h"

namespace accel::posix {
namespace {

/// Handshakes under way are given this long to end by themselves.
constexpr Duration kHandshakesEnd = 200ms;
/// How long a listener that was passed and has connections to hand off waits for its new owner.
constexpr Duration kTargetAppears = 500ms;
constexpr Duration kTargetLook = 5ms;

}  // namespace

void TcpSocket::open_own_handoff_socket() {
  if (handoff_socket_ >= 0) return;
  handoff_socket_ = open_handoff_socket(shadow());
  handoff_socket_is_own_ = true;
}

/// Other processes have the listener, or will have it: joins their group, or begins one. Once, since by
/// fork() children get what is shared.
void TcpSocket::join_group() {
  shared_listener = true;
  announce_shared_listener();
  if (std::exchange(joined_group_, true)) return;
  open_own_handoff_socket();
  group_ = {-1, handoff_socket_, share_acceptor_hints()};
  const ListenerGroup found = join_listener_group(shadow(), group_);
  if (found.name_socket < 0) return;
  if (found.handoff_socket != handoff_socket_) {
    drain_own_handoff_socket();
    handoff_socket_ = found.handoff_socket;
    handoff_socket_is_own_ = false;
  }
  group_ = found;
  request_thread_look_again();
}

/// Takes what is queued at the own hand-off socket; nothing more can be queued there.
void TcpSocket::drain_own_handoff_socket() {
  real.shutdown(handoff_socket_, SHUT_RD);
  while (take_sender(accept_sender(handoff_socket_))) {
  }
  close_private(handoff_socket_);
}

/// False: there is none.
bool TcpSocket::take_sender(int sender) {
  if (sender < 0) return false;
  if (message_arrived(sender))
    for (int fd : received_from(sender)) handed_off_.push_back(fd);
  else
    keep_silent_peer(sender, SilentPeers::Wants::kHandOff);
  return true;
}

void TcpSocket::keep_silent_peer(int fd, SilentPeers::Wants what) {
  if (silent_peers_ == nullptr) silent_peers_.reset(new (std::nothrow) SilentPeers);
  if (silent_peers_ != nullptr && silent_peers_->keep(fd, what, monotonic_now())) return;
  real.close(fd);
  Engine::get()->counters().add(Counter::peer_requests_refused);
}

std::vector<int> TcpSocket::received_from(int sender) const {
  return receive_handoff(sender, shadow(), Engine::get()->counters());
}

void TcpSocket::admit(int candidate) {
  if (admit_member(candidate, group_, shadow(), Engine::get()->counters())) handoff_socket_is_own_ = false;
}

void TcpSocket::member_arrived() {
  const int candidate = accept_candidate(group_);
  if (candidate < 0) return;
  message_arrived(candidate) ? admit(candidate)
                             : keep_silent_peer(candidate, SilentPeers::Wants::kMembership);
}

Instant TcpSocket::watch_silent_peers(std::vector<pollfd>& watched) {
  if (silent_peers_ == nullptr) return kNever;
  if (const size_t late = silent_peers_->end_late(monotonic_now()); late > 0)
    Engine::get()->counters().add(Counter::peer_requests_refused, late);
  silent_peers_->watch(watched);
  return silent_peers_->next_end();
}

bool TcpSocket::silent_peer_spoke(Pass& pass, int fd) {
  const auto what = silent_peers_ != nullptr ? silent_peers_->take(fd) : std::nullopt;
  if (!what) return false;
  if (*what == SilentPeers::Wants::kMembership)
    admit(fd);
  else
    for (int connection : received_from(fd)) queue_handed_off(pass, connection);
  return true;
}

/// Before fork(): the children are to have the hand-off socket that this process has.
void TcpSocket::share_accept_queue() {
  if (state_ != State::kListening) return;
  join_group();
  handoff_socket_is_own_ = false;
}

/// It is for the children to accept from now on; a marker would say that this process does.
void TcpSocket::queues_released() {
  flow_ = nullptr;
  if (marker_ >= 0) close_private(std::exchange(marker_, -1));
}

/// Other processes may listen on this shadow too: what they hand off comes here from now on.
void TcpSocket::serve_handoffs() {
  if (marker_ >= 0) return;
  handoff_socket_waits_ = privileges_are_going();
  if (handoff_socket_waits_) return;
  join_group();
  if (handoff_socket_ >= 0) marker_ = open_acceptor_marker(handoff_socket_);
  if (marker_ >= 0) request_thread_look_again();
}

bool TcpSocket::handoff_queued() const {
  pollfd queued{handoff_socket_, POLLIN, 0};
  return marker_ >= 0 && real.poll(&queued, 1, 0) > 0;
}

void TcpSocket::tell_acceptors(Pass& pass) {
  notify(kReadable);
  pass.engine().touch();
}

/// The listener is readable in every process that serves the hand-off socket; the first accept() takes the
/// hand-off. The request thread looks again once a thread here has done so.
void TcpSocket::handoff_arrived(Pass& pass) {
  handoff_seen_ = true;
  tell_acceptors(pass);
}

bool TcpSocket::handoff_pending() {
  if (!handoff_seen_ || handoff_queued()) return handoff_seen_;
  handoff_seen_ = false;
  request_thread_look_again();
  return false;
}

void TcpSocket::take_handoff(Pass& pass) {
  handoff_seen_ = false;
  const size_t before = handed_off_.size();
  take_sender(accept_sender(handoff_socket_));
  request_thread_look_again();
  if (handed_off_.size() != before) tell_acceptors(pass);
}

void TcpSocket::user_changed() {
  if (handoff_socket_waits_ && state_ == State::kListening) serve_handoffs();
}

void TcpSocket::close_handoff_socket() {
  if (marker_ >= 0) close_private(std::exchange(marker_, -1));
  if (handoff_socket_ >= 0) close_private(std::exchange(handoff_socket_, -1));
  silent_peers_.reset();
  if (group_.name_socket >= 0) close_private(std::exchange(group_.name_socket, -1));
  joined_group_ = false;
}

/// In the child of a fork(): it has the hand-off socket as well; what was received already is the parent's.
void TcpSocket::close_marker_in_child() {
  if (marker_ >= 0) close_private(std::exchange(marker_, -1));
  handoff_socket_is_own_ = handoff_seen_ = false;
  if (silent_peers_ != nullptr) silent_peers_->close_all();
  for (int fd : handed_off_) real.close(fd);
  handed_off_.clear();
}

void TcpSocket::queue_handed_off(Pass& pass, int connection) {
  handed_off_.push_back(connection);
  tell_acceptors(pass);
}

/// The oldest of those, as accept4() would give it.
Result<int> TcpSocket::accept_handed_off(sockaddr* address, socklen_t* length, int flags) {
  const int from = handed_off_.front();
  const int fd = real.fcntl(from, (flags & SOCK_CLOEXEC) != 0 ? F_DUPFD_CLOEXEC : F_DUPFD, 0);
  if (fd < 0) return err(errno);  // it stays in the queue
  handed_off_.erase(handed_off_.begin());
  real.close(from);
  if ((flags & SOCK_NONBLOCK) != 0) real.fcntl(fd, F_SETFL, real.fcntl(fd, F_GETFL) | O_NONBLOCK);
  if (address != nullptr && real.getpeername(fd, address, length) != 0) {
    const Errno error = err(errno);
    real.close(fd);
    return error;
  }
  stats::note_kernel(fd, Reason::accepted_by_kernel);
  return fd;
}

/// Any process accepts a connection in the kernel's accept queue, with libaccel or without. Where the kernel
/// cannot take it (before Linux 6.9) it is passed to the hand-off socket: programs with libaccel accept it
/// from there, and so does this process.
void TcpSocket::queue_for_program(Pass& pass) {
  if (flow_ == nullptr) return;
  pass.engine().stop_taking(pass, *flow_);
  let_handshakes_end(pass);
  if (flow_ == nullptr) return;
  queue_unaccepted(pass);
  if (pass.stack().tcp().accept_queue_length(*pass.engine().listener(*flow_)) == 0) return;
  join_group();
  const std::string handoff_socket = bound_name(handoff_socket_);
  while (pass.stack().tcp().accept_queue_length(*pass.engine().listener(*flow_)) > 0)
    if (const int fd = accept_into_kernel(pass); fd >= 0 && !hand_off(handoff_socket, true, shadow(), fd))
      queue_handed_off(pass, fd);
}

/// The shadow listens alone from now on; the connections that have come already are still this process's.
void TcpSocket::keep_queue(Pass& pass) {
  if (flow_ == nullptr) return;
  pass.engine().stop_taking(pass, *flow_);
  let_handshakes_end(pass);
  if (flow_ == nullptr) return;  // another thread was faster
  hand_back_unaccepted(pass);
  pass.engine().close(pass, flow_);
  flow_ = nullptr;
}

/// The kernel's listener would have gone on with them; coming to it now, their last ACK would be answered by
/// a reset. So what a busy or distant peer has not acknowledged in time counts as complete, and the kernel's
/// connection takes the ACK.
void TcpSocket::let_handshakes_end(Pass& pass) {
  const Instant deadline = pass.now() + kHandshakesEnd;
  auto settled = [&] {
    return flow_ == nullptr || pass.stack().tcp().handshakes_under_way(*pass.engine().listener(*flow_)) == 0;
  };
  while (!settled() && wait_for(pass, deadline, settled).is(EINTR)) {
  }
  if (flow_ != nullptr) pass.stack().tcp().complete_handshakes(*pass.engine().listener(*flow_), pass.now());
}

/// A listener that was passed finds its new owners by the names of their hand-off sockets, and waits for
/// those if need be.
HandoffTargets TcpSocket::find_targets(Pass& pass) {
  if (passed_) open_own_handoff_socket();
  const Instant deadline = pass.now() + kTargetAppears;
  for (;;) {
    HandoffTargets found(bound_name(handoff_socket_), shadow(), handoff_socket_is_own_, passed_);
    if (!found.none() || !passed_ || pass.now() >= deadline) return found;
    if (wait_for(pass, pass.now() + kTargetLook, [] { return false; }).is(EINTR)) return found;
  }
}

/// Senders whose message is under way have their time; the lock is let go meanwhile.
void TcpSocket::hear_silent_senders(Pass& pass) {
  if (silent_peers_ == nullptr) return;
  silent_peers_->close(SilentPeers::Wants::kMembership);
  const Instant deadline = pass.now() + SilentPeers::kSpeaks;
  while (silent_peers_ != nullptr && silent_peers_->any(SilentPeers::Wants::kHandOff)) {
    std::vector<pollfd> watched;
    silent_peers_->watch(watched);
    if (wait_for(
            pass, deadline, [] { return false; }, watched)
            .is(EAGAIN))
      return silent_peers_->close_all();
    for (const pollfd& one : watched)
      if (one.revents != 0) (void)silent_peer_spoke(pass, one.fd);
  }
}

/// This process listens no more. Ends with nothing in the queue that could be handed off; the rest is reset
/// when the listener closes, as the last listener's is in the kernel.
void TcpSocket::hand_off_queue(Pass& pass) {
  if (marker_ >= 0) close_private(std::exchange(marker_, -1));
  if (flow_ == nullptr && handed_off_.empty() && handoff_socket_ < 0) return;
  const TcpListener* listener = flow_ != nullptr ? pass.engine().listener(*flow_) : nullptr;
  if (listener != nullptr) pass.engine().stop_taking(pass, *flow_);
  const TcpLayer& tcp = pass.stack().tcp();
  auto pending = [&] {
    return listener != nullptr &&
           tcp.handshakes_under_way(*listener) + tcp.accept_queue_length(*listener) > 0;
  };
  pollfd queued{handoff_socket_, POLLIN, 0};
  if (!pending() && handed_off_.empty() && real.poll(&queued, 1, 0) <= 0 &&
      (silent_peers_ == nullptr || !silent_peers_->any(SilentPeers::Wants::kHandOff)))
    return;
  HandoffTargets targets = find_targets(pass);
  if (listener != nullptr && (elsewhere_too || !targets.none())) {
    let_handshakes_end(pass);
    if (flow_ != nullptr) queue_unaccepted(pass);  // whoever has the shadow finds them there, libaccel or not
  }
  while (targets.elsewhere() && take_sender(accept_sender(handoff_socket_))) {
  }
  hear_silent_senders(pass);
  for (int fd : handed_off_)
    if (!targets.send(fd)) real.close(fd);
  handed_off_.clear();
  while (!targets.none() && listener != nullptr && tcp.accept_queue_length(*listener) > 0) {
    const int fd = accept_into_kernel(pass);
    if (fd >= 0 && !targets.send(fd)) real.close(fd);
  }
}

/// The oldest unaccepted connection as a kernel socket; -1: it could not be, and stays where it is or is
/// reset.
int TcpSocket::accept_into_kernel(Pass& pass, bool or_stays) {
  TcpConn* conn = pass.stack().tcp().accept(*pass.engine().listener(*flow_));
  const int fd = real.socket(domain(), SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP);
  if (fd >= 0) write_options(fd, *options_of(pass, *conn));
  if (fd >= 0 && pass.engine().hand_back(pass, conn, fd, shadow())) return fd;
  if (or_stays)
    pass.stack().tcp().put_back(*pass.engine().listener(*flow_), *conn);
  else
    pass.stack().tcp().close(conn, true, pass.now());
  if (fd >= 0) real.close(fd);
  return -1;
}

/// In the kernel any waiting process would accept them: while others wait they are handed back and passed to
/// the hand-off socket. False: no other process waits any more, or it cannot be done.
bool TcpSocket::hand_off_unaccepted(Pass& pass) {
  if (flow_ == nullptr || !shared_listener || marker_ < 0) return true;
  TcpListener& listener = *pass.engine().listener(*flow_);
  const std::string handoff_socket = bound_name(handoff_socket_);
  if (came_by_exec_ && others_wait_for_connections(group_.hints_page)) queue_unaccepted(pass);
  while (pass.stack().tcp().accept_queue_length(listener) > 0) {
    if (!others_wait_for_connections(group_.hints_page)) return false;
    const int fd = accept_into_kernel(pass, true);
    if (fd < 0) return false;
    if (hand_off(handoff_socket, true, shadow(), fd))
      pass.engine().counters().add(Counter::tcp_handed_off);
    else
      queue_handed_off(pass, fd);
  }
  return true;
}

/// What nobody has accepted is the kernel's, and still this process's to accept.
void TcpSocket::hand_back_unaccepted(Pass& pass) {
  // Connections that accept() takes by this library keep the options of their handshake's time.
  if (has_program || sockets_stay_on_kernel == Reason::foreign_wait) queue_unaccepted(pass);
  while (pass.stack().tcp().accept_queue_length(*pass.engine().listener(*flow_)) > 0)
    if (const int fd = accept_into_kernel(pass); fd >= 0) queue_handed_off(pass, fd);
}

/// A listener goes on on its shadow, and on other interfaces.
void TcpSocket::port_lost(Pass& pass) {
  Engine& engine = pass.engine();
  if (live() && engine.lost(pass, *conn_))
    (void)detach(pass, Reason::port_lost);  // what cannot, the engine ends
  else if (flow_ != nullptr && engine.lost(pass, *flow_))
    hand_back_unaccepted(pass);
}

void TcpSocket::hand_back_due(Pass& pass) {
  Engine& engine = pass.engine();
  if (live() && engine.hand_back_due(pass, *conn_)) {
    const PathChoice next = engine.hand_back_reason(pass, *conn_);
    choice.detail = next.detail;
    return (void)detach(pass, next.reason);  // or hopes for its queue
  }
  if (flow_ != nullptr && engine.hand_back_due(pass, *flow_)) hand_back_unaccepted(pass);
}

}  // namespace accel::posix
