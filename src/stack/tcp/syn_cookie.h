// SYN cookies (RFC 4987 section 3.6, net/ipv4/syncookies.c): a listener whose backlog is full keeps nothing
// of a SYN. Its SYN-ACK's sequence number tells what the ACK has to bring back. Pure.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "base/instant.h"
#include "base/ip.h"
#include "stack/tcp/options.h"

namespace accel::tcp {

/// A cookie is good in the minute in which it was made and in the next one (MAX_SYNCOOKIE_AGE).
constexpr Duration kCookieMinute = 60s;
/// As long after its last cookie a listener takes ACKs that hold one (TCP_SYNCOOKIE_VALID).
constexpr Duration kCookieValid = 2 * kCookieMinute;

/// The sequence number of a SYN-ACK to a SYN with the number `peer_seq` and the option `mss`. The peer's ACK
/// will tell the largest entry of a table of four that is not above `mss`. `secret`: of the process.
uint32_t make_syn_cookie(const std::array<uint64_t, 2>& secret, const Endpoint& local, const Endpoint& remote,
                         uint32_t peer_seq, uint16_t mss, Instant now);
/// The MSS that the cookie holds; nullopt: it is none of ours, or too old.
std::optional<uint16_t> check_syn_cookie(const std::array<uint64_t, 2>& secret, const Endpoint& local,
                                         const Endpoint& remote, uint32_t peer_seq, uint32_t cookie,
                                         Instant now);

/// cookie_init_timestamp(): the newest stamp, not after `clock` (ms), whose low six bits tell which options
/// the peer has offered: the window scale (15: none), SACK and ECN.
uint32_t cookie_timestamp(uint32_t clock, const TcpOptions& offered, bool ecn);
/// cookie_timestamp_decode(): what the stamp that came back says.
TcpOptions options_of_cookie(uint32_t stamp);
/// TS_OPT_ECN, of the stamp: ECN was agreed to.
constexpr uint32_t kCookieEcn = 0x20;

}  // namespace accel::tcp
