// Frames made by hand, with good checksums, for ports under test.
#pragma once

#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "tests/xdp/lab_env.h"

namespace accel::test {

enum TcpFlags : uint8_t { kFin = 1, kSyn = 2, kRst = 4, kAck = 16 };

class FrameMaker {
 public:
  FrameMaker(const LabEnd& from, const LabEnd& to) : from_(from), to_(to) {}

  std::vector<uint8_t> udp4(uint16_t sport, uint16_t dport, std::string_view payload) const {
    return ipv4(17, udp(sport, dport, payload, pseudo4(17, 8 + payload.size())));
  }
  std::vector<uint8_t> udp6(uint16_t sport, uint16_t dport, std::string_view payload) const {
    return ipv6(17, udp(sport, dport, payload, pseudo6(17, 8 + payload.size())));
  }
  std::vector<uint8_t> tcp4(uint16_t sport, uint16_t dport, uint8_t flags,
                            std::string_view payload = {}) const {
    return ipv4(6, tcp(sport, dport, flags, payload, pseudo4(6, 20 + payload.size())));
  }
  std::vector<uint8_t> tcp6(uint16_t sport, uint16_t dport, uint8_t flags,
                            std::string_view payload = {}) const {
    return ipv6(6, tcp(sport, dport, flags, payload, pseudo6(6, 20 + payload.size())));
  }
  /// An error about `offending`, an Ethernet frame of the receiver's.
  std::vector<uint8_t> icmp4(uint8_t type, uint8_t code, const std::vector<uint8_t>& offending) const {
    return ipv4(1, icmp(type, code, offending, 28, 0));
  }
  std::vector<uint8_t> icmp6(uint8_t type, uint8_t code, const std::vector<uint8_t>& offending) const {
    return ipv6(58, icmp(type, code, offending, 48, pseudo6(58, 8 + 48)));
  }
  /// The same frame with an 802.1Q tag.
  static std::vector<uint8_t> tagged(std::vector<uint8_t> frame, uint16_t vlan) {
    const uint8_t tag[] = {0x81, 0x00, static_cast<uint8_t>(vlan >> 8), static_cast<uint8_t>(vlan)};
    frame.insert(frame.begin() + 12, tag, tag + 4);
    return frame;
  }

 private:
  using Bytes = std::vector<uint8_t>;
  static void put16(Bytes& b, uint32_t v) {
    b.push_back(static_cast<uint8_t>(v >> 8));
    b.push_back(static_cast<uint8_t>(v));
  }
  static uint32_t sum(std::span<const uint8_t> b, uint32_t s = 0) {
    for (size_t i = 0; i < b.size(); ++i) s += i % 2 ? b[i] : uint32_t{b[i]} << 8;
    return s;
  }
  static void set_checksum(Bytes& b, size_t at, uint32_t start) {
    uint32_t s = sum(b, start);
    while (s >> 16) s = (s & 0xffff) + (s >> 16);
    b[at] = static_cast<uint8_t>(~s >> 8);
    b[at + 1] = static_cast<uint8_t>(~s);
  }
  uint32_t pseudo4(uint8_t protocol, size_t length) const {
    return sum({to_.address4().v4_bytes(), 4}, sum({from_.address4().v4_bytes(), 4})) + protocol +
           static_cast<uint32_t>(length);
  }
  uint32_t pseudo6(uint8_t protocol, size_t length) const {
    return sum(to_.address6().bytes, sum(from_.address6().bytes)) + protocol + static_cast<uint32_t>(length);
  }
  static Bytes udp(uint16_t sport, uint16_t dport, std::string_view payload, uint32_t pseudo) {
    Bytes b;
    put16(b, sport), put16(b, dport), put16(b, static_cast<uint32_t>(8 + payload.size())), put16(b, 0);
    b.insert(b.end(), payload.begin(), payload.end());
    set_checksum(b, 6, pseudo);
    return b;
  }
  static Bytes tcp(uint16_t sport, uint16_t dport, uint8_t flags, std::string_view payload, uint32_t pseudo) {
    Bytes b;
    put16(b, sport), put16(b, dport);
    put16(b, 0), put16(b, 1), put16(b, 0), put16(b, 0);  // sequence, acknowledgement
    b.push_back(5 << 4), b.push_back(flags), put16(b, 1000), put16(b, 0), put16(b, 0);
    b.insert(b.end(), payload.begin(), payload.end());
    set_checksum(b, 16, pseudo);
    return b;
  }
  static Bytes icmp(uint8_t type, uint8_t code, const Bytes& offending, size_t quoted, uint32_t pseudo) {
    Bytes b{type, code};
    put16(b, 0), put16(b, 0), put16(b, 1280);
    b.insert(b.end(), offending.begin() + 14, offending.begin() + 14 + static_cast<long>(quoted));
    set_checksum(b, 2, pseudo);
    return b;
  }
  Bytes ethernet(uint16_t type) const {
    Bytes b(to_.mac.begin(), to_.mac.end());
    b.insert(b.end(), from_.mac.begin(), from_.mac.end());
    put16(b, type);
    return b;
  }
  Bytes ipv4(uint8_t protocol, const Bytes& l4) const {
    Bytes ip{0x45, 0};
    put16(ip, static_cast<uint32_t>(20 + l4.size())), put16(ip, 0), put16(ip, 0x4000);
    ip.push_back(64), ip.push_back(protocol), put16(ip, 0);
    const IpAddress source = from_.address4(), destination = to_.address4();
    ip.insert(ip.end(), source.v4_bytes(), source.v4_bytes() + 4);
    ip.insert(ip.end(), destination.v4_bytes(), destination.v4_bytes() + 4);
    set_checksum(ip, 10, 0);
    return join(ethernet(0x0800), ip, l4);
  }
  Bytes ipv6(uint8_t protocol, const Bytes& l4) const {
    Bytes ip{0x60, 0, 0, 0};
    put16(ip, static_cast<uint32_t>(l4.size()));
    ip.push_back(protocol), ip.push_back(64);
    const IpAddress source = from_.address6(), destination = to_.address6();
    ip.insert(ip.end(), source.bytes.begin(), source.bytes.end());
    ip.insert(ip.end(), destination.bytes.begin(), destination.bytes.end());
    return join(ethernet(0x86dd), ip, l4);
  }
  static Bytes join(Bytes a, const Bytes& b, const Bytes& c) {
    a.insert(a.end(), b.begin(), b.end());
    a.insert(a.end(), c.begin(), c.end());
    return a;
  }

  const LabEnd& from_;
  const LabEnd& to_;
};

}  // namespace accel::test
