#include "trace.h"

#include <ctime>

#include "siw_fallback/crc32c.h"
#include "siw_fallback/mpa.h"
#include "siw_fallback/rdmap.h"

namespace accel::interop {
namespace {

constexpr size_t kLines = 400, kReceived = 1 << 20;

template <class... A>
std::string format(const char* f, A... a) {
  char out[256];
  snprintf(out, sizeof out, f, a...);
  return out;
}

const char* const kOpcodes[] = {"Write",    "Read Request", "Read Response", "Send",
                                "Send-Inv", "Send-SE",      "Send-SE-Inv",   "Terminate"};

}  // namespace

int64_t now_ms() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000 + t.tv_nsec / 1'000'000;
}

void Trace::line(Direction d, const std::string& what) {
  const int64_t now = now_ms();
  if (begun_ms_ < 0) begun_ms_ = now;
  lines_.push_back(format("%6lld ms %s byte %llu: ", static_cast<long long>(now - begun_ms_),
                          d == kOut ? "to the peer  " : "from the peer",
                          static_cast<unsigned long long>(sides_[d].bytes)) +
                   what + "\n");
  if (lines_.size() > kLines) lines_.pop_front();
}

void Trace::add(Direction d, siw::Bytes bytes) {
  if (d == kIn) {
    received_.insert(received_.end(), bytes.begin(), bytes.end());
    if (received_.size() > 2 * kReceived)
      received_.erase(received_.begin(), received_.end() - ptrdiff_t{kReceived});
  }
  Side& side = sides_[d];
  if (!side.set_up) set_up(d, bytes);
  while (side.set_up && !bytes.empty()) {
    siw::Bytes ulpdu;
    if (side.parser.take(bytes, ulpdu) != siw::Violation::none) return line(d, "no FPDU");
    if (!ulpdu.empty()) frame(d, side.parser.frame(), ulpdu);
  }
}

void Trace::set_up(Direction d, siw::Bytes& bytes) {
  Side& side = sides_[d];
  const size_t had = side.mpa.size();
  side.mpa.insert(side.mpa.end(), bytes.begin(), bytes.end());
  if (side.mpa.size() < siw::kMpaKeySize) return bytes = {}, void();
  const auto kind = side.mpa[9] == 'q' ? siw::MpaKind::kRequest : siw::MpaKind::kReply;  // "MPA ID Re[qp]"
  const siw::MpaParsed p =
      parse_mpa(siw::classify(side.mpa) == siw::FirstBytes::kMpa ? siw::MpaKind::kRequest : kind, side.mpa);
  if (p.size == 0) return bytes = {}, void();
  const siw::MpaFrame& f = p.frame;
  line(d, format("MPA %s rev %u%s%s%s%s ird %u ord %u rtr %u, %zu bytes private",
                 f.kind == siw::MpaKind::kRequest ? "request" : "reply", f.revision, f.crc ? " crc" : "",
                 f.markers ? " markers" : "", f.rejected ? " REJECTED" : "", f.peer_to_peer ? " p2p" : "",
                 f.ird, f.ord, f.rtr, f.private_data.size()));
  side.set_up = true;
  side.bytes = p.size;
  bytes = bytes.subspan(p.size - had);
}

void Trace::frame(Direction d, siw::Bytes frame, siw::Bytes ulpdu) {
  siw::Segment s;
  const siw::Violation v = parse_segment(ulpdu, s);
  const size_t covered = frame.size() - siw::kFpduCrcSize;
  const uint32_t says = siw::load_le<uint32_t>(frame, covered),
                 is = siw::Crc32c().add(frame.first(covered)).value();
  std::string what = v == siw::Violation::none ? kOpcodes[static_cast<size_t>(s.opcode)]
                                               : "bad headers: " + std::string(name_of(v));
  what += is_tagged(s.opcode)
              ? format(" tag %08x at %llx", s.stag, static_cast<unsigned long long>(s.offset))
              : format(" msn %u offset %llu", s.msn, static_cast<unsigned long long>(s.offset));
  what += format(", %zu bytes%s", s.payload.size(), s.last ? "" : ", more to come");
  if (s.payload.size() == 4) what += format(" (%08x)", siw::load_le<uint32_t>(s.payload, 0));
  if (says != is) what += says == 0 ? "" : format(", CRC says %08x, is %08x", says, is);
  line(d, what);
  sides_[d].bytes += frame.size();
}

std::string Trace::text() const {
  std::string all;
  for (const std::string& l : lines_) all += l;
  return all;
}

}  // namespace accel::interop
