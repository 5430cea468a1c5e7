// Markers of SO_REUSEPORT groups in which a program of the kernel's chooses (posix/reuseport_programs.h):
// Unix sockets with the group's name in their own, of the group's user, as its members must be. Each process
// with members has one, until it ends: a group that is made anew at that name meanwhile stays with the
// kernel.
#pragma once

#include "base/ip.h"

namespace accel::posix {

struct ReuseportGroup {
  Protocol protocol;
  Endpoint local;
  bool operator==(const ReuseportGroup&) const = default;
};
/// Socket::veto_for()'s of a group's members.
inline constexpr char kGroupProgram[] = "a program of the SO_REUSEPORT group";
/// That the socket is a member of, by its name; without a name (port 0) of none.
ReuseportGroup group_of(int fd);
/// Once in a process. Under the Guard.
void bind_group_marker(const ReuseportGroup& group, int member);
/// Of the group that this socket is of, or is about to be. Under the Guard.
bool group_has_program(int member);

}  // namespace accel::posix
