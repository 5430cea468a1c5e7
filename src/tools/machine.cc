#include "tools/machine.h"

#include <arpa/inet.h>
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <ifaddrs.h>
#include <linux/bpf.h>
#include <linux/ethtool.h>
#include <linux/if_xdp.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <netlink/genl/ctrl.h>
#include <netlink/genl/genl.h>
#include <netlink/route/link.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <thread>

namespace accel::tools {
namespace {

namespace fs = std::filesystem;

std::string read_line(const fs::path& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  return line;
}

/// One ethtool request; false when the driver does not know it.
template <class T>
bool ethtool(int socket, const std::string& name, uint32_t command, T* request) {
  std::memset(request, 0, sizeof *request);
  request->cmd = command;
  ifreq r{};
  std::strncpy(r.ifr_name, name.c_str(), IFNAMSIZ - 1);
  r.ifr_data = reinterpret_cast<char*>(request);
  return ioctl(socket, SIOCETHTOOL, &r) == 0;
}

bool offload(int socket, const std::string& name, uint32_t command) {
  ethtool_value value;
  return ethtool(socket, name, command, &value) && value.data != 0;
}

/// The genetlink family "netdev" (Linux 6.3): its numbers, since Debian 12 has no header of it.
class XdpFeatures {
 public:
  XdpFeatures() : socket_(nl_socket_alloc()) {
    if (socket_ && genl_connect(socket_) == 0) family_ = genl_ctrl_resolve(socket_, "netdev");
  }
  ~XdpFeatures() { nl_socket_free(socket_); }
  XdpFeatures(const XdpFeatures&) = delete;
  XdpFeatures& operator=(const XdpFeatures&) = delete;

  std::optional<uint64_t> of(int ifindex) {
    constexpr int kDevGet = 1, kIfindex = 1;
    if (family_ < 0) return {};
    std::optional<uint64_t> features;
    nl_msg* message = nlmsg_alloc();
    genlmsg_put(message, NL_AUTO_PORT, NL_AUTO_SEQ, family_, 0, 0, kDevGet, 1);
    nla_put_u32(message, kIfindex, static_cast<uint32_t>(ifindex));
    nl_socket_modify_cb(socket_, NL_CB_VALID, NL_CB_CUSTOM, &XdpFeatures::on_device, &features);
    nl_send_auto(socket_, message);
    nlmsg_free(message);
    nl_recvmsgs_default(socket_);
    nl_wait_for_ack(socket_);
    return features;
  }

 private:
  static int on_device(nl_msg* message, void* context) {
    constexpr int kFeatures = 3, kMax = 16;
    nlattr* attributes[kMax + 1];
    if (genlmsg_parse(nlmsg_hdr(message), 0, attributes, kMax, nullptr) == 0 && attributes[kFeatures] &&
        nla_len(attributes[kFeatures]) == 8)
      *static_cast<std::optional<uint64_t>*>(context) = nla_get_u64(attributes[kFeatures]);
    return NL_OK;
  }

  nl_sock* socket_;
  int family_ = -1;
};

void look_at_program(Nic& nic) {
  if (bpf_xdp_query_id(nic.ifindex, 0, &nic.xdp_program) != 0 || nic.xdp_program == 0) return;
  int fd = bpf_prog_get_fd_by_id(nic.xdp_program);
  if (fd < 0) return;
  bpf_prog_info info{};
  uint32_t size = sizeof info;
  if (bpf_obj_get_info_by_fd(fd, &info, &size) == 0)
    nic.xdp_program_name = {info.name, strnlen(info.name, sizeof info.name)};
  close(fd);
}

/// By netlink, since sysfs may show another network namespace (nsenter --net).
std::vector<Nic> list_nics() {
  std::vector<Nic> nics;
  nl_sock* socket = nl_socket_alloc();
  nl_cache* links = nullptr;
  if (socket && nl_connect(socket, NETLINK_ROUTE) == 0 &&
      rtnl_link_alloc_cache(socket, AF_UNSPEC, &links) == 0) {
    for (nl_object* o = nl_cache_get_first(links); o; o = nl_cache_get_next(o)) {
      auto* link = reinterpret_cast<rtnl_link*>(o);
      unsigned flags = rtnl_link_get_flags(link);
      if (flags & IFF_LOOPBACK) continue;
      Nic nic;
      nic.name = rtnl_link_get_name(link);
      nic.ifindex = rtnl_link_get_ifindex(link);
      nic.mtu = rtnl_link_get_mtu(link);
      nic.ethernet = rtnl_link_get_arptype(link) == ARPHRD_ETHER;
      nic.up = flags & IFF_UP;
      nic.carrier = flags & IFF_RUNNING;
      nic.queues = nic.max_queues = std::max(rtnl_link_get_num_rx_queues(link), 1u);
      char master[IFNAMSIZ];
      if (int index = rtnl_link_get_master(link);
          index && if_indextoname(static_cast<unsigned>(index), master))
        nic.master = master;
      nics.push_back(std::move(nic));
    }
    nl_cache_free(links);
  }
  nl_socket_free(socket);
  return nics;
}

void look_at_driver(Nic& nic, int socket) {
  const std::string& name = nic.name;
  ethtool_drvinfo driver;
  if (ethtool(socket, name, ETHTOOL_GDRVINFO, &driver))
    nic.driver = {driver.driver, strnlen(driver.driver, 32)};
  ethtool_channels channels;
  if (ethtool(socket, name, ETHTOOL_GCHANNELS, &channels)) {
    uint32_t now = channels.combined_count + channels.rx_count,
             most = channels.max_combined + channels.max_rx;
    if (now) nic.queues = now;
    nic.max_queues = std::max(nic.queues, channels.max_combined ? channels.max_combined : most);
  }
  nic.tx_checksum = offload(socket, name, ETHTOOL_GTXCSUM);
  nic.tso = offload(socket, name, ETHTOOL_GTSO);
  nic.gso = offload(socket, name, ETHTOOL_GGSO);
  nic.gro = offload(socket, name, ETHTOOL_GGRO);
}

void look_at_addresses(std::vector<Nic>& nics) {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return;
  for (ifaddrs* a = list; a; a = a->ifa_next) {
    if (!a->ifa_addr || (a->ifa_addr->sa_family != AF_INET && a->ifa_addr->sa_family != AF_INET6)) continue;
    char text[INET6_ADDRSTRLEN];
    const void* bytes = a->ifa_addr->sa_family == AF_INET
                            ? static_cast<const void*>(&reinterpret_cast<sockaddr_in*>(a->ifa_addr)->sin_addr)
                            : &reinterpret_cast<sockaddr_in6*>(a->ifa_addr)->sin6_addr;
    for (Nic& nic : nics)
      if (nic.name == a->ifa_name && inet_ntop(a->ifa_addr->sa_family, bytes, text, sizeof text))
        nic.addresses.emplace_back(text);
  }
  freeifaddrs(list);
}

/// Loads "return XDP_PASS"; capabilities alone do not tell (user namespaces, lockdown, a kernel without BPF).
int try_program() {
  const bpf_insn pass[] = {{BPF_ALU64 | BPF_MOV | BPF_K, 0, 0, 0, XDP_PASS},
                           {BPF_JMP | BPF_EXIT, 0, 0, 0, 0}};
  int fd = bpf_prog_load(BPF_PROG_TYPE_XDP, "accel_check", "GPL", pass, 2, nullptr);
  if (fd < 0) return -fd;
  close(fd);
  return 0;
}

void look_at_privilege(Machine& m) {
  std::ifstream status("/proc/self/status");
  uint64_t effective = 0;
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("CapEff:")) effective = std::strtoull(line.c_str() + 7, nullptr, 16);
  auto has = [&](int capability) { return (effective >> capability & 1) != 0; };
  m.net_admin = has(12);
  m.net_raw = has(13);
  m.ipc_lock = has(14);
  m.bpf = has(39) || has(21);  // CAP_SYS_ADMIN includes CAP_BPF
  int fd = socket(AF_XDP, SOCK_RAW | SOCK_CLOEXEC, 0);
  m.xdp_socket_error = fd < 0 ? errno : 0;
  if (fd >= 0) close(fd);
  m.program_error = try_program();
  rlimit limit{};
  getrlimit(RLIMIT_MEMLOCK, &limit);
  m.memlock = limit.rlim_cur;
}

/// Whether a socket of somebody's is bound to the queue: another cannot be (xsk_bind()).
bool is_bound(int ifindex, uint32_t queue) {
  constexpr size_t kChunk = 4096;
  constexpr int kEntries = 2;
  void* memory = mmap(nullptr, kChunk, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return false;
  const int fd = socket(AF_XDP, SOCK_RAW | SOCK_CLOEXEC, 0);
  xdp_umem_reg umem{};
  umem.addr = reinterpret_cast<uintptr_t>(memory);
  umem.len = umem.chunk_size = kChunk;
  const auto set = [fd](int what, const void* value, socklen_t size) {
    return setsockopt(fd, SOL_XDP, what, value, size) == 0;
  };
  sockaddr_xdp address{};
  address.sxdp_family = AF_XDP;
  address.sxdp_flags = XDP_COPY;
  address.sxdp_ifindex = static_cast<uint32_t>(ifindex);
  address.sxdp_queue_id = queue;
  const bool held = fd >= 0 && set(XDP_UMEM_REG, &umem, sizeof umem) &&
                    set(XDP_UMEM_FILL_RING, &kEntries, sizeof kEntries) &&
                    set(XDP_UMEM_COMPLETION_RING, &kEntries, sizeof kEntries) &&
                    set(XDP_RX_RING, &kEntries, sizeof kEntries) &&
                    bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 && errno == EBUSY;
  if (fd >= 0) close(fd);
  munmap(memory, kChunk);
  return held;
}

/// A queue of a socket that has just been closed is bound until a work item of the kernel's has run
/// (xp_put_pool()), and nothing tells when.
bool queue_is_held(int ifindex, uint32_t queue) {
  constexpr auto kReleased = std::chrono::milliseconds(500), kBetween = std::chrono::milliseconds(5);
  const auto until = std::chrono::steady_clock::now() + kReleased;
  while (is_bound(ifindex, queue)) {
    if (std::chrono::steady_clock::now() > until) return true;
    std::this_thread::sleep_for(kBetween);
  }
  return false;
}

void look_at_memory(Machine& m) {
  std::ifstream meminfo("/proc/meminfo");
  std::map<std::string, uint64_t> values;
  for (std::string line; std::getline(meminfo, line);)
    if (size_t colon = line.find(':'); colon != std::string::npos)
      values[line.substr(0, colon)] = std::strtoull(line.c_str() + colon + 1, nullptr, 10);
  m.huge_page_bytes = values["Hugepagesize"] * 1024;
  m.huge_pages_free = values["HugePages_Free"];
  m.huge_pages_total = values["HugePages_Total"];
}

}  // namespace

Machine look_at_machine() {
  libbpf_set_print([](libbpf_print_level, const char*, va_list) { return 0; });
  Machine m;
  utsname names{};
  uname(&names);
  m.kernel = names.release;
  std::sscanf(names.release, "%d.%d", &m.major, &m.minor);
  look_at_privilege(m);
  look_at_memory(m);
  if (auto jit = read_line("/proc/sys/net/core/bpf_jit_enable"); !jit.empty()) m.bpf_jit = jit == "0" ? 0 : 1;
  int socket = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  XdpFeatures features;
  m.nics = list_nics();
  for (Nic& nic : m.nics) {
    look_at_driver(nic, socket);
    look_at_program(nic);
    nic.xdp_features = features.of(nic.ifindex);
    for (uint32_t queue = 0; nic.up && m.xdp_socket_error == 0 && queue < nic.queues; ++queue)
      nic.queues_held += queue_is_held(nic.ifindex, queue) ? 1 : 0;
  }
  if (socket >= 0) close(socket);
  look_at_addresses(m.nics);
  return m;
}

}  // namespace accel::tools
