// Reading and writing numbers in wire bytes, usable at compile time. MPA, DDP and RDMAP are big-endian.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

namespace accel::siw {

using Bytes = std::span<const uint8_t>;
using MutableBytes = std::span<uint8_t>;

template <std::unsigned_integral T>
constexpr T in_order(T value, std::endian order) {
  if (order == std::endian::native) return value;
  if constexpr (sizeof(T) == 2) return __builtin_bswap16(value);
  if constexpr (sizeof(T) == 4) return __builtin_bswap32(value);
  if constexpr (sizeof(T) == 8) return __builtin_bswap64(value);
}

/// The caller has checked that `at + sizeof(T)` is inside.
template <std::unsigned_integral T>
constexpr T load(Bytes b, size_t at, std::endian order) {
  std::array<uint8_t, sizeof(T)> raw;
  std::copy_n(b.begin() + static_cast<ptrdiff_t>(at), sizeof(T), raw.begin());
  return in_order(std::bit_cast<T>(raw), order);
}

template <std::unsigned_integral T>
constexpr void store(MutableBytes b, size_t at, T value, std::endian order) {
  const auto raw = std::bit_cast<std::array<uint8_t, sizeof(T)>>(in_order(value, order));
  std::copy_n(raw.begin(), sizeof(T), b.begin() + static_cast<ptrdiff_t>(at));
}

template <std::unsigned_integral T>
constexpr T load_be(Bytes b, size_t at) {
  return load<T>(b, at, std::endian::big);
}

template <std::unsigned_integral T>
constexpr void store_be(MutableBytes b, size_t at, T value) {
  store(b, at, value, std::endian::big);
}

/// Little-endian: MPA's CRC, and what rsockets send in the order of a little-endian host.
template <std::unsigned_integral T>
constexpr T load_le(Bytes b, size_t at) {
  return load<T>(b, at, std::endian::little);
}

template <std::unsigned_integral T>
constexpr void store_le(MutableBytes b, size_t at, T value) {
  store(b, at, value, std::endian::little);
}

}  // namespace accel::siw
