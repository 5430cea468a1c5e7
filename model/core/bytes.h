// Big-endian loads and stores, and bytes as text for the checker's reports.
#pragma once

#include <endian.h>

#include <cstdint>
#include <cstring>
#include <span>
#include <string>

namespace model {

inline uint16_t load16(const uint8_t* p) { return static_cast<uint16_t>(p[0] << 8 | p[1]); }

inline uint32_t load32(const uint8_t* p) { return static_cast<uint32_t>(load16(p)) << 16 | load16(p + 2); }

inline uint64_t load64(const uint8_t* p) { return static_cast<uint64_t>(load32(p)) << 32 | load32(p + 4); }

inline void store16(uint8_t* p, uint32_t v) {
  p[0] = static_cast<uint8_t>(v >> 8);
  p[1] = static_cast<uint8_t>(v);
}

inline void store32(uint8_t* p, uint32_t v) {
  store16(p, v >> 16);
  store16(p + 2, v);
}

inline void store64(uint8_t* p, uint64_t v) {
  store32(p, static_cast<uint32_t>(v >> 32));
  store32(p + 4, static_cast<uint32_t>(v));
}

/// A doorbell record as the device reads it: what the driver stored before it is visible after it.
inline uint32_t read_record(const uint32_t* p) { return be32toh(__atomic_load_n(p, __ATOMIC_ACQUIRE)); }

inline std::string hex(std::span<const uint8_t> bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (i != 0 && i % 4 == 0) text += ' ';
    text += kDigits[bytes[i] >> 4];
    text += kDigits[bytes[i] & 15];
  }
  return text;
}

}  // namespace model
