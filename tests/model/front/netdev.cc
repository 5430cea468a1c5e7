#include "tests/model/front/netdev.h"

#include <net/if.h>
#include <sys/ioctl.h>

#include <cstring>

#include "tests/model/front/environment.h"
#include "tests/model/front/raw.h"

namespace model {

Netdev ask_netdev(int fd) {
  Netdev found;
  ifreq request{};
  strncpy(request.ifr_name, environment().netdev.c_str(), IFNAMSIZ - 1);
  if (raw::call(SYS_ioctl, fd, SIOCGIFMTU, raw::word(&request)) == 0)
    found.mtu = static_cast<uint32_t>(request.ifr_mtu);
  if (raw::call(SYS_ioctl, fd, SIOCGIFFLAGS, raw::word(&request)) == 0) {
    found.running = (request.ifr_flags & IFF_RUNNING) != 0 && (request.ifr_flags & IFF_UP) != 0;
  }
  return found;
}

}  // namespace model
