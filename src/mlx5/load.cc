// Looks whether the netdev has a usable RDMA device; the way to libaccel-mlx5.so.
#include "base/own_module.h"
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

}  // namespace

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
    const auto* module =
        static_cast<const mlx5::Module*>(load_own_module("mlx5", mlx5::kModuleAbi, seen.library_error));
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
