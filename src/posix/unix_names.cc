#include "posix/unix_names.h"

#include <linux/netlink.h>
#include <linux/unix_diag.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/sock_diag.h"
#include "posix/unix_rendezvous.h"

#ifndef UDIAG_SHOW_UID  // 5.3
#define UDIAG_SHOW_UID 0x00000040
#endif

namespace accel::posix {
namespace {

constexpr uint16_t kUidAttribute = UNIX_DIAG_SHUTDOWN + 1;  ///< UNIX_DIAG_UID

struct NamedSocket {
  std::string name;  ///< of an abstract one, without its leading zero
  std::optional<uid_t> user;
};

NamedSocket socket_of(const nlmsghdr& message) {
  NamedSocket found;
  const auto* at = reinterpret_cast<const char*>(NLMSG_DATA(&message)) + NLMSG_ALIGN(sizeof(unix_diag_msg));
  const auto* const end = reinterpret_cast<const char*>(&message) + message.nlmsg_len;
  nlattr attribute;
  for (; at + sizeof attribute <= end; at += NLA_ALIGN(attribute.nla_len)) {
    std::memcpy(&attribute, at, sizeof attribute);
    if (attribute.nla_len < NLA_HDRLEN || at + attribute.nla_len > end) break;
    const char* const value = at + NLA_HDRLEN;
    const size_t size = attribute.nla_len - NLA_HDRLEN;
    if (attribute.nla_type == UNIX_DIAG_NAME && size > 1 && value[0] == '\0')
      found.name.assign(value + 1, size - 1);
    if (attribute.nla_type == kUidAttribute && size == sizeof(uid_t)) {
      uid_t user = 0;
      std::memcpy(&user, value, sizeof user);
      found.user = user;
    }
  }
  return found;
}

/// False: the kernel does not tell.
template <class F>
bool for_each_socket(F visit) {
  unix_diag_req request{};
  request.sdiag_family = AF_UNIX;
  request.udiag_states = ~0u;
  request.udiag_show = UDIAG_SHOW_NAME | UDIAG_SHOW_UID;
  return dump_sockets<unix_diag_msg>(request, [&](const nlmsghdr& m) { visit(socket_of(m)); }).ok();
}

}  // namespace

std::set<std::string> names_of_users(const std::string& beginning, std::span<const uid_t> users) {
  std::set<std::string> found;
  bool users_told = true;
  const bool told = for_each_socket([&](const NamedSocket& s) {
    if (!s.name.starts_with(beginning)) return;
    users_told = users_told && s.user.has_value();
    if (!s.user || std::find(users.begin(), users.end(), *s.user) != users.end()) found.insert(s.name);
  });
  return told && users_told ? found : names_that_begin(beginning);
}

}  // namespace accel::posix
