// Why an mlx5 port cannot be had, and the cure: each lack told apart, in one line (issue: a user who reads
// "cannot open device" learns nothing). Looking is apart from judging, so that judging is tested everywhere.
#pragma once

#include <cstdint>
#include <string>

namespace accel::mlx5 {

enum class Lack : uint8_t {
  kNone,
  kNoLibrary,         ///< libibverbs.so.1 or the module that needs it cannot be loaded
  kNoKernelModule,    ///< mlx5_core drives the netdev, but mlx5_ib or ib_uverbs is not loaded
  kModuleRefused,     ///< and the kernel loads signed modules only
  kAbi,               ///< libibverbs does not know this kernel's interface
  kNoRdmaDevice,      ///< the modules are there, no RDMA device belongs to the netdev
  kNoNode,            ///< no /dev/infiniband/uverbsN
  kMajorTaken,        ///< the node is there, but names another driver's device
  kNodeForbidden,     ///< the node may not be opened
  kProviderFiltered,  ///< RDMAV_DRIVERS or IBV_DRIVERS leaves mlx5 out
  kNoProvider,        ///< libibverbs has no driver library for the device
  kNoNetRaw,          ///< no CAP_NET_RAW
  kMemlock,           ///< RLIMIT_MEMLOCK
  kNoSteering,        ///< the device takes no flow rules (switchdev without, or firmware's steering mode)
  kDeviceGone,        ///< removed or in fatal error
  kOther,
};

/// Where opening stopped.
enum class Stage : uint8_t { kLook, kOpenNode, kOpenDevice, kRegisterMemory, kMakeQueue, kSteer, kDone };

/// What was seen, by looking only.
struct Evidence {
  std::string netdev;
  std::string device;        ///< RDMA device, "mlx5_0"; "": none belongs to the netdev
  uint8_t port = 1;          ///< the device's, that the netdev is on
  std::string node;          ///< "/dev/infiniband/uverbs0"; "": not known
  bool mlx5_driver = false;  ///< the netdev's driver is mlx5_core
  std::string bus;           ///< the netdev's function by devlink's name, "pci/0000:03:00.0"; "": not known
  enum class Function : uint8_t { kPhysical, kVirtual, kSub } function = Function::kPhysical;
  std::string library_error;    ///< why libibverbs could not be loaded; "": it was, or was not tried
  bool verbs_class = false;     ///< /sys/class/infiniband_verbs exists: ib_uverbs is loaded
  bool ib_module = false;       ///< /sys/module/mlx5_ib exists
  bool signed_modules = false;  ///< unsigned modules are refused (Secure Boot, lockdown, sig_enforce)
  int abi_version = 0;          ///< class/infiniband_verbs/abi_version; 0: not known
  bool node_exists = false;
  bool node_is_device = true;       ///< character device of the number that sysfs says
  std::string driver_filter;        ///< RDMAV_DRIVERS or IBV_DRIVERS as set
  bool listed = true;               ///< ibv_get_device_list had the device
  bool net_raw = true;              ///< CAP_NET_RAW in effect
  bool ipc_lock = false;            ///< CAP_IPC_LOCK: no limit
  uint64_t memlock = ~uint64_t{0};  ///< RLIMIT_MEMLOCK, bytes
  uint64_t memory = 0;              ///< bytes that were to be registered
  Stage stage = Stage::kDone;
  int error = 0;  ///< errno of the stage
};

struct Diagnosis {
  Lack lack = Lack::kNone;
  std::string text;  ///< "what: cure", one line; "" when nothing lacks
};

Diagnosis diagnose(const Evidence& seen);

}  // namespace accel::mlx5
