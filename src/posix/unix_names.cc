#include "posix/unix_names.h"

#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <linux/unix_diag.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "base/real.h"
#include "posix/meeting.h"

#ifndef UDIAG_SHOW_UID  // 5.3
#define UDIAG_SHOW_UID 0x00000040
#endif

namespace accel::posix {
namespace {

constexpr uint16_t kUidAttribute = UNIX_DIAG_SHUTDOWN + 1;  ///< UNIX_DIAG_UID

struct DumpRequest {
  nlmsghdr header;
  unix_diag_req body;
};

struct NamedSocket {
  std::string name;  ///< of an abstract one, without its leading zero
  std::optional<uid_t> user;
};

bool ask_kernel(int netlink) {
  DumpRequest request{};
  request.header.nlmsg_len = sizeof request;
  request.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  request.header.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
  request.body.sdiag_family = AF_UNIX;
  request.body.udiag_states = ~0u;
  request.body.udiag_show = UDIAG_SHOW_NAME | UDIAG_SHOW_UID;
  return real.send(netlink, &request, sizeof request, 0) == sizeof request;
}

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
  const int netlink = real.socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
  bool told = netlink >= 0 && ask_kernel(netlink), more = told;
  alignas(nlmsghdr) std::array<char, 32768> buffer;
  while (more) {
    ssize_t left = real.recv(netlink, buffer.data(), buffer.size(), 0);
    if (left <= 0) told = more = false;
    auto* message = reinterpret_cast<nlmsghdr*>(buffer.data());
    for (; more && NLMSG_OK(message, static_cast<size_t>(left)); message = NLMSG_NEXT(message, left)) {
      told = told && message->nlmsg_type != NLMSG_ERROR;
      more = message->nlmsg_type != NLMSG_DONE && message->nlmsg_type != NLMSG_ERROR;
      if (more && message->nlmsg_len >= NLMSG_LENGTH(sizeof(unix_diag_msg))) visit(socket_of(*message));
    }
  }
  if (netlink >= 0) real.close(netlink);
  return told;
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
