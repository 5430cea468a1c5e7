#include "wire.h"

#include <algorithm>

#include "stack/tcp/options.h"
#include "stack/tcp/segment.h"
#include "stack/wire/checksum.h"
#include "stack/wire/icmp.h"
#include "stack/wire/ipv4.h"
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
    out.push_back(static_cast<uint8_t>(2 + body.size()));
    out.insert(out.end(), body.begin(), body.end());
  }
  while (out.size() % 4 != 0) out.push_back(option::kEnd);
  return out;
}

void put_ip(uint8_t* at, uint8_t protocol, size_t length, uint8_t tos, uint32_t from, uint32_t to) {
  auto& ip = wire_at<Ipv4Header>(at);
  ip = {};
  ip.version_ihl = 0x45;
  ip.tos = tos;
  ip.total_length = static_cast<uint16_t>(length);
  ip.ttl = 64;
  ip.protocol = protocol;
  store_be32(ip.source.data(), from);
  store_be32(ip.destination.data(), to);
  store_checksum(at + 10, finish_sum(sum_bytes(at, sizeof ip)));
}

uint16_t sum_tcp(const uint8_t* ip, std::span<const uint8_t> tcp) {
  uint64_t sum = sum_of(6) + sum_of(static_cast<uint16_t>(tcp.size()));
  sum = add_sums(sum, sum_bytes(ip + 12, 8));
  return finish_sum(add_sums(sum, sum_bytes(tcp.data(), tcp.size())));
}

/// Headers and payload from `from` to `to`.
Bytes whole_packet(const Segment& s, uint32_t from, uint32_t to) {
  Bytes out(sizeof(Ipv4Header) + sizeof(TcpHeader));
  const Bytes options = options_of(s);
  auto& tcp = wire_at<TcpHeader>(&out[sizeof(Ipv4Header)]);
  tcp.source = s.from;
  tcp.destination = s.to;
  tcp.sequence = s.seq;
  tcp.acknowledgment = s.ack;
  tcp.data_offset = static_cast<uint8_t>((sizeof tcp + options.size()) / 4 << 4);
  tcp.flags = s.flags;
  tcp.window = s.window;
  tcp.urgent = s.urgent;
  out.insert(out.end(), options.begin(), options.end());
  out.insert(out.end(), s.payload.begin(), s.payload.end());
  put_ip(out.data(), 6, out.size(), s.ecn, from, to);
  store_checksum(&out[sizeof(Ipv4Header) + 16],
                 sum_tcp(out.data(), std::span(out).subspan(sizeof(Ipv4Header))));
  return out;
}

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
      for (const auto& [begin, end] : o.sack) out += " " + std::to_string(begin) + ":" + std::to_string(end);
      return out;
    default:
      return "option-" + std::to_string(o.kind);
  }
}

}  // namespace

Bytes packet_of(const Segment& s) { return whole_packet(s, kPeerAddress, kOwnAddress); }

Bytes icmp_packet_of(const InjectIcmp& icmp, const Segment& quoted) {
  constexpr size_t kQuote = sizeof(Ipv4Header) + 8;
  const Bytes inner = whole_packet(quoted, kOwnAddress, kPeerAddress);
  Bytes message;
  message.push_back(icmp.type);
  message.push_back(icmp.code);
  put32(message, 0);
  put16(message, icmp.mtu);
  message.insert(message.end(), inner.begin(), inner.begin() + kQuote);
  store_checksum(&message[2], finish_sum(sum_bytes(message.data(), message.size())));
  Bytes out(sizeof(Ipv4Header) + message.size());
  std::copy(message.begin(), message.end(), out.begin() + sizeof(Ipv4Header));
  put_ip(out.data(), 1, out.size(), 0, kPeerAddress, kOwnAddress);
  return out;
}

std::optional<Segment> segment_of(std::span<const uint8_t> p) {
  if (p.size() < sizeof(Ipv4Header) + sizeof(TcpHeader) || p[0] != 0x45 || p[9] != 6) return std::nullopt;
  if (load_be32(&p[12]) != kOwnAddress || load_be32(&p[16]) != kPeerAddress) return std::nullopt;
  const size_t total = wire_at<Ipv4Header>(p.data()).total_length;
  if (total > p.size()) return std::nullopt;
  const auto tcp_bytes = p.subspan(sizeof(Ipv4Header), total - sizeof(Ipv4Header));
  if (finish_sum(sum_bytes(p.data(), sizeof(Ipv4Header))) != 0 || sum_tcp(p.data(), tcp_bytes) != 0)
    return std::nullopt;
  const auto& tcp = wire_at<TcpHeader>(tcp_bytes.data());
  const size_t header = (tcp.data_offset >> 4) * 4u;
  if (header < sizeof tcp || header > tcp_bytes.size()) return std::nullopt;
  Segment s;
  s.from = tcp.source;
  s.to = tcp.destination;
  s.seq = tcp.sequence;
  s.ack = tcp.acknowledgment;
  s.flags = tcp.flags;
  s.ecn = p[1] & 3;
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
  for (size_t i = 0; i < s.options.size(); ++i) out += (i ? "," : "") + text_of(s.options[i]);
  return out + ">";
}

}  // namespace accel::scripts
