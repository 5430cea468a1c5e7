// Addresses and tuples as every layer knows them. Ports are in host byte order, addresses in network byte
// order.
#pragma once

#include <array>
#include <bit>
#include <compare>
#include <cstdint>
#include <cstring>

namespace accel {

/// An IPv4 or IPv6 address in 16 bytes; IPv4 is kept in its mapped form (RFC 4291 section 2.5.5.2).
struct IpAddress {
  std::array<uint8_t, 16> bytes{};

  /// `host_order` as in ntohl(in_addr).
  static constexpr IpAddress v4(uint32_t host_order) {
    IpAddress a;
    a.bytes[10] = a.bytes[11] = 0xff;
    for (int i = 0; i < 4; ++i) a.bytes[12 + i] = static_cast<uint8_t>(host_order >> (24 - 8 * i));
    return a;
  }
  static IpAddress from_v4_bytes(const void* four) {
    uint32_t v4;
    std::memcpy(&v4, four, 4);
    const uint64_t low =
        0xffff0000 | uint64_t{v4} << 32;  // in one store: it is read as a word right away (hash_tuple)
    IpAddress a;
    std::memcpy(&a.bytes[8], &low, 8);
    return a;
  }
  static IpAddress from_v6_bytes(const void* sixteen) {
    IpAddress a;
    std::memcpy(a.bytes.data(), sixteen, 16);
    return a;
  }
  static constexpr IpAddress any_v4() { return v4(0); }
  static constexpr IpAddress any_v6() { return {}; }

  /// The bytes as two words in memory order: comparisons are on every packet's way.
  constexpr std::array<uint64_t, 2> words() const { return std::bit_cast<std::array<uint64_t, 2>>(bytes); }
  static constexpr uint64_t kMappedMask =
      std::bit_cast<uint64_t>(std::array<uint8_t, 8>{255, 255, 255, 255, 0, 0, 0, 0});
  static constexpr uint64_t kMapped =
      std::bit_cast<uint64_t>(std::array<uint8_t, 8>{0, 0, 255, 255, 0, 0, 0, 0});
  constexpr bool is_v4() const {
    const auto w = words();
    return w[0] == 0 && (w[1] & kMappedMask) == kMapped;
  }
  constexpr uint32_t v4_host_order() const {
    return uint32_t{bytes[12]} << 24 | uint32_t{bytes[13]} << 16 | uint32_t{bytes[14]} << 8 | bytes[15];
  }
  const uint8_t* v4_bytes() const { return &bytes[12]; }
  /// 0.0.0.0 or ::
  constexpr bool is_any() const {
    const auto w = words();
    return w[0] == 0 && (w[1] == 0 || w[1] == kMapped);
  }
  constexpr bool is_loopback() const {
    if (is_v4()) return bytes[12] == 127;
    for (int i = 0; i < 15; ++i)
      if (bytes[i] != 0) return false;
    return bytes[15] == 1;
  }
  constexpr bool is_multicast() const { return is_v4() ? (bytes[12] & 0xf0) == 0xe0 : bytes[0] == 0xff; }
  constexpr bool is_link_local() const {
    return is_v4() ? bytes[12] == 169 && bytes[13] == 254 : bytes[0] == 0xfe && (bytes[1] & 0xc0) == 0x80;
  }
  constexpr auto operator<=>(const IpAddress&) const = default;
  constexpr bool operator==(const IpAddress& other) const {
    const auto a = words(), b = other.words();
    return ((a[0] ^ b[0]) | (a[1] ^ b[1])) == 0;
  }
};

struct Endpoint {
  IpAddress address;
  uint16_t port = 0;
  constexpr auto operator<=>(const Endpoint&) const = default;
};

enum class Protocol : uint8_t { kTcp = 6, kUdp = 17 };

/// What a steering rule or a demultiplexer looks for. A remote port of 0 means any remote end (3-tuple).
struct FlowKey {
  Protocol protocol = Protocol::kTcp;
  Endpoint local;
  Endpoint remote;
  uint16_t vlan = 0;  ///< of its frames' 802.1Q tag; 0: untagged
  constexpr bool is_connected() const { return remote.port != 0; }
  constexpr auto operator<=>(const FlowKey&) const = default;
};

/// SipHash is not needed where the peer cannot choose the key; `secret` keeps a remote from aiming at one
/// bucket. Both ends are folded side by side, so that a processor multiplies them at the same time.
inline uint64_t hash_tuple(const Endpoint& local, const Endpoint& remote, uint64_t secret) {
  auto word = [](const uint8_t* p) {
    uint64_t w;
    std::memcpy(&w, p, 8);
    return w;
  };
  auto fold = [](uint64_t a, uint64_t b) {
    unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
    return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
  };
  constexpr uint64_t k1 = 0x9e3779b97f4a7c15ULL, k2 = 0xbf58476d1ce4e5b9ULL, k3 = 0x94d049bb133111ebULL;
  uint64_t here = fold(word(&local.address.bytes[0]) ^ secret ^ k1, word(&local.address.bytes[8]) ^ secret);
  uint64_t there =
      fold(word(&remote.address.bytes[0]) ^ secret ^ k2, word(&remote.address.bytes[8]) ^ secret);
  uint64_t ports = uint64_t{local.port} << 16 | remote.port;
  return fold(here ^ k3 ^ ports << 17, there ^ secret ^ ports << 32);
}

}  // namespace accel
