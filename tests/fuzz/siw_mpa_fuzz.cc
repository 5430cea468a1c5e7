// MPA set-up frames: what is parsed can be built again, and every request gets an answer that its sender can
// judge.
#include <cstdlib>
#include <vector>

#include "siw_fallback/mpa.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace accel::siw;
  if (size == 0) return 0;
  const auto kind = data[0] & 1 ? MpaKind::kReply : MpaKind::kRequest;
  const MpaOffer offer{.crc = (data[0] & 2) != 0, .rtr = static_cast<uint8_t>(data[0] >> 2 & 7)};
  // The key is given: guessing it is no test.
  std::vector<uint8_t> wire(mpa_key(kind).begin(), mpa_key(kind).end());
  wire.insert(wire.end(), data + 1, data + size);
  const MpaParsed p = parse_mpa(kind, wire);
  if (p.size > wire.size()) abort();
  if (p.violation != Violation::none || p.size == 0) return 0;
  std::vector<uint8_t> again(kMpaMaxFrame);
  if (build_mpa(p.frame, again) != p.size) abort();
  if (kind == MpaKind::kReply) {
    conclude(make_request(offer, {}), p.frame);
    return 0;
  }
  MpaFrame reply;
  const MpaAgreement ours = answer_request(p.frame, offer, {}, reply);
  again.resize(build_mpa(reply, again));
  const MpaParsed back = parse_mpa(MpaKind::kReply, again);
  if (back.violation != Violation::none || back.size != again.size()) abort();
  const MpaAgreement theirs = conclude(p.frame, back.frame);
  if (ours.violation == Violation::none && theirs.violation == Violation::none && ours.rtr != theirs.rtr)
    abort();
  if (ours.violation != Violation::none && theirs.violation != Violation::mpa_rejected) abort();
  return 0;
}
