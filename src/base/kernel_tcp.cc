#include "base/kernel_tcp.h"

#include <linux/inet_diag.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cstring>

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

namespace {

std::optional<inet_diag_msg> find_tcp(const Endpoint& local, const Endpoint& remote) {
  inet_diag_req_v2 request{};
  const bool v4 = remote.address.is_v4();
  request.sdiag_family = v4 ? AF_INET : AF_INET6;
  request.sdiag_protocol = IPPROTO_TCP;
  request.idiag_states = ~0u;
  request.id.idiag_sport = htons(local.port);
  request.id.idiag_dport = htons(remote.port);
  request.id.idiag_cookie[0] = request.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
  const auto set = [v4](void* to, const IpAddress& address) {
    std::memcpy(to, v4 ? address.v4_bytes() : address.bytes.data(), v4 ? 4 : 16);
  };
  set(request.id.idiag_src, local.address);
  set(request.id.idiag_dst, remote.address);
  std::optional<inet_diag_msg> found;
  (void)find_socket<inet_diag_msg>(request, [&](const nlmsghdr& message) {
    inet_diag_msg told;
    std::memcpy(&told, NLMSG_DATA(&message), sizeof told);
    // The lookup falls back to a listener of the port.
    if (told.idiag_state != TCP_LISTEN) found = told;
  });
  return found;
}

}  // namespace

std::optional<uint8_t> kernel_tcp_state(const Endpoint& local, const Endpoint& remote) {
  const auto found = find_tcp(local, remote);
  return found ? std::optional<uint8_t>(found->idiag_state) : std::nullopt;
}

std::optional<uint32_t> kernel_tcp_user(const Endpoint& local, const Endpoint& remote) {
  const auto found = find_tcp(local, remote);
  return found ? std::optional<uint32_t>(found->idiag_uid) : std::nullopt;
}

}  // namespace accel
