#include "wire.h"

#include <algorithm>
#include <array>

#include "stack/tcp/options.h"
#include "stack/tcp/segment.h"
#include "stack/wire/checksum.h"
#include "stack/wire/icmp.h"
#include "stack/wire/ipv4.h"
#include "stack/wire/ipv6.h"
#include "stack/wire/tcp.h"

namespace accel::scripts {
namespace {

void put16(Bytes& out, uint32_t v) {
  out.push_back(static_cast<uint8_t>(v >> 8));
  out.push_back(static_cast<uint8_t>(v));
}
void put32(Bytes& out, uint32_t v) {
  put16(out, v >> 16);
  put16(out, v);
}

Bytes options_of(const Segment& s) {
  Bytes out;
  for (const OptionSpec& o : s.options) {
    out.push_back(o.kind);
    if (o.kind == option::kNop || o.kind == option::kEnd) continue;
    Bytes body;
    if (o.kind == option::kMss) put16(body, *o.a);
    if (o.kind == option::kWindowScale) body.push_back(static_cast<uint8_t>(*o.a));
    if (o.kind == option::kTimestamps) {
      put32(body, o.a.value_or(0));
      put32(body, o.b.value_or(0));
    }
    for (const auto& [begin, end] : o.sack) {
      put32(body, begin);
      put32(body, end);
    }
    if (o.kind == option::kExperiment) put16(body, option::kFastOpenMagic);
    body.insert(body.end(), o.cookie.begin(), o.cookie.end());
    out.push_back(static_cast<uint8_t>(2 + body.size()));
    out.insert(out.end(), body.begin(), body.end());
  }
  while (out.size() % 4 != 0) out.push_back(option::kEnd);
  return out;
}

constexpr uint8_t kTcp = 6;

/// The header of a packet of `payload` bytes.
Bytes ip_header(uint8_t protocol, size_t payload, uint8_t ecn, const IpAddress& from, const IpAddress& to) {
  if (!from.is_v4()) {
    Bytes out(sizeof(Ipv6Header));
    auto& ip = wire_at<Ipv6Header>(out.data());
    ip.version_class_flow = 6u << 28 | uint32_t{ecn} << 20;
    ip.payload_length = static_cast<uint16_t>(payload);
    ip.next_header = protocol;
    ip.hop_limit = 64;
    ip.source = from.bytes;
    ip.destination = to.bytes;
    return out;
  }
  Bytes out(sizeof(Ipv4Header));
  auto& ip = wire_at<Ipv4Header>(out.data());
  ip.version_ihl = 0x45;
  ip.tos = ecn;
  ip.total_length = static_cast<uint16_t>(out.size() + payload);
  ip.ttl = 64;
  ip.protocol = protocol;
  std::copy_n(from.v4_bytes(), 4, ip.source.data());
  std::copy_n(to.v4_bytes(), 4, ip.destination.data());
  store_checksum(&out[10], finish_sum(sum_bytes(out.data(), out.size())));
  return out;
}

/// With the pseudo-header (RFC 9293 section 3.1, RFC 8200 section 8.1): over mapped addresses it is IPv4's
/// sum.
uint16_t sum_with_addresses(uint8_t protocol, std::span<const uint8_t> message, const IpAddress& from,
                            const IpAddress& to) {
  uint64_t sum = sum_of(protocol) + sum_of(static_cast<uint16_t>(message.size()));
  const size_t skip = from.is_v4() ? 12 : 0;
  for (const IpAddress* a : {&from, &to}) sum = add_sums(sum, sum_bytes(&a->bytes[skip], 16 - skip));
  return finish_sum(add_sums(sum, sum_bytes(message.data(), message.size())));
}

void append(Bytes& out, std::span<const uint8_t> more) { out.insert(out.end(), more.begin(), more.end()); }

/// An ICMPv6 type and code for each code of ICMP's "unreachable" that scripts name.
constexpr std::array<std::pair<uint8_t, uint8_t>, 6> kIcmpv6 = {
    {{1, 0}, {1, 3}, {4, 1}, {1, 4}, {2, 0}, {1, 5}}};

OptionSpec option_of(uint8_t kind, std::span<const uint8_t> body) {
  OptionSpec o;
  o.kind = kind;
  if (kind == option::kMss && body.size() == 2) o.a = body[0] << 8 | body[1];
  if (kind == option::kWindowScale && body.size() == 1) o.a = body[0];
  if (kind == option::kTimestamps && body.size() == 8) {
    o.a = load_be32(body.data());
    o.b = load_be32(&body[4]);
  }
  if (kind == option::kSack)
    for (size_t i = 0; i + 8 <= body.size(); i += 8)
      o.sack.emplace_back(load_be32(&body[i]), load_be32(&body[i + 4]));
  if (kind == option::kFastOpen) o.cookie.assign(body.begin(), body.end());
  if (kind == option::kExperiment && body.size() >= 2) o.cookie.assign(body.begin() + 2, body.end());
  return o;
}

std::string text_of(const OptionSpec& o) {
  auto star = [](const std::optional<uint32_t>& v) { return v ? std::to_string(*v) : "*"; };
  std::string out;
  switch (o.kind) {
    case option::kNop:
      return "nop";
    case option::kEnd:
      return "eol";
    case option::kSackPermitted:
      return "sackOK";
    case option::kMss:
      return "mss " + star(o.a);
    case option::kWindowScale:
      return "wscale " + star(o.a);
    case option::kTimestamps:
      return "TS val " + star(o.a) + " ecr " + star(o.b);
    case option::kSack:
      out = "sack";
      for (const auto& [begin, end] : o.sack)
        out.append(" ").append(std::to_string(begin)).append(":").append(std::to_string(end));
      return out;
    case option::kFastOpen:
    case option::kExperiment: {
      out = o.kind == option::kFastOpen ? "FO" : "FOEXP";
      if (!o.cookie.empty()) out += ' ';
      for (const uint8_t byte : o.cookie)
        for (const uint32_t half : {byte >> 4, byte & 15}) out += "0123456789abcdef"[half];
      return out;
    }
    default:
      return "option-" + std::to_string(o.kind);
  }
}

}  // namespace

Bytes packet_of(const Segment& s) {
  Bytes message(sizeof(TcpHeader));
  const Bytes options = options_of(s);
  auto& tcp = wire_at<TcpHeader>(message.data());
  tcp.source = s.from;
  tcp.destination = s.to;
  tcp.sequence = s.seq;
  tcp.acknowledgment = s.ack;
  tcp.data_offset = static_cast<uint8_t>((sizeof tcp + options.size()) / 4 << 4);
  tcp.flags = s.flags;
  tcp.window = s.window;
  tcp.urgent = s.urgent;
  append(message, options);
  append(message, s.payload);
  store_checksum(&message[16], sum_with_addresses(kTcp, message, s.source, s.destination));
  Bytes out = ip_header(kTcp, message.size(), s.ecn, s.source, s.destination);
  append(out, message);
  return out;
}

Bytes icmp_packet_of(const InjectIcmp& icmp, const Segment& quoted) {
  const bool v6 = !quoted.source.is_v4();
  const Bytes inner = packet_of(quoted);
  const auto [type, code] = v6 ? kIcmpv6.at(icmp.code) : std::pair(icmp.type, icmp.code);
  const uint8_t protocol = v6 ? kProtocolIcmpv6 : kProtocolIcmp;
  Bytes message;
  message.push_back(type);
  message.push_back(code);
  put32(message, 0);
  put16(message, icmp.mtu);
  append(message, std::span(inner).first((v6 ? sizeof(Ipv6Header) : sizeof(Ipv4Header)) + 8));
  store_checksum(&message[2], v6 ? sum_with_addresses(protocol, message, quoted.destination, quoted.source)
                                 : finish_sum(sum_bytes(message.data(), message.size())));
  Bytes out = ip_header(protocol, message.size(), 0, quoted.destination, quoted.source);
  append(out, message);
  return out;
}

/// Behind the header that tells addresses and ECN; empty: it is no whole TCP segment.
static std::span<const uint8_t> open_packet(std::span<const uint8_t> p, Segment& s) {
  if (p.size() >= sizeof(Ipv6Header) && p[0] >> 4 == 6 && p[6] == kTcp) {
    const auto& ip = wire_at<Ipv6Header>(p.data());
    s.source = IpAddress::from_v6_bytes(ip.source.data());
    s.destination = IpAddress::from_v6_bytes(ip.destination.data());
    s.ecn = p[1] >> 4 & 3;
    const size_t length = ip.payload_length;
    if (length + sizeof ip <= p.size()) return p.subspan(sizeof ip, length);
  } else if (p.size() >= sizeof(Ipv4Header) && p[0] == 0x45 && p[9] == kTcp) {
    const auto& ip = wire_at<Ipv4Header>(p.data());
    s.source = IpAddress::from_v4_bytes(ip.source.data());
    s.destination = IpAddress::from_v4_bytes(ip.destination.data());
    s.ecn = p[1] & 3;
    const size_t total = ip.total_length;
    if (total >= sizeof ip && total <= p.size() && finish_sum(sum_bytes(p.data(), sizeof ip)) == 0)
      return p.subspan(sizeof ip, total - sizeof ip);
  }
  return {};
}

std::optional<Segment> segment_of(std::span<const uint8_t> p) {
  Segment s;
  const auto tcp_bytes = open_packet(p, s);
  if (tcp_bytes.size() < sizeof(TcpHeader)) return std::nullopt;
  if (sum_with_addresses(kTcp, tcp_bytes, s.source, s.destination) != 0) return std::nullopt;
  const auto& tcp = wire_at<TcpHeader>(tcp_bytes.data());
  const size_t header = (tcp.data_offset >> 4) * 4u;
  if (header < sizeof tcp || header > tcp_bytes.size()) return std::nullopt;
  s.from = tcp.source;
  s.to = tcp.destination;
  s.seq = tcp.sequence;
  s.ack = tcp.acknowledgment;
  s.flags = tcp.flags;
  s.window = tcp.window;
  s.urgent = tcp.urgent;
  for (size_t i = sizeof tcp; i < header;) {
    const uint8_t kind = tcp_bytes[i];
    const bool alone = kind == option::kNop || kind == option::kEnd;
    const size_t length = alone ? 1 : i + 1 < header ? tcp_bytes[i + 1] : 0;
    if (length == 0 || i + length > header || (!alone && length < 2)) return std::nullopt;
    s.options.push_back(
        option_of(kind, alone ? std::span<const uint8_t>() : tcp_bytes.subspan(i + 2, length - 2)));
    i += length;
  }
  s.payload.assign(tcp_bytes.begin() + static_cast<long>(header), tcp_bytes.end());
  s.length = static_cast<uint32_t>(s.payload.size());
  return s;
}

std::string text_of_flags(uint8_t flags) {
  static const std::string names = "FSRP.UEW";
  std::string out;
  for (size_t bit : {0, 1, 2, 3, 5, 6, 7, 4})
    if (flags >> bit & 1) out += names[bit];
  return out.empty() ? "-" : out;
}

std::string text_of(const SegmentSpec& s) {
  std::string out;
  static const char* const ecn[] = {"noecn", "ect1", "ect0", "ce"};
  if (s.ecn) out += "[" + std::string(ecn[*s.ecn]) + "] ";
  if (s.ports) out += std::to_string(s.ports->from) + " > " + std::to_string(s.ports->to) + " ";
  out += text_of_flags(s.flags) + " " + std::to_string(s.seq) + ":" + std::to_string(s.seq + s.length) + "(" +
         std::to_string(s.length) + ")";
  if (s.ack) out += " ack " + std::to_string(*s.ack);
  if (s.window) out += " win " + std::to_string(*s.window);
  if (s.urgent) out += " urg " + std::to_string(*s.urgent);
  if (s.any_options) return out + " <...>";
  if (s.options.empty()) return out;
  out += " <";
  for (size_t i = 0; i < s.options.size(); ++i) out.append(i ? "," : "").append(text_of(s.options[i]));
  return out + ">";
}

}  // namespace accel::scripts
