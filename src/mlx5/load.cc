// Looks whether the netdev has a usable RDMA device; the way to libaccel-mlx5.so.
#include <dirent.h>
#include <dlfcn.h>

#include "base/own_module.h"
#include "base/start_paths.h"
#include "mlx5/device.h"
#include "mlx5/listener_groups.h"
#include "mlx5/module.h"

namespace accel {
namespace {

int errno_of(mlx5::Lack lack) {
  switch (lack) {
    case mlx5::Lack::kNoLibrary:
    case mlx5::Lack::kNoProvider:
    case mlx5::Lack::kProviderFiltered:
      return ELIBACC;
    case mlx5::Lack::kNoNetRaw:
    case mlx5::Lack::kNodeForbidden:
      return EPERM;
    case mlx5::Lack::kMemlock:
      return ENOBUFS;
    case mlx5::Lack::kNoSteering:
      return EOPNOTSUPP;
    default:
      return EIO;  // ENODEV says that the netdev is not an mlx5 one
  }
}

const mlx5::Module* find_module(std::string& reason) {
  return static_cast<const mlx5::Module*>(load_own_module("mlx5", mlx5::kModuleAbi, reason));
}

bool host_has_rdma() {
  DIR* const devices = opendir((mlx5::sysfs_root() + "/class/infiniband").c_str());
  if (devices == nullptr) return false;
  bool any = false;
  while (const dirent* entry = readdir(devices)) any = any || entry->d_name[0] != '.';
  closedir(devices);
  return any;
}

/// libibverbs finds a device's driver by files of the root. In another root it must have it already.
const char* driver_out_of_reach() {
  const char* const changed = start_paths_changed();
  if (changed == nullptr || dlopen("libmlx5.so.1", RTLD_NOW | RTLD_NOLOAD) != nullptr) return nullptr;
  (void)dlerror();
  return changed;
}

}  // namespace

bool Mlx5Port::load_module(std::string& why) {
  if (!host_has_rdma()) return true;
  const mlx5::Module* const module = find_module(why);
  if (module != nullptr) module->load_drivers();
  return module != nullptr;
}

bool Mlx5Port::can_serve(const std::string& netdev, int ifindex) {
  return mlx5::is_candidate(mlx5::look(netdev, ifindex, mlx5::sysfs_root()));
}

Result<std::unique_ptr<Mlx5Port>> Mlx5Port::open(const Mlx5Options& options, FramePool& pool,
                                                 std::string* why) {
  mlx5::Evidence seen = mlx5::look(options.netdev, options.ifindex, mlx5::sysfs_root());
  if (!mlx5::is_candidate(seen)) {
    if (why) *why = options.netdev + " is not an mlx5 device";
    return err(ENODEV);
  }
  seen.stage = mlx5::Stage::kLook;
  mlx5::Diagnosis found = diagnose(seen);
  if (found.lack == mlx5::Lack::kNone) {
    if (const char* changed = driver_out_of_reach()) {
      if (why) *why = std::string("libibverbs cannot load the device's driver: ") + changed;
      return err(ELIBACC);
    }
    const auto* module = find_module(seen.library_error);
    if (module != nullptr) {
      auto port = module->open(
          options, pool, std::make_unique<mlx5::ListenerGroups>(options.ifindex, options.user_changes), seen);
      if (port) return port;
    }
    found = diagnose(seen);
  }
  if (why) *why = found.text;
  return err(errno_of(found.lack));
}

}  // namespace accel
