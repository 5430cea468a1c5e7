#include "posix/published.h"

#include <linux/tcp.h>
#include <netinet/in.h>

#include <cstring>
#include <unordered_set>

#include "base/real.h"
#include "engine/stats.h"
#include "posix/shm_socket.h"
#include "posix/siw_socket.h"
#include "posix/tcp_socket.h"
#include "posix/udp_socket.h"
#include "stack/udp.h"

namespace accel::posix {
namespace {

void put(stats::Address& row, const Endpoint& end) {
  std::memcpy(row.bytes, end.address.bytes.data(), 16);
  row.port = end.port;
}

/// Neither connected nor listening, inherited and not used yet, or a listener that only the kernel serves.
PathChoice undecided_path(const Socket& s) {
  PathChoice choice = s.choice;
  const bool inherited = s.inherited != File::Inherited::kNo;
  if (inherited || choice.accelerated()) {
    choice.path = PathKind::kUndecided;
    choice.reason = inherited ? Reason::inherited : Reason::not_decided;
  }
  return choice;
}

PathChoice tcp_path(Pass& pass, const TcpSocket& s) {
  if (s.conn() != nullptr) return s.choice;
  if (s.flow() == nullptr || pass.engine().listener(*s.flow()) == nullptr) return undecided_path(s);
  return pass.engine().path_of(pass, *s.flow(), s.choice);
}

PathChoice udp_path(Pass& pass, const UdpSocket& s) {
  if (s.flow() == nullptr || pass.engine().udp(*s.flow()) == nullptr) return undecided_path(s);
  PathChoice choice = s.choice;
  if (s.in_group() && !s.brings_groups(pass))
    choice.reason = Reason::multicast;  // the path is that of the rest
  return pass.engine().path_of(pass, *s.flow(), choice);
}

PathChoice iwarp_path(const SiwSocket& s) {
  const siw::Channel* channel = s.channel();
  const bool open = channel != nullptr && channel->established();
  return {open ? PathKind::kIwarp : PathKind::kUndecided, open ? Reason::iwarp : Reason::iwarp_undecided, {}};
}

void publish_undecided(const Socket& s, uint8_t protocol, int fd, stats::Writer& writer) {
  stats::SocketRow row{};
  row.fd = fd;
  row.protocol = protocol;
  const PathChoice choice = undecided_path(s);
  row.path = static_cast<uint8_t>(choice.path);
  row.reason = static_cast<uint8_t>(choice.reason);
  if (row.path == static_cast<uint8_t>(PathKind::kIwarp))  // a listener: the shadow listens
    row.state = static_cast<uint8_t>(TcpState::kListen);
  put(row.local, s.shadow_name());
  writer.add(row);
}

void publish_tcp(Pass& pass, const TcpSocket& s, int fd, stats::Writer& writer, Instant now) {
  Stack& stack = pass.stack();
  TcpListener* listener = s.flow() != nullptr ? pass.engine().listener(*s.flow()) : nullptr;
  if (s.conn() != nullptr)
    writer.tcp(stack, *s.conn(), fd, tcp_path(pass, s), now);
  else if (listener != nullptr)
    writer.listener(stack, *listener, fd, tcp_path(pass, s), s.local_endpoint());
  else
    publish_undecided(s, IPPROTO_TCP, fd, writer);
}

/// The figures of the kernel's connection below it.
void put_kernels(stats::SocketRow& row, int shadow) {
  tcp_info info{};
  socklen_t length = sizeof info;
  if (real.getsockopt(shadow, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return;
  row.state = info.tcpi_state;
  row.rtt_us = info.tcpi_rtt;
  row.rttvar_us = info.tcpi_rttvar;
  row.cwnd = info.tcpi_snd_cwnd;
  row.mss = info.tcpi_snd_mss;
  row.retransmits = info.tcpi_total_retrans;
}

/// What carries it is the kernel's connection: its figures, and the bytes of both protocols.
void publish_iwarp(const SiwSocket& s, int fd, stats::Writer& writer) {
  stats::SocketRow row{};
  row.fd = fd;
  row.protocol = IPPROTO_TCP;
  const siw::Channel* channel = s.channel();
  const PathChoice choice = iwarp_path(s);
  row.path = static_cast<uint8_t>(choice.path);
  row.reason = static_cast<uint8_t>(choice.reason);
  put_kernels(row, s.shadow());
  if (channel != nullptr) {
    row.rx_bytes = channel->bytes_in();
    row.tx_bytes = channel->bytes_out();
  }
  if (choice.path == PathKind::kIwarp) {
    row.queue_in = static_cast<uint32_t>(channel->conn()->available());
    row.queue_out = static_cast<uint32_t>(channel->conn()->pending().size());
  }
  put(row.local, s.local_endpoint());
  put(row.remote, s.remote_endpoint());
  writer.add(row);
}

/// The bytes are those of the rings.
void publish_shm(const ShmSocket& s, int fd, stats::Writer& writer) {
  stats::SocketRow row{};
  row.fd = fd;
  row.protocol = IPPROTO_TCP;
  row.path = static_cast<uint8_t>(s.choice.path);
  row.reason = static_cast<uint8_t>(s.choice.reason);
  put_kernels(row, s.shadow());
  if (s.is_open()) {
    const shm::Link::Rings& rings = *s.link().rings;
    row.rx_bytes = rings.receiver->bytes();
    row.tx_bytes = rings.sender->bytes();
    row.queue_in = static_cast<uint32_t>(rings.receiver->available());
    row.queue_out = static_cast<uint32_t>(rings.sender->used());
  }
  put(row.local, s.local_endpoint());
  put(row.remote, s.remote_endpoint());
  writer.add(row);
}

void publish_udp(Pass& pass, const UdpSocket& s, int fd, stats::Writer& writer) {
  UdpPcb* pcb = s.flow() != nullptr ? pass.engine().udp(*s.flow()) : nullptr;
  if (pcb != nullptr)
    writer.udp(pass.stack(), *pcb, *pcb, fd, udp_path(pass, s), s.local_endpoint(), s.remote_endpoint());
  else
    publish_undecided(s, IPPROTO_UDP, fd, writer);
}

}  // namespace

PathChoice path_of(Pass* pass, const Socket& s) {
  if (s.kind() == FileKind::kIwarp) return iwarp_path(static_cast<const SiwSocket&>(s));
  if (s.kind() == FileKind::kShm) return s.choice;
  if (pass == nullptr) return undecided_path(s);
  if (s.kind() == FileKind::kTcp) return tcp_path(*pass, static_cast<const TcpSocket&>(s));
  return udp_path(*pass, static_cast<const UdpSocket&>(s));
}

void publish_sockets(Pass& pass) {
  const Instant now = pass.now();
  stats::Writer writer(pass, now);
  if (!writer.wanted()) return;
  std::unordered_set<const File*> seen;
  for (int fd = 0; fd < fds.limit(); ++fd) {
    const File* file = fds.find(fd);
    if (file == nullptr || (file->descriptors > 1 && !seen.insert(file).second)) continue;
    if (file->kind() == FileKind::kTcp)
      publish_tcp(pass, *static_cast<const TcpSocket*>(file), fd, writer, now);
    if (file->kind() == FileKind::kIwarp) publish_iwarp(*static_cast<const SiwSocket*>(file), fd, writer);
    if (file->kind() == FileKind::kShm) publish_shm(*static_cast<const ShmSocket*>(file), fd, writer);
    if (file->kind() == FileKind::kUdp) publish_udp(pass, *static_cast<const UdpSocket*>(file), fd, writer);
  }
  writer.finish();
}

}  // namespace accel::posix
