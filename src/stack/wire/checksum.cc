#include "stack/wire/checksum.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace accel {
namespace {

uint64_t load64(const uint8_t* p) {
  uint64_t w;
  std::memcpy(&w, p, 8);
  return w;
}

/// The last 0..7 bytes, zero-padded behind as RFC 1071 pads.
template <bool kCopy>
uint64_t sum_tail(uint8_t* to, const uint8_t* from, size_t n) {
  uint64_t w = 0;
  std::memcpy(&w, from, n);
  if constexpr (kCopy) std::memcpy(to, &w, n);
  return (w & 0xffffffff) + (w >> 32);
}

/// 32-bit halves into 64-bit sums: no carry can be lost below 2^32 words.
template <bool kCopy>
uint64_t sum_words(uint8_t* to, const uint8_t* from, size_t n) {
  uint64_t low = 0, high = 0;
  for (; n >= 16; n -= 16, from += 16) {
    const uint64_t a = load64(from), b = load64(from + 8);
    low += (a & 0xffffffff) + (b & 0xffffffff);
    high += (a >> 32) + (b >> 32);
    if constexpr (kCopy) {
      std::memcpy(to, &a, 8);
      std::memcpy(to + 8, &b, 8);
      to += 16;
    }
  }
  if (n >= 8) {
    const uint64_t a = load64(from);
    low += a & 0xffffffff;
    high += a >> 32;
    if constexpr (kCopy) {
      std::memcpy(to, &a, 8);
      to += 8;
    }
    from += 8;
    n -= 8;
  }
  if (n) low += sum_tail<kCopy>(to, from, n);
  return add_sums(low, high);
}

#if defined(__x86_64__)
constexpr size_t kVectorFrom = 128;  ///< below this the plain loop wins

template <bool kCopy>
__attribute__((target("avx2"))) uint64_t sum_avx2(uint8_t* to, const uint8_t* from, size_t n) {
  const __m256i mask = _mm256_set1_epi64x(0xffffffff);
  __m256i low = _mm256_setzero_si256(), high = low, low2 = low, high2 = low;
  for (; n >= 64; n -= 64, from += 64) {
    const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 32));
    if constexpr (kCopy) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), a);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + 32), b);
      to += 64;
    }
    low = _mm256_add_epi64(low, _mm256_and_si256(a, mask));
    high = _mm256_add_epi64(high, _mm256_srli_epi64(a, 32));
    low2 = _mm256_add_epi64(low2, _mm256_and_si256(b, mask));
    high2 = _mm256_add_epi64(high2, _mm256_srli_epi64(b, 32));
  }
  const __m256i all = _mm256_add_epi64(_mm256_add_epi64(low, low2), _mm256_add_epi64(high, high2));
  uint64_t lanes[4];
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(lanes), all);
  const uint64_t sum = add_sums(lanes[0] + lanes[1], lanes[2] + lanes[3]);
  return n ? add_sums(sum, sum_words<kCopy>(to, from, n)) : sum;
}
#endif

template <bool kCopy>
uint64_t sum_any(uint8_t* to, const uint8_t* from, size_t n) {
#if defined(__x86_64__)
  if (n >= kVectorFrom && __builtin_cpu_supports("avx2")) return sum_avx2<kCopy>(to, from, n);
#endif
  return sum_words<kCopy>(to, from, n);
}

}  // namespace

uint64_t sum_bytes(const uint8_t* p, size_t n) { return sum_any<false>(nullptr, p, n); }

uint64_t copy_and_sum(uint8_t* to, const uint8_t* from, size_t n) { return sum_any<true>(to, from, n); }

}  // namespace accel
