// IPv6 flow labels that the program chooses by sin6_flowinfo (IPV6_FLOWINFO_SEND), with or without a lease
// (IPV6_FLOWLABEL_MGR). Leases are the shadow's.
#pragma once

#include "posix/socket.h"

namespace accel::posix {

// linux/in6.h
constexpr int kFlowLabelManager = 32;  ///< IPV6_FLOWLABEL_MGR
constexpr int kFlowInfoSend = 33;      ///< IPV6_FLOWINFO_SEND

constexpr uint32_t kFlowLabelMask = 0xfffff;

/// sin6_flowinfo of an address that from_sockaddr() has taken: traffic class and label; 0: none.
uint32_t flowinfo_of(const sockaddr* address);
/// The same where `s` sends it.
uint32_t flowinfo_to_send(const Socket& s, const sockaddr* address);
/// Whether the kernel would let `s` send it to `remote`: where a label of the network namespace is leased
/// exclusively no socket may use one without a lease (fl6_sock_lookup()).
bool may_send_flowinfo(const Socket& s, const Endpoint& remote, uint32_t flowinfo);
/// IPV6_FLOWLABEL_MGR: whether that changes what is sent, by extension headers or by reflecting the peer's
/// label.
bool lease_changes_packets(const void* value, socklen_t length);

}  // namespace accel::posix
