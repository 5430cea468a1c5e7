#include "engine/raw_segment.h"

#include <netinet/in.h>
#include <netinet/tcp.h>

#include <cstring>

#include "engine/inject.h"

namespace accel {
namespace {

struct Header {
  uint16_t source, destination;
  uint32_t seq, ack;
  uint8_t offset, flags;
  uint16_t window, checksum, urgent;
};
static_assert(sizeof(Header) == 20);

uint32_t sum_of(const uint8_t* p, size_t n, uint32_t start) {
  for (size_t i = 0; i < n; i += 2) start += static_cast<uint32_t>(p[i] << 8 | p[i + 1]);
  return start;
}

const uint8_t* bytes_of(const IpAddress& a) { return a.is_v4() ? a.v4_bytes() : a.bytes.data(); }

Header header_of(const RawSegment& s) {
  Header tcp{};
  tcp.source = htons(s.from.port);
  tcp.destination = htons(s.to.port);
  tcp.seq = htonl(s.seq);
  tcp.ack = htonl(s.ack);
  tcp.offset = 5 << 4;
  tcp.flags = s.flags;
  tcp.window = htons(s.window);
  // The pseudo header (RFC 9293 section 3.1, RFC 8200 section 8.1): addresses, protocol, length.
  const size_t address = s.to.address.is_v4() ? 4 : 16;
  uint32_t sum = IPPROTO_TCP + sizeof(tcp);
  sum = sum_of(bytes_of(s.from.address), address, sum);
  sum = sum_of(bytes_of(s.to.address), address, sum);
  sum = sum_of(reinterpret_cast<const uint8_t*>(&tcp), sizeof(tcp), sum);
  while (sum >> 16) sum = (sum & 0xffff) + (sum >> 16);
  tcp.checksum = htons(static_cast<uint16_t>(~sum));
  return tcp;
}

}  // namespace

Result<void> send_raw(const RawSegment& segment) {
  const bool v4 = segment.to.address.is_v4();
  const Header tcp = header_of(segment);
  uint8_t packet[60]{};
  size_t length = v4 ? 20 : 40;
  if (v4) {
    packet[0] = 0x45;
    packet[8] = 64;
    packet[9] = IPPROTO_TCP;  // total length, ID and checksum: the kernel's (raw(7))
    std::memcpy(packet + 12, bytes_of(segment.from.address), 4);
    std::memcpy(packet + 16, bytes_of(segment.to.address), 4);
  } else {
    packet[0] = 0x60;
    packet[5] = sizeof(tcp);
    packet[6] = IPPROTO_TCP;
    packet[7] = 64;
    std::memcpy(packet + 8, bytes_of(segment.from.address), 16);
    std::memcpy(packet + 24, bytes_of(segment.to.address), 16);
  }
  std::memcpy(packet + length, &tcp, sizeof(tcp));
  length += sizeof(tcp);
  Injector injector;
  return injector.send({packet, length}, segment.to.address);
}

}  // namespace accel
