#include "siw_fallback/fpdu.h"

#include <algorithm>

#include "siw_fallback/crc32c.h"

namespace accel::siw {

FpduTail fpdu_tail(Bytes head, Bytes payload, bool crc) {
  FpduTail tail;
  const size_t pad = fpdu_pad(head.size() - kFpduLengthSize + payload.size());
  tail.size = pad + kFpduCrcSize;
  if (!crc) return tail;
  const uint32_t sum = Crc32c().add(head).add(payload).add(Bytes(tail.bytes).first(pad)).value();
  store_le(tail.bytes, pad, sum);
  return tail;
}

Violation FpduParser::take(Bytes& in, Bytes& ulpdu) {
  ulpdu = {};
  if (taken_) held_.clear(), taken_ = false;
  const auto hold = [&](size_t target) {  // moves bytes over until held_ has `target`, or `in` is used up
    const size_t n = std::min(target - held_.size(), in.size());
    held_.insert(held_.end(), in.begin(), in.begin() + static_cast<ptrdiff_t>(n));
    in = in.subspan(n);
    return held_.size() == target;
  };
  const bool direct = held_.empty() && in.size() >= kFpduLengthSize;
  if (!direct && held_.size() < kFpduLengthSize && !hold(kFpduLengthSize)) return Violation::none;
  const size_t length = load_be<uint16_t>(direct ? in : Bytes(held_), 0);
  if (length < kMinUlpdu) {
    frame_ = (direct ? in : Bytes(held_)).first(kFpduLengthSize);
    return Violation::fpdu_short;
  }
  const size_t size = fpdu_size(length);
  if (direct && in.size() >= size) {
    frame_ = in.first(size);
    in = in.subspan(size);
    return check(ulpdu);
  }
  if (!hold(size)) return Violation::none;
  frame_ = held_;
  taken_ = true;
  return check(ulpdu);
}

Violation FpduParser::check(Bytes& ulpdu) const {
  const size_t covered = frame_.size() - kFpduCrcSize;
  if (crc_ && Crc32c().add(frame_.first(covered)).value() != load_le<uint32_t>(frame_, covered)) {
    return Violation::fpdu_crc;
  }
  ulpdu = frame_.subspan(kFpduLengthSize, load_be<uint16_t>(frame_, 0));
  return Violation::none;
}

}  // namespace accel::siw
