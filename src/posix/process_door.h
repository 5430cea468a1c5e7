// What processes with libaccel ask each other. Each that has an engine has a door, a Unix socket named after
// the process, at which its attendant answers: to who takes a descriptor of its (posix/taking.h), has a UDP
// port too (posix/udp_rivals.h), or has given a SO_REUSEPORT group a program (posix/groups.h).
#pragma once

#include <poll.h>
#include <sys/types.h>

#include <span>
#include <string>
#include <vector>

#include "base/ip.h"

namespace accel::posix {

struct Question {
  enum class About : uint32_t { kDescriptor, kUdpPort, kGroup } about;
  int fd = -1;          ///< kDescriptor: its number in the process that is asked; -1: find it
  uint64_t cookie = 0;  ///< by this
  Protocol protocol{};  ///< kGroup
  Endpoint local;       ///< kGroup, and of kUdpPort the port
};

/// The door of this process; -1: there can be none.
int open_process_door();
/// What the attendant watches: the door, and who was let in and has not said anything yet. Returns the
/// longest that it may sleep, in milliseconds; -1: any time. On the attendant thread, as the next.
int add_process_door(int door, std::vector<pollfd>& watched);
/// Without a Guard: lets in who stands before the door, and answers who has spoken. Never waits.
void serve_process_door(int door, std::span<const pollfd> watched);
/// In the child of a fork(): they are the parent's.
void forget_process_visitors();

/// `process` is the directory of a process in /proc, `number` its own number within its namespace.
std::string process_door_of(const std::string& process, pid_t number);
/// One question with a descriptor that shows what the asker has (-1: none). False: it could not be asked.
bool put_question(int door, const Question& question, int proof);
/// Asks all others of this network namespace, and waits until they have done what it takes. Without a Guard:
/// they may be about to ask this one.
void ask_all_processes(const Question& question);

}  // namespace accel::posix
