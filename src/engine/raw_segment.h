// A TCP segment without options, by a raw socket: for flows that no port of ours sends for any more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/ip.h"
#include "base/result.h"
#include "engine/inject.h"

namespace accel {

struct RawSegment {
  /// Bytes of payload that fit into any MTU that IPv6 permits (RFC 8200 section 5).
  static constexpr size_t kMostPayload = 1220;
  Endpoint from, to;
  uint32_t seq = 0, ack = 0;
  uint8_t flags = 0;  ///< TH_...
  uint16_t window = 0;
  uint8_t ttl = 64;
  int ifindex = 0;                     ///< the scope of a link-local `to`
  std::span<const uint8_t> payload{};  ///< at most kMostPayload bytes
};

/// The kernel routes it, so a segment to a local address comes in as if `from` had sent it.
Result<void> send_raw(const RawSegment& segment);
/// The same by sockets that stay open for the next segment.
Result<void> send_raw(Injector& injector, const RawSegment& segment);

}  // namespace accel
