// SipHash-2-4 (Aumasson, Bernstein 2012) over a tuple: keys ISNs (RFC 6528) and timestamp offsets (RFC 7323
// section 5.4).
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <span>

namespace accel {

inline uint64_t siphash(const std::array<uint64_t, 2>& key, std::span<const uint8_t> in) {
  uint64_t v0 = key[0] ^ 0x736f6d6570736575ULL, v1 = key[1] ^ 0x646f72616e646f6dULL;
  uint64_t v2 = key[0] ^ 0x6c7967656e657261ULL, v3 = key[1] ^ 0x7465646279746573ULL;
  auto round = [&] {
    v0 += v1, v1 = std::rotl(v1, 13) ^ v0, v0 = std::rotl(v0, 32);
    v2 += v3, v3 = std::rotl(v3, 16) ^ v2;
    v0 += v3, v3 = std::rotl(v3, 21) ^ v0;
    v2 += v1, v1 = std::rotl(v1, 17) ^ v2, v2 = std::rotl(v2, 32);
  };
  auto word = [&](uint64_t m) {
    v3 ^= m;
    round(), round();
    v0 ^= m;
  };
  size_t whole = in.size() & ~size_t{7};
  for (size_t i = 0; i < whole; i += 8) {
    uint64_t m;
    std::memcpy(&m, &in[i], 8);
    word(m);
  }
  uint64_t last = uint64_t{in.size()} << 56;
  for (size_t i = whole; i < in.size(); ++i) last |= uint64_t{in[i]} << (8 * (i - whole));
  word(last);
  v2 ^= 0xff;
  round(), round(), round(), round();
  return v0 ^ v1 ^ v2 ^ v3;
}

}  // namespace accel
