#include "posix/udp_port_claims.h"

#include <netinet/in.h>

#include "base/socket_option.h"
#include "posix/group_looks.h"
#include "posix/guard.h"
#include "posix/peer_requests.h"
#include "posix/udp_port_owners.h"
#include "posix/udp_socket.h"
#include "posix/unix_rendezvous.h"

namespace accel::posix {

void settle_udp_port(uint16_t port) {
  Guard guard(Pass::Polling::kNo);
  if (guard.pass() == nullptr) return;
  for_each_open_udp([&](Socket& s) {
    if (s.local_endpoint().port == port) static_cast<UdpSocket&>(s).settle_ownership(*guard.pass());
  });
  settle_groups(*guard.pass(), port);
}

void claim_udp_port(int fd) {
  const auto option = [fd](int name) { return int_option(fd, SOL_SOCKET, name); };
  if (option(SO_REUSEADDR) == 0 || option(SO_PROTOCOL) != IPPROTO_UDP || option(SO_REUSEPORT) != 0) return;
  uint16_t port = 0;
  {
    Guard guard(Pass::Polling::kNo);
    if (!guard.ok()) return;
    const Socket* s = find_socket(fd);
    if (s != nullptr && s->bound_flow() != nullptr && !static_cast<const UdpSocket*>(s)->port_is_shared())
      return;
    port = kernel_name(fd).port;
    if (ownership_at(port, cookie_of(fd)) == PortOwnership::kSole) return;
  }
  request_of_all({PeerRequest::About::kUdpPort, -1, 0, Protocol::kUdp, {{}, port}});
  settle_udp_port(port);
}

}  // namespace accel::posix
