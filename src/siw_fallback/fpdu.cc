#include "siw_fallback/fpdu.h"

#include <algorithm>

namespace accel::siw {
namespace {

constexpr size_t kLongHead = kFpduLengthSize + kMinUlpdu;

/// Moves bytes over until `held` has `target`, or `in` is used up.
bool hold(std::vector<uint8_t>& held, Bytes& in, size_t target) {
  const size_t n = std::min(target - held.size(), in.size());
  held.insert(held.end(), in.begin(), in.begin() + static_cast<ptrdiff_t>(n));
  in = in.subspan(n);
  return held.size() == target;
}

}  // namespace

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
  begin_frame();
  const bool direct = held_.empty() && in.size() >= kFpduLengthSize;
  if (!direct && held_.size() < kFpduLengthSize && !hold(held_, in, kFpduLengthSize)) return Violation::none;
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
  const Bytes here = in.first(std::min(in.size(), place_.size() - placed_));
  std::copy(here.begin(), here.end(), landing().begin());
  in = in.subspan(here.size());
  landed(here.size());
  if (placed_ < place_.size() || !hold(held_, in, size - place_.size())) return Violation::none;
  frame_ = held_;
  taken_ = true;
  return place_.empty() ? check(ulpdu) : check_placed(ulpdu);
}

void FpduParser::begin_frame() {
  if (!taken_) return;
  held_.clear();
  taken_ = false;
  place_ = {};
  placed_ = 0;
}

bool FpduParser::begins_long(Bytes& in) {
  begin_frame();
  const size_t held = held_.size(), here = held + in.size();
  if (held >= kLongHead || here < kFpduLengthSize) return false;
  const auto byte = [&](size_t i) { return i < held ? held_[i] : in[i - held]; };
  const size_t length = size_t{byte(0)} << 8 | byte(1);
  if (length < kLongUlpdu || here >= fpdu_size(length)) return false;
  return hold(held_, in, kLongHead);
}

void FpduParser::place(MutableBytes where) {
  place_ = where;
  placed_ = 0;
  sum_ = {};
  if (crc_) sum_.add(held_);
}

void FpduParser::landed(size_t n) {
  if (crc_) sum_.add(landing().first(n));
  placed_ += n;
}

Violation FpduParser::check_placed(Bytes& ulpdu) {
  const Bytes tail = frame_.subspan(kLongHead);
  const size_t pad = tail.size() - kFpduCrcSize;
  if (crc_ && sum_.add(tail.first(pad)).value() != load_le<uint32_t>(tail, pad)) {
    in_one_piece();
    return Violation::fpdu_crc;
  }
  ulpdu = header();
  return Violation::none;
}

Bytes FpduParser::in_one_piece() {
  if (!place_.empty()) {
    held_.insert(held_.begin() + kLongHead, place_.begin(), place_.end());
    frame_ = held_;
    place_ = {};
    placed_ = 0;
  }
  return frame_.subspan(kFpduLengthSize, load_be<uint16_t>(frame_, 0));
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
