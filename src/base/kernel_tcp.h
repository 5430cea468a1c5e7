// TCP sockets of this network namespace, as the kernel tells of them. /proc/net/tcp has every connection and
// TIME-WAIT: reading it took seconds where there were thousands.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/ip.h"
#include "base/result.h"

namespace accel {

/// How many sockets listen at `port` (host order), of both families. Errors: those of dump_sockets().
Result<size_t> tcp_listeners_at(uint16_t port);

constexpr uint8_t kKernelTimeWait = 6;  ///< TCP_TIME_WAIT of netinet/tcp.h, which linux/tcp.h contradicts

/// The state (TCP_ESTABLISHED and others of netinet/tcp.h) of the kernel's connection of that tuple. nullopt:
/// there is none, or the kernel does not tell. Addresses must be of one family.
std::optional<uint8_t> kernel_tcp_state(const Endpoint& local, const Endpoint& remote);
/// The user that has made that connection's socket, as this user namespace numbers it. nullopt: likewise.
std::optional<uint32_t> kernel_tcp_user(const Endpoint& local, const Endpoint& remote);

}  // namespace accel
