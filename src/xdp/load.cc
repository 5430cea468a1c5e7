// Finds and loads libaccel-xdp.so: beside the object that this code is linked into, else in ../lib of it,
// else as the dynamic linker finds it. Stays loaded.
#include <dlfcn.h>

#include "xdp/module.h"

namespace accel {
namespace {

const xdp::Module* load(std::string* why) {
  std::string folder;
  Dl_info self{};
  if (dladdr(reinterpret_cast<void*>(&load), &self) != 0 && self.dli_fname) {
    folder = self.dli_fname;
    const size_t slash = folder.rfind('/');
    folder = slash == std::string::npos ? "." : folder.substr(0, slash);
  }
  std::string reason;
  for (const std::string& path :
       {folder + "/libaccel-xdp.so", folder + "/../lib/libaccel-xdp.so", std::string("libaccel-xdp.so")}) {
    void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!handle) {
      if (const char* text = dlerror()) reason += (reason.empty() ? "" : "; ") + std::string(text);
      continue;
    }
    auto* module = static_cast<const xdp::Module*>(dlsym(handle, "accel_xdp_module"));
    if (module && module->abi == xdp::kModuleAbi) return module;
    reason = path + " belongs to another version of libaccel: install both from the same build";
    break;
  }
  if (why) *why = "cannot load the AF_XDP module: " + reason;
  return nullptr;
}

}  // namespace

Result<std::unique_ptr<XdpPort>> XdpPort::open(const XdpOptions& options, FramePool& pool, std::string* why) {
  const xdp::Module* module = load(why);
  if (!module) return err(ELIBACC);
  return module->open(options, pool, why);
}

}  // namespace accel
