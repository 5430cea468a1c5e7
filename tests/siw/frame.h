// Frames for peers that the tests play themselves.
#pragma once

#include <vector>

#include "siw_fallback/fpdu.h"
#include "siw_fallback/rdmap.h"

namespace accel::siw::test {

inline std::vector<uint8_t> frame(const Segment& s, Bytes payload, bool crc) {
  const SegmentHead head = build_head(s, payload.size());
  const FpduTail tail = fpdu_tail(head.view(), payload, crc);
  std::vector<uint8_t> out;
  for (Bytes part : {head.view(), payload, tail.view()}) out.insert(out.end(), part.begin(), part.end());
  return out;
}

}  // namespace accel::siw::test
