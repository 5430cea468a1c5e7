// Reading and writing numbers in wire bytes, usable at compile time. MPA, DDP and RDMAP are big-endian.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

namespace accel::siw {

using Bytes = std::span<const uint8_t>;
using MutableBytes = std::span<uint8_t>;

/// The caller has checked that `at + sizeof(T)` is inside.
template <std::unsigned_integral T>
constexpr T load_be(Bytes b, size_t at) {
  T value = 0;
  for (size_t i = 0; i < sizeof(T); i++) value = static_cast<T>((uint64_t{value} << 8) | b[at + i]);
  return value;
}

template <std::unsigned_integral T>
constexpr void store_be(MutableBytes b, size_t at, T value) {
  for (size_t i = 0; i < sizeof(T); i++) b[at + i] = static_cast<uint8_t>(value >> (8 * (sizeof(T) - 1 - i)));
}

/// Little-endian: MPA's CRC, and what rsockets send in the order of a little-endian host.
template <std::unsigned_integral T>
constexpr T load_le(Bytes b, size_t at) {
  T value = 0;
  for (size_t i = sizeof(T); i-- > 0;) value = static_cast<T>((uint64_t{value} << 8) | b[at + i]);
  return value;
}

template <std::unsigned_integral T>
constexpr void store_le(MutableBytes b, size_t at, T value) {
  for (size_t i = 0; i < sizeof(T); i++) b[at + i] = static_cast<uint8_t>(value >> (8 * i));
}

}  // namespace accel::siw
