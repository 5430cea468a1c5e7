#include "stack/udp.h"

#include <algorithm>

#include "stack/egress.h"
#include "stack/wire/udp.h"

namespace accel {
namespace {

constexpr uint32_t kMaxSpares = 1024;
constexpr size_t kMaxPathMtus = 4096;  ///< a peer's ICMP errors must not fill memory
constexpr uint32_t kMaxUdpPayload = 65507;

/// As net/ipv4/udp.c and net/ipv6/udp.c compute_score(): -1 no match; a named end counts 4, the right
/// family 1.
int score(const UdpPcb& pcb, const UdpArrival& in) {
  if (pcb.local.port != in.local.port) return -1;
  int points = 0;
  if (pcb.local.address.is_any()) {
    const bool same_family = pcb.local.address.is_v4() == in.local.address.is_v4();
    if (!same_family && (pcb.local.address.is_v4() || pcb.v6_only)) return -1;
    points += same_family;
  } else {
    if (pcb.local.address != in.local.address) return -1;
    points += 5;
  }
  if (pcb.connected()) {
    if (pcb.remote != in.remote) return -1;
    points += 8;
  }
  return points;
}

size_t total_size(std::span<const iovec> data) {
  size_t n = 0;
  for (const iovec& v : data) n += v.iov_len;
  return n;
}

/// Copies a chain's bytes one after the other as far as `into` goes.
size_t scatter(const Packet* frame, std::span<const iovec> into) {
  size_t copied = 0, used = 0;
  uint32_t at = 0;
  while (frame && !into.empty()) {
    const size_t n = std::min<size_t>(frame->length - at, into[0].iov_len - used);
    if (n) std::memcpy(static_cast<uint8_t*>(into[0].iov_base) + used, frame->data() + at, n);
    copied += n;
    used += n;
    at += static_cast<uint32_t>(n);
    if (at == frame->length) {
      frame = frame->more;
      at = 0;
    }
    if (used == into[0].iov_len) {
      into = into.subspan(1);
      used = 0;
    }
  }
  return copied;
}

}  // namespace

UdpLayer::~UdpLayer() {
  std::vector<UdpPcb*> all;
  for (auto& [port, group] : by_port_) all.insert(all.end(), group.begin(), group.end());
  for (auto& [flow, group] : connected_) all.insert(all.end(), group.begin(), group.end());
  for (UdpPcb* pcb : all) close(pcb);
  while (spare_) delete std::exchange(spare_, spare_->next);
}

// ---- sockets ----

UdpLayer::Group& UdpLayer::home(const UdpPcb& pcb) {
  if (pcb.connected() && !pcb.local.address.is_any()) return connected_[{pcb.local, pcb.remote}];
  return by_port_[pcb.local.port];
}

void UdpLayer::hash_flow(UdpPcb& pcb) const {
  if (pcb.connected()) pcb.flow_hash = core_.flow_hash(pcb.local, pcb.remote);
}

void UdpLayer::add(UdpPcb& pcb) { home(pcb).push_back(&pcb); }

void UdpLayer::remove(UdpPcb& pcb) {
  Group& group = home(pcb);
  std::erase(group, &pcb);
  if (!group.empty()) return;
  if (pcb.connected() && !pcb.local.address.is_any())
    connected_.erase({pcb.local, pcb.remote});
  else
    by_port_.erase(pcb.local.port);
}

Result<UdpPcb*> UdpLayer::open(const Endpoint& local, const Endpoint& remote, bool v6_only, void* owner) {
  auto* pcb = new UdpPcb;
  pcb->owner = owner;
  pcb->local = local;
  pcb->remote = remote;
  pcb->v6_only = v6_only;
  pcb->receive_buffer = core_.config.udp_receive_buffer;
  hash_flow(*pcb);
  add(*pcb);
  return pcb;
}

void UdpLayer::connect(UdpPcb& pcb, const Endpoint& local, const Endpoint& remote) {
  remove(pcb);
  pcb.local = local;
  pcb.remote = remote;
  hash_flow(pcb);
  add(pcb);
}

void UdpLayer::close(UdpPcb* pcb) {
  core_.unlist(*pcb);
  remove(*pcb);
  if (pcb->blocked) std::erase(blocked_, pcb);
  while (pcb->head) pop(*pcb);
  delete pcb;
}

void UdpLayer::take_queue(UdpPcb& to, UdpPcb& from) {
  if (from.error != 0) to.error = std::exchange(from.error, 0);
  core_.mark_ready(to, from.edges);  // those told before are not told again
  if (from.head == nullptr) return;
  from.tail->next = to.head;
  if (to.head == nullptr) to.tail = from.tail;
  to.head = std::exchange(from.head, nullptr);
  to.queued_bytes += std::exchange(from.queued_bytes, 0);
  to.charged_bytes += std::exchange(from.charged_bytes, 0);
}

// ---- receiving ----

UdpPcb* UdpLayer::find(const UdpArrival& in) {
  if (!connected_.empty())
    if (auto it = connected_.find({in.local, in.remote}); it != connected_.end()) return it->second.back();
  auto it = by_port_.find(in.local.port);
  if (it == by_port_.end()) return nullptr;
  const Group& group = it->second;
  int best = -1, equals = 0;
  UdpPcb* found = nullptr;
  for (UdpPcb* pcb : group) {
    const int points = score(*pcb, in);
    if (points < 0 || points < best) continue;
    equals = points > best ? 1 : equals + 1;
    best = points;
    found = pcb;
  }
  if (equals <= 1) return found;
  // SO_REUSEPORT: a flow stays with one socket of the group.
  int chosen = static_cast<int>(hash_tuple(in.local, in.remote, core_.config.secret[1]) %
                                static_cast<uint64_t>(equals));
  for (UdpPcb* pcb : group)
    if (score(*pcb, in) == best && chosen-- == 0) return pcb;
  return found;
}

void UdpLayer::on_datagram(Packet* frame, const UdpArrival& in) {
  if (in.group) return deliver_to_all(frame, in);
  UdpPcb* pcb = find(in);
  if (!pcb) return core_.drop(frame, Counter::drop_no_socket);
  queue(*pcb, *frame, frame, in);
}

void UdpLayer::deliver_to_all(Packet* frame, const UdpArrival& in) {
  UdpPcb* last = nullptr;
  auto visit = [&](UdpPcb* pcb) {
    if (score(*pcb, in) < 0) return;
    if (last) queue(*last, *frame, nullptr, in);
    last = pcb;
  };
  if (auto it = by_port_.find(in.local.port); it != by_port_.end())
    for (UdpPcb* pcb : it->second) visit(pcb);
  if (auto it = connected_.find({in.local, in.remote}); it != connected_.end())
    for (UdpPcb* pcb : it->second) visit(pcb);
  if (!last) return core_.drop(frame, Counter::drop_no_socket);
  queue(*last, *frame, frame, in);
}

void UdpLayer::queue(UdpPcb& pcb, const Packet& bytes, Packet* frame, const UdpArrival& in) {
  const uint64_t charge = uint64_t{in.size} + kOverhead;
  // As the kernel: one datagram is always taken by an empty queue, however small SO_RCVBUF is.
  const bool full = pcb.head && pcb.charged_bytes + charge > pcb.receive_buffer;
  if (full || core_.buffered + charge > core_.config.max_buffered) {
    ++pcb.drops;
    core_.count(Counter::drop_udp_queue_full);
    return FramePool::release(frame);
  }
  QueuedDatagram* d = spare_;
  if (d) {
    spare_ = d->next;
    --spares_;
  } else {
    d = new QueuedDatagram;
  }
  d->info = {in.remote,       in.local, in.interface, in.tos,     in.ttl,
             bytes.timestamp, in.size,  core_.now,    pcb.placing};
  d->next = nullptr;
  // Frames in socket queues must not starve the receive ring: beyond half the pool the bytes move to the
  // heap.
  if (frame && core_.pool.available() >= core_.pool.size() / 2) {
    d->frame = frame;
  } else {
    d->heap.reset(new uint8_t[in.size]);
    const iovec whole{d->heap.get(), in.size};
    scatter(&bytes, {&whole, 1});
    FramePool::release(frame);
  }
  (pcb.head ? pcb.tail->next : pcb.head) = d;
  pcb.tail = d;
  pcb.queued_bytes += in.size;
  pcb.charged_bytes += charge;
  core_.buffered += charge;
  pcb.rx_bytes += in.size;
  core_.mark_ready(pcb, kReadable);
}

void UdpLayer::pop(UdpPcb& pcb) {
  QueuedDatagram* d = pcb.head;
  pcb.head = d->next;
  const uint64_t charge = uint64_t{d->info.size} + kOverhead;
  pcb.queued_bytes -= d->info.size;
  pcb.charged_bytes -= charge;
  core_.buffered -= charge;
  FramePool::release(std::exchange(d->frame, nullptr));
  d->heap.reset();
  if (spares_ >= kMaxSpares) {
    delete d;
    return;
  }
  d->next = spare_;
  spare_ = d;
  ++spares_;
}

size_t UdpLayer::receive(UdpPcb& pcb, std::span<const iovec> into, bool take) {
  const QueuedDatagram* d = pcb.head;
  if (!d) return 0;
  size_t copied = 0;
  if (d->frame) {
    copied = scatter(d->frame, into);
  } else {
    for (const iovec& v : into) {
      const size_t n = std::min<size_t>(v.iov_len, d->info.size - copied);
      if (n) std::memcpy(v.iov_base, d->heap.get() + copied, n);
      copied += n;
    }
  }
  if (take) pop(pcb);
  return copied;
}

uint32_t UdpLayer::readiness(const UdpPcb& pcb) const {
  return (pcb.head ? kReadable : 0u) | (pcb.blocked ? 0u : kWritable) | (pcb.error ? kError : 0u);
}

int UdpLayer::take_error(UdpPcb& pcb) { return std::exchange(pcb.error, 0); }

bool UdpLayer::on_icmp_error(const Endpoint& local, const Endpoint& remote, int error, bool fatal,
                             uint32_t mtu) {
  UdpArrival in;
  in.local = local;
  in.remote = remote;
  UdpPcb* pcb = find(in);
  if (!pcb) return false;
  if (mtu && (path_mtus_.size() < kMaxPathMtus || path_mtus_.contains(remote.address)))
    path_mtus_[remote.address] = {mtu, core_.now + kPathMtuAge};
  // Without IP_RECVERR only a connected socket is told, and only of what will not pass (net/ipv4/udp.c
  // __udp4_lib_err).
  if (fatal && pcb->connected()) {
    pcb->error = error;
    core_.mark_ready(*pcb, kError);
  }
  return true;
}

// ---- sending ----

uint32_t UdpLayer::path_mtu(const IpAddress& destination, const Route& route) {
  uint32_t mtu = std::min(route.mtu, core_.interfaces[route.interface].info.mtu);
  if (path_mtus_.empty()) return mtu;
  auto it = path_mtus_.find(destination);
  if (it == path_mtus_.end()) return mtu;
  if (it->second.until <= core_.now) {
    path_mtus_.erase(it);
    return mtu;
  }
  return std::min(mtu, it->second.mtu);
}

Result<size_t> UdpLayer::send(UdpPcb& pcb, std::span<const iovec> data, const Endpoint& from,
                              const Endpoint& to, const Route& route, uint8_t tos, uint8_t ttl,
                              uint32_t flow_label) {
  const size_t size = total_size(data);
  const size_t headers = (to.address.is_v4() ? 20 : 40) + sizeof(UdpHeader);
  if (size > kMaxUdpPayload || size + headers > path_mtu(to.address, route)) return err(EMSGSIZE);
  Hop& hop = *core_.hop(route);
  const bool offload = core_.of(hop).tx_checksum;
  if (!to.address.is_v4())
    flow_label = core_.flow_label(flow_label, pcb.flow_hash ? pcb.flow_hash : core_.flow_hash(from, to));
  HeaderTemplate t;
  core_.make_template(hop, from.address, to.address, Protocol::kUdp, {tos, ttl, flow_label}, t);
  // A sixteenth of the pool stays for TCP's acknowledgments and the receive ring.
  Packet* frame = nullptr;
  if (!core_.tx_full(hop) && core_.pool.available() > core_.pool.size() / 16)
    frame = build(data, size, from, to, t, offload);
  if (!frame) {
    if (!pcb.blocked) blocked_.push_back(&pcb);
    pcb.blocked = true;
    return err(EAGAIN);
  }
  core_.transmit(frame, hop);
  pcb.tx_bytes += size;
  return size;
}

Packet* UdpLayer::build(std::span<const iovec> data, size_t size, const Endpoint& from, const Endpoint& to,
                        const HeaderTemplate& t, bool offload) {
  Packet* frame = core_.new_frame();
  if (!frame) return nullptr;
  const uint32_t l4_length = static_cast<uint32_t>(sizeof(UdpHeader) + size);
  frame->length = put_headers(frame->data(), t, l4_length, 0) + static_cast<uint32_t>(sizeof(UdpHeader));
  auto& udp = wire_at<UdpHeader>(frame->data() + t.length);
  udp.source = from.port;
  udp.destination = to.port;
  udp.length = static_cast<uint16_t>(l4_length);
  udp.checksum = 0;
  PartSum sum;
  Packet* last = frame;
  for (const iovec& v : data) {
    const auto* at = static_cast<const uint8_t*>(v.iov_base);
    for (size_t left = v.iov_len; left > 0;) {
      if (last->tailroom() == 0) {
        last = last->more = core_.new_frame();
        if (!last) {
          FramePool::release(frame);
          return nullptr;
        }
      }
      const auto n = static_cast<uint32_t>(std::min<size_t>(left, last->tailroom()));
      uint8_t* to_bytes = last->data() + last->length;
      if (offload)
        std::memcpy(to_bytes, at, n);
      else
        sum.copy(to_bytes, at, n);
      last->length += n;
      at += n;
      left -= n;
    }
  }
  const uint64_t pseudo = pseudo_sum(t, l4_length);
  if (offload) {
    frame->checksum_offload = true;
    store_checksum(&udp.checksum, fold_sum(pseudo));
    return frame;
  }
  uint16_t checksum =
      finish_sum(add_sums(sum.sum(), pseudo + sum_fixed<sizeof(UdpHeader)>(frame->data() + t.length)));
  store_checksum(&udp.checksum, checksum ? checksum : 0xffff);  // RFC 768: 0 would say "none"
  return frame;
}

void UdpLayer::flush() {
  if (blocked_.empty() || core_.pool.available() <= core_.pool.size() / 16) return;
  for (const auto& state : core_.interfaces)
    if (state.present && state.tx.size() > Stack::kTxBacklog) return;
  for (UdpPcb* pcb : blocked_) {
    pcb->blocked = false;
    core_.mark_ready(*pcb, kWritable);
  }
  blocked_.clear();
}

}  // namespace accel
