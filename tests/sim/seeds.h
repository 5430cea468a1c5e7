// How many seeds a randomised test runs, and where to begin: ACCEL_SIM_SEEDS, ACCEL_SIM_FIRST.
#pragma once

#include <cstdint>
#include <cstdlib>

namespace accel::sim {

#if defined(__has_feature)  // clang's way to say what gcc's __SANITIZE_ADDRESS__ does
#if __has_feature(address_sanitizer)
#define ACCEL_SANITIZES_ADDRESSES
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(ACCEL_SANITIZES_ADDRESSES)
constexpr uint64_t kSanitizerShare = 10;
#else
constexpr uint64_t kSanitizerShare = 1;
#endif

inline uint64_t number_from(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text ? std::strtoull(text, nullptr, 10) : otherwise;
}
inline uint64_t seeds(uint64_t otherwise) {
  return number_from("ACCEL_SIM_SEEDS", otherwise / kSanitizerShare + 1);
}
inline uint64_t first_seed() { return number_from("ACCEL_SIM_FIRST", 1); }

}  // namespace accel::sim
