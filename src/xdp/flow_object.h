// flow.bpf.c as clang compiled it (an ELF object), embedded by embed.cmake.
#pragma once

#include <cstddef>

namespace accel::xdp {

extern const unsigned char kFlowObject[];
extern const size_t kFlowObjectSize;

}  // namespace accel::xdp
