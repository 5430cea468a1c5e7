#include "stack/tcp/syn_cookie.h"

#include <algorithm>
#include <cstring>

#include "stack/tcp/siphash.h"

namespace accel::tcp {
namespace {

constexpr uint32_t kCountShift = 24, kHashMask = (1u << kCountShift) - 1;
constexpr uint32_t kMostAge = 2;
constexpr std::array<uint16_t, 4> kMssV4{536, 1300, 1440, 1460};  // msstab of syncookies.c
constexpr std::array<uint16_t, 4> kMssV6{1280 - 60, 1480 - 60, 1500 - 60, 9000 - 60};  // of net/ipv6/

constexpr uint32_t kScaleMask = 0xf, kSackBit = 0x10, kOptionBits = 0x3f;

/// `part`: 0 hides the cookie from the peer, 1 binds the rest to the minute.
uint32_t cookie_hash(const std::array<uint64_t, 2>& secret, const Endpoint& local, const Endpoint& remote,
                     uint32_t minute, uint32_t part) {
  std::array<uint8_t, 44> in;
  std::memcpy(&in[0], local.address.bytes.data(), 16);
  std::memcpy(&in[16], remote.address.bytes.data(), 16);
  std::memcpy(&in[32], &local.port, 2);
  std::memcpy(&in[34], &remote.port, 2);
  std::memcpy(&in[36], &minute, 4);
  std::memcpy(&in[40], &part, 4);
  return static_cast<uint32_t>(siphash(secret, in));
}

uint32_t minute_of(Instant now) { return static_cast<uint32_t>(now.time_since_epoch() / kCookieMinute); }

const std::array<uint16_t, 4>& mss_table(const IpAddress& address) {
  return address.is_v4() ? kMssV4 : kMssV6;
}

}  // namespace

uint32_t make_syn_cookie(const std::array<uint64_t, 2>& secret, const Endpoint& local, const Endpoint& remote,
                         uint32_t peer_seq, uint16_t mss, Instant now) {
  const auto& table = mss_table(local.address);
  uint32_t index = static_cast<uint32_t>(table.size()) - 1;
  while (index > 0 && table[index] > mss) --index;
  const uint32_t minute = minute_of(now);
  return cookie_hash(secret, local, remote, 0, 0) + peer_seq + (minute << kCountShift) +
         ((cookie_hash(secret, local, remote, minute, 1) + index) & kHashMask);
}

std::optional<uint16_t> check_syn_cookie(const std::array<uint64_t, 2>& secret, const Endpoint& local,
                                         const Endpoint& remote, uint32_t peer_seq, uint32_t cookie,
                                         Instant now) {
  cookie -= cookie_hash(secret, local, remote, 0, 0) + peer_seq;
  const uint32_t minute = minute_of(now);
  const uint32_t age = (minute - (cookie >> kCountShift)) & (0xffffffff >> kCountShift);
  if (age >= kMostAge) return {};
  const uint32_t index = (cookie - cookie_hash(secret, local, remote, minute - age, 1)) & kHashMask;
  const auto& table = mss_table(local.address);
  if (index >= table.size()) return {};
  return table[index];
}

uint32_t cookie_timestamp(uint32_t clock, const TcpOptions& offered, bool ecn) {
  const uint32_t scale = offered.has_wscale ? std::min<uint32_t>(offered.wscale, 14) : kScaleMask;
  const uint32_t bits = scale | (offered.sack_permitted ? kSackBit : 0) | (ecn ? kCookieEcn : 0);
  const uint32_t stamp = (clock & ~kOptionBits) | bits;
  return stamp <= clock ? stamp : stamp - (kOptionBits + 1);
}

TcpOptions options_of_cookie(uint32_t stamp) {
  TcpOptions o;
  o.sack_permitted = (stamp & kSackBit) != 0;
  o.has_wscale = (stamp & kScaleMask) != kScaleMask;
  if (o.has_wscale) o.wscale = static_cast<uint8_t>(stamp & kScaleMask);
  return o;
}

}  // namespace accel::tcp
