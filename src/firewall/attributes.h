// Netlink attributes (include/uapi/linux/netlink.h), read without trust in their lengths.
#pragma once

#include <linux/netlink.h>

#include <cstdint>
#include <cstring>
#include <span>
#include <string>

namespace accel::firewall {

using View = std::span<const uint8_t>;

/// Calls visit(type, payload) for each attribute; ends at the first whose length is wrong.
template <class Visit>
void each_attribute(View all, Visit visit) {
  while (all.size() >= sizeof(nlattr)) {
    nlattr head;
    std::memcpy(&head, all.data(), sizeof head);
    if (head.nla_len < NLA_HDRLEN || head.nla_len > all.size()) return;
    visit(static_cast<uint16_t>(head.nla_type & NLA_TYPE_MASK),
          all.subspan(NLA_HDRLEN, head.nla_len - NLA_HDRLEN));
    const size_t step = NLA_ALIGN(head.nla_len);
    if (step >= all.size()) return;
    all = all.subspan(step);
  }
}

/// The first of that type; empty where there is none.
inline View attribute(View all, uint16_t wanted) {
  View found;
  each_attribute(all, [&](uint16_t type, View payload) {
    if (type == wanted && found.data() == nullptr) found = payload;
  });
  return found;
}

/// nf_tables writes its numbers in network order; fewer bytes than asked for: 0.
inline uint64_t big_endian(View bytes, size_t size) {
  uint64_t value = 0;
  if (bytes.size() < size) return 0;
  for (size_t i = 0; i < size; ++i) value = value << 8 | bytes[i];
  return value;
}
inline uint32_t be32(View bytes) { return static_cast<uint32_t>(big_endian(bytes, 4)); }
inline uint64_t be64(View bytes) { return big_endian(bytes, 8); }

inline std::string text(View bytes) {
  if (bytes.empty()) return {};
  return {reinterpret_cast<const char*>(bytes.data()),
          strnlen(reinterpret_cast<const char*>(bytes.data()), bytes.size())};
}

/// Calls visit(type, payload) for each message; false: the last one is cut short, or its length is wrong.
template <class Visit>
bool each_message(View all, Visit visit) {
  while (all.size() >= sizeof(nlmsghdr)) {
    nlmsghdr head;
    std::memcpy(&head, all.data(), sizeof head);
    if (head.nlmsg_len < NLMSG_HDRLEN || head.nlmsg_len > all.size()) return false;
    visit(head.nlmsg_type, all.subspan(NLMSG_HDRLEN, head.nlmsg_len - NLMSG_HDRLEN));
    const size_t step = NLMSG_ALIGN(head.nlmsg_len);
    if (step >= all.size()) return true;
    all = all.subspan(step);
  }
  return all.empty();
}

}  // namespace accel::firewall
