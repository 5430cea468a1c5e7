#include "posix/reuseport_programs.h"

#include <atomic>
#include <set>

#include "posix/guard.h"
#include "posix/peer_requests.h"
#include "posix/reuseport_markers.h"
#include "posix/socket.h"
#include "posix/unix_rendezvous.h"

namespace accel::posix {
namespace {

/// Under the Guard.
void detach_members(Pass* pass, const ReuseportGroup& group) {
  for (int fd = 0; pass != nullptr && fd < fds.limit(); ++fd) {
    Socket* s = find_socket(fd);
    if (s == nullptr || s->bound_flow() == nullptr || group_of(fd) != group) continue;
    if (s->shadow_option(SOL_SOCKET, SO_REUSEPORT) == 0) continue;
    bind_group_marker(group, fd);
    (void)s->detach_for(*pass, kGroupProgram);
  }
}

/// Sockets that were given a program before they had a name. Under the Guard.
std::atomic<bool> some_nameless{false};
std::set<uint64_t>& nameless() {
  static auto* const cookies = new std::set<uint64_t>;
  return *cookies;
}

}  // namespace

void attach_group_program(int fd) {
  const ReuseportGroup group = group_of(fd);
  {
    Guard guard(Pass::Polling::kNo);
    if (!guard.ok()) return;
    if (group.local.port == 0) {
      nameless().insert(cookie_of(fd));
      some_nameless = true;
      return;
    }
    bind_group_marker(group, fd);
    detach_members(guard.pass(), group);
  }
  request_of_all({PeerRequest::About::kGroup, -1, 0, group.protocol, group.local});
}

void socket_has_name(int fd) {
  if (!some_nameless.load(std::memory_order_relaxed)) return;
  {
    Guard guard(Pass::Polling::kNo);
    if (!guard.ok() || nameless().erase(cookie_of(fd)) == 0) return;
  }
  attach_group_program(fd);
}

void group_got_program(Protocol protocol, const Endpoint& local) {
  Guard guard(Pass::Polling::kNo);
  if (guard.ok()) detach_members(guard.pass(), {protocol, local});
}

}  // namespace accel::posix
