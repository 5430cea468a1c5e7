// Processes that have one listener, though not by one fork(): it came by exec() or in a message. They find
// each other by its cookie: the first takes a name, and who comes later asks there for what the processes of
// a listener share.
//
// A name can be taken by anybody, so both sides show their descriptor of the listener (is_proof()).
#pragma once

#include "base/counters.h"

namespace accel::posix {

struct Company {
  int asked = -1;  ///< the socket of that name, which all of them have, and the attendant of each watches
  int door = -1;   ///< posix/succession.h
  int page = -1;   ///< posix/waiters.h
};

/// `alone`: what this process has by itself, which is what all share where it is the first. Without `asked`:
/// those who are there do not answer, are of another user, or do not have the listener `shadow`.
Company join_company(int shadow, const Company& alone);
/// Lets in who asks. False: there is nobody, or a process that has not the listener (counted).
bool welcome_newcomer(const Company& company, int shadow, Counters& counters);

}  // namespace accel::posix
