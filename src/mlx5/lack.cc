#include "mlx5/lack.h"

#include <cerrno>
#include <cstring>
#include <string_view>

namespace accel::mlx5 {
namespace {

/// libibverbs 44's range (IB_USER_VERBS_MIN_ABI_VERSION, ..._MAX_ABI_VERSION).
constexpr int kMinAbi = 3, kMaxAbi = 6;

/// The variables list names or paths of provider libraries, separated by colons or semicolons.
bool filter_has_mlx5(std::string_view filter) { return filter.find("mlx5") != std::string_view::npos; }

/// The kernel makes none where a parameter of the function says so, where the firmware gives the function no
/// RoCE, which is its host's word for VFs and subfunctions, or it is in another network namespace.
std::string no_rdma_device(const Evidence& e) {
  using enum Evidence::Function;
  const std::string name = e.bus.empty() ? "DEVICE" : e.bus;
  const std::string parameter = e.function == kSub ? "enable_rdma" : "enable_roce";
  std::string text = "no RDMA device belongs to " + e.netdev + ": devlink dev param set " + name + " name " +
                     parameter + " value true cmode driverinit, then devlink dev reload " + name;
  if (e.function == kPhysical) text += " (where it has enable_rdma, that too)";
  if (e.function != kPhysical)
    text += std::string("; a ") + (e.function == kSub ? "subfunction" : "virtual function") +
            " needs it of its host: devlink port function set PORT roce enable";
  return text +
         "; in a container or namespace: rdma system set netns shared, or rdma dev set mlx5_N netns NAME";
}

std::string no_steering(const Evidence& e, const std::string& reason) {
  return e.device + " takes no flow rule (" + reason + "): devlink dev eswitch show" +
         (e.bus.empty() ? "" : " " + e.bus) + " (mode legacy for this netdev), newer firmware";
}

Diagnosis kernel_side(const Evidence& e) {
  if (!e.verbs_class || (e.device.empty() && !e.ib_module)) {
    const std::string module = e.ib_module ? "ib_uverbs" : "mlx5_ib";
    if (e.signed_modules)
      return {Lack::kModuleRefused,
              "kernel module " + module +
                  " is not loaded, and this kernel takes signed modules only (Secure Boot): install the "
                  "distribution's signed kernel and modules, or enrol your key (mokutil --import), then "
                  "modprobe mlx5_ib ib_uverbs"};
    return {Lack::kNoKernelModule, "kernel module " + module + " is not loaded: modprobe mlx5_ib ib_uverbs"};
  }
  if (e.abi_version != 0 && (e.abi_version < kMinAbi || e.abi_version > kMaxAbi))
    return {Lack::kAbi, "the kernel's verbs ABI is version " + std::to_string(e.abi_version) +
                            ", libibverbs knows 3 to 6: install rdma-core and kernel modules of one origin"};
  if (e.device.empty()) return {Lack::kNoRdmaDevice, no_rdma_device(e)};
  return {};
}

Diagnosis node_side(const Evidence& e) {
  if (!e.node_exists)
    return {Lack::kNoNode, e.node +
                               " does not exist: udevadm trigger --subsystem-match=infiniband_verbs; in a "
                               "container: pass --device=/dev/infiniband"};
  if (!e.node_is_device)
    return {Lack::kMajorTaken, e.node +
                                   " is another driver's device number: remove the stale node and run "
                                   "udevadm trigger --subsystem-match=infiniband_verbs"};
  if (e.stage == Stage::kOpenNode && (e.error == EACCES || e.error == EPERM))
    return {Lack::kNodeForbidden, e.node + " may not be opened: chmod 0666 " + e.node +
                                      " (rdma-core's udev rules do), in a container allow the device cgroup "
                                      "(--device=" +
                                      e.node + ")"};
  if (e.stage == Stage::kOpenNode && (e.error == ENODEV || e.error == ENXIO || e.error == EIO))
    return {Lack::kDeviceGone, e.device +
                                   " does not answer (removed or in fatal error): devlink dev reload, "
                                   "and see dmesg"};
  return {};
}

Diagnosis library_side(const Evidence& e) {
  if (!e.library_error.empty())
    return {Lack::kNoLibrary, "libibverbs cannot be loaded (" + e.library_error +
                                  "): apt install libibverbs1 ibverbs-providers"};
  if (e.listed) return {};
  if (!e.driver_filter.empty() && !filter_has_mlx5(e.driver_filter))
    return {Lack::kProviderFiltered,
            "RDMAV_DRIVERS or IBV_DRIVERS is '" + e.driver_filter + "', without mlx5: unset it or add mlx5"};
  return {Lack::kNoProvider, "libibverbs has no userspace driver for " + e.device +
                                 ": apt install ibverbs-providers (libmlx5, /etc/libibverbs.d/mlx5.driver)"};
}

std::string kib(uint64_t bytes) { return std::to_string((bytes + 1023) >> 10); }

Diagnosis queue_side(const Evidence& e) {
  const std::string reason = std::strerror(e.error);
  switch (e.stage) {
    case Stage::kOpenNode:
    case Stage::kOpenDevice:
      return {Lack::kOther,
              e.device + " cannot be opened (" + reason + "): see dmesg, and ibv_devinfo -d " + e.device};
    case Stage::kRegisterMemory:
      if ((e.error == ENOMEM || e.error == EPERM || e.error == EAGAIN) && !e.ipc_lock && e.memlock < e.memory)
        return {Lack::kMemlock, "locked memory: " + kib(e.memlock) + " KiB allowed, " + kib(e.memory) +
                                    " KiB needed: ulimit -l " + kib(e.memory) +
                                    " (systemd: LimitMEMLOCK=), or CAP_IPC_LOCK, or fewer frames "
                                    "(ACCEL_FRAMES)"};
      return {Lack::kOther, "the frame memory cannot be registered with " + e.device + " (" + reason +
                                "): fewer frames (ACCEL_FRAMES), see dmesg"};
    case Stage::kMakeQueue:
      if ((e.error == ENOMEM || e.error == EAGAIN) && !e.ipc_lock && e.memlock < e.memory * 2)
        return {Lack::kMemlock, "locked memory: " + kib(e.memlock) +
                                    " KiB allowed, queues need more beside the frames: ulimit -l unlimited "
                                    "(systemd: LimitMEMLOCK=infinity), or CAP_IPC_LOCK"};
      if (e.error == EPERM || e.error == EACCES)
        return {Lack::kNoNetRaw, e.device +
                                     " refuses raw-packet queues: CAP_NET_RAW of the host is needed (a user "
                                     "namespace's root does not have it)"};
      return {Lack::kOther, "queues cannot be made on " + e.device + " (" + reason +
                                "): smaller rings (ACCEL_RX_RING, ACCEL_TX_RING), see dmesg"};
    case Stage::kSteer:
      return {Lack::kNoSteering, no_steering(e, reason)};
    default:
      return {};
  }
}

}  // namespace

Diagnosis diagnose(const Evidence& e) {
  if (auto d = kernel_side(e); d.lack != Lack::kNone) return d;
  if (auto d = node_side(e); d.lack != Lack::kNone) return d;
  if (auto d = library_side(e); d.lack != Lack::kNone) return d;
  // The kernel asks for it when the queue is made and when it is steered; other causes of EPERM are rare.
  if (!e.net_raw && (e.stage == Stage::kLook || e.error == EPERM || e.error == EACCES))
    return {Lack::kNoNetRaw,
            "no CAP_NET_RAW, which raw-packet queues need: run as root, or setpriv --inh-caps "
            "+net_raw --ambient-caps +net_raw, or systemd's AmbientCapabilities=CAP_NET_RAW"};
  return queue_side(e);
}

}  // namespace accel::mlx5
