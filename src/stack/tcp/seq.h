// Sequence number arithmetic (RFC 9293 section 3.4).
#pragma once

#include <cstdint>

namespace accel {

constexpr bool seq_lt(uint32_t a, uint32_t b) { return static_cast<int32_t>(a - b) < 0; }
constexpr bool seq_le(uint32_t a, uint32_t b) { return static_cast<int32_t>(a - b) <= 0; }
constexpr bool seq_gt(uint32_t a, uint32_t b) { return static_cast<int32_t>(a - b) > 0; }
constexpr bool seq_ge(uint32_t a, uint32_t b) { return static_cast<int32_t>(a - b) >= 0; }
constexpr uint32_t seq_max(uint32_t a, uint32_t b) { return seq_gt(a, b) ? a : b; }
constexpr uint32_t seq_min(uint32_t a, uint32_t b) { return seq_lt(a, b) ? a : b; }

}  // namespace accel
