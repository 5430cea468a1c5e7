// writer.bpf.c as clang compiled it (an ELF object), embedded by embed.cmake.
#pragma once

#include <cstddef>

namespace accel::xdp {

extern const unsigned char kWriterObject[];
extern const size_t kWriterObjectSize;

}  // namespace accel::xdp
