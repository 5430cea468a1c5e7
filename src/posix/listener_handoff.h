// Listener hand-off: the unaccepted connections of a listener that several processes have (a prefork server's
// workers, the old and the new binary of an upgrade). The kernel keeps them in one queue for all, our stack
// in a queue of each process. A process that stops listening, or is busy while others wait, hands its
// connections back to the kernel and passes them to the others. accept() there returns them as the kernel's
// own.
//
// A hand-off socket is a listening Unix socket, inherited by fork() or received by posix/listener_group.h,
// that is named after the listener's cookie. The kernel keeps what is queued there as long as any process has
// the socket. Processes that accept bind a second name beside it, the acceptor marker. Their request threads
// watch the socket, and accept() takes one hand-off at a time.
//
// Any process can bind a name. So a sender shows its descriptor of the listener, which the receiver compares
// with its own (is_same_socket()). A sender uses a hand-off socket that it has itself, that root has made, or
// that one of its user has made who has the listener. A master that has closed the listener since is stood
// for by a worker that has both. A receiver accepts from root, its user and processes that have the listener.
#pragma once

#include <sys/types.h>

#include <span>
#include <string>
#include <vector>

#include "base/counters.h"

namespace accel::posix {

/// A hand-off socket for the listener whose shadow this is; -1: there can be none.
int open_handoff_socket(int shadow);
/// Says, until it is closed, that this process accepts from the hand-off socket.
int open_acceptor_marker(int handoff_socket);

/// The first sender that is queued there; -1: none.
int accept_sender(int handoff_socket);
/// The kernel sockets that the sender passes, by descriptors that programs do not expect. Closes `sender`,
/// whose message has arrived. Nothing, and counted, from a sender that does not have the listener `shadow`.
std::vector<int> receive_handoff(int sender, int shadow, Counters& counters);

/// Passes the connection of the listener `shadow` to the hand-off socket of that name, and closes the
/// descriptor. False: it is still open. `own`: this process has the socket. `servers`: the processes that say
/// that they accept from it.
bool hand_off(const std::string& handoff_socket, bool own, int shadow, int connection,
              std::span<const pid_t> servers = {});

/// The hand-off sockets that take what this process hands off: others that are served; else its own, if
/// others serve it. Its own marker must be closed before.
class HandoffTargets {
 public:
  /// `own`: the name of its own socket. `alone`: no other process has that. `may_wait`: where none is served,
  /// sockets will do that a process may serve later (a listener that was passed and is not in use yet).
  HandoffTargets(const std::string& own, int shadow, bool alone, bool may_wait);
  bool none() const { return targets_.empty(); }
  /// They are other sockets: what is queued at the own one is for them, too.
  bool elsewhere() const { return elsewhere_; }
  /// To each in turn; closes the descriptor. False: none took it, and it is still open.
  bool send(int connection);

 private:
  struct Target {
    std::string name;
    std::vector<pid_t> servers;
  };
  void add(std::string name, pid_t server);

  std::string own_;
  int shadow_;
  std::vector<Target> targets_;
  bool elsewhere_ = false;
  bool own_is_served_;
  size_t next_ = 0;
};

}  // namespace accel::posix
