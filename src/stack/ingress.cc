// The way of a received frame up to TCP and UDP. Every early exit is a counted reason.
#include <algorithm>

#include "stack/core.h"
#include "stack/tcp/tcp.h"
#include "stack/udp.h"
#include "stack/wire/checksum.h"
#include "stack/wire/eth.h"
#include "stack/wire/icmp.h"
#include "stack/wire/ip_header.h"
#include "stack/wire/ipv4.h"
#include "stack/wire/ipv6.h"
#include "stack/wire/tcp.h"
#include "stack/wire/udp.h"

namespace accel {
namespace {

/// What the headers below TCP and UDP said.
struct Arrival {
  IpAddress source, destination;
  InterfaceId interface = 0;
  uint8_t tos = 0, ttl = 0, protocol = 0;
  bool v6 = false;
  bool group = false;          ///< to a multicast or broadcast address of either layer
  uint16_t header_length = 0;  ///< of the IP header
  uint32_t length = 0;         ///< from the L4 header on
};

uint64_t sum_chain(const Packet* frame) {
  if (!frame->more) return sum_bytes(frame->data(), frame->length);
  PartSum sum;
  for (const Packet* p = frame; p; p = p->more) sum.add(p->data(), p->length);
  return sum.sum();
}

/// Cuts a chain to `length` bytes (Ethernet's padding, or a lying sender's tail). length <= total().
void trim_chain(Packet* frame, uint32_t length) {
  Packet* p = frame;
  while (length > p->length) {
    length -= p->length;
    p = p->more;
  }
  p->length = length;
  FramePool::release(std::exchange(p->more, nullptr));
}

uint32_t transport_header(uint8_t protocol) {
  if (protocol == static_cast<uint8_t>(Protocol::kTcp)) return sizeof(TcpHeader);
  return protocol == static_cast<uint8_t>(Protocol::kUdp) ? sizeof(UdpHeader) : 1;
}

uint64_t pseudo_header_sum(const Arrival& a) {
  uint64_t sum = sum_of(a.protocol) + sum_of(static_cast<uint16_t>(a.length));
  if (!a.v6) return sum + sum_fixed<4>(a.source.v4_bytes()) + sum_fixed<4>(a.destination.v4_bytes());
  return sum + sum_fixed<16>(a.source.bytes.data()) + sum_fixed<16>(a.destination.bytes.data());
}

bool l4_checksum_good(const Packet* frame, const Arrival& a) {
  return frame->checksum_good || finish_sum(add_sums(pseudo_header_sum(a), sum_chain(frame))) == 0;
}

/// Source and destination of a packet whose header has been parsed before.
std::pair<IpAddress, IpAddress> addresses_of(std::span<const uint8_t> b) {
  if (b[0] >> 4 == 4) return {IpAddress::from_v4_bytes(&b[12]), IpAddress::from_v4_bytes(&b[16])};
  return {IpAddress::from_v6_bytes(&b[8]), IpAddress::from_v6_bytes(&b[24])};
}

/// An ICMP error's quoted packet, turned to our side.
struct Quoted {
  FlowKey flow;
  uint32_t sequence = 0;
  uint32_t total_length = 0;
};

std::optional<Quoted> parse_quoted(std::span<const uint8_t> b, bool v6) {
  Quoted q;
  uint32_t header;
  uint8_t protocol;
  if (v6) {
    auto ip = parse_ipv6(b);
    if (!ip || ip->fragment) return {};
    header = ip->header_length;
    protocol = ip->protocol;
    q.total_length = ip->total_length;
    q.flow.local.address = IpAddress::from_v6_bytes(&b[8]);
    q.flow.remote.address = IpAddress::from_v6_bytes(&b[24]);
  } else {
    auto ip = parse_ipv4(b);
    if (!ip || (get_be16(b, 6) & kIpOffsetMask) != 0) return {};
    header = ip->header_length;
    protocol = ip->protocol;
    q.total_length = ip->total_length;
    q.flow.local.address = IpAddress::from_v4_bytes(&b[12]);
    q.flow.remote.address = IpAddress::from_v4_bytes(&b[16]);
  }
  if (b.size() < size_t{header} + 8) return {};
  if (protocol != static_cast<uint8_t>(Protocol::kTcp) && protocol != static_cast<uint8_t>(Protocol::kUdp))
    return {};
  q.flow.protocol = static_cast<Protocol>(protocol);
  q.flow.local.port = get_be16(b, header);
  q.flow.remote.port = get_be16(b, header + 2);
  q.sequence = get_be32(b, header + 4);
  return q;
}

/// Segments of a burst that are next in a connection's text, one behind the other: TCP takes them as one, as
/// the kernel does behind its GRO. What differs but for text and sequence number is not joined, nor what
/// comes behind a gap, of which each ACK is to tell.
class SegmentRun {
 public:
  explicit SegmentRun(StackCore& core) : core_(core) {}
  SegmentRun(const SegmentRun&) = delete;
  SegmentRun& operator=(const SegmentRun&) = delete;
  ~SegmentRun() { end(); }

  /// Owns the frame. `last`: nothing can follow it.
  void add(Packet* frame, const TcpSegmentInfo& s, bool last) {
    if (head_ != nullptr && continues(s)) {
      join(frame, s);
      if (closes_ || last) end();
      return;
    }
    end();
    if (last || !may_begin(s)) return core_.tcp->on_segment(frame, s, core_.now);
    head_ = frame;
    s_ = s;
    closes_ = joined_ = false;
  }

  void end() {
    if (head_ != nullptr) core_.tcp->on_segment(std::exchange(head_, nullptr), s_, core_.now);
  }

 private:
  static constexpr uint32_t kMostText = 65535;

  static bool may_begin(const TcpSegmentInfo& s) { return s.flags == kAck && s.payload_length > 0; }

  bool continues(const TcpSegmentInfo& s) {
    const bool fits = s.payload_length > 0 && s.payload_length <= s_.segment_length &&
                      s_.payload_length + s.payload_length <= kMostText;
    const bool same = s.seq == s_.seq + s_.payload_length && (s.flags & ~(kPsh | kFin)) == kAck &&
                      s.ack == s_.ack && s.window == s_.window && s.interface == s_.interface &&
                      s.tos == s_.tos && s.local == s_.local && s.remote == s_.remote &&
                      std::ranges::equal(s.options, s_.options);
    return fits && same && (joined_ || core_.tcp->expects(s_));
  }

  void join(Packet* frame, const TcpSegmentInfo& s) {
    Packet* tail = joined_ ? tail_ : head_;
    while (tail->more != nullptr) tail = tail->more;
    frame->trim_front(s.payload_offset);
    tail->more = tail_ = frame;
    joined_ = true;
    s_.payload_length += s.payload_length;
    ++s_.segments;
    s_.flags |= s.flags;
    closes_ = s.flags != kAck || s.payload_length < s_.segment_length;
  }

  StackCore& core_;
  Packet* head_ = nullptr;
  Packet* tail_ = nullptr;
  TcpSegmentInfo s_;
  bool joined_ = false;
  bool closes_ = false;  ///< nothing may follow: a short one, PSH or FIN
};

/// Takes one frame from Ethernet to its transport. Lives for the frame.
class Ingress {
 public:
  /// `run`: of the burst, if there is one; `last`: the frame is the last of it.
  Ingress(StackCore& core, InterfaceId id, SegmentRun* run = nullptr, bool last = true)
      : core_(core), run_(run), last_(last) {
    a_.interface = id;
  }

  /// One that begins with its IP header.
  void on_packet(Packet* frame) {
    frame->length > 0 && frame->data()[0] >> 4 == 6 ? on_ipv6(frame) : on_ipv4(frame);
  }

  void on_frame(Packet* frame) {
    const auto bytes = std::as_const(*frame).bytes();
    const auto eth = parse_eth(bytes);
    if (!eth) return core_.drop(frame, Counter::drop_truncated);
    if (eth->vlan != 0 && !enter_vlan(eth->vlan)) return core_.drop(frame, Counter::drop_other_host);
    const Interface& info = core_.interfaces[a_.interface].info;
    a_.group = bytes[0] & 1;
    if (!a_.group && std::memcmp(bytes.data(), info.mac.data(), 6) != 0)
      return core_.drop(frame, Counter::drop_other_host);
    frame->trim_front(eth->length);
    if (eth->type == kEtherIpv4) return on_ipv4(frame);
    if (eth->type == kEtherIpv6) return on_ipv6(frame);
    core_.drop(frame, Counter::drop_not_ip);
  }

 private:
  /// The frame is the interface's that has this tag: the port's own, or one above it.
  bool enter_vlan(uint16_t vlan) {
    if (vlan == core_.interfaces[a_.interface].info.vlan) return true;
    for (const auto& t : core_.tagged) {
      if (t.lower != a_.interface || t.vlan != vlan) continue;
      a_.interface = t.id;
      return true;
    }
    return false;
  }

  void on_ipv4(Packet* frame) {
    const auto bytes = std::as_const(*frame).bytes();
    const auto ip = parse_ipv4(bytes);
    if (!ip) return core_.drop(frame, Counter::drop_ip_header);
    if (ip->total_length > frame->total()) return core_.drop(frame, Counter::drop_truncated);
    if (!frame->checksum_good) {
      const uint64_t sum = ip->header_length == sizeof(Ipv4Header)
                               ? sum_fixed<sizeof(Ipv4Header)>(bytes.data())
                               : sum_bytes(bytes.data(), ip->header_length);
      if (finish_sum(sum) != 0) return core_.drop(frame, Counter::drop_ip_checksum);
    }
    a_.source = IpAddress::from_v4_bytes(&bytes[12]);
    a_.destination = IpAddress::from_v4_bytes(&bytes[16]);
    if (ip->header_length > sizeof(Ipv4Header) && !options_pass(frame, *ip)) return;
    if (ip->fragment) return on_fragment(frame, ip->header_length, *ip);
    a_.tos = ip->tos;
    a_.ttl = ip->ttl;
    a_.protocol = ip->protocol;
    on_ip(frame, ip->header_length, ip->total_length);
  }

  void on_ipv6(Packet* frame) {
    const auto bytes = std::as_const(*frame).bytes();
    const auto ip = parse_ipv6(bytes);
    if (!ip) return core_.drop(frame, Counter::drop_ip_header);
    if (ip->total_length > frame->total()) return core_.drop(frame, Counter::drop_truncated);
    a_.v6 = true;
    a_.source = IpAddress::from_v6_bytes(&bytes[8]);
    a_.destination = IpAddress::from_v6_bytes(&bytes[24]);
    // A mapped address never travels (RFC 4291 section 2.5.5.2); taking it would let IPv6 speak for an IPv4
    // peer.
    if (a_.source.is_v4() || a_.destination.is_v4()) return core_.drop(frame, Counter::drop_martian);
    if (ip->fragment) return on_fragment(frame, ip->header_length, *ip);
    a_.tos = ip->tos;
    a_.ttl = ip->ttl;
    a_.protocol = ip->protocol;
    on_ip(frame, ip->header_length, ip->total_length);
  }

  /// False: `frame` has been dropped, or is the kernel's, which would answer by the route reversed.
  bool options_pass(Packet* frame, const Ipv4Info& ip) {
    const auto header = std::as_const(*frame).bytes().first(ip.header_length);
    const Ipv4Options options = look_at_ipv4_options(header.subspan(sizeof(Ipv4Header)));
    if (options == Ipv4Options::kPlain) return true;
    const bool accepted = core_.interfaces[a_.interface].info.sources.accept_source_route;
    if (options == Ipv4Options::kMalformed || !accepted) {
      core_.drop(frame, Counter::drop_source_route);
      return false;
    }
    if (core_.admit(frame, passage(), 0)) {
      frame->interface = a_.interface;
      core_.frames_for_kernel.push_back(frame);
    }
    return false;
  }

  /// `Info`: of IPv4 or IPv6. The whole packet enters anew.
  template <class Info>
  void on_fragment(Packet* frame, uint32_t header_length, const Info& ip) {
    // Fragments within fragments; RFC 8200 section 4.5: the first has the headers up to the transport's.
    const uint32_t payload = ip.total_length - header_length;
    const bool cut = a_.v6 && ip.fragment_offset == 0 && payload < transport_header(ip.protocol);
    if (whole_ || cut) return core_.drop(frame, Counter::drop_fragment);
    if (!core_.admit(frame, passage(), 0)) return;
    const FragmentKey key{a_.source, a_.destination, ip.id, a_.v6 ? uint8_t{0} : ip.protocol};
    const Fragment fragment{key,
                            header_length,
                            payload,
                            ip.fragment_offset,
                            ip.more_fragments,
                            ip.protocol,
                            static_cast<uint8_t>(ip.tos & 3)};
    Packet* packet = core_.reassembly.add(*frame, fragment, core_.now);
    FramePool::release(frame);
    if (packet == nullptr) return;
    whole_ = true;
    packet->interface = a_.interface;
    on_packet(packet);
  }

  Passage passage() const { return {a_.source, a_.destination, a_.interface}; }

  void on_ip(Packet* frame, uint32_t header_length, uint32_t total_length) {
    // RFC 1122 section 3.2.1.3: nobody can be answered at these.
    if (a_.source.is_multicast() || a_.source.is_any() || a_.source == IpAddress::v4(0xffffffff))
      return core_.drop(frame, Counter::drop_martian);
    a_.group = a_.group || a_.destination.is_multicast() || a_.destination == IpAddress::v4(0xffffffff);
    a_.header_length = static_cast<uint16_t>(header_length);
    a_.length = total_length - header_length;
    trim_chain(frame, total_length);
    frame->trim_front(header_length);
    switch (a_.protocol) {
      case static_cast<uint8_t>(Protocol::kTcp):
        return on_tcp(frame);
      case static_cast<uint8_t>(Protocol::kUdp):
        return on_udp(frame);
      case kProtocolIcmp:
      case kProtocolIcmpv6:
        return on_icmp(frame);
      default:
        core_.drop(frame, Counter::drop_protocol);
    }
  }

  void on_tcp(Packet* frame) {
    if (frame->length < sizeof(TcpHeader)) return core_.drop(frame, Counter::drop_truncated);
    const auto& tcp = wire_at<TcpHeader>(std::as_const(*frame).data());
    const uint32_t header = (tcp.data_offset >> 4) * 4u;
    if (header < sizeof(TcpHeader) || header > frame->length)
      return core_.drop(frame, Counter::drop_tcp_header);
    if (!l4_checksum_good(frame, a_)) return core_.drop(frame, Counter::drop_tcp_checksum);
    // RFC 9293 section 3.9.2.3 (MUST-57): TCP knows no groups.
    if (a_.group || tcp.source == 0) return core_.drop(frame, Counter::drop_no_socket);
    TcpSegmentInfo s;
    s.local = {a_.destination, tcp.destination};
    s.remote = {a_.source, tcp.source};
    s.interface = a_.interface;
    s.flags = tcp.flags;
    s.ecn = a_.tos & 3;
    s.tos = a_.tos;
    s.reserved = tcp.data_offset & 15;
    s.ip_header = a_.header_length;
    s.seq = tcp.sequence;
    s.ack = tcp.acknowledgment;
    s.window = tcp.window;
    s.urgent = tcp.urgent;
    s.options = std::as_const(*frame).bytes().subspan(sizeof(TcpHeader), header - sizeof(TcpHeader));
    s.payload_offset = header;
    s.payload_length = s.segment_length = a_.length - header;
    if (run_ != nullptr)
      run_->add(frame, s, last_);
    else
      core_.tcp->on_segment(frame, s, core_.now);
  }

  void on_udp(Packet* frame) {
    if (frame->length < sizeof(UdpHeader)) return core_.drop(frame, Counter::drop_truncated);
    const auto& udp = wire_at<UdpHeader>(std::as_const(*frame).data());
    const uint32_t length = udp.length;
    if (length < sizeof(UdpHeader) || length > a_.length) return core_.drop(frame, Counter::drop_udp_header);
    trim_chain(frame, length);
    a_.length = length;
    const bool unsummed = udp.checksum == 0;  // RFC 768 allows it, RFC 8200 section 8.1 does not
    if (unsummed ? a_.v6 : !l4_checksum_good(frame, a_)) return core_.drop(frame, Counter::drop_udp_checksum);
    UdpArrival in;
    in.local = {a_.destination, udp.destination};
    in.remote = {a_.source, udp.source};
    in.interface = a_.interface;
    in.tos = a_.tos;
    in.ttl = a_.ttl;
    in.group = a_.group;
    in.size = length - static_cast<uint32_t>(sizeof(UdpHeader));
    if (!core_.admit(frame, passage(), a_.header_length)) return;
    frame->trim_front(sizeof(UdpHeader));
    core_.udp->on_datagram(frame, in);
  }

  void on_icmp(Packet* frame) {
    if (!core_.admit(frame, passage(), a_.header_length)) return;
    on_icmp_message(frame);
    if (!for_kernel_) return FramePool::release(frame);
    frame->offset -= a_.header_length;
    frame->length += a_.header_length;
    frame->interface = a_.interface;
    core_.frames_for_kernel.push_back(frame);
  }

  void on_icmp_message(const Packet* frame) {
    if ((a_.protocol == kProtocolIcmpv6) != a_.v6) return core_.count(Counter::drop_protocol);
    if (frame->length < sizeof(IcmpHeader)) return core_.count(Counter::drop_icmp_header);
    const auto& icmp = wire_at<IcmpHeader>(frame->data());
    const auto meaning = a_.v6 ? icmpv6_meaning(icmp.type, icmp.code) : icmpv4_meaning(icmp.type, icmp.code);
    if (!meaning) return core_.count(Counter::drop_protocol);
    // Devices vouch for TCP and UDP only, so this one is always verified; ICMPv6 has a pseudo-header (RFC
    // 4443 2.3).
    if (finish_sum(add_sums(a_.v6 ? pseudo_header_sum(a_) : 0, sum_chain(frame))) != 0)
      return core_.count(Counter::drop_icmp_header);
    const auto quoted = parse_quoted(frame->bytes().subspan(sizeof(IcmpHeader)), a_.v6);
    if (!quoted) return core_.count(Counter::drop_icmp_header);
    // What we sent, we sent from where the error was sent to.
    const bool ours =
        quoted->flow.local.address == a_.destination && deliver_error(*meaning, *quoted, icmp.rest);
    core_.count(ours ? Counter::icmp_errors : Counter::icmp_ignored);
  }

  bool deliver_error(const IcmpMeaning& meaning, const Quoted& q, uint32_t rest) {
    uint32_t mtu = 0;
    bool locked = false;
    if (meaning.too_big) {
      mtu = a_.v6 ? rest : rest & 0xffff;
      if (!a_.v6) {
        if (mtu == 0) mtu = next_plateau(q.total_length);
        locked = mtu < 552;  // no honest router sits there: Linux' ip_rt_min_pmtu
        mtu = std::max(mtu, 552u);
      }
    }
    if (q.flow.protocol == Protocol::kUdp) {
      const IcmpFate fate = core_.udp->on_icmp_error(q.flow.local, q.flow.remote, a_.interface, meaning.error,
                                                     meaning.fatal, {meaning.too_big, mtu, locked},
                                                     core_.interfaces[a_.interface].info.kernel_sees_errors);
      for_kernel_ = fate == IcmpFate::kForKernel;
      return fate != IcmpFate::kNotOurs;
    }
    if (a_.v6 && meaning.too_big && rest < kLeastMtuV6) return false;  // RFC 8201 section 4
    // Any error but too-big ends an opening connection, as tcp_v4_err and tcp_v6_err do.
    return core_.tcp->on_icmp_error(q.flow.local, q.flow.remote, q.sequence, meaning.error, !meaning.too_big,
                                    mtu, core_.now);
  }

  StackCore& core_;
  SegmentRun* const run_;
  const bool last_;
  Arrival a_;
  bool for_kernel_ = false;  ///< an ICMP error that the kernel is to have
  bool whole_ = false;       ///< put together from fragments
};

/// The ICMP error that this host's own kernel would tell itself about a packet that it could not send
/// (ipv4_link_failure(), ip6_link_failure()), as if it had come.
Packet* host_unreachable(StackCore& core, std::span<const uint8_t> sent, const Quoted& quoted) {
  const IpAddress& self = quoted.flow.local.address;
  const bool v4 = self.is_v4();
  const size_t headers = (v4 ? sizeof(Ipv4Header) : sizeof(Ipv6Header)) + sizeof(IcmpHeader);
  Packet* frame = core.new_frame();
  if (frame == nullptr) return nullptr;
  // RFC 1812 section 4.3.2.3, RFC 4443 section 3.1: as much as fits.
  sent = sent.first(std::min(sent.size(), (v4 ? 576 : 1280) - headers));
  frame->length = static_cast<uint32_t>(headers + sent.size());
  const IpFields fields{self, self, v4 ? kProtocolIcmp : kProtocolIcmpv6};
  const size_t at = put_ip_header(frame->data(), fields, sizeof(IcmpHeader) + sent.size());
  IcmpHeader icmp{};
  icmp.type = v4 ? 3 : 1;
  icmp.code = v4 ? 1 : 3;
  std::memcpy(frame->data() + at, &icmp, sizeof icmp);
  std::memcpy(frame->data() + headers, sent.data(), sent.size());
  const uint16_t checksum =
      v4 ? finish_sum(sum_bytes(frame->data() + at, frame->length - at))  // RFC 792: no pseudo header
         : transport_checksum(frame->bytes(), fields);
  store_checksum(frame->data() + at + offsetof(IcmpHeader, checksum), checksum);
  return frame;
}

}  // namespace

void StackCore::report_unreachable(const Packet* sent, InterfaceId id) {
  const auto eth = parse_eth(sent->bytes());
  if (!eth) return;
  const auto ip = sent->bytes().subspan(eth->length);
  const auto quoted = parse_quoted(ip, eth->type == kEtherIpv6);
  if (!quoted) return;
  const Endpoint &local = quoted->flow.local, &remote = quoted->flow.remote;
  if (quoted->flow.protocol == Protocol::kTcp) {
    tcp->on_icmp_error(local, remote, quoted->sequence, EHOSTUNREACH, true, 0, now);
  } else if (udp->on_icmp_error(local, remote, id, EHOSTUNREACH, false, {}, false) == IcmpFate::kForKernel) {
    Packet* told = host_unreachable(*this, ip, *quoted);
    if (told == nullptr) return;
    told->interface = id;
    frames_for_kernel.push_back(told);
  }
}

std::vector<RouteLookup> StackCore::take_route_questions() {
  std::vector<RouteLookup> questions;
  for (const Packet* p = awaiting_route.front(); p; p = p->next) {
    const auto addresses = addresses_of(p->bytes());
    const auto same = [&](const auto& q) {
      return q.remote == addresses.first && q.local == addresses.second;
    };
    if (std::none_of(questions.begin(), questions.end(), same))
      questions.push_back({addresses.first, addresses.second});
  }
  return questions;
}

void StackCore::resume(Instant at) {
  now = at;
  for (PacketQueue waiting = std::exchange(awaiting_route, {}); Packet* p = waiting.pop_front();) {
    const auto [source, destination] = addresses_of(p->bytes());
    if (routes.is_question(source, destination))
      drop(p, Counter::drop_route_unknown);
    else
      Ingress(*this, p->interface).on_packet(p);
  }
}

/// The most usual burst, which needs no SegmentRun.
static void take_one(StackCore& core, Packet* frame, InterfaceId id) {
  frame->interface = id;
  core.count(Counter::rx_frames);
  core.count(Counter::rx_bytes, frame->total());
  if (core.interfaces[id].present)
    Ingress(core, id).on_frame(frame);
  else
    core.drop(frame, Counter::drop_no_interface);
}

void StackCore::on_packets(std::span<Packet* const> frames, InterfaceId id, Instant at) {
  now = at;
  if (frames.size() == 1) return take_one(*this, frames[0], id);
  uint64_t bytes = 0;
  SegmentRun run(*this);
  for (size_t i = 0; i < frames.size(); ++i) {
    if (i + 1 < frames.size()) __builtin_prefetch(frames[i + 1]->data());
    bytes += frames[i]->total();
    frames[i]->interface = id;
    if (interfaces[id].present)
      Ingress(*this, id, &run, i + 1 == frames.size()).on_frame(frames[i]);
    else
      drop(frames[i], Counter::drop_no_interface);
  }
  count(Counter::rx_frames, frames.size());
  count(Counter::rx_bytes, bytes);
}

}  // namespace accel
