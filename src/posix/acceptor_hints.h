// Acceptor hints: which of the processes that share listeners wait for connections at this moment. They share
// a page with a place for each process. Those that fork() has made of one have one page for all their
// listeners; a process that got listeners otherwise too may have several. It is a hint: who is killed while
// it waits leaves its mark until its number is looked at or used again.
#pragma once

#include <cstdint>

namespace accel::posix {

/// This process's first page, made now if it has none: its number here; -1: none can be had.
int share_acceptor_hints();
/// Another process's page, by its descriptor, which is this function's from now on unless the answer is -1.
int join_acceptor_hints(int memfd);
int acceptor_hints_memfd(int page);
/// In the child of a fork(): its places are yet to be taken.
void acceptor_hints_after_fork_in_child();
/// There are other processes that have a page of this one's, or have had.
bool acceptor_hints_are_shared();
/// Another process waits, of those that have the page. Not where one would turn away what it got from this
/// one (posix/listener_handoff.h).
bool others_wait_for_connections(int page);
/// The same for any of the pages.
bool others_wait_for_connections();

/// Of the processes that have the page only one is at a shared listener's own timeout, which is the file's
/// and so everybody's (tcp_accept.cc).
class TimeoutLock {
 public:
  explicit TimeoutLock(int page);
  ~TimeoutLock();
  TimeoutLock(const TimeoutLock&) = delete;
  TimeoutLock& operator=(const TimeoutLock&) = delete;
  /// Nobody else is; else somebody has been for longer than it takes (he is stopped).
  bool granted() const { return granted_; }

 private:
  const int page_;
  bool granted_;
};

/// A thread waits. Under the lock, both ends.
class AcceptorHint {
 public:
  /// `with_others`: for what other processes have too; else nothing is noted.
  explicit AcceptorHint(bool with_others);
  ~AcceptorHint();
  AcceptorHint(const AcceptorHint&) = delete;
  AcceptorHint& operator=(const AcceptorHint&) = delete;

 private:
  uint32_t noted_ = 0;  ///< the pages, as bits
};

}  // namespace accel::posix
