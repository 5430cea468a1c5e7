#include "model/front/netdev.h"

#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sys/ioctl.h>

#include <cstring>

#include "model/front/environment.h"
#include "model/front/raw.h"

namespace model {

Netdev ask_netdev(int fd) {
  Netdev found;
  ifreq request{};
  strncpy(request.ifr_name, environment().netdev.c_str(), IFNAMSIZ - 1);
  if (raw::call(SYS_ioctl, fd, SIOCGIFMTU, raw::word(&request)) == 0)
    found.mtu = static_cast<uint32_t>(request.ifr_mtu);
  // Not IFF_RUNNING: the kernel sets that when it comes to it, up to a second later (net/core/link_watch.c).
  ethtool_value link{ETHTOOL_GLINK, 0};
  request.ifr_data = reinterpret_cast<char*>(&link);
  found.running = raw::call(SYS_ioctl, fd, SIOCETHTOOL, raw::word(&request)) == 0 && link.data != 0;
  return found;
}

}  // namespace model
