#include "engine/raw_segment.h"

#include <netinet/in.h>

#include <cstring>

#include "engine/inject.h"
#include "stack/wire/checksum.h"
#include "stack/wire/ip_header.h"
#include "stack/wire/tcp.h"

namespace accel {

Result<void> send_raw(const RawSegment& segment) {
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
  uint8_t packet[40 + sizeof tcp];
  const size_t at = put_ip_header(packet, fields, sizeof tcp), length = at + sizeof tcp;
  std::memcpy(packet + at, &tcp, sizeof tcp);
  store_checksum(packet + at + offsetof(TcpHeader, checksum), transport_checksum({packet, length}, fields));
  Injector injector;
  return injector.send({packet, length}, segment.to.address, segment.ifindex);
}

}  // namespace accel
