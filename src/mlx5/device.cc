#include "mlx5/device.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/auxv.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <string_view>
#include <vector>

#include "base/words.h"
#include "mlx5/rdma_ports.h"

namespace accel::mlx5 {
namespace {

/// A small file's text up to its first newline; "" when it cannot be read.
std::string read_line(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return {};
  char text[256];
  const ssize_t n = read(fd, text, sizeof(text));
  close(fd);
  if (n <= 0) return {};
  const std::string_view all(text, static_cast<size_t>(n));
  return std::string(all.substr(0, all.find('\n')));
}

std::vector<std::string> entries(const std::string& folder) {
  std::vector<std::string> names;
  DIR* dir = opendir(folder.c_str());
  if (!dir) return names;
  while (const dirent* entry = readdir(dir))
    if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
  closedir(dir);
  return names;
}

bool exists(const std::string& path) {
  struct stat s;
  return stat(path.c_str(), &s) == 0;
}

/// The last part of a link's target: the driver's name.
std::string link_name(const std::string& path) {
  char target[PATH_MAX];
  const ssize_t n = readlink(path.c_str(), target, sizeof(target));
  if (n <= 0) return {};
  const std::string_view all(target, static_cast<size_t>(n));
  return std::string(all.substr(all.rfind('/') + 1));
}

std::string path_of(std::initializer_list<std::string_view> parts) {
  std::string all;
  for (const std::string_view part : parts) all += part;
  return all;
}

constexpr const char* kMellanox = "0x15b3";

std::string driver_of(const std::string& netdev, const std::string& root) {
  return link_name(path_of({root, "/class/net/", netdev, "/device/driver"}));
}

/// Of devlink: the bus and the name on it, which the netdev's device has in sysfs.
void look_at_function(Evidence& seen, const std::string& root) {
  const std::string device = path_of({root, "/class/net/", seen.netdev, "/device"});
  const std::string name = link_name(device), bus = link_name(device + "/subsystem");
  if (!name.empty() && !bus.empty()) seen.bus = path_of({bus, "/", name});
  seen.function = name.find(".sf.") != std::string::npos ? Evidence::Function::kSub
                  : exists(device + "/physfn")           ? Evidence::Function::kVirtual
                                                         : Evidence::Function::kPhysical;
}

/// The NIC has made one RDMA device of the bond's members (RoCE LAG). Where it has not, the device of one
/// member may name the bond as well, but frames come by the others too.
bool is_bond_of(const std::string& name, const std::string& netdev, const std::string& root) {
  if (read_line(path_of({root, "/class/infiniband/", name, "/ports/1/gid_attrs/ndevs/0"})) != netdev)
    return false;
  const std::string slaves = read_line(path_of({root, "/class/net/", netdev, "/bonding/slaves"}));
  const std::vector<std::string_view> members = words_of(slaves);
  for (const std::string_view member : members) {
    if (!driver_of(std::string(member), root).starts_with("mlx5_core")) return false;
    for (const std::string& other : entries(root + "/class/infiniband"))
      if (other != name && exists(path_of({root, "/class/infiniband/", other, "/device/net/", member})))
        return false;
  }
  return !members.empty();
}

/// The netdev's port of a device that has several (representors are ports of one device). 0: none is known to
/// be.
uint8_t port_of(const std::string& name, const std::string& netdev, int ifindex, const std::string& root) {
  const std::string folder = path_of({root, "/class/infiniband/", name, "/ports/"});
  const std::vector<std::string> ports = entries(folder);
  if (ports.size() <= 1) return 1;
  for (const std::string& port : ports)
    for (const std::string& gid : entries(path_of({folder, port, "/gid_attrs/ndevs"})))
      if (read_line(path_of({folder, port, "/gid_attrs/ndevs/", gid})) == netdev)
        return static_cast<uint8_t>(std::atoi(port.c_str()));
  return root == "/sys" ? ask_for_port(name, static_cast<uint32_t>(ifindex)) : uint8_t{0};
}

/// The RDMA device whose PCI function (or subfunction) has this netdev. Subfunctions have no vendor file.
std::string rdma_device_of(const std::string& netdev, int ifindex, const std::string& root, uint8_t& port) {
  for (const std::string& name : entries(root + "/class/infiniband")) {
    const std::string device = path_of({root, "/class/infiniband/", name, "/device"});
    const std::string vendor = read_line(device + "/vendor");
    if (!vendor.empty() && vendor != kMellanox) continue;
    // A renamed netdev keeps its number.
    for (const std::string& candidate : entries(device + "/net"))
      if (read_line(path_of({device, "/net/", candidate, "/ifindex"})) == std::to_string(ifindex))
        if (port = port_of(name, netdev, ifindex, root); port != 0) return name;
    if (port = 1; vendor == kMellanox && is_bond_of(name, netdev, root)) return name;
  }
  return {};
}

void look_at_node(Evidence& seen, const std::string& root) {
  for (const std::string& name : entries(root + "/class/infiniband_verbs")) {
    const std::string folder = path_of({root, "/class/infiniband_verbs/", name});
    if (read_line(folder + "/ibdev") != seen.device) continue;
    seen.node = "/dev/infiniband/" + name;
    struct stat s;
    seen.node_exists = stat(seen.node.c_str(), &s) == 0;
    if (!seen.node_exists) return;
    const std::string number = std::to_string(major(s.st_rdev)) + ":" + std::to_string(minor(s.st_rdev));
    const std::string expected = read_line(folder + "/dev");
    seen.node_is_device = S_ISCHR(s.st_mode) && (expected.empty() || expected == number);
    return;
  }
  seen.node = "/dev/infiniband/uverbs*";
}

bool unsigned_modules_refused() {
  const std::string lockdown = read_line("/sys/kernel/security/lockdown");
  return read_line("/sys/module/module/parameters/sig_enforce") == "Y" ||
         lockdown.find("[integrity]") != std::string::npos ||
         lockdown.find("[confidentiality]") != std::string::npos;
}

bool capability(int number) {
  const int fd = open("/proc/self/status", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return true;
  char text[4096];
  const ssize_t n = read(fd, text, sizeof(text) - 1);
  close(fd);
  if (n <= 0) return true;
  text[n] = '\0';
  const char* line = std::strstr(text, "CapEff:");
  return !line || (std::strtoull(line + 7, nullptr, 16) >> number & 1) != 0;
}

constexpr int kCapNetRaw = 13, kCapIpcLock = 14;

}  // namespace

std::string sysfs_root() {
  const char* path = getauxval(AT_SECURE) ? nullptr : getenv("SYSFS_PATH");
  if (!path || path[0] != '/') return "/sys";
  std::string root = path;
  while (root.size() > 1 && root.back() == '/') root.pop_back();
  return root;
}

bool is_candidate(const Evidence& seen) { return seen.mlx5_driver || !seen.device.empty(); }

Evidence look(const std::string& netdev, int ifindex, const std::string& root) {
  Evidence seen;
  seen.netdev = netdev;
  seen.mlx5_driver = driver_of(netdev, root).starts_with("mlx5_core");
  seen.device = rdma_device_of(netdev, ifindex, root, seen.port);
  if (!is_candidate(seen)) return seen;
  look_at_function(seen, root);

  seen.verbs_class = exists(root + "/class/infiniband_verbs");
  seen.ib_module = exists(root + "/module/mlx5_ib");
  seen.signed_modules = unsigned_modules_refused();
  seen.abi_version = std::atoi(read_line(root + "/class/infiniband_verbs/abi_version").c_str());
  if (!seen.device.empty()) look_at_node(seen, root);
  const bool raised = getauxval(AT_SECURE) != 0;
  for (const char* variable : {"RDMAV_DRIVERS", "IBV_DRIVERS"})
    if (const char* value = raised ? nullptr : getenv(variable); value && seen.driver_filter.empty())
      seen.driver_filter = value;
  seen.net_raw = capability(kCapNetRaw);
  seen.ipc_lock = capability(kCapIpcLock);
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
    seen.memlock = limit.rlim_cur;
  return seen;
}

}  // namespace accel::mlx5
