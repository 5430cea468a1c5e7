#include "engine/tcp_listeners.h"

#include <linux/inet_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "base/sock_diag.h"

namespace accel {

Result<size_t> tcp_listeners_at(uint16_t port) {
  size_t count = 0;
  for (const uint8_t family : {AF_INET, AF_INET6}) {
    // The kernel walks its table of listeners only, and leaves out other ports (inet_diag_dump_icsk()).
    inet_diag_req_v2 request{};
    request.sdiag_family = family;
    request.sdiag_protocol = IPPROTO_TCP;
    request.idiag_states = 1u << TCP_LISTEN;
    request.id.idiag_sport = htons(port);
    const Result<void> told = dump_sockets<inet_diag_msg>(request, [&](const nlmsghdr&) { ++count; });
    if (!told) return told.error();
  }
  return count;
}

}  // namespace accel
