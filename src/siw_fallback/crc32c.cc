#include "siw_fallback/crc32c.h"

#include <isa-l/crc.h>

namespace accel::siw {

Crc32c& Crc32c::add(Bytes bytes) {
  // ISA-L counts in int; an FPDU is at most 64 KB. It does not write, though its parameter is not const.
  if (!bytes.empty()) {
    state_ = crc32_iscsi(const_cast<unsigned char*>(bytes.data()), static_cast<int>(bytes.size()), state_);
  }
  return *this;
}

}  // namespace accel::siw
