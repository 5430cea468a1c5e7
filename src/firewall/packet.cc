#include "firewall/packet.h"

namespace accel::firewall {
namespace {

constexpr uint8_t kFin = 1, kSyn = 2, kRst = 4, kPsh = 8, kAck = 16, kUrg = 32;
constexpr uint8_t kEcn = 0xc0;  ///< ECE and CWR

/// TCP's flags, as far as a kind of segment decides them.
struct Flags {
  uint8_t value, known;
};
constexpr uint8_t kAllButEcn = static_cast<uint8_t>(~kEcn);
constexpr Flags kOpening{kSyn, kAllButEcn};
constexpr Flags kAnswer{kSyn | kAck, kAllButEcn};
constexpr Flags kData{kAck, kSyn | kRst | kAck};
constexpr Flags kReset{kRst, kFin | kSyn | kRst | kPsh | kUrg};
constexpr Flags kNone{0, 0};

void set_address(Known<40>& header, size_t at, const IpAddress& address, bool v4, bool known) {
  if (!known) return;
  if (v4)
    header.set(at, {address.v4_bytes(), 4});
  else
    header.set(at, address.bytes);
}

/// The bits that all ports of the range have in common are known.
void set_port(Known<20>& header, size_t at, uint16_t from, uint16_t to) {
  uint16_t known = 0xffff;
  while ((from ^ to) & known) known = static_cast<uint16_t>(known << 1);
  header.set_bits(at, static_cast<uint8_t>(from >> 8), static_cast<uint8_t>(known >> 8));
  header.set_bits(at + 1, static_cast<uint8_t>(from), static_cast<uint8_t>(known));
}

/// RFC 791: no options, no fragment. RFC 8200: no extension header.
void fill_network(Packet& p, const Question& q) {
  const bool peer = !q.remote.address.is_any();
  const Endpoint &from = p.incoming ? q.remote : q.local, &to = p.incoming ? q.local : q.remote;
  const bool from_known = p.incoming ? peer : true, to_known = p.incoming ? true : peer;
  if (p.v4) {
    p.network.set_bits(0, 0x45, 0xff);
    p.network.set_bits(6, 0, 0xbf);  // don't fragment: either way
    p.network.set_bits(7, 0, 0xff);
    p.network.set_bits(9, static_cast<uint8_t>(q.protocol), 0xff);
  } else {
    p.network.set_bits(0, 0x60, 0xf0);
    p.network.set_bits(6, static_cast<uint8_t>(q.protocol), 0xff);
  }
  set_address(p.network, p.v4 ? 12 : 8, from.address, p.v4, from_known);
  set_address(p.network, p.v4 ? 16 : 24, to.address, p.v4, to_known);
  const size_t local = p.incoming ? 2 : 0, remote = 2 - local;
  q.local.port == 0 ? set_port(p.transport, local, q.port_from, q.port_to)
                    : set_port(p.transport, local, q.local.port, q.local.port);
  if (q.remote.port != 0) set_port(p.transport, remote, q.remote.port, q.remote.port);
}

Packet make(const Question& q, bool incoming, uint32_t state, bool original, Flags flags) {
  Packet p;
  p.question = &q;
  p.incoming = incoming;
  p.v4 = q.local.address.is_v4();
  p.first = state == kNew;
  p.original = original;
  p.protocol = q.protocol;
  p.state.value = state;
  p.mark.value = incoming ? 0 : q.mark;
  fill_network(p, q);
  if (q.protocol == Protocol::kTcp) {
    p.transport.set_bits(12, 0, 0x0f);  // reserved
    p.transport.set_bits(13, flags.value, flags.known);
  }
  return p;
}

}  // namespace

std::vector<Packet> packets_of(const Question& q) {
  std::vector<Packet> all;
  const bool first_in = !q.active;  // the connection's first packet comes in
  auto add = [&](bool incoming, uint32_t state, Flags flags) {
    all.push_back(make(q, incoming, state, state == kNew || incoming == first_in, flags));
  };
  const bool peer = !q.remote.address.is_any();
  if (q.protocol == Protocol::kUdp) {
    // A flow may begin with either direction, and conntrack forgets after half a minute of silence. To any
    // peer a bound socket answers: where it sends first that is a question of its own.
    if (!q.established && peer) add(false, kNew, kNone);
    if (!q.established && !q.active) add(true, kNew, kNone);
    add(false, kEstablished, kNone);
    add(true, kEstablished, kNone);
    return all;
  }
  if (!q.established) {
    add(first_in, kNew, kOpening);
    add(!first_in, kEstablished, kAnswer);
    // Handed back, the connection begins for conntrack with a segment of ours in its midst.
    if (q.active) add(false, kNew, kData);
  }
  for (const bool incoming : {true, false}) {
    add(incoming, kEstablished, kData);
    add(incoming, kEstablished, kReset);
  }
  return all;
}

}  // namespace accel::firewall
