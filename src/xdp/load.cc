// The way to libaccel-xdp.so.
#include "base/own_module.h"
#include "xdp/module.h"

namespace accel {
namespace {

const xdp::Module* find_module(std::string& reason) {
  return static_cast<const xdp::Module*>(load_own_module("xdp", xdp::kModuleAbi, reason));
}

}  // namespace

bool XdpPort::load_module(std::string& why) { return find_module(why) != nullptr; }

Result<std::unique_ptr<XdpPort>> XdpPort::open(const XdpOptions& options, FramePool& pool, std::string* why) {
  std::string reason;
  const auto* module = find_module(reason);
  if (module == nullptr) {
    if (why) *why = "cannot load the AF_XDP module: " + reason;
    return err(ELIBACC);
  }
  return module->open(options, pool, why);
}

}  // namespace accel
