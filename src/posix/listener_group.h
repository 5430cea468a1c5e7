// Listener group: processes that have one listener, though not by one fork(): it came by exec() or in a
// message. They find each other by its cookie. The first one binds a name, and later ones ask there for what
// the members share.
//
// Any process can bind a name, so both sides show their descriptor of the listener (is_same_socket()).
#pragma once

#include "base/counters.h"

namespace accel::posix {

struct ListenerGroup {
  int name_socket =
      -1;  ///< the socket of that name, which all members have; the request thread of each watches it
  int handoff_socket = -1;  ///< posix/listener_handoff.h
  int hints_page = -1;      ///< posix/acceptor_hints.h
};

/// `alone`: what this process has by itself; all members share it if this process is the first. Without
/// `name_socket`: the members do not answer, are of another user, or do not have the listener `shadow`.
ListenerGroup join_listener_group(int shadow, const ListenerGroup& alone);
/// The first process that asks; -1: there is none.
int accept_candidate(const ListenerGroup& group);
/// Answers one, whose message has arrived, and closes it. False: it does not have the listener (counted).
bool admit_member(int candidate, const ListenerGroup& group, int shadow, Counters& counters);

}  // namespace accel::posix
