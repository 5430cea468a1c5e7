// CRC32C as MPA uses it (RFC 5044 §4.1): initial value and final complement all ones. By ISA-L.
#pragma once

#include "siw_fallback/bytes.h"

namespace accel::siw {

class Crc32c {
 public:
  Crc32c& add(Bytes bytes);
  uint32_t value() const { return ~state_; }

 private:
  uint32_t state_ = 0xffffffff;
};

}  // namespace accel::siw
