// FPDUs and segments: however the stream is cut, the same frames and the same verdict come out. [crc 1][piece
// 1][stream]
#include <cstdlib>
#include <vector>

#include "siw_fallback/fpdu.h"
#include "siw_fallback/rdmap.h"

namespace {

using namespace accel::siw;

struct Outcome {
  std::vector<std::vector<uint8_t>> frames;
  Violation violation = Violation::none;
  bool operator==(const Outcome&) const = default;
};

Outcome run(Bytes stream, bool crc, size_t piece) {
  Outcome out;
  FpduParser parser(crc);
  InboundOrder order;
  while (!stream.empty()) {
    Bytes in = stream.first(std::min(piece, stream.size()));
    stream = stream.subspan(in.size());
    for (;;) {
      Bytes ulpdu;
      out.violation = parser.take(in, ulpdu);
      if (out.violation != Violation::none) return out;
      if (ulpdu.empty()) break;
      out.frames.emplace_back(ulpdu.begin(), ulpdu.end());
      Segment s;
      out.violation = parse_segment(ulpdu, s);
      if (out.violation == Violation::none) out.violation = order.check(s, 64);
      if (out.violation != Violation::none) {
        const TerminateMessage m = build_terminate(out.violation, ulpdu);
        Terminate t;
        if (parse_terminate(m.view(), t) != Violation::none || t.siw_form) abort();
        if (t.code != terminate_code(out.violation)) abort();
        return out;
      }
      ReadRequest r;
      parse_read_request(s.payload, r);
      Terminate t;
      parse_terminate(s.payload, t);
    }
    if (!in.empty()) abort();
  }
  return out;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const Bytes stream(data + 2, size - 2);
  const bool crc = data[0] & 1;
  const Outcome whole = run(stream, crc, stream.size() + 1);
  if (!(run(stream, crc, 1) == whole) || !(run(stream, crc, 1 + data[1]) == whole)) abort();
  return 0;
}
