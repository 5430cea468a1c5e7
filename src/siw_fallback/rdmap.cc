#include "siw_fallback/rdmap.h"

#include <algorithm>

namespace accel::siw {
namespace {

constexpr uint8_t kHasLength = 0x80, kHasDdpHeader = 0x40;  // M and D of the control word's HdrCt

/// Is this a code that the RFCs define? (RFC 5040 §4.8, RFC 5041 §8.2, RFC 5044 §8, RFC 6581 §9.)
bool defined(const TerminateCode& c) {
  switch (c.layer << 4 | c.type) {
    case 0x00:
    case 0x10:
      return true;
    case 0x01:
      return c.code <= 4 || c.code == 9 || c.code == 0xff;
    case 0x02:
      return (c.code >= 5 && c.code <= 9) || c.code == 0xff;
    case 0x11:
      return c.code <= 4;
    case 0x12:
      return c.code >= 1 && c.code <= 6;
    case 0x20:
      return c.code >= 1 && c.code <= 7;
    default:
      return false;
  }
}

}  // namespace

TerminateMessage build_terminate(Violation why, Bytes culprit) {
  TerminateMessage m;
  const TerminateCode c = terminate_code(why);
  m.bytes[0] = static_cast<uint8_t>(c.layer << 4 | c.type);
  m.bytes[1] = c.code;
  m.size = 4;
  if (culprit.size() < kTaggedHeader) return m;
  const size_t header = culprit[0] & 0x80 ? kTaggedHeader : kUntaggedHeader;
  if (culprit.size() < header) return m;
  m.bytes[2] = kHasLength | kHasDdpHeader;
  store_be(m.bytes, 4, static_cast<uint16_t>(culprit.size()));
  std::copy_n(culprit.begin(), header, m.bytes.begin() + 6);
  m.size = 6 + header;
  return m;
}

Violation parse_terminate(Bytes in, Terminate& out) {
  if (in.size() < 4) return Violation::fpdu_short;
  const TerminateCode rfc{static_cast<uint8_t>(in[0] >> 4), static_cast<uint8_t>(in[0] & 0x0f), in[1]};
  const TerminateCode siw{rfc.type, rfc.layer, rfc.code};
  // The bits that tell which headers follow stand at opposite ends of the byte; without them, the codes
  // decide.
  if (in[2] & 0xe0) {
    out.siw_form = false;
  } else if (in[2] & 0x07) {
    out.siw_form = true;
  } else {
    out.siw_form = !defined(rfc) && defined(siw);
  }
  out.code = out.siw_form ? siw : rfc;
  return Violation::none;
}

}  // namespace accel::siw
