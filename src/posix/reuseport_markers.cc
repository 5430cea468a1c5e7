#include "posix/reuseport_markers.h"

#include <netinet/in.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/socket_option.h"
#include "posix/address.h"
#include "posix/unix_names.h"
#include "posix/unix_rendezvous.h"

namespace accel::posix {

namespace {

/// The beginning of its markers' names.
std::string name_of(const ReuseportGroup& group) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string name = group.protocol == Protocol::kUdp ? "accel-program-udp-" : "accel-program-tcp-";
  for (const uint8_t byte : group.local.address.bytes) {
    name += kDigits[byte >> 4];
    name += kDigits[byte & 15];
  }
  return name + "-" + std::to_string(group.local.port) + "-";
}

/// The groups that this process has left markers for. Under the Guard.
std::vector<ReuseportGroup>& marked() {
  static auto* const groups = new std::vector<ReuseportGroup>;
  return *groups;
}
bool is_marked(const ReuseportGroup& group) {
  return std::find(marked().begin(), marked().end(), group) != marked().end();
}

/// By whom the kernel would let into the group: sockets of one user (inet_rcv_saddr_equal() and sk_uid in
/// inet_csk_bind_conflict()), whose process may have become this one's user since.
bool others_marked(const ReuseportGroup& group, int member) {
  struct stat socket {};
  if (fstat(member, &socket) != 0) return false;
  const uid_t users[] = {socket.st_uid, geteuid(), 0};
  return !names_of_users(name_of(group), users).empty();
}

}  // namespace

ReuseportGroup group_of(int fd) {
  return {static_cast<Protocol>(int_option(fd, SOL_SOCKET, SO_PROTOCOL)), kernel_name(fd)};
}

/// One that fork() copied stays as long as the child, which has the members too.
void bind_group_marker(const ReuseportGroup& group, int member) {
  if (is_marked(group)) return;
  (void)named_socket(name_of(group) + cookie_name(member) + "." + std::to_string(getpid()));
  marked().push_back(group);
}

bool group_has_program(int member) {
  if (int_option(member, SOL_SOCKET, SO_REUSEPORT) == 0) return false;
  const ReuseportGroup group = group_of(member);
  if (group.local.port == 0) return false;
  if (!is_marked(group) && others_marked(group, member)) bind_group_marker(group, member);
  return is_marked(group);
}

}  // namespace accel::posix
