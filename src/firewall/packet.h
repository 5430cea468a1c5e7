// A packet of which some bits are known: what rules are evaluated on before there is a packet.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "base/ip.h"
#include "firewall/rules.h"

namespace accel::firewall {

struct Device {
  int ifindex = 0;
  std::string name;
};

/// The question: would the host's rules let this flow's packets pass, untouched?
struct Question {
  Protocol protocol = Protocol::kTcp;
  Endpoint local;                ///< port 0: not known
  Endpoint remote;               ///< any(): any peer. The family is the local address's
  bool active = false;           ///< TCP: we connect. UDP: what is sent is the question, not what comes
  bool established = false;      ///< the flow is open already: its first packets are past
  Device device;                 ///< of its packets
  std::vector<Device> below;     ///< devices below that one (of a VLAN), whose hooks see the packets too
  uint32_t mark = 0;             ///< SO_MARK, on packets that go out
  bool local_on_device = false;  ///< the local address is the device's own
  bool peer_by_device = false;   ///< the route to the peer, or to any peer, leaves by the device
  uint16_t port_from = 0, port_to = 65535;  ///< the local port, where it is not known, is one of these
  bool marks_route = false;  ///< there are routing rules beside the kernel's own, so marks may matter
};

/// Bytes with a mask of what is known. An unknown bit is 0 in `value`.
template <size_t N>
struct Known {
  std::array<uint8_t, N> value{}, known{};

  void set(size_t at, std::span<const uint8_t> bytes) {
    for (size_t i = 0; i < bytes.size() && at + i < N; ++i) set_bits(at + i, bytes[i], 0xff);
  }
  void set_bits(size_t at, uint8_t bits, uint8_t mask) {
    value[at] = static_cast<uint8_t>(bits & mask);
    known[at] = mask;
  }
  void forget(size_t at, size_t count) {
    for (size_t i = at; i < at + count && i < N; ++i) value[i] = known[i] = 0;
  }
  template <class T>
  void set_number(size_t at, T number) {  // in the host's byte order, as the kernel's registers hold it
    uint8_t bytes[sizeof number];
    std::memcpy(bytes, &number, sizeof number);
    set(at, bytes);
  }
};

/// A number whose bits are known in part.
struct KnownNumber {
  uint32_t value = 0, known = ~0u;
  bool sure() const { return known == ~0u; }
};

/// nf_conntrack's states as rules see them (enum nf_ct_state_bits in
/// include/uapi/linux/netfilter/nf_tables.h).
inline constexpr uint32_t kInvalid = 1, kEstablished = 2, kRelated = 4, kNew = 8, kUntracked = 64;

/// One kind of packet that a flow consists of.
struct Packet {
  bool incoming = false;
  bool v4 = true;
  bool first = false;     ///< of its connection: rules that translate addresses see no other
  bool original = false;  ///< in the direction of the connection's first packet
  Protocol protocol = Protocol::kTcp;
  Known<40> network;
  Known<20> transport;
  KnownNumber state, mark;
  const Question* question = nullptr;
};

/// All kinds of packet that the flow needs: its first, answers, data, resets, in both directions.
std::vector<Packet> packets_of(const Question& question);

}  // namespace accel::firewall
