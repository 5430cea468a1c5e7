#include "tools/rdma.h"

#include <fmt/format.h>
#include <fnmatch.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>

namespace accel::tools {
namespace {

namespace fs = std::filesystem;

constexpr const char* kUverbsMajor = "231";  ///< IB_UVERBS_MAJOR, with minors from 192 on

std::string read_line(const fs::path& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  return line;
}

std::string read_all(const fs::path& file) {
  std::ifstream in(file);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator i(folder, error), end; !error && i != end; i.increment(error))
    names.push_back(i->path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

bool is_there(const fs::path& file) {
  std::error_code error;
  return fs::exists(file, error);
}

std::string link_name(const fs::path& link) {
  std::error_code error;
  const fs::path target = fs::read_symlink(link, error);
  return error ? "" : target.filename().string();
}

/// What a kernel driver is for us, and how libibverbs names its provider.
struct Kind {
  const char* driver;
  const char* provider;
  const char* use;
};
constexpr Kind kKinds[] = {
    {"mlx5_core", "mlx5", "raw-packet queues of its Ethernet ports: libaccel's mlx5 path"},
    {"mlx4_core", "mlx4",
     "none by itself (libaccel's queues are of mlx5): its Ethernet ports are served by AF_XDP"},
    {"irdma", "irdma",
     "none by itself: its Ethernet ports are served by AF_XDP; in iWARP mode it is a peer for soft-iWARP"},
    {"i40iw", "i40iw",
     "none by itself: its Ethernet ports are served by AF_XDP; it is a peer for soft-iWARP"},
    {"iw_cxgb4", "cxgb4", "none by itself: it is a peer for soft-iWARP"},
    {"qedr", "qedr", "none by itself: in iWARP mode it is a peer for soft-iWARP"},
    {"bnxt_re", "bnxt_re", "none by itself (RoCE): its Ethernet ports are served by AF_XDP"},
    {"efa", "efa", "none (it carries no IP packets): the instance's ENA device is served by AF_XDP"},
    {"rxe", "rxe", "none: soft RoCE of the kernel, upon an ordinary device, which is served by AF_XDP"},
    {"siw", "siw", "a peer for soft-iWARP: the kernel's own, upon an ordinary device"},
};

/// The driver of the device below it; the software ones have none, and are named as they are made.
std::string driver_of(const fs::path& device, const std::string& name) {
  if (std::string driver = link_name(device / "device/driver"); !driver.empty()) {
    // An auxiliary device of mlx5 or ice: its driver is mlx5_ib.rdma or irdma.
    if (driver.starts_with("mlx5")) return "mlx5_core";
    if (driver.starts_with("mlx4")) return "mlx4_core";
    return driver;
  }
  const std::string type = read_line(device / "node_type");  // "4: RNIC"
  const std::string described = read_line(device / "node_desc");
  if (name.starts_with("siw") || described.starts_with("siw") || type.starts_with("4")) return "siw";
  if (name.starts_with("rxe") || described.starts_with("rxe") || is_there(device / "parent")) return "rxe";
  return "";
}

std::string function_kind(const fs::path& device) {
  std::error_code error;
  if (is_there(device / "device/physfn")) return "virtual function";
  const std::string real = fs::read_symlink(device / "device", error).string();
  if (real.find("mlx5_core.sf.") != std::string::npos) return "sub-function";
  return "physical function";
}

bool loaded(const std::string& modules, const char* name) {
  return modules.starts_with(std::string(name) + " ") ||
         modules.find(fmt::format("\n{} ", name)) != std::string::npos;
}

/// Folders in which the dynamic linker looks: Debian's, and those of /etc/ld.so.conf.d.
std::vector<fs::path> loader_folders(const fs::path& root) {
  std::vector<fs::path> all;
  const auto add = [&](const std::string& place) { all.push_back(root / fs::path(place).relative_path()); };
  for (const char* place : {"/lib", "/usr/lib", "/lib64", "/usr/lib64"}) add(place);
  for (const char* base : {"/lib", "/usr/lib"})
    for (const std::string& name : names_in(root / fs::path(base).relative_path()))
      if (name.ends_with("-linux-gnu")) add(fmt::format("{}/{}", base, name));
  for (const std::string& name : names_in(root / "etc/ld.so.conf.d")) {
    std::istringstream lines(read_all(root / "etc/ld.so.conf.d" / name));
    for (std::string line; std::getline(lines, line);)
      if (line.starts_with("/")) add(line);
  }
  return all;
}

/// The folder that has libibverbs.so.1 and is not one of those; "": none.
std::string stray_libibverbs(const fs::path& root) {
  for (const char* place : {"usr/local/lib", "usr/local/lib64", "opt/rdma-core/lib", "opt/mellanox/lib"})
    if (is_there(root / place / "libibverbs.so.1")) return std::string("/") + place;
  for (const std::string& name : names_in(root / "opt"))
    for (const char* lib : {"lib", "lib64"})
      if (is_there(root / "opt" / name / lib / "libibverbs.so.1"))
        return fmt::format("/opt/{}/{}", name, lib);
  return "";
}

class Look {
 public:
  explicit Look(const fs::path& root) : root_(root), modules_("\n" + read_all(root / "proc/modules")) {}

  Rdma look() {
    for (const std::string& name : names_in(root_ / "sys/class/infiniband")) look_at(name);
    look_at_cards();
    if (result_.devices.empty() && cards_ == 0) return std::move(result_);
    look_at_library();
    look_at_uverbs();
    look_at_namespaces();
    return std::move(result_);
  }

 private:
  void add(Findings& to, Level level, const char* sign, std::string what, std::string cure) {
    to.push_back({level, std::move(what), std::move(cure), sign});
  }

  void look_at(const std::string& name) {
    const fs::path place = root_ / "sys/class/infiniband" / name;
    RdmaDevice device;
    device.name = name;
    device.driver = driver_of(place, name);
    if (device.driver == "mlx5_core") device.kind = function_kind(place);
    device.use = "not known to libaccel";
    for (const Kind& kind : kKinds)
      if (device.driver == kind.driver) {
        device.use = kind.use;
        device.provider = kind.provider;
      }
    for (const std::string& uverbs : names_in(root_ / "sys/class/infiniband_verbs"))
      if (read_line(root_ / "sys/class/infiniband_verbs" / uverbs / "ibdev") == name) device.uverbs = uverbs;
    look_at_device_file(device);
    look_at_provider(device);
    result_.devices.push_back(std::move(device));
  }

  bool in_container() const {
    return is_there(root_ / ".dockerenv") || is_there(root_ / "run/.containerenv") ||
           read_all(root_ / "proc/1/environ").find("container=") != std::string::npos;
  }

  void look_at_device_file(RdmaDevice& device) {
    if (device.uverbs.empty()) return;  // look_at_uverbs() says why
    const fs::path file = root_ / "dev/infiniband" / device.uverbs;
    if (!is_there(file)) {
      if (in_container())
        add(device.findings, Level::kWarning, "container_devices",
            fmt::format("/dev/infiniband/{} is not in this container", device.uverbs),
            fmt::format("start it with --device=/dev/infiniband/{} (Kubernetes: an RDMA device plugin)",
                        device.uverbs));
      else
        add(device.findings, Level::kWarning, "no_device_file",
            fmt::format("/dev/infiniband/{} is not there", device.uverbs),
            "udevadm trigger --subsystem-match=infiniband_verbs (package rdma-core has the rules)");
    } else if (access(file.c_str(), R_OK | W_OK) != 0) {
      add(device.findings, Level::kWarning, "device_rights",
          fmt::format("no right to read and write /dev/infiniband/{}", device.uverbs),
          "join the group rdma, or chmod 666 by a udev rule (package rdma-core has one)");
    }
  }

  bool is_driver_named(const fs::path& folder, const std::string& provider) const {
    for (const std::string& name : names_in(folder))
      if (read_all(folder / name).find("driver " + provider) != std::string::npos) return true;
    return false;
  }

  void look_at_provider(RdmaDevice& device) {
    if (device.provider.empty()) return;
    const fs::path folder = root_ / "etc/libibverbs.d";
    if (is_driver_named(folder, device.provider)) {
      for (const fs::path& libraries : loader_folders(root_))
        for (const std::string& name : names_in(libraries / "libibverbs"))
          if (fnmatch(fmt::format("lib{}-rdmav*.so", device.provider).c_str(), name.c_str(), 0) == 0) return;
      return add(device.findings, Level::kWarning, "no_provider_library",
                 fmt::format("libibverbs has no provider for {}: lib{}-rdmav*.so is not there", device.name,
                             device.provider),
                 "apt-get install --reinstall ibverbs-providers");
    }
    for (const char* other :
         {"usr/local/etc/libibverbs.d", "opt/rdma-core/etc/libibverbs.d", "usr/etc/libibverbs.d"})
      if (is_driver_named(root_ / other, device.provider))
        return add(
            device.findings, Level::kWarning, "foreign_configuration",
            fmt::format("the provider {} is configured in /{}, where Debian's libibverbs does not look",
                        device.provider, other),
            fmt::format("copy its .driver file to /etc/libibverbs.d, or use one libibverbs only: that of /{}",
                        other));
    add(device.findings, Level::kWarning, "no_provider",
        fmt::format("libibverbs has no provider for {} (nothing in /etc/libibverbs.d names {})", device.name,
                    device.provider),
        "apt-get install ibverbs-providers");
  }

  /// Cards of Mellanox without an RDMA device: a module lacks.
  void look_at_cards() {
    const fs::path pci = root_ / "sys/bus/pci/devices";
    for (const std::string& address : names_in(pci)) {
      if (read_line(pci / address / "vendor") != "0x15b3" ||
          !read_line(pci / address / "class").starts_with("0x02"))
        continue;
      ++cards_;
      if (!names_in(pci / address / "infiniband").empty()) continue;
      const std::string driver = link_name(pci / address / "driver");
      if (driver == "mlx4_core" || driver == "vfio-pci") continue;
      const char* lacking = driver.empty() ? "mlx5_core" : "mlx5_ib";
      if (loaded(modules_, lacking)) continue;
      const std::string lockdown = read_line(root_ / "sys/kernel/security/lockdown");
      const bool locked = lockdown.find("[integrity]") != std::string::npos ||
                          lockdown.find("[confidentiality]") != std::string::npos;
      const bool enforced = read_line(root_ / "sys/module/module/parameters/sig_enforce") == "Y";
      if (locked || enforced)
        add(result_.findings, Level::kWarning, "module_refused",
            fmt::format("{}: the module {} is not loaded, and the kernel takes signed modules only ({})",
                        address, lacking, locked ? "lockdown" : "module.sig_enforce"),
            "use the distribution's module, or sign it and enrol the key (mokutil --import)");
      else
        add(result_.findings, Level::kWarning, "module_missing",
            fmt::format("{}: the module {} is not loaded", address, lacking),
            fmt::format("modprobe {} (and ib_uverbs)", lacking));
    }
  }

  void look_at_library() {
    for (const fs::path& folder : loader_folders(root_))
      if (is_there(folder / "libibverbs.so.1")) return;
    if (const std::string stray = stray_libibverbs(root_); !stray.empty())
      add(result_.findings, Level::kWarning, "library_path",
          fmt::format("libibverbs.so.1 is in {}, where the dynamic linker does not look", stray),
          fmt::format("echo {} > /etc/ld.so.conf.d/rdma.conf && ldconfig", stray));
    else
      add(result_.findings, Level::kWarning, "no_library", "libibverbs.so.1 is not installed",
          "apt-get install libibverbs1 ibverbs-providers");
  }

  void look_at_uverbs() {
    if (result_.devices.empty()) return;
    const bool any = std::any_of(result_.devices.begin(), result_.devices.end(),
                                 [](auto& d) { return !d.uverbs.empty(); });
    if (any) return;
    if (!loaded(modules_, "ib_uverbs"))
      return add(result_.findings, Level::kWarning, "uverbs_missing", "the module ib_uverbs is not loaded",
                 "modprobe ib_uverbs");
    // alloc_chrdev_region() of the fixed number fails where another driver has it.
    std::istringstream lines(read_all(root_ / "proc/devices"));
    for (std::string line; std::getline(lines, line);) {
      std::istringstream fields(line);
      std::string number, owner;
      if (fields >> number >> owner && number == kUverbsMajor && owner != "infiniband_verbs" &&
          !owner.starts_with("infiniband"))
        return add(result_.findings, Level::kWarning, "number_taken",
                   fmt::format("the device number {} is taken by {}, so ib_uverbs has no device",
                               kUverbsMajor, owner),
                   fmt::format("unload {}, then modprobe -r ib_uverbs && modprobe ib_uverbs", owner));
    }
    add(result_.findings, Level::kWarning, "uverbs_none",
        "ib_uverbs is loaded, but no device has a uverbs file",
        "modprobe -r ib_uverbs && modprobe ib_uverbs, and dmesg");
  }

  /// In exclusive mode a device is in one network namespace only.
  void look_at_namespaces() {
    if (read_line(root_ / "sys/module/ib_core/parameters/netns_mode") != "N") return;
    if (result_.devices.empty())
      add(result_.findings, Level::kWarning, "namespaces_exclusive",
          "RDMA devices are bound to one network namespace each, and none is in this one",
          "rdma dev set DEVICE netns NAMESPACE, or rdma system set netns shared");
    else
      add(result_.findings, Level::kOk, "namespaces_exclusive",
          "RDMA network namespaces are in exclusive mode", "");
  }

  fs::path root_;
  std::string modules_;
  Rdma result_;
  int cards_ = 0;
};

}  // namespace

Rdma look_at_rdma(const fs::path& root) { return Look(root).look(); }

}  // namespace accel::tools
