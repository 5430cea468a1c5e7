#include "model/front/clock.h"

#include <endian.h>
#include <rdma/mlx5-abi.h>

namespace model {
namespace {

constexpr uint32_t kShift = 21;
constexpr uint32_t kMult = 13421773;  // 6.4 ns a tick, as 2^-21 ns
constexpr uint64_t kMask = (1ull << 41) - 1;

}  // namespace

/// The counter is read as two big-endian halves, the upper one again behind the lower.
void ClockPages::tick(uint64_t now) {
  if (counter_ == nullptr) return;
  auto* word = reinterpret_cast<uint64_t*>(counter_ + kCounterAt);
  __atomic_store_n(word, htobe64(Device::ticks(now)), __ATOMIC_RELEASE);
}

void ClockPages::set_parameters(uint64_t now) {
  if (info_ == nullptr) return;
  auto* page = reinterpret_cast<mlx5_ib_clock_info*>(info_);
  const uint32_t sign = __atomic_load_n(&page->sign, __ATOMIC_RELAXED);
  __atomic_store_n(&page->sign, sign | MLX5_IB_CLOCK_INFO_KERNEL_UPDATING, __ATOMIC_SEQ_CST);
  const uint64_t ticks = Device::ticks(now);
  page->nsec = kClockEpoch + Device::time_of_tick(ticks);
  page->cycles = ticks & kMask;
  page->frac = 0;
  page->mult = kMult;
  page->shift = kShift;
  page->mask = kMask;
  page->overflow_period = 10'000'000'000;
  __atomic_store_n(&page->sign, (sign & ~1u) + 2, __ATOMIC_SEQ_CST);
}

}  // namespace model
