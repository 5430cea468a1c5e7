#include "xdp/netdev.h"

#include <dirent.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

#include "xdp/fd.h"
#include "xdp/flow_abi.h"

namespace accel::xdp {
namespace {

/// Drivers without ETHTOOL_GCHANNELS: as many as sysfs shows (of the network namespace that sysfs was mounted
/// in), else 1.
uint32_t queues_from_sysfs(const std::string& name) {
  DIR* folder = opendir(("/sys/class/net/" + name + "/queues").c_str());
  if (!folder) return 1;
  uint32_t n = 0;
  while (const dirent* entry = readdir(folder)) n += std::strncmp(entry->d_name, "rx-", 3) == 0;
  closedir(folder);
  return std::max(n, 1u);
}

}  // namespace

Result<PortInfo> describe_netdev(const std::string& name, std::string* why) {
  auto fail = [&](int error, const std::string& text) {
    if (why) *why = text;
    return err(error);
  };
  ifreq request{};
  if (name.empty() || name.size() >= sizeof(request.ifr_name))
    return fail(ENOENT, "no netdev named '" + name + "'");
  Fd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket) return fail(errno, "cannot make a socket to ask for the netdev's properties");
  auto ask = [&](unsigned long what) {
    std::memcpy(request.ifr_name, name.c_str(), name.size() + 1);
    return ioctl(socket.get(), what, &request) == 0;
  };
  PortInfo info;
  info.name = name;
  if (!ask(SIOCGIFINDEX)) return fail(ENOENT, "no netdev named '" + name + "' in this network namespace");
  info.ifindex = request.ifr_ifindex;
  if (!ask(SIOCGIFHWADDR)) return fail(errno, "cannot read the address of " + name);
  if (request.ifr_hwaddr.sa_family != ARPHRD_ETHER) return fail(ENOTSUP, name + " is not an Ethernet device");
  std::memcpy(info.mac.data(), request.ifr_hwaddr.sa_data, info.mac.size());
  if (!ask(SIOCGIFMTU)) return fail(errno, "cannot read the MTU of " + name);
  info.mtu = static_cast<uint32_t>(request.ifr_mtu);

  ethtool_channels channels{};
  channels.cmd = ETHTOOL_GCHANNELS;
  request = {};
  request.ifr_data = reinterpret_cast<char*>(&channels);
  info.queues_total =
      ask(SIOCETHTOOL) ? std::max(channels.rx_count + channels.combined_count, 1u) : queues_from_sysfs(name);
  if (info.queues_total > ACCEL_XDP_MAX_QUEUES)
    return fail(ENOTSUP, name + " has more than 256 receive queues: lower them with ethtool -L");
  return info;
}

}  // namespace accel::xdp
