// What processes with libaccel ask each other. Each that has an engine has a door, a Unix socket named after
// the process, at which its attendant answers: to who takes a descriptor of its (posix/taking.h), has a UDP
// port too (posix/udp_rivals.h), or has given a SO_REUSEPORT group a program (posix/groups.h).
#pragma once

#include <sys/types.h>

#include <string>

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
/// On the attendant thread, without a Guard: lets in who stands before it.
void serve_process_door(int door);

/// `process` is the directory of a process in /proc, `number` its own number within its namespace.
std::string process_door_of(const std::string& process, pid_t number);
/// Asks all others of this network namespace, and waits until they have done what it takes. Without a Guard:
/// they may be about to ask this one.
void ask_all_processes(const Question& question);

}  // namespace accel::posix
