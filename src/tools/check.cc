// accel check: what this machine offers, what it lacks, and the cure for each lack.
#include <arpa/inet.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/config.h"
#include "firewall/firewall.h"
#include "mlx5/device.h"
#include "tools/commands.h"
#include "tools/finding.h"
#include "tools/machine.h"
#include "tools/preloading.h"
#include "tools/rdma.h"

namespace accel::tools {
namespace {

const char* level_name(Level l) { return l == Level::kOk ? "ok" : l == Level::kWarning ? "warning" : "lack"; }

bool usable(const Findings& all) {
  return std::none_of(all.begin(), all.end(), [](const Finding& f) { return f.level == Level::kLack; });
}

/// Drivers with AF_XDP zero-copy, for kernels before 6.3, which cannot be asked.
constexpr const char* kZeroCopyDrivers[] = {"i40e", "ice",       "ixgbe",  "ixgbevf",
                                            "igc",  "mlx5_core", "stmmac", "st_gmac"};

std::string zero_copy(const Nic& nic) {
  if (nic.xdp_features) return *nic.xdp_features & kXdpZeroCopy ? "yes" : "no";
  for (const char* driver : kZeroCopyDrivers)
    if (nic.driver == driver) return "probably";
  return "unlikely";
}

Findings judge_privilege(const Machine& m) {
  Findings all;
  if (m.xdp_socket_error == EAFNOSUPPORT)
    all.push_back({Level::kLack, "the kernel has no AF_XDP sockets",
                   "boot a kernel with CONFIG_XDP_SOCKETS=y (Debian's has it)"});
  else if (m.xdp_socket_error != 0)
    all.push_back({Level::kLack, fmt::format("AF_XDP sockets: {}", std::strerror(m.xdp_socket_error)),
                   "run as root, or with CAP_NET_RAW, CAP_NET_ADMIN and CAP_BPF"});
  else
    all.push_back({Level::kOk, "AF_XDP sockets", ""});
  if (m.program_error == EINVAL || m.program_error == ENOSYS)
    all.push_back({Level::kLack, fmt::format("XDP programs: {}", std::strerror(m.program_error)),
                   "boot a kernel with CONFIG_BPF_SYSCALL=y"});
  else if (m.program_error != 0)
    all.push_back({Level::kLack, fmt::format("XDP programs: {}", std::strerror(m.program_error)),
                   "run as root of the host (a user namespace's root may not load them), or with CAP_BPF and "
                   "CAP_NET_ADMIN"});
  else
    all.push_back({Level::kOk, "XDP programs", ""});
  std::string missing;
  for (auto [name, held] :
       {std::pair{"CAP_NET_RAW", m.net_raw}, {"CAP_NET_ADMIN", m.net_admin}, {"CAP_BPF", m.bpf}})
    if (!held) missing += std::string(missing.empty() ? "" : ", ") + name;
  if (missing.empty())
    all.push_back({Level::kOk, "CAP_NET_RAW, CAP_NET_ADMIN, CAP_BPF", ""});
  else
    all.push_back({Level::kLack, "missing: " + missing,
                   "run as root; or setpriv --inh-caps +net_raw,+net_admin,+bpf --ambient-caps "
                   "+net_raw,+net_admin,+bpf; or systemd's AmbientCapabilities="});
  return all;
}

Findings judge_memory(const Machine& m, const Settings& s) {
  Findings all;
  uint64_t need = uint64_t{s.frames} * 4096;
  if (m.ipc_lock || m.memlock >= need)
    all.push_back({Level::kOk, fmt::format("locked memory: {} MiB are needed", need >> 20), ""});
  else
    all.push_back(
        {Level::kWarning,
         fmt::format("locked memory: {} KiB allowed, {} MiB needed", m.memlock >> 10, need >> 20),
         fmt::format("ulimit -l {} (systemd: LimitMEMLOCK=), or CAP_IPC_LOCK, or fewer frames (ACCEL_FRAMES)",
                     need >> 10)});
  if (!s.huge_pages || m.huge_page_bytes == 0) return all;
  uint64_t pages = (need + m.huge_page_bytes - 1) / m.huge_page_bytes;
  if (m.huge_pages_free >= pages)
    all.push_back({Level::kOk,
                   fmt::format("huge pages: {} of {} MiB free, a process takes {}", m.huge_pages_free,
                               m.huge_page_bytes >> 20, pages),
                   ""});
  else
    all.push_back(
        {Level::kWarning,
         fmt::format(
             "huge pages: {} free, a process takes {}: ordinary pages are used instead, a little slower",
             m.huge_pages_free, pages),
         fmt::format("sysctl vm.nr_hugepages={}", m.huge_pages_total + pages - m.huge_pages_free)});
  return all;
}

Findings judge_kernel(const Machine& m) {
  Findings all;
  if (std::pair(m.major, m.minor) < std::pair(5, 11))
    all.push_back(
        {Level::kLack, fmt::format("Linux {}", m.kernel), "boot Linux 5.11 or later (Debian 12 has 6.1)"});
  else
    all.push_back({Level::kOk, fmt::format("Linux {}", m.kernel), ""});
  if (m.bpf_jit == 0)
    all.push_back({Level::kWarning, "BPF programs are interpreted", "sysctl net.core.bpf_jit_enable=1"});
  return all;
}

/// What libaccel loads when it is needed, as the dynamic linker of this host finds it.
Findings judge_libraries() {
  constexpr struct {
    const char* name;
    const char* package;
    const char* whom;
    bool needed;
  } kLibraries[] = {{"libnl-3.so.200", "libnl-3-200", "the engine", true},
                    {"libnl-route-3.so.200", "libnl-route-3-200", "the engine", true},
                    {"libev.so.4", "libev4", "the engine", true},
                    {"libxdp.so.1", "libxdp1", "AF_XDP", true},
                    {"libbpf.so.1", "libbpf1", "AF_XDP", true},
                    {"libibverbs.so.1", "libibverbs1 ibverbs-providers", "mlx5", false},
                    {"libisal.so.2", "libisal2", "soft-iWARP", false}};
  Findings all;
  std::string fine;
  for (const auto& library : kLibraries) {
    if (void* handle = dlopen(library.name, RTLD_LAZY | RTLD_LOCAL)) {
      dlclose(handle);
      fine += (fine.empty() ? "" : ", ") + std::string(library.name);
      continue;
    }
    all.push_back(
        {library.needed ? Level::kLack : Level::kWarning,
         fmt::format("{}, which {} needs, cannot be loaded: {}", library.name, library.whom, dlerror()),
         fmt::format("apt-get install {}", library.package), "library"});
  }
  if (!fine.empty()) all.insert(all.begin(), {Level::kOk, fine, ""});
  const auto preloaded = find_preload_library();
  if (!preloaded) {
    all.push_back({Level::kLack, "libaccel.so is neither beside this program nor where it was installed",
                   "install the package libaccel", "library"});
    return all;
  }
  all.push_back({Level::kOk, preloaded->string(), ""});
  for (const char* module : {"libaccel-xdp.so", "libaccel-mlx5.so"}) {
    const std::string file = (preloaded->parent_path() / module).string();
    if (access(file.c_str(), R_OK) == 0)
      all.push_back({Level::kOk, file, ""});
    else
      all.push_back({Level::kWarning, fmt::format("{} is not there", file),
                     std::string(module) == "libaccel-xdp.so"
                         ? "install the package libaccel"
                         : "for ConnectX NICs: install the package libaccel-mlx5",
                     "library"});
  }
  return all;
}

/// By looking only: opening is left to programs. Without it AF_XDP serves, so no lack is one of the
/// machine's.
Finding judge_mlx5(mlx5::Evidence seen) {
  seen.stage = mlx5::Stage::kLook;
  const mlx5::Diagnosis found = diagnose(seen);
  if (found.lack == mlx5::Lack::kNone)
    return {Level::kOk, fmt::format("mlx5: {} by raw-packet queues", seen.device), ""};
  const size_t colon = found.text.find(": ");
  return {Level::kWarning, "no mlx5 port: " + found.text.substr(0, colon),
          colon == std::string::npos ? "" : found.text.substr(colon + 2)};
}

Findings judge_nic(const Nic& nic, const Config& config) {
  Findings all;
  if (!config.device_allowed(nic.name))
    all.push_back({Level::kLack, "the setting devices excludes it",
                   "change devices in the configuration (ACCEL_DEVICES)"});
  if (!nic.ethernet)
    all.push_back({Level::kLack, "not an Ethernet device", "none: its traffic stays with the kernel"});
  if (!nic.up)
    all.push_back({Level::kLack, "down", fmt::format("ip link set {} up", nic.name)});
  else if (!nic.carrier)
    all.push_back({Level::kLack, "no carrier", "connect the cable (or the other end)"});
  if (!nic.master.empty())
    all.push_back({Level::kLack, fmt::format("part of {}", nic.master),
                   fmt::format("none: sockets go by {} (or ip link set {} nomaster)", nic.master, nic.name)});
  if (nic.addresses.empty() && nic.master.empty())
    all.push_back(
        {Level::kLack, "no IP address", fmt::format("ip address add ADDRESS/LENGTH dev {}", nic.name)});
  if (nic.driver == "bonding" || nic.driver == "802.1Q VLAN Support" || nic.driver == "macvlan")
    all.push_back(
        {Level::kWarning,
         fmt::format("a {} device: AF_XDP serves it by the kernel's generic hook, in copy mode", nic.driver),
         ""});
  else if (nic.driver == "bridge" || nic.driver == "tun" || nic.driver == "dummy" || nic.driver == "vxlan")
    all.push_back({Level::kLack, fmt::format("a {} device has no queues of its own", nic.driver),
                   "none: sockets that are routed through it stay with the kernel"});
  else if (nic.xdp_features && !(*nic.xdp_features & kXdpRedirect))
    all.push_back({Level::kWarning,
                   "the driver has no XDP of its own: the kernel's generic hook is used, slower",
                   "none but another NIC or a newer driver"});
  if (nic.xdp_program && !nic.xdp_program_name.starts_with("accel_steer"))
    all.push_back({Level::kLack,
                   fmt::format("another XDP program is attached: {} (id {})",
                               nic.xdp_program_name.empty() ? "?" : nic.xdp_program_name, nic.xdp_program),
                   fmt::format("ip link set {} xdp off (and stop what attached it)", nic.name)});
  if (nic.queues_held == nic.queues)
    all.push_back(
        {Level::kLack, "every queue is held by AF_XDP sockets of programs that run",
         "end one of them, let each hold fewer (ACCEL_QUEUES), or give the device more queues (ethtool -L)"});
  else if (nic.queues_held > 0)
    all.push_back({Level::kOk,
                   fmt::format("{} of {} queues are held by programs that run", nic.queues_held, nic.queues),
                   ""});
  if (nic.queues < nic.max_queues)
    all.push_back({Level::kWarning,
                   fmt::format("{} of {} queues in use: each process of a prefork server wants one",
                               nic.queues, nic.max_queues),
                   fmt::format("ethtool -L {} combined {}", nic.name, nic.max_queues)});
  if (const auto seen = mlx5::look(nic.name, nic.ifindex, mlx5::sysfs_root()); mlx5::is_candidate(seen))
    all.push_back(judge_mlx5(seen));
  if (nic.driver == "veth" && (nic.tx_checksum || nic.tso || nic.gso || nic.gro))
    all.push_back({Level::kWarning,
                   "veth with offloads hands over packets without checksum and larger than the MTU",
                   fmt::format("at both ends: ethtool -K {} tx off tso off gso off gro off", nic.name)});
  return all;
}

std::string join(const std::vector<std::string>& all) {
  std::string text;
  for (const std::string& one : all) text += (text.empty() ? "" : ", ") + one;
  return text;
}

/// The names of tables with chains that the kernel calls.
std::string filter_tables(const firewall::Ruleset& rules) {
  std::vector<std::string> names;
  for (const firewall::Table& t : rules.tables)
    if (t.meets_packets()) names.push_back(t.legacy ? t.name + " (iptables-legacy)" : t.name);
  return join(names);
}

/// The hooks that accelerated packets would pass by, as far as this process may see them.
Findings judge_filters(const Config& config, const firewall::Firewall& found) {
  Findings all;
  if (config.settings.firewall == FirewallUse::kIgnore)
    all.push_back({Level::kWarning,
                   "firewall is ignore: accelerated packets pass by every filter of this host",
                   "firewall = \"respect\" (ACCEL_FIREWALL), unless that is meant"});
  if (!found.unreadable().empty())
    all.push_back({Level::kWarning, found.unreadable() + ": sockets stay with the kernel",
                   "run as root, or with CAP_NET_ADMIN"});
  if (!found.unseen().empty())
    all.push_back(
        {Level::kWarning, found.unseen() + ": taken to be none", "run as root, or with CAP_NET_ADMIN"});
  if (const std::string names = filter_tables(found.rules()); !names.empty())
    all.push_back({Level::kOk, "tables with rules: " + names, ""});
  if (!found.policies().empty())
    all.push_back({Level::kOk, fmt::format("IPsec policies: {}", found.policies().size()), ""});
  if (!(found.programs() == firewall::CgroupPrograms{}))
    all.push_back({Level::kOk, "BPF programs on this process's cgroup", ""});
  if (all.empty()) all.push_back({Level::kOk, "no packet filter", ""});
  return all;
}

/// The filters' meaning for the device: for flows whose other end may be any.
Findings judge_flows(const Nic& nic, const Config& config, firewall::Firewall& filters) {
  Findings all;
  const bool ignored = config.settings.firewall == FirewallUse::kIgnore;
  (void)filters.controls(nic.ifindex);
  if (ignored || nic.addresses.empty() || filters.touches_nothing(nic.ifindex)) return all;
  std::string refused_listeners, refused_clients;
  for (const std::string& text : nic.addresses) {
    firewall::Question q;
    const std::string address = text.substr(0, text.find('/'));
    uint8_t bytes[16];
    if (inet_pton(AF_INET, address.c_str(), bytes) == 1)
      q.local.address = IpAddress::from_v4_bytes(bytes);
    else if (inet_pton(AF_INET6, address.c_str(), bytes) == 1)
      q.local.address = IpAddress::from_v6_bytes(bytes);
    else
      continue;
    q.device = {nic.ifindex, nic.name};
    q.local_on_device = true;
    for (const bool active : {false, true}) {
      q.active = active;
      const auto& found = filters.judge(q);
      std::string& refused = active ? refused_clients : refused_listeners;
      if (!found.accepted && refused.empty()) refused = found.rule;
    }
  }
  if (refused_listeners.empty() && refused_clients.empty())
    all.push_back({Level::kOk, "packet filters accept all TCP connections", ""});
  if (!refused_listeners.empty())
    all.push_back(
        {Level::kOk, "packet filters leave some TCP listeners to the kernel: " + refused_listeners, ""});
  if (!refused_clients.empty())
    all.push_back(
        {Level::kOk, "packet filters leave some outgoing TCP to the kernel: " + refused_clients, ""});
  return all;
}

nlohmann::json to_json(const Findings& all) {
  nlohmann::json list = nlohmann::json::array();
  for (const Finding& f : all) {
    list.push_back({{"level", level_name(f.level)}, {"what", f.what}, {"cure", f.cure}});
    if (!f.sign.empty()) list.back()["sign"] = f.sign;
  }
  return list;
}

nlohmann::json to_json(const Nic& nic, const Findings& findings, bool is_usable) {
  return {
      {"name", nic.name},
      {"driver", nic.driver},
      {"queues", nic.queues},
      {"max_queues", nic.max_queues},
      {"queues_held", nic.queues_held},
      {"mtu", nic.mtu},
      {"up", nic.up},
      {"carrier", nic.carrier},
      {"addresses", nic.addresses},
      {"zero_copy", zero_copy(nic)},
      {"xdp_program", nic.xdp_program_name},
      {"offloads", {{"tx_checksum", nic.tx_checksum}, {"tso", nic.tso}, {"gso", nic.gso}, {"gro", nic.gro}}},
      {"usable", is_usable},
      {"findings", to_json(findings)}};
}

void print(const Findings& all) {
  for (const Finding& f : all) {
    fmt::print("  {:<8} {}\n",
               f.level == Level::kOk        ? "ok"
               : f.level == Level::kWarning ? "warning"
                                            : "LACK",
               f.what);
    if (!f.cure.empty()) fmt::print("           cure: {}\n", f.cure);
  }
}

nlohmann::json to_json(const Rdma& rdma) {
  nlohmann::json devices = nlohmann::json::array();
  for (const RdmaDevice& d : rdma.devices)
    devices.push_back({{"name", d.name},
                       {"driver", d.driver},
                       {"kind", d.kind},
                       {"use", d.use},
                       {"uverbs", d.uverbs},
                       {"provider", d.provider},
                       {"findings", to_json(d.findings)}});
  return {{"devices", devices}, {"findings", to_json(rdma.findings)}};
}

void print(const Rdma& rdma) {
  if (rdma.devices.empty() && rdma.findings.empty()) return;
  fmt::print("rdma\n");
  print(rdma.findings);
  for (const RdmaDevice& d : rdma.devices) {
    fmt::print("  {}: {}{}{}\n           {}\n", d.name, d.driver.empty() ? "driver unknown" : d.driver,
               d.kind.empty() ? "" : ", ", d.kind, d.use);
    print(d.findings);
  }
}

void print_nic(const Nic& nic, const Findings& findings, bool is_usable) {
  std::string addresses;
  for (auto& a : nic.addresses) addresses += (addresses.empty() ? "" : " ") + a;
  fmt::print("{}: {}, {} queue{}, mtu {}, zero-copy: {}{}{}\n", nic.name,
             nic.driver.empty() ? "driver unknown" : nic.driver, nic.queues, nic.queues == 1 ? "" : "s",
             nic.mtu, zero_copy(nic), addresses.empty() ? "" : ", ", addresses);
  print(findings);
  if (is_usable) fmt::print("  usable\n");
}

}  // namespace

int check(const CheckOptions& options) {
  const bool as_json = options.json;
  const Rdma rdma = look_at_rdma(options.root);
  if (options.root != "/") {  // another tree: of the rest nothing is known
    if (as_json)
      fmt::print("{}\n", nlohmann::json{{"rdma", to_json(rdma)}}.dump(2));
    else
      print(rdma);
    return 0;
  }
  Machine machine = look_at_machine();
  std::vector<std::string> problems;
  Config config = load_config(process_source(), problems);

  struct Part {
    const char* title;
    Findings findings;
  } parts[] = {{"kernel", judge_kernel(machine)},
               {"privilege", judge_privilege(machine)},
               {"memory", judge_memory(machine, config.settings)},
               {"configuration", {}},
               {"firewall", {}},
               {"libraries", judge_libraries()}};
  for (const std::string& p : problems)
    parts[3].findings.push_back({config.misread ? Level::kLack : Level::kWarning, p,
                                 "mend it; accel docs settings lists what is allowed"});
  if (config.disabled)
    parts[3].findings.push_back({Level::kLack, "ACCEL_DISABLE is set", "unset ACCEL_DISABLE"});
  else if (problems.empty())
    parts[3].findings.push_back({Level::kOk, config.file.empty() ? "no file: defaults" : config.file, ""});

  if (config.wants_iwarp)  // which needs none of the above
    parts[3].findings.push_back(
        {Level::kOk,
         "iwarp is on: soft-iWARP over the kernel's TCP, where no port serves or a rule requires it", ""});

  firewall::Firewall filters;
  (void)filters.refresh({});
  parts[4].findings = judge_filters(config, filters);

  bool machine_usable =
      std::all_of(std::begin(parts), std::end(parts), [](const Part& p) { return usable(p.findings); });
  bool some_nic = false;
  nlohmann::json j = {{"nics", nlohmann::json::array()}};
  for (const Part& part : parts) {
    if (as_json) {
      j[part.title] = to_json(part.findings);
    } else {
      fmt::print("{}\n", part.title);
      print(part.findings);
    }
  }
  if (as_json)
    j["rdma"] = to_json(rdma);
  else
    print(rdma);
  for (const Nic& nic : machine.nics) {
    Findings findings = judge_nic(nic, config);
    for (Finding& f : judge_flows(nic, config, filters)) findings.push_back(std::move(f));
    bool nic_usable = machine_usable && usable(findings);
    some_nic |= nic_usable;
    if (as_json)
      j["nics"].push_back(to_json(nic, findings, nic_usable));
    else
      print_nic(nic, findings, nic_usable);
  }
  if (as_json) {
    j["usable"] = some_nic;
    fmt::print("{}\n", j.dump(2));
  } else if (machine.nics.empty()) {
    fmt::print("no NIC but loopback\n");
  } else {
    fmt::print("\n{}\n",
               some_nic ? "libaccel can accelerate sockets on this machine."
                        : "Nothing can be accelerated here: programs run on the kernel's path as before.");
  }
  return some_nic ? 0 : 1;
}

}  // namespace accel::tools
