// libmlx5's own functions, in the copy that libibverbs has loaded as the device's driver: whatever
// RDMAV_DRIVERS, IBV_DRIVERS or /etc/libibverbs.d said. Linking libmlx5 would bring the distribution's beside
// it.
#pragma once

#include <infiniband/mlx5dv.h>

namespace accel::mlx5 {

struct Provider {
  decltype(&mlx5dv_is_supported) is_supported = nullptr;
  decltype(&mlx5dv_query_device) query_device = nullptr;
  decltype(&mlx5dv_init_obj) init_obj = nullptr;
  decltype(&mlx5dv_create_cq) create_cq = nullptr;
  decltype(&mlx5dv_create_wq) create_wq = nullptr;
  decltype(&mlx5dv_get_clock_info) get_clock_info = nullptr;

  /// After ibv_get_device_list(), which loads drivers. False: libmlx5 is not among them.
  bool find();
};

}  // namespace accel::mlx5
