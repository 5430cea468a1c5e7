// The unaccepted connections of a listener that several processes have (a prefork server's workers, the old
// and the new binary of an upgrade): the kernel keeps them in one queue for all, our stack in each process
// for itself. So whoever stops listening, or is busy while others wait, gives them, handed back to the
// kernel, to the others, and an accept() there has them as the kernel's own.
//
// A door is a listening Unix socket, inherited by fork() or given by posix/company.h, that is named after the
// listener's cookie; what stands before it is kept by the kernel as long as any process has the door.
// Processes that accept have a marker (a bound name) beside their door's, their attendants watch it, and
// accept() lets one in at a time.
//
// Names can be made by anybody. So a giver shows its descriptor of the listener, which the taker compares
// with its own (is_proof()), and leaves connections only before a door that it has itself, or whose maker
// has the listener. A giver looks whether the taker is of the same user, or root; a taker hears those, and
// who has the listener.
#pragma once

#include <string>
#include <vector>

#include "base/counters.h"

namespace accel::posix {

/// A door for the listener whose shadow this is; -1: there can be none.
int open_door(int shadow);
/// Says, until it is closed, that this process serves the door.
int open_marker(int door);

/// Lets in who stands first before the door; -1: nobody.
int admit_visitor(int door);
/// What a visitor brings: kernel sockets, with descriptors that programs do not expect. Closes the visitor.
/// One that is about to speak is waited for a moment. Nothing, and counted, from one that has not the
/// listener `shadow`.
std::vector<int> hear_visitor(int visitor, int shadow, Counters& counters);

/// Leaves the connection of the listener `shadow` before that door, and closes the descriptor. False: it is
/// still open. `own`: this process has the door.
bool give_by_door(const std::string& door, bool own, int shadow, int connection);

/// Who takes what this process leaves: another door that somebody serves; else those who have its own. Its
/// own marker must be closed before.
class Successors {
 public:
  /// `door`: its name. `alone`: nobody else has it. `may_wait`: where nobody serves one, those will do before
  /// which it waits until somebody does (a listener that was passed on and is not in use yet).
  Successors(const std::string& door, int shadow, bool alone, bool may_wait);
  bool none() const { return doors_.empty(); }
  /// They have other doors: what stands before the own one is for them, too.
  bool elsewhere() const { return elsewhere_; }
  /// In turn; closes the descriptor. False: nobody took it, and it is still open.
  bool give(int connection);

 private:
  std::string own_;
  int shadow_;
  std::vector<std::string> doors_;
  bool elsewhere_ = false;
  size_t next_ = 0;
};

}  // namespace accel::posix
