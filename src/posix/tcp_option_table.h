// Table of a TCP socket's options, and what its rows ask of the shadow.
#pragma once

#include "posix/options.h"

namespace accel::posix {

/// TCP_CONGESTION is "cubic", "reno" or "bbr".
bool has_congestion(const Socket& s);
/// CUBIC in place of one that we have not.
Congestion own_congestion(const Socket& s);
/// SO_MAX_PACING_RATE in bytes/s; kNoPacing: not set.
uint64_t max_pacing_rate_of(const Socket& s);
/// Of a listener: TCP_FASTOPEN with its keys, its own (TCP_FASTOPEN_KEY) or the host's. No keys: they may not
/// be read.
FastOpenServer fast_open_server_of(const Socket& s);
uint8_t fast_open_wishes(const Socket& s);  ///< bits of FastOpenWish
/// IP_PMTUDISC_DONT, which is the default where net.ipv4.ip_no_pmtu_disc is on.
bool discovers_mtu(const Socket& s);

constexpr int kSendLock = 1, kReceiveLock = 2;  ///< of SO_BUF_LOCK: SOCK_SNDBUF_LOCK, SOCK_RCVBUF_LOCK

std::span<const Option> tcp_options();

/// What concerns bytes as the program sees them, of a connection whose bytes the kernel does not see: only
/// the kernel's own TCP has it.
bool concerns_bytes(int level, int name, const void* value, socklen_t length);

}  // namespace accel::posix
