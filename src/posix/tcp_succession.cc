// A listener's connections that go to other processes when this one stops listening, and those that come from
// them.
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/epoll.h>

#include <utility>

#include "base/private_fds.h"
#include "base/real.h"
#include "engine/stats.h"
#include "posix/attendant.h"
#include "posix/meeting.h"
#include "posix/privilege.h"
#include "posix/succession.h"
#include "posix/tcp_socket.h"
#include "posix/wait.h"
#include "posix/waiters.h"
#include "stack/tcp/conn.h"

namespace accel::posix {
namespace {

/// Handshakes under way are given this long to end by themselves.
constexpr Duration kHandshakesEnd = 200ms;
/// So long a listener that was passed on and has connections to leave waits for whoever got it.
constexpr Duration kSuccessorComes = 500ms;
constexpr Duration kSuccessorLook = 5ms;

}  // namespace

void TcpSocket::open_own_door() {
  if (door_ >= 0) return;
  door_ = open_door(shadow());
  door_is_own_ = true;
}

/// Others have the listener, or will: those who come later find it out. Once, since by fork() they have got
/// what is shared.
void TcpSocket::meet_others() {
  shared_listener = true;
  announce_shared_listener();
  if (std::exchange(met_, true)) return;
  open_own_door();
  company_ = {-1, door_, share_waiters()};
  const Company found = join_company(shadow(), company_);
  if (found.asked < 0) return;
  if (found.door != door_) {
    vacate_own_door();
    door_ = found.door;
    door_is_own_ = false;
  }
  company_ = found;
  attendant_look_again();
}

/// Who stands before it has come already; nobody comes any more.
void TcpSocket::vacate_own_door() {
  real.shutdown(door_, SHUT_RD);
  for (int visitor; (visitor = admit_visitor(door_)) >= 0;)
    for (int fd : heard(visitor)) given_.push_back(fd);
  close_private(door_);
}

std::vector<int> TcpSocket::heard(int visitor) const {
  return hear_visitor(visitor, shadow(), Engine::get()->counters());
}

void TcpSocket::newcomer_came() {
  if (welcome_newcomer(company_, shadow(), Engine::get()->counters())) door_is_own_ = false;
}

/// Before fork(): the children are to have the door that this process has.
void TcpSocket::share_queue() {
  if (state_ != State::kListening) return;
  meet_others();
  door_is_own_ = false;
}

/// It is for the children to accept from now on; a marker would say that this process does.
void TcpSocket::rested() {
  flow_ = nullptr;
  if (marker_ >= 0) close_private(std::exchange(marker_, -1));
}

/// Other processes may listen on this shadow too: what they leave comes here from now on.
void TcpSocket::serve_shared_queue() {
  if (marker_ >= 0) return;
  door_waits_ = privileges_are_going();
  if (door_waits_) return;
  meet_others();
  if (door_ >= 0) marker_ = open_marker(door_);
  if (marker_ >= 0) attendant_look_again();
}

bool TcpSocket::somebody_stands() const {
  pollfd visitors{door_, POLLIN, 0};
  return marker_ >= 0 && real.poll(&visitors, 1, 0) > 0;
}

/// The listener is readable, in every process that serves the door: who accepts first lets one in. The
/// attendant looks again once somebody here has seen to it.
void TcpSocket::visitor_came(Pass& pass) {
  visitors_seen_ = true;
  notify(kReadable);
  pass.engine().touch();
}

bool TcpSocket::visitors_stand() {
  if (!visitors_seen_ || somebody_stands()) return visitors_seen_;
  visitors_seen_ = false;
  attendant_look_again();
  return false;
}

void TcpSocket::admit_one(Pass& pass) {
  visitors_seen_ = false;
  attendant_look_again();
  if (const int visitor = admit_visitor(door_); visitor >= 0)
    for (int fd : heard(visitor)) take_over(pass, fd);
}

void TcpSocket::user_changed() {
  if (door_waits_ && state_ == State::kListening) serve_shared_queue();
}

void TcpSocket::close_door() {
  if (marker_ >= 0) close_private(std::exchange(marker_, -1));
  if (door_ >= 0) close_private(std::exchange(door_, -1));
  if (company_.asked >= 0) close_private(std::exchange(company_.asked, -1));
  met_ = false;
}

/// In the child of a fork(): the door is its as well; what came by it already is the parent's.
void TcpSocket::leave_marker() {
  if (marker_ >= 0) close_private(std::exchange(marker_, -1));
  door_is_own_ = visitors_seen_ = false;
  for (int fd : given_) real.close(fd);
  given_.clear();
}

void TcpSocket::take_over(Pass& pass, int connection) {
  given_.push_back(connection);
  notify(kReadable);
  pass.engine().touch();
}

/// The oldest of those, as accept4() would give it.
Result<int> TcpSocket::accept_given(sockaddr* address, socklen_t* length, int flags) {
  const int from = given_.front();
  const int fd = real.fcntl(from, (flags & SOCK_CLOEXEC) != 0 ? F_DUPFD_CLOEXEC : F_DUPFD, 0);
  if (fd < 0) return err(errno);  // it stays in the queue
  given_.erase(given_.begin());
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

/// A connection in the kernel's accept queue is for whoever accepts, libaccel or not. Where the kernel cannot
/// take it (before Linux 6.9) it stands before the door: a program with libaccel has it from there, and so
/// has this process.
void TcpSocket::queue_for_program(Pass& pass) {
  if (flow_ == nullptr) return;
  pass.engine().stop_taking(pass, *flow_);
  let_handshakes_end(pass);
  if (flow_ == nullptr) return;
  queue_unaccepted(pass);
  if (pass.engine().listener(*flow_)->accept_size == 0) return;
  meet_others();
  const std::string door = bound_name(door_);
  while (pass.engine().listener(*flow_)->accept_size > 0)
    if (const int fd = accept_into_kernel(pass); fd >= 0 && !give_by_door(door, true, shadow(), fd))
      take_over(pass, fd);
}

/// The shadow listens alone from now on; the connections that have come already are still this process's.
void TcpSocket::keep_queue(Pass& pass) {
  if (flow_ == nullptr) return;
  pass.engine().stop_taking(pass, *flow_);
  let_handshakes_end(pass);
  if (flow_ == nullptr) return;  // another thread was faster
  queue_to_kernel(pass);
  pass.engine().close(pass, flow_);
  flow_ = nullptr;
}

/// The kernel's listener would have gone on with them; coming to it now, their last ACK would be answered by
/// a reset. So what a busy or distant peer has not acknowledged in time counts as complete, and the kernel's
/// connection takes the ACK.
void TcpSocket::let_handshakes_end(Pass& pass) {
  const Instant deadline = pass.now() + kHandshakesEnd;
  auto settled = [&] { return flow_ == nullptr || pass.engine().listener(*flow_)->embryo_size == 0; };
  while (!settled() && wait_for(pass, deadline, settled).is(EINTR)) {
  }
  if (flow_ != nullptr) pass.stack().tcp_complete_handshakes(*pass.engine().listener(*flow_), pass.now());
}

/// A listener that was passed on finds its new owner by the names of their doors, for which it waits if need
/// be.
Successors TcpSocket::find_successors(Pass& pass) {
  if (passed_) open_own_door();
  const Instant deadline = pass.now() + kSuccessorComes;
  for (;;) {
    Successors found(bound_name(door_), shadow(), door_is_own_, passed_);
    if (!found.none() || !passed_ || pass.now() >= deadline) return found;
    if (wait_for(pass, pass.now() + kSuccessorLook, [] { return false; }).is(EINTR)) return found;
  }
}

/// This process listens no more. Ends with nothing in the queue that could be given; the rest is reset when
/// the listener closes, as the last listener's is in the kernel.
void TcpSocket::give_up_queue(Pass& pass) {
  if (marker_ >= 0) close_private(std::exchange(marker_, -1));
  if (flow_ == nullptr && given_.empty() && door_ < 0) return;
  const TcpListener* listener = flow_ != nullptr ? pass.engine().listener(*flow_) : nullptr;
  if (listener != nullptr) pass.engine().stop_taking(pass, *flow_);
  auto pending = [&] { return listener != nullptr && listener->embryo_size + listener->accept_size > 0; };
  pollfd visitors{door_, POLLIN, 0};
  if (!pending() && given_.empty() && real.poll(&visitors, 1, 0) <= 0) return;
  Successors successors = find_successors(pass);
  if (listener != nullptr && (elsewhere_too || !successors.none())) {
    let_handshakes_end(pass);
    if (flow_ != nullptr) queue_unaccepted(pass);  // whoever has the shadow finds them there, libaccel or not
  }
  while (successors.elsewhere() && real.poll(&visitors, 1, 0) > 0)
    for (int fd : heard(admit_visitor(door_))) given_.push_back(fd);
  for (int fd : given_)
    if (!successors.give(fd)) real.close(fd);
  given_.clear();
  while (!successors.none() && listener != nullptr && listener->accept_size > 0) {
    const int fd = accept_into_kernel(pass);
    if (fd >= 0 && !successors.give(fd)) real.close(fd);
  }
}

/// The oldest unaccepted connection as a kernel socket; -1: it could not be, and stays where it is or is
/// reset.
int TcpSocket::accept_into_kernel(Pass& pass, bool or_stays) {
  TcpConn* conn = pass.stack().tcp_accept(*pass.engine().listener(*flow_));
  const int fd = real.socket(domain(), SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP);
  if (fd >= 0) write_options(fd, *options_of(*conn));
  if (fd >= 0 && pass.engine().hand_back(pass, conn, fd, shadow())) return fd;
  if (or_stays)
    pass.stack().tcp_put_back(*pass.engine().listener(*flow_), *conn);
  else
    pass.stack().tcp_close(conn, true, pass.now());
  if (fd >= 0) real.close(fd);
  return -1;
}

/// In the kernel whoever waits would have them: while others wait they go before the door, handed back.
/// False: nobody waits any more, or it cannot be.
bool TcpSocket::give_unaccepted(Pass& pass) {
  if (flow_ == nullptr || !shared_listener || marker_ < 0) return true;
  TcpListener& listener = *pass.engine().listener(*flow_);
  const std::string door = bound_name(door_);
  if (came_by_exec_ && others_wait_for_connections(company_.page)) queue_unaccepted(pass);
  while (listener.accept_size > 0) {
    if (!others_wait_for_connections(company_.page)) return false;
    const int fd = accept_into_kernel(pass, true);
    if (fd < 0) return false;
    if (give_by_door(door, true, shadow(), fd))
      pass.engine().counters().add(Counter::tcp_given);
    else
      take_over(pass, fd);
  }
  return true;
}

/// What nobody has accepted is the kernel's, and still this process's to accept.
void TcpSocket::queue_to_kernel(Pass& pass) {
  // Connections that accept() takes by this library keep the options of their handshake's time.
  if (has_program || sockets_stay_on_kernel == Reason::foreign_wait) queue_unaccepted(pass);
  while (pass.engine().listener(*flow_)->accept_size > 0)
    if (const int fd = accept_into_kernel(pass); fd >= 0) take_over(pass, fd);
}

/// A listener goes on on its shadow, and on other interfaces.
void TcpSocket::port_lost(Pass& pass) {
  Engine& engine = pass.engine();
  if (live() && engine.lost(pass, *conn_))
    (void)to_kernel(pass, Reason::port_lost);  // what cannot, the engine ends
  else if (flow_ != nullptr && engine.lost(pass, *flow_))
    queue_to_kernel(pass);
}

void TcpSocket::strayed(Pass& pass) {
  Engine& engine = pass.engine();
  if (live() && engine.strayed(pass, *conn_)) {
    const PathChoice next = engine.why_strayed(pass, *conn_);
    choice.rule = next.rule;
    return (void)to_kernel(pass, next.reason);  // or hopes for its queue
  }
  if (flow_ != nullptr && engine.strayed(pass, *flow_)) queue_to_kernel(pass);
}

}  // namespace accel::posix
