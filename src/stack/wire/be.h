// Big-endian fields of wire structures: byte-aligned, converted where they are read and written.
#pragma once

#include <array>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

namespace accel {

template <std::unsigned_integral T>
struct Be {
  std::array<uint8_t, sizeof(T)> raw;

  constexpr Be& operator=(T host) {
    for (size_t i = 0; i < sizeof(T); ++i) raw[i] = static_cast<uint8_t>(host >> (8 * (sizeof(T) - 1 - i)));
    return *this;
  }
  constexpr operator T() const {  // NOLINT: a field reads as its value
    T host = 0;
    for (uint8_t b : raw) host = static_cast<T>(host << (sizeof(T) > 1 ? 8 : 0) | b);
    return host;
  }
};

/// For parsers that also run at compile time. The caller has checked the size.
constexpr uint16_t get_be16(std::span<const uint8_t> b, size_t at) {
  return static_cast<uint16_t>(b[at] << 8 | b[at + 1]);
}
constexpr uint32_t get_be32(std::span<const uint8_t> b, size_t at) {
  return uint32_t{get_be16(b, at)} << 16 | get_be16(b, at + 2);
}

/// The wire structure that lies at `at`. The caller has checked that sizeof(T) bytes are there.
template <class T>
T& wire_at(uint8_t* at) {
  static_assert(alignof(T) == 1 && std::is_trivially_copyable_v<T>);
  return *reinterpret_cast<T*>(at);
}
template <class T>
const T& wire_at(const uint8_t* at) {
  static_assert(alignof(T) == 1 && std::is_trivially_copyable_v<T>);
  return *reinterpret_cast<const T*>(at);
}

}  // namespace accel
