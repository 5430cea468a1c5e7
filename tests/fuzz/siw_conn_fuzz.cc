// A whole connection of either role: set-up given, then segments with right frames and anything inside, or
// raw bytes. [role, crc, RTR 1] then [how 1][length 1]...
#include <algorithm>
#include <cstdlib>
#include <vector>

#include "../siw/frame.h"
#include "siw_fallback/conn.h"

namespace {

using namespace accel::siw;

struct Feeder {
  Conn& conn;
  bool crc;
  uint32_t msn[kQueues] = {1, 1, 1};

  /// Long payloads in pieces, read into their place.
  void receive(Bytes wire) {
    while (!wire.empty()) {
      const MutableBytes place = conn.landing();
      const size_t n = std::min<size_t>(wire.size(), 5000), placed = std::min(n, place.size());
      std::copy_n(wire.begin(), placed, place.begin());
      conn.landed(placed);
      conn.receive(wire.subspan(placed, n - placed));
      wire = wire.subspan(n);
    }
  }

  /// A well-formed frame: what is behind the framing is then met, not only the CRC.
  void segment(uint8_t how, Bytes payload) {
    Segment s;
    s.opcode = static_cast<Opcode>(how & 7);
    s.last = !(how & 8);
    s.queue = queue_of(s.opcode);
    if (is_tagged(s.opcode)) {
      const bool entries = how & 16;
      s.stag = entries ? 3 : 2;
      s.offset = (entries ? 0x10000 : 0x1000) + (how >> 5) * uint64_t{16};
    } else {
      s.msn = msn[s.queue];
      if (s.last) msn[s.queue]++;
    }
    receive(test::frame(s, payload, crc));
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1) return 0;
  const uint8_t mode = data[0];
  data++, size--;
  const bool crc = mode & 2;
  ConnOptions o;
  o.role = mode & 1 ? Role::kResponder : Role::kInitiator;
  o.offer = {.crc = crc, .peer_to_peer = (mode & 4) != 0, .rtr = static_cast<uint8_t>(1 << (mode >> 3) % 3)};
  o.identity = {2, 3, 0x1000, 0x10000};
  o.ring = mode & 0x40 ? 128 << 10 : 4096, o.credits = 4, o.max_pending = 8192;
  ConnOptions p = o;
  p.role = mode & 1 ? Role::kInitiator : Role::kResponder;
  p.offer.rtr = mode & 1 ? p.offer.rtr : uint8_t{kRtrAll};
  o.offer.rtr = mode & 1 ? uint8_t{kRtrAll} : o.offer.rtr;
  Conn conn(o), peer(p);
  if (!(mode & 0x80)) {  // otherwise the fuzzer does the set-up as well
    Conn& initiator = mode & 1 ? peer : conn;
    Conn& responder = mode & 1 ? conn : peer;
    const Bytes request = initiator.pending();
    responder.receive(request);
    initiator.sent(request.size());
    const Bytes reply = responder.pending();
    initiator.receive(reply);
    responder.sent(reply.size());
    if (!conn.established() || !peer.established()) abort();
  }
  Feeder feeder{conn, conn.endpoint().agreement().crc};
  std::vector<uint8_t> buffer(4096);
  while (size >= 2) {
    const uint8_t how = data[0], act = data[1];
    const size_t n = std::min<size_t>(size - 2, act & 0x3f);
    const Bytes rest(data + 2, n);
    switch (act >> 6) {
      case 0:
        conn.receive(rest);
        break;
      case 1:
        feeder.segment(how, rest);
        break;
      case 2: {
        const std::vector<uint8_t> longer(rest.size() * 600, how);
        feeder.segment(how, longer);
        break;
      }
      default:
        if (how & 1) conn.sent(conn.pending().size());
        if (how & 2) (void)conn.send(Bytes(buffer).first(n * 64), how & 64), conn.keep();
        if (how & 4) (void)conn.recv(buffer, how & 8);
        if (how & 16) (void)conn.shutdown(how >> 5 & 3);
        if (how == 0) conn.receive_end();
        if (how == 0x80) conn.receive_reset();
        if (how & 128) conn.kick();
    }
    if (conn.violation() != Violation::none && !conn.wants_close()) abort();
    data += 2 + n, size -= 2 + n;
  }
  return 0;
}
