// A TCP segment without payload or options, by a raw socket: for flows that no port of ours sends for any
// more.
#pragma once

#include <cstdint>

#include "base/ip.h"
#include "base/result.h"

namespace accel {

struct RawSegment {
  Endpoint from, to;
  uint32_t seq = 0, ack = 0;
  uint8_t flags = 0;  ///< TH_...
  uint16_t window = 0;
  uint8_t ttl = 64;
  int ifindex = 0;  ///< the scope of a link-local `to`
};

/// The kernel routes it, so a segment to a local address comes in as if `from` had sent it.
Result<void> send_raw(const RawSegment& segment);

}  // namespace accel
