// The way to libaccel-xdp.so.
#include <atomic>

#include "base/own_module.h"
#include "base/private_fds.h"
#include "xdp/accept_queue.h"
#include "xdp/module.h"

namespace accel {
namespace {

std::atomic<const xdp::Module*> loaded = nullptr;

const xdp::Module* find_module(std::string& reason) {
  const auto* module = static_cast<const xdp::Module*>(load_own_module("xdp", xdp::kModuleAbi, reason));
  loaded = module;
  return module;
}

const xdp::Module* module_of(std::string* why) {
  std::string reason;
  const xdp::Module* module = find_module(reason);
  if (module == nullptr && why != nullptr) *why = "cannot load the AF_XDP module: " + reason;
  return module;
}

}  // namespace

bool XdpPort::load_module(std::string& why) { return find_module(why) != nullptr; }

Result<std::unique_ptr<XdpPort>> XdpPort::open(const XdpOptions& options, FramePool& pool, std::string* why) {
  const xdp::Module* module = module_of(why);
  if (module == nullptr) return err(ELIBACC);
  return module->open(options, pool, why);
}

void XdpPort::forget_inherited() {
  if (const xdp::Module* module = loaded) module->forget_inherited();
}

Result<std::unique_ptr<AcceptQueue>> AcceptQueue::open(std::string* why) {
  const xdp::Module* module = module_of(why);
  if (module == nullptr) return err(ELIBACC);
  return module->open_accept_queue(&note_private, why);
}

}  // namespace accel
