// The Internet checksum (RFC 1071): sums of 16-bit words as they lie in memory, so no byte is swapped on the
// way.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace accel {

/// A partial sum is any uint64_t that is congruent to the ones-complement sum modulo 0xffff; partial sums of
/// parts that begin at even offsets may be added (carries must not be lost: use add_sums where they may be
/// large).
constexpr uint64_t add_sums(uint64_t a, uint64_t b) {
  uint64_t s = a + b;
  return s + (s < a);
}

/// 16 bits in memory order.
constexpr uint16_t fold_sum(uint64_t sum) {
  sum = (sum >> 32) + (sum & 0xffffffff);
  sum = (sum >> 32) + (sum & 0xffffffff);
  sum = (sum >> 16) + (sum & 0xffff);
  sum = (sum >> 16) + (sum & 0xffff);
  return static_cast<uint16_t>(sum);
}

/// What goes into a checksum field, in memory order: store_checksum() puts it there.
constexpr uint16_t finish_sum(uint64_t sum) { return static_cast<uint16_t>(~fold_sum(sum)); }

inline void store_checksum(void* field, uint16_t memory_order) { std::memcpy(field, &memory_order, 2); }

/// A 16-bit number in host order as a summand.
constexpr uint64_t sum_of(uint16_t host) { return static_cast<uint16_t>(host << 8 | host >> 8); }
static_assert(std::endian::native == std::endian::little, "sum_of and the sums assume it");

/// For a part that begins at an odd offset of the whole (RFC 1071 section 2 (B)).
constexpr uint64_t swap_sum(uint64_t sum) {
  uint16_t f = fold_sum(sum);
  return static_cast<uint16_t>(f << 8 | f >> 8);
}

/// A few bytes whose number is known where it is compiled: headers and addresses.
template <size_t kBytes>
inline uint64_t sum_fixed(const uint8_t* p) {
  static_assert(kBytes % 4 == 0 && kBytes <= 64);
  uint64_t sum = 0;
  for (size_t i = 0; i < kBytes; i += 4) {
    uint32_t w;
    std::memcpy(&w, p + i, 4);
    sum += w;
  }
  return sum;
}

uint64_t sum_bytes(const uint8_t* p, size_t n);
/// Copies and sums in one go.
uint64_t copy_and_sum(uint8_t* to, const uint8_t* from, size_t n);

/// Sums parts of any lengths one after the other.
class PartSum {
 public:
  explicit PartSum(uint64_t start = 0) : sum_(start) {}
  void add(const uint8_t* p, size_t n) { join(sum_bytes(p, n), n); }
  void copy(uint8_t* to, const uint8_t* from, size_t n) { join(copy_and_sum(to, from, n), n); }
  uint64_t sum() const { return sum_; }

 private:
  void join(uint64_t part, size_t n) {
    sum_ = add_sums(sum_, odd_ ? swap_sum(part) : part);
    odd_ ^= n & 1;
  }
  uint64_t sum_;
  bool odd_ = false;
};

}  // namespace accel
