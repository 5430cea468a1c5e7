// The one symbol of libaccel-xdp.so (base/own_module.h). Both sides come from one build: kModuleAbi guards
// against a stale file.
#pragma once

#include "base/own_module.h"
#include "xdp/accept_queue.h"
#include "xdp/xdp_port.h"

namespace accel::xdp {

constexpr uint32_t kModuleAbi = 8;

struct Module : OwnModule {
  Result<std::unique_ptr<XdpPort>> (*open)(const XdpOptions&, FramePool&, std::string* why);
  Result<std::unique_ptr<AcceptQueue>> (*open_accept_queue)(void (*noted)(int fd, bool open),
                                                            std::string* why);
  void (*forget_inherited)();
};

Result<std::unique_ptr<AcceptQueue>> open_accept_queue(void (*noted)(int fd, bool open), std::string* why);

}  // namespace accel::xdp

extern "C" __attribute__((visibility("default"))) const accel::xdp::Module accel_xdp_module;
