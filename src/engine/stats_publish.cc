// One answer to the readers of the statistics page.
#include <netinet/in.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "engine/engine.h"
#include "engine/process.h"
#include "engine/stats.h"
#include "stack/udp.h"

namespace accel::stats {
namespace {

Address address(const Endpoint& e) {
  Address a{};
  std::memcpy(a.bytes, e.address.bytes.data(), 16);
  a.port = e.port;
  return a;
}

SocketRow row_for(int fd, uint8_t protocol, const PathChoice& choice, const Endpoint& local,
                  const Endpoint& remote) {
  SocketRow row{};
  row.fd = fd;
  row.protocol = protocol;
  row.path = static_cast<uint8_t>(choice.shown());
  row.reason = static_cast<uint8_t>(choice.reason);
  row.detail = has_detail(choice.reason) ? choice.detail : 0;
  row.local = address(local);
  row.remote = address(remote);
  return row;
}

uint32_t narrow(size_t n) { return static_cast<uint32_t>(std::min<size_t>(n, UINT32_MAX)); }

void publish_ports(Pass& pass, Page& page) {
  const Engine& engine = pass.engine();
  uint32_t n = 0;
  for (uint32_t id = 0; id < engine.interface_count(pass) && n < kMaxPorts; ++id) {
    const PortInfo* info = engine.port_info(pass, static_cast<InterfaceId>(id));
    if (!info) continue;
    PortRow& row = page.port[n++];
    row = {};
    std::memcpy(row.name, info->name.data(), std::min(info->name.size(), sizeof row.name - 1));
    row.kind = static_cast<uint8_t>(engine.port_kind(pass, static_cast<InterfaceId>(id)));
    row.zero_copy = info->zero_copy;
    row.tx_checksum = info->tx_checksum;
    row.tso = info->tso;
    row.ifindex = static_cast<uint32_t>(info->ifindex);
    row.queues_held = info->queues_held;
    row.queues_total = info->queues_total;
    row.mtu = pass.stack().interface(static_cast<InterfaceId>(id)).mtu;
  }
  page.ports = n;
}

/// As of this moment.
Limit limit_of(const TcpInfo& info, size_t unacked) {
  if (info.state != TcpState::kEstablished && info.state != TcpState::kCloseWait) return Limit::kNone;
  if (info.notsent_bytes == 0) return Limit::kApplication;
  const size_t in_flight = unacked - std::min<size_t>(unacked, info.notsent_bytes);
  if (in_flight + std::min<size_t>(info.notsent_bytes, info.snd_mss) > info.snd_wnd) return Limit::kReceiver;
  const uint32_t out = info.unacked_segments + info.resent_segments;
  const uint32_t away = info.sacked_segments + info.lost_segments;
  if (out - std::min(out, away) >= info.snd_cwnd_segments) return Limit::kCongestion;
  return info.max_pacing_rate != kNoPacing ? Limit::kPacing : Limit::kRing;
}

}  // namespace

void Writer::add(const SocketRow& row) {
  if (page_->rows < kMaxRows) page_->row[page_->rows++] = row;
  ++page_->rows_wanted;
}

void Writer::tcp(Stack& stack, const TcpConn& conn, int fd, const PathChoice& choice, Instant now) {
  named_.insert(&conn);
  if (page_->rows == kMaxRows) {  // the lock is held: no work for rows that nobody will see
    ++page_->rows_wanted;
    return;
  }
  SocketRow row = row_for(fd, IPPROTO_TCP, choice, stack.tcp().local(conn), stack.tcp().remote(conn));
  TcpInfo info = stack.tcp().info(conn, now);
  row.state = static_cast<uint8_t>(info.state);
  row.rtt_us = info.rtt_us;
  row.rttvar_us = info.rttvar_us;
  row.cwnd = info.snd_cwnd_segments;
  row.mss = info.snd_mss;
  row.retransmits = info.total_retransmits;
  row.queue_in = narrow(stack.tcp().readable_bytes(conn));
  row.queue_out = narrow(stack.tcp().unacked_bytes(conn));
  row.rx_bytes = info.bytes_received;
  row.tx_bytes = info.bytes_sent - info.bytes_retransmitted;
  row.limit = static_cast<uint8_t>(limit_of(info, stack.tcp().unacked_bytes(conn)));
  row.unsent = info.notsent_bytes;
  row.delivery_rate = info.delivery_rate;
  row.busy_us = info.busy_us;
  row.receiver_limited_us = info.window_limited_us;
  row.buffer_limited_us = info.buffer_limited_us;
  add(row);
}

void Writer::listener(Stack& stack, const TcpListener& listener, int fd, const PathChoice& choice,
                      const Endpoint& local) {
  SocketRow row = row_for(fd, IPPROTO_TCP, choice, local, {});
  row.state = static_cast<uint8_t>(TcpState::kListen);
  row.queue_in = stack.tcp().accept_queue_length(listener);
  add(row);
}

void Writer::udp(Stack& stack, const UdpPcb& pcb, const StackSocket& traffic, int fd,
                 const PathChoice& choice, const Endpoint& local, const Endpoint& remote) {
  SocketRow row = row_for(fd, IPPROTO_UDP, choice, local, remote);
  row.queue_in = narrow(stack.udp().queued_bytes(pcb));
  row.drops = stack.udp().drops(pcb);
  row.rx_bytes = traffic.rx_bytes;
  row.tx_bytes = traffic.tx_bytes;
  add(row);
}

void Writer::add_unnamed() {
  std::vector<const TcpConn*> rest;
  struct Search {
    Writer& writer;
    std::vector<const TcpConn*>& rest;
  } search{*this, rest};
  pass_.stack().tcp().for_each(
      [](TcpConn& conn, void* context) {
        auto& s = *static_cast<Search*>(context);
        if (!s.writer.named_.contains(&conn)) s.rest.push_back(&conn);
      },
      &search);
  for (const TcpConn* conn : rest) {
    PathChoice choice;
    choice.path = pass_.engine().port_kind(pass_, pass_.stack().tcp().interface(*conn));
    choice.reason = Reason::accelerated;
    tcp(pass_.stack(), *conn, -1, choice, now_);
  }
}

Writer::Writer(Pass& pass, Instant now) : pass_(pass), page_(page()), now_(now) {
  if (page_ == nullptr) return;
  asked_ = page_->asked.load(std::memory_order_acquire);
  sequence_ = page_->sequence.load(std::memory_order_relaxed) | 1;
  page_->sequence.store(sequence_, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  page_->rows = page_->rows_wanted = 0;
  for (size_t i = 0; i < static_cast<size_t>(Counter::kCount); ++i)
    page_->counter[i] = pass.process().count(static_cast<Counter>(i));
  publish_ports(pass, *page_);
}

void Writer::finish() {
  add_unnamed();
  page_->sequence.store(sequence_ + 1, std::memory_order_release);
  page_->answered.store(asked_, std::memory_order_release);
}

}  // namespace accel::stats
