// Who agrees to what while an MPA connection is set up (RFC 5044 §7.1, RFC 6581 §9).
#include "siw_fallback/mpa.h"

#include <algorithm>
#include <bit>

namespace accel::siw {
namespace {

Rtr choose_rtr(uint8_t common) {
  for (Rtr kind : {kRtrWrite, kRtrRead, kRtrSend}) {  // the kernel's siw prefers the Write as well
    if (common & kind) return kind;
  }
  return kRtrNone;
}

uint16_t limit_depth(uint16_t wanted) {
  return wanted == kMpaDepthUnnegotiated ? wanted : std::min(wanted, kMaxReadDepth);
}

MpaAgreement refuse(Violation v) { return {.violation = v}; }

}  // namespace

MpaFrame make_request(const MpaOffer& offer, Bytes private_data) {
  MpaFrame f;
  f.crc = offer.crc;
  f.long_frames = offer.long_frames;
  f.enhanced = offer.enhanced;
  f.peer_to_peer = offer.enhanced && offer.peer_to_peer;
  f.rtr = f.peer_to_peer ? offer.rtr : uint8_t{kRtrNone};
  f.ird = f.ord = kMaxReadDepth;
  f.private_data = private_data;
  return f;
}

MpaFrame make_refusal(const MpaFrame& request) {
  MpaFrame f;
  f.kind = MpaKind::kReply;
  f.rejected = true;
  f.crc = request.crc;
  // A peer of revision 1 understands a reply of revision 1 only.
  f.revision = std::min(request.revision, kMpaRevision);
  return f;
}

MpaAgreement answer_request(const MpaFrame& request, const MpaOffer& offer, Bytes private_data,
                            MpaFrame& reply) {
  reply = make_refusal(request);
  // Revision 1 has no way to agree on Reads: the kernel's siw then never completes one.
  if (request.revision != kMpaRevision) return refuse(Violation::mpa_revision);
  if (request.markers) return refuse(Violation::mpa_markers);
  MpaAgreement agreed;
  const bool peer_to_peer = request.enhanced && request.peer_to_peer;
  if (peer_to_peer) agreed.rtr = choose_rtr(request.rtr & offer.rtr);
  if (peer_to_peer && agreed.rtr == kRtrNone) return refuse(Violation::mpa_no_rtr);
  // RFC 5044 §7.1: one side's wish for CRCs is enough.
  agreed.crc = request.crc || offer.crc;
  agreed.long_frames = request.long_frames && offer.long_frames;
  agreed.ird = limit_depth(request.ord);
  if (agreed.rtr == kRtrRead) agreed.ird = std::max<uint16_t>(agreed.ird, 1);
  agreed.ord = limit_depth(request.ird);

  reply.rejected = false;
  reply.crc = agreed.crc;
  reply.long_frames = agreed.long_frames;
  reply.enhanced = request.enhanced;
  reply.peer_to_peer = peer_to_peer;
  reply.rtr = agreed.rtr;
  reply.ird = agreed.ird, reply.ord = agreed.ord;
  reply.private_data = private_data;
  return agreed;
}

MpaAgreement conclude(const MpaFrame& request, const MpaFrame& reply) {
  if (reply.rejected) return refuse(Violation::mpa_rejected);
  if (reply.revision != kMpaRevision) return refuse(Violation::mpa_revision);
  if (reply.markers) return refuse(Violation::mpa_markers);
  MpaAgreement agreed;
  agreed.crc = request.crc || reply.crc;
  agreed.long_frames = request.long_frames && reply.long_frames;
  agreed.ird = request.ird, agreed.ord = request.ord;
  if (!reply.enhanced) return agreed;  // the peer does not know RFC 6581: it is not peer-to-peer
  agreed.ord = std::min(request.ord, reply.ird);
  if (!reply.peer_to_peer) return agreed;
  // RFC 6581 §9.2: exactly one of those that we offered.
  if (!std::has_single_bit(reply.rtr) || !(reply.rtr & request.rtr)) return refuse(Violation::mpa_no_rtr);
  agreed.rtr = static_cast<Rtr>(reply.rtr);
  if (agreed.rtr == kRtrRead && agreed.ord == 0) return refuse(Violation::mpa_insufficient_ird);
  return agreed;
}

}  // namespace accel::siw
