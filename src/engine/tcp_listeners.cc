#include "engine/tcp_listeners.h"

#include <errno.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>
#include <cstring>

#include "base/private_fds.h"
#include "base/real.h"

namespace accel {
namespace {

struct DumpRequest {
  nlmsghdr header;
  inet_diag_req_v2 body;
};

/// The kernel walks its table of listeners only, and leaves out other ports (inet_diag_dump_icsk()).
bool ask(int netlink, uint8_t family, uint16_t port) {
  DumpRequest request{};
  request.header.nlmsg_len = sizeof request;
  request.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  request.header.nlmsg_flags = NLM_F_REQUEST | NLM_F_DUMP;
  request.body.sdiag_family = family;
  request.body.sdiag_protocol = IPPROTO_TCP;
  request.body.idiag_states = 1u << TCP_LISTEN;
  request.body.id.idiag_sport = htons(port);
  return real.send(netlink, &request, sizeof request, 0) == sizeof request;
}

Result<size_t> count_answers(int netlink) {
  alignas(nlmsghdr) std::array<char, 8192> buffer;
  size_t count = 0;
  for (;;) {
    ssize_t left = real.recv(netlink, buffer.data(), buffer.size(), 0);
    if (left <= 0) return err(left < 0 ? errno : EIO);
    auto* message = reinterpret_cast<nlmsghdr*>(buffer.data());
    for (; NLMSG_OK(message, static_cast<size_t>(left)); message = NLMSG_NEXT(message, left)) {
      if (message->nlmsg_type == NLMSG_DONE) return count;
      if (message->nlmsg_type == NLMSG_ERROR) {
        nlmsgerr told{};
        if (message->nlmsg_len >= NLMSG_LENGTH(sizeof told))
          std::memcpy(&told, NLMSG_DATA(message), sizeof told);
        return err(told.error < 0 ? -told.error : EIO);
      }
      ++count;
    }
  }
}

}  // namespace

Result<size_t> tcp_listeners_at(uint16_t port) {
  const int netlink = keep_private(real.socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG));
  if (netlink < 0) return err(errno);
  Result<size_t> all = size_t{0};
  for (const uint8_t family : {AF_INET, AF_INET6}) {
    if (!ask(netlink, family, port)) all = err(errno);
    const Result<size_t> some = all ? count_answers(netlink) : all;
    all = some ? Result<size_t>(*all + *some) : some;
    if (!all) break;
  }
  close_private(netlink);
  return all;
}

}  // namespace accel
