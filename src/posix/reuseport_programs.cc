#include "posix/reuseport_programs.h"

#include <netinet/in.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <set>
#include <string>
#include <vector>

#include "base/socket_option.h"
#include "posix/guard.h"
#include "posix/peer_requests.h"
#include "posix/unix_names.h"
#include "posix/unix_rendezvous.h"

namespace accel::posix {
namespace {

struct Group {
  Protocol protocol;
  Endpoint local;
  bool operator==(const Group&) const = default;
};

Group group_of(int fd) {
  return {static_cast<Protocol>(int_option(fd, SOL_SOCKET, SO_PROTOCOL)), kernel_name(fd)};
}

/// The beginning of its markers' names.
std::string name_of(const Group& group) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string name = group.protocol == Protocol::kUdp ? "accel-program-udp-" : "accel-program-tcp-";
  for (const uint8_t byte : group.local.address.bytes) {
    name += kDigits[byte >> 4];
    name += kDigits[byte & 15];
  }
  return name + "-" + std::to_string(group.local.port) + "-";
}

/// Those that this process has left markers for. Under the Guard.
std::vector<Group>& marked() {
  static auto* const groups = new std::vector<Group>;
  return *groups;
}
bool is_marked(const Group& group) {
  return std::find(marked().begin(), marked().end(), group) != marked().end();
}

/// One that fork() copied stays as long as the child, which has the members too.
void bind_marker(const Group& group, int member) {
  if (is_marked(group)) return;
  (void)named_socket(name_of(group) + cookie_name(member) + "." + std::to_string(getpid()));
  marked().push_back(group);
}

/// By whom the kernel would let into the group: sockets of one user (inet_rcv_saddr_equal() and sk_uid in
/// inet_csk_bind_conflict()), whose process may have become this one's user since.
bool others_marked(const Group& group, int member) {
  struct stat socket {};
  if (fstat(member, &socket) != 0) return false;
  const uid_t users[] = {socket.st_uid, geteuid(), 0};
  return !names_of_users(name_of(group), users).empty();
}

/// Under the Guard.
void detach_members(Pass* pass, const Group& group) {
  for (int fd = 0; pass != nullptr && fd < fds.limit(); ++fd) {
    Socket* s = find_socket(fd);
    if (s == nullptr || s->bound_flow() == nullptr || group_of(fd) != group) continue;
    if (s->shadow_option(SOL_SOCKET, SO_REUSEPORT) == 0) continue;
    bind_marker(group, fd);
    (void)s->detach(*pass, Reason::option);
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
  const Group group = group_of(fd);
  {
    Guard guard(Pass::Polling::kNo);
    if (!guard.ok()) return;
    if (group.local.port == 0) {
      nameless().insert(cookie_of(fd));
      some_nameless = true;
      return;
    }
    bind_marker(group, fd);
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

bool group_has_program(const Socket& member) {
  if (member.shadow_option(SOL_SOCKET, SO_REUSEPORT) == 0) return false;
  const Group group = group_of(member.shadow());
  if (group.local.port == 0) return false;
  if (!is_marked(group) && others_marked(group, member.shadow())) bind_marker(group, member.shadow());
  return is_marked(group);
}

}  // namespace accel::posix
