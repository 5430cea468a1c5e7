#include "base/own_module.h"

#include <dlfcn.h>

#include "base/mutex.h"
#include "base/start_paths.h"

namespace accel {
namespace {

/// Of those that are loaded. A few: there are two modules.
struct Loaded {
  std::string name;
  const OwnModule* module;
};
constexpr size_t kMostModules = 4;
constinit Mutex loading;
Loaded loaded[kMostModules] ACCEL_GUARDED_BY(loading);

const OwnModule* find_loaded(const std::string& name) ACCEL_REQUIRES(loading) {
  for (const Loaded& one : loaded)
    if (one.module != nullptr && one.name == name) return one.module;
  return nullptr;
}

void keep(const std::string& name, const OwnModule* module) ACCEL_REQUIRES(loading) {
  for (Loaded& one : loaded)
    if (one.module == nullptr) {
      one = {name, module};
      return;
    }
}

const OwnModule* load(const std::string& name, uint32_t abi, std::string& reason) {
  const std::string folder = own_folder(reason);
  if (folder.empty()) return nullptr;
  const std::string file = "libaccel-" + name + ".so";
  for (const std::string& path : {folder + "/" + file, folder + "/../lib/" + file, file}) {
    void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (handle == nullptr) {
      if (const char* text = dlerror()) reason += (reason.empty() ? "" : "; ") + std::string(text);
      continue;
    }
    const auto* module = static_cast<const OwnModule*>(dlsym(handle, ("accel_" + name + "_module").c_str()));
    if (module != nullptr && module->abi == abi) {
      if (memory::for_modules != nullptr) *module->memory = *memory::for_modules;
      return module;
    }
    reason = path + " belongs to another version of libaccel: install both from the same build";
    break;
  }
  return nullptr;
}

}  // namespace

const void* load_own_module(const std::string& name, uint32_t abi, std::string& reason) {
  const MutexLock lock(loading);
  const OwnModule* module = find_loaded(name);
  if (module == nullptr && (module = load(name, abi, reason)) != nullptr) keep(name, module);
  return module;
}

}  // namespace accel
