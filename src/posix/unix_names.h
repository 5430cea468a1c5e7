// Names of Unix sockets with their users, as the kernel tells them (sock_diag(7)). A name alone proves
// nothing: anybody can make it.
#pragma once

#include <sys/types.h>

#include <set>
#include <span>
#include <string>

namespace accel::posix {

/// Abstract names of this network namespace that begin so, of sockets that one of these users has made. Where
/// the kernel does not tell users (before 5.3, or without CONFIG_UNIX_DIAG): of everybody.
std::set<std::string> names_of_users(const std::string& beginning, std::span<const uid_t> users);

}  // namespace accel::posix
