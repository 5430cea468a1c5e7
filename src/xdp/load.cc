// The way to libaccel-xdp.so.
#include "base/own_module.h"
#include "xdp/module.h"

namespace accel {

Result<std::unique_ptr<XdpPort>> XdpPort::open(const XdpOptions& options, FramePool& pool, std::string* why) {
  std::string reason;
  const auto* module = static_cast<const xdp::Module*>(load_own_module("xdp", xdp::kModuleAbi, reason));
  if (module == nullptr) {
    if (why) *why = "cannot load the AF_XDP module: " + reason;
    return err(ELIBACC);
  }
  return module->open(options, pool, why);
}

}  // namespace accel
