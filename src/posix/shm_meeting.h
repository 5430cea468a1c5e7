// How the two ends of a connection on this host find each other, and what each makes sure of
// (docs/design/same_host.md).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/ip.h"

namespace accel::posix {

struct ConnectionNames {
  Endpoint local, remote;
};
/// nullopt: it is no TCP connection, or not an established one.
std::optional<ConnectionNames> names_of_connection(int fd);
/// Its handshake is under way.
bool is_connecting(int fd);

/// The same for both ends; it is an abstract Unix name.
std::string meeting_name(const ConnectionNames& names);
/// Who is at the other end of `bell` is of the user that has the other end of the connection, as the kernel
/// tells.
bool is_of_peers_user(int bell, const ConnectionNames& names);
/// `came` is the other end of the connection `own` itself.
bool is_other_end(int came, int own, const ConnectionNames& names);

/// Bytes of the stream since it began, by the kernel's count.
struct StreamCounts {
  uint64_t sent = 0;  ///< that sending calls have taken
  uint64_t read = 0;  ///< that receiving calls have given out
};
/// While no other call is under way on it. nullopt: the kernel does not tell (before Linux 4.19), or both
/// directions are not open any more.
std::optional<StreamCounts> stream_counts(int fd);

}  // namespace accel::posix
