#include "base/own_module.h"

#include <dlfcn.h>

namespace accel {
namespace {

std::string own_folder() {
  Dl_info self{};
  if (dladdr(reinterpret_cast<void*>(&load_own_module), &self) == 0 || self.dli_fname == nullptr) return ".";
  const std::string file = self.dli_fname;
  const size_t slash = file.rfind('/');
  return slash == std::string::npos ? "." : file.substr(0, slash);
}

}  // namespace

const void* load_own_module(const std::string& name, uint32_t abi, std::string& reason) {
  const std::string file = "libaccel-" + name + ".so";
  const std::string folder = own_folder();
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

}  // namespace accel
