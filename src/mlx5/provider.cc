#include "mlx5/provider.h"

#include <dlfcn.h>

#include <type_traits>

namespace accel::mlx5 {

bool Provider::find() {
  void* library = dlopen("libmlx5.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (!library) return false;
  auto get = [library](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    return function != nullptr;
  };
  return get(is_supported, "mlx5dv_is_supported") && get(query_device, "mlx5dv_query_device") &&
         get(init_obj, "mlx5dv_init_obj") && get(create_cq, "mlx5dv_create_cq") &&
         get(create_wq, "mlx5dv_create_wq") && get(get_clock_info, "mlx5dv_get_clock_info");
}

}  // namespace accel::mlx5
