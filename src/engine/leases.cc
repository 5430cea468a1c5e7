#include "engine/leases.h"

#include <utility>

namespace accel {
namespace {

/// Counts on in forked children.
constinit uint64_t last_serial = 0;

}  // namespace

bool Leases::make_room() {
  if (!free_.empty()) return true;
  if (slots_.size() >> kSlotBits != 0) return false;
  if (free_.capacity() <= slots_.size())
    free_.reserve(2 * slots_.size() + 1);  // so that end() needs no memory
  slots_.emplace_back();
  free_.push_back(static_cast<uint32_t>(slots_.size() - 1));
  return true;
}

uint64_t Leases::begin(Lent lent) {
  const uint32_t at = free_.back();
  free_.pop_back();
  memory_ += lent.memory();
  slots_[at] = {++last_serial << kSlotBits | at, std::move(lent)};
  return slots_[at].number;
}

bool Leases::end(uint64_t number) {
  const uint64_t at = number & ((uint64_t{1} << kSlotBits) - 1);
  if (number == 0 || at >= slots_.size() || slots_[at].number != number) return false;
  const Lent lent = std::exchange(slots_[at], {}).lent;
  memory_ -= lent.memory();
  free_.push_back(static_cast<uint32_t>(at));
  return true;
}

}  // namespace accel
