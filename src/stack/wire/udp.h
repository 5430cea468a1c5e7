// RFC 768.
#pragma once

#include "stack/wire/be.h"

namespace accel {

struct UdpHeader {
  Be<uint16_t> source, destination, length, checksum;
};
static_assert(sizeof(UdpHeader) == 8 && alignof(UdpHeader) == 1);

}  // namespace accel
