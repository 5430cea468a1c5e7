// The one symbol of libaccel-mlx5.so (base/own_module.h). Both sides come from one build: kModuleAbi guards
// against a stale file.
#pragma once

#include <memory>

#include "base/own_module.h"
#include "mlx5/mlx5_port.h"
#include "mlx5/shares.h"

namespace accel::mlx5 {

constexpr uint32_t kModuleAbi = 9;

struct Module : OwnModule {
  Result<std::unique_ptr<Mlx5Port>> (*open)(const Mlx5Options&, FramePool&, std::unique_ptr<ListenerSharing>,
                                            Evidence& seen);
  /// Has libibverbs load the drivers of the devices that there are.
  void (*load_drivers)();
};

}  // namespace accel::mlx5

extern "C" __attribute__((visibility("default"))) const accel::mlx5::Module accel_mlx5_module;
