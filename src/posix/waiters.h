// Which of the processes that fork() has made of one wait for connections at this moment: a page that they
// share, with a place for each process. It is a hint: who is killed while it waits leaves its mark until its
// number is looked at or used again.
#pragma once

namespace accel::posix {

/// Before fork(), where somebody listens: the new process is to have the page.
void share_waiters();
/// In the child: its place is yet to be taken.
void waiters_after_fork_in_child();
/// There are other processes that have the page, or have had.
bool waiters_are_shared();
/// Another process waits. Not where one would turn away what it got from this one (posix/succession.h).
bool others_wait_for_connections();

/// Of the processes that have the page only one is at a shared listener's own timeout, which is the file's
/// and so everybody's (tcp_accept.cc).
class TimeoutTurn {
 public:
  TimeoutTurn();
  ~TimeoutTurn();
  TimeoutTurn(const TimeoutTurn&) = delete;
  TimeoutTurn& operator=(const TimeoutTurn&) = delete;
  /// Nobody else is; else somebody has been for longer than it takes (he is stopped).
  bool granted() const { return granted_; }

 private:
  bool granted_;
};

/// A thread waits. Under the lock, both ends.
class WaitsForConnections {
 public:
  /// `with_others`: for what other processes have too; else nothing is noted.
  explicit WaitsForConnections(bool with_others);
  ~WaitsForConnections();
  WaitsForConnections(const WaitsForConnections&) = delete;
  WaitsForConnections& operator=(const WaitsForConnections&) = delete;

 private:
  bool noted_;
};

}  // namespace accel::posix
