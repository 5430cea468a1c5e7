// Named counters, generated from counters.def. A process publishes one array of them (tools read it).
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace accel {

enum class Counter : uint16_t {
#define COUNTER(name, help) name,
#include "base/counters.def"
#undef COUNTER
  kCount
};

struct CounterText {
  const char* name;
  const char* help;
};

inline constexpr CounterText kCounterTexts[] = {
#define COUNTER(name, help) {#name, help},
#include "base/counters.def"
#undef COUNTER
};

/// Written by one thread at a time (the worker's lock), read by anybody: relaxed loads and stores, no locked
/// add.
class Counters {
 public:
  void add(Counter c, uint64_t n = 1) {
    auto& v = values_[static_cast<size_t>(c)];
    v.store(v.load(std::memory_order_relaxed) + n, std::memory_order_relaxed);
  }
  uint64_t get(Counter c) const { return values_[static_cast<size_t>(c)].load(std::memory_order_relaxed); }

 private:
  std::array<std::atomic<uint64_t>, static_cast<size_t>(Counter::kCount)> values_{};
};

}  // namespace accel
