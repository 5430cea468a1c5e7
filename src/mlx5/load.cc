// Looks whether the netdev has a usable RDMA device, then finds and loads libaccel-mlx5.so: beside the object
// that this code is linked into, else in ../lib of it, else as the dynamic linker finds it. Stays loaded.
#include <dlfcn.h>

#include "mlx5/device.h"
#include "mlx5/module.h"

namespace accel {
namespace {

const mlx5::Module* load(std::string* reason) {
  std::string folder;
  Dl_info self{};
  if (dladdr(reinterpret_cast<void*>(&load), &self) != 0 && self.dli_fname) {
    folder = self.dli_fname;
    const size_t slash = folder.rfind('/');
    folder = slash == std::string::npos ? "." : folder.substr(0, slash);
  }
  for (const std::string& path :
       {folder + "/libaccel-mlx5.so", folder + "/../lib/libaccel-mlx5.so", std::string("libaccel-mlx5.so")}) {
    void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!handle) {
      if (const char* text = dlerror()) *reason += (reason->empty() ? "" : "; ") + std::string(text);
      continue;
    }
    auto* module = static_cast<const mlx5::Module*>(dlsym(handle, "accel_mlx5_module"));
    if (module && module->abi == mlx5::kModuleAbi) return module;
    *reason = path + " belongs to another version of libaccel: install both from the same build";
    break;
  }
  return nullptr;
}

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
    const mlx5::Module* module = load(&seen.library_error);
    if (module) {
      auto port = module->open(options, pool, seen);
      if (port) return port;
    }
    found = diagnose(seen);
  }
  if (why) *why = found.text;
  return err(errno_of(found.lack));
}

}  // namespace accel
