#include "xdp/netdev.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/ethtool.h>
#include <linux/net_tstamp.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string_view>

#include "base/module_fd.h"
#include "xdp/flow_abi.h"
#include "xdp/segment_socket.h"

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

/// Whether frames that the kernel cuts fare as those of an AF_XDP socket. With several transmit queues the
/// kernel would choose another one for them, so a flow's frames would overtake each other, and on a veth pair
/// arrive on different queues. A veth device that "offloads" checksums leaves them out, which an XDP receiver
/// at its other end sees.
bool cuts_well(const ethtool_channels& channels, bool veth, const ethtool_value& checksums) {
  return channels.tx_count + channels.combined_count == 1 && !(veth && checksums.data != 0);
}

}  // namespace

Result<Netdev> describe_netdev(const std::string& name, std::string* why) {
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
  Netdev device;
  PortInfo& info = device.info;
  info.name = name;
  if (!ask(SIOCGIFINDEX)) return fail(ENOENT, "no netdev named '" + name + "' in this network namespace");
  info.ifindex = request.ifr_ifindex;
  if (!ask(SIOCGIFHWADDR)) return fail(errno, "cannot read the address of " + name);
  if (request.ifr_hwaddr.sa_family != ARPHRD_ETHER) return fail(ENOTSUP, name + " is not an Ethernet device");
  std::memcpy(info.mac.data(), request.ifr_hwaddr.sa_data, info.mac.size());
  if (!ask(SIOCGIFMTU)) return fail(errno, "cannot read the MTU of " + name);
  info.mtu = static_cast<uint32_t>(request.ifr_mtu);

  auto ask_ethtool = [&](auto& question, uint32_t command) {
    question.cmd = command;
    request = {};
    request.ifr_data = reinterpret_cast<char*>(&question);
    return ask(SIOCETHTOOL);
  };
  ethtool_channels channels{};
  ethtool_drvinfo driver{};
  ethtool_value checksums{}, segmentation{};
  const bool told = ask_ethtool(channels, ETHTOOL_GCHANNELS);
  info.queues_total =
      told ? std::max(channels.rx_count + channels.combined_count, 1u) : queues_from_sysfs(name);
  const bool named = ask_ethtool(driver, ETHTOOL_GDRVINFO);
  const bool veth = named && std::strcmp(driver.driver, "veth") == 0;
  info.tso = told && named && ask_ethtool(checksums, ETHTOOL_GTXCSUM) && cuts_well(channels, veth, checksums);
  device.veth = veth;
  // With several queues the generic hook does not always know on which one a frame came.
  device.generic_is_faster = veth && info.queues_total == 1;
  info.tso_max = SegmentSocket::limit(!ask_ethtool(segmentation, ETHTOOL_GTSO) || segmentation.data != 0);
  ethtool_ts_info stamps{};
  info.kernel_has_stamps = ask_ethtool(stamps, ETHTOOL_GET_TS_INFO) &&
                           (stamps.so_timestamping & SOF_TIMESTAMPING_RX_HARDWARE) != 0;
  if (info.queues_total > ACCEL_XDP_MAX_QUEUES)
    return fail(ENOTSUP, name + " has more than 256 receive queues: lower them with ethtool -L");
  return device;
}

Fd open_device_table() { return high(Fd(open("/proc/thread-self/net/dev", O_RDONLY | O_CLOEXEC))); }

/// A line: "name: bytes frames ..." with blanks before the name. Linux: net/core/net-procfs.c.
std::optional<uint64_t> frames_received(const Fd& table, const std::string& name) {
  std::array<char, 4096> text;
  off_t at = 0;
  for (ssize_t got; (got = pread(table.get(), text.data(), text.size(), at)) > 0;) {
    const std::string_view read(text.data(), static_cast<size_t>(got));
    const size_t whole = read.rfind('\n') + 1;  // of a line that is cut the rest comes with the next piece
    if (whole == 0) return {};
    at += static_cast<off_t>(whole);
    for (size_t begin = 0, end = 0; begin < whole; begin = end + 1) {
      end = read.find('\n', begin);
      const std::string_view padded = read.substr(begin, end - begin);
      const std::string_view line = padded.substr(std::min(padded.find_first_not_of(' '), padded.size()));
      if (!line.starts_with(name) || line.substr(name.size(), 1) != ":") continue;
      text[end] = '\0';
      unsigned long long bytes = 0, frames = 0;
      if (std::sscanf(line.data() + name.size() + 1, "%llu %llu", &bytes, &frames) == 2) return frames;
    }
  }
  return {};
}

}  // namespace accel::xdp
