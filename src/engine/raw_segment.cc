#include "engine/raw_segment.h"

#include <netinet/in.h>

#include <algorithm>
#include <cstring>

#include "stack/wire/checksum.h"
#include "stack/wire/ip_header.h"
#include "stack/wire/tcp.h"

namespace accel {

Result<void> send_raw(Injector& injector, const RawSegment& segment) {
  TcpHeader tcp{};
  tcp.source = segment.from.port;
  tcp.destination = segment.to.port;
  tcp.sequence = segment.seq;
  tcp.acknowledgment = segment.ack;
  tcp.data_offset = 5 << 4;
  tcp.flags = segment.flags;
  tcp.window = segment.window;
  const IpFields fields{
      .from = segment.from.address, .to = segment.to.address, .protocol = IPPROTO_TCP, .ttl = segment.ttl};
  const size_t size = sizeof tcp + segment.payload.size();
  uint8_t packet[40 + sizeof tcp + RawSegment::kMostPayload];
  const size_t at = put_ip_header(packet, fields, size), length = at + size;
  std::memcpy(packet + at, &tcp, sizeof tcp);
  std::copy(segment.payload.begin(), segment.payload.end(), packet + at + sizeof tcp);
  store_checksum(packet + at + offsetof(TcpHeader, checksum), transport_checksum({packet, length}, fields));
  return injector.send({packet, length}, segment.to.address, segment.ifindex);
}

Result<void> send_raw(const RawSegment& segment) {
  Injector injector;
  return send_raw(injector, segment);
}

}  // namespace accel
