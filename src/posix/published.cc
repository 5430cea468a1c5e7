#include "posix/published.h"

#include <netinet/in.h>

#include <cstring>
#include <unordered_set>

#include "posix/tcp_socket.h"
#include "posix/udp_socket.h"
#include "stack/udp.h"

namespace accel::posix {
namespace {

/// Neither connected nor listening, inherited and not used yet, or a listener that only the kernel serves.
void publish_undecided(const Socket& s, uint8_t protocol, int fd, stats::Writer& writer) {
  stats::SocketRow row{};
  row.fd = fd;
  row.protocol = protocol;
  const bool inherited = s.inherited != File::Inherited::kNo;
  row.path = static_cast<uint8_t>(inherited || s.choice.accelerated() ? PathKind::kUndecided : s.choice.path);
  row.reason = static_cast<uint8_t>(inherited                ? Reason::inherited
                                    : s.choice.accelerated() ? Reason::not_decided
                                                             : s.choice.reason);
  Endpoint local = s.shadow_name();
  std::memcpy(row.local.bytes, local.address.bytes.data(), 16);
  row.local.port = local.port;
  writer.add(row);
}

void publish_tcp(Engine& engine, const TcpSocket& s, int fd, stats::Writer& writer, Instant now) {
  Stack& stack = engine.stack();
  TcpListener* listener = s.flow() != nullptr ? engine.listener(*s.flow()) : nullptr;
  if (s.conn() != nullptr)
    writer.tcp(stack, *s.conn(), fd, s.choice, now);
  else if (listener != nullptr)
    writer.listener(stack, *listener, fd, s.choice, s.local_endpoint());
  else
    publish_undecided(s, IPPROTO_TCP, fd, writer);
}

void publish_udp(Engine& engine, const UdpSocket& s, int fd, stats::Writer& writer) {
  UdpPcb* pcb = s.flow() != nullptr ? engine.udp(*s.flow()) : nullptr;
  if (pcb != nullptr)
    writer.udp(engine.stack(), *pcb, *pcb, fd, s.choice, s.local_endpoint(), s.remote_endpoint());
  else
    publish_undecided(s, IPPROTO_UDP, fd, writer);
}

}  // namespace

void publish_sockets(Engine& engine, stats::Writer& writer, Instant now) {
  std::unordered_set<const File*> seen;
  for (int fd = 0; fd < fds.limit(); ++fd) {
    const File* file = fds.find(fd);
    if (file == nullptr || (file->descriptors > 1 && !seen.insert(file).second)) continue;
    if (file->kind() == FileKind::kTcp)
      publish_tcp(engine, *static_cast<const TcpSocket*>(file), fd, writer, now);
    if (file->kind() == FileKind::kUdp) publish_udp(engine, *static_cast<const UdpSocket*>(file), fd, writer);
  }
}

}  // namespace accel::posix
