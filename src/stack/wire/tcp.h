// RFC 9293 section 3.1.
#pragma once

#include "stack/wire/be.h"

namespace accel {

struct TcpHeader {
  Be<uint16_t> source, destination;
  Be<uint32_t> sequence, acknowledgment;
  uint8_t data_offset;  ///< upper 4 bits, in words
  uint8_t flags;
  Be<uint16_t> window, checksum, urgent;
};
static_assert(sizeof(TcpHeader) == 20 && alignof(TcpHeader) == 1);

/// Of a segment that the peer has had already, and therefore answers (RFC 9293 section 3.8.4), as of the last
/// one sent. Firewalls on the way know these numbers for the connection's.
struct TcpNumbers {
  uint32_t sequence;  ///< SND.UNA - 1
  uint32_t acknowledgment;
};

}  // namespace accel
