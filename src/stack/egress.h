// Headers in front of segments.
#pragma once

#include "stack/core.h"
#include "stack/wire/checksum.h"

namespace accel {

/// Writes the Ethernet and IP headers of `t` to `out` for `l4_length` bytes behind them (for a TSO frame: all
/// of them; the device corrects each cut). `ecn`: 0..3. Sums of the template are in memory order
/// (wire/checksum.h). Returns t.length. IPv4's `id` may be 0 with DF (RFC 6864 section 4.1).
inline uint32_t put_headers(uint8_t* out, const HeaderTemplate& t, uint32_t l4_length, uint8_t ecn,
                            uint16_t id = 0) {
  std::memcpy(out, t.bytes.data(),
              t.bytes.size());  // constant size: a few vector stores; callers have the room
  uint8_t* ip = out + t.ip_offset;
  if (!t.v6) {
    uint16_t total = static_cast<uint16_t>(20 + l4_length);
    ip[2] = static_cast<uint8_t>(total >> 8);
    ip[3] = static_cast<uint8_t>(total);
    ip[4] = static_cast<uint8_t>(id >> 8);
    ip[5] = static_cast<uint8_t>(id);
    ip[1] = static_cast<uint8_t>(ip[1] | ecn);
    store_checksum(ip + 10, finish_sum(uint64_t{t.ip_sum} + sum_of(total) + sum_of(id) + sum_of(ecn)));
  } else {
    ip[4] = static_cast<uint8_t>(l4_length >> 8);
    ip[5] = static_cast<uint8_t>(l4_length);
    ip[1] = static_cast<uint8_t>(ip[1] | ecn << 4);
  }
  return t.length;
}

/// The pseudo-header's sum for `l4_length` bytes; the start of an L4 checksum. With Packet::checksum_offload
/// the field holds its fold (not inverted), with TSO that of length 0.
inline uint64_t pseudo_sum(const HeaderTemplate& t, uint32_t l4_length) {
  return uint64_t{t.pseudo_sum} + sum_of(static_cast<uint16_t>(l4_length));
}

}  // namespace accel
