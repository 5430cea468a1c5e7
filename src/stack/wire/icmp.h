// ICMP errors: RFC 792, RFC 4443; their errno values as the kernel's (net/ipv4/icmp.c icmp_err_convert,
// net/ipv6/icmp.c icmpv6_err_convert).
#pragma once

#include <cerrno>
#include <iterator>
#include <optional>

#include "stack/wire/be.h"

namespace accel {

struct IcmpHeader {
  uint8_t type, code;
  Be<uint16_t> checksum;
  Be<uint32_t> rest;  ///< v4 type 3 code 4: next-hop MTU in the lower 16 bits; v6 type 2: MTU
};
static_assert(sizeof(IcmpHeader) == 8 && alignof(IcmpHeader) == 1);

constexpr uint8_t kProtocolIcmp = 1, kProtocolIcmpv6 = 58;

struct IcmpMeaning {
  int error = 0;
  bool fatal = false;    ///< a connected UDP socket gets it; soft ones are dropped there
  bool too_big = false;  ///< fragmentation needed / packet too big
};

/// nullopt: not an error message.
constexpr std::optional<IcmpMeaning> icmpv4_meaning(uint8_t type, uint8_t code) {
  constexpr IcmpMeaning kUnreachable[] = {
      {ENETUNREACH, false, false},  {EHOSTUNREACH, false, false}, {ENOPROTOOPT, true, false},
      {ECONNREFUSED, true, false},  {EMSGSIZE, true, true},       {EOPNOTSUPP, false, false},
      {ENETUNREACH, true, false},   {EHOSTDOWN, true, false},     {ENONET, true, false},
      {ENETUNREACH, true, false},   {EHOSTUNREACH, true, false},  {ENETUNREACH, false, false},
      {EHOSTUNREACH, false, false}, {EHOSTUNREACH, true, false},  {EHOSTUNREACH, true, false},
      {EHOSTUNREACH, true, false}};
  if (type == 3 && code < std::size(kUnreachable)) return kUnreachable[code];
  if (type == 11) return IcmpMeaning{EHOSTUNREACH, false, false};
  if (type == 12) return IcmpMeaning{EPROTO, true, false};
  return {};
}

constexpr std::optional<IcmpMeaning> icmpv6_meaning(uint8_t type, uint8_t code) {
  constexpr IcmpMeaning kUnreachable[] = {{ENETUNREACH, false, false},  {EACCES, true, false},
                                          {EHOSTUNREACH, false, false}, {EHOSTUNREACH, false, false},
                                          {ECONNREFUSED, true, false},  {EACCES, true, false},
                                          {EACCES, true, false}};
  if (type == 1 && code < std::size(kUnreachable)) return kUnreachable[code];
  if (type == 2) return IcmpMeaning{EMSGSIZE, true, true};
  if (type == 3) return IcmpMeaning{EHOSTUNREACH, false, false};
  if (type == 4) return IcmpMeaning{EPROTO, true, false};
  return {};
}

/// RFC 1191 section 7: what to try next when an old router did not say its MTU.
constexpr uint32_t next_plateau(uint32_t packet_length) {
  for (uint32_t p : {32000u, 17914u, 8166u, 4352u, 2002u, 1492u, 1006u, 508u, 296u})
    if (p < packet_length) return p;
  return 68;
}

}  // namespace accel
