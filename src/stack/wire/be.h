// Big-endian fields of wire structures: byte-aligned, converted where they are read and written.
#pragma once

#include <array>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>

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
