#include "stack/udp.h"

#include <algorithm>
#include <new>
#include <utility>

#include "stack/egress.h"
#include "stack/tcp/siphash.h"
#include "stack/wire/ipv6.h"
#include "stack/wire/udp.h"

namespace accel {
namespace {

constexpr uint32_t kMaxSpares = 1024;
constexpr size_t kMaxPathMtus = 4096;  ///< a peer's ICMP errors must not fill memory
constexpr uint32_t kMaxUdpPayload = 65507;
constexpr size_t kMaxSegments = 64;  ///< UDP_MAX_SEGMENTS, of which younger kernels allow twice as many

/// As net/ipv4/udp.c and net/ipv6/udp.c compute_score(): -1 no match; a named end and a named device count 4,
/// the right family 1, the CPU 1. A named local address, which they look for first, counts before all.
int score(const UdpPcb& pcb, const UdpArrival& in, int cpu) {
  if (pcb.local.port != in.local.port) return -1;
  if (pcb.device != kAnyInterface && pcb.device != in.interface) return -1;
  int points = (pcb.device != kAnyInterface ? 4 : 0) + (pcb.incoming_cpu == cpu);
  if (pcb.local.address.is_any()) {
    const bool same_family = pcb.local.address.is_v4() == in.local.address.is_v4();
    if (!same_family && (pcb.local.address.is_v4() || pcb.v6_only)) return -1;
    points += same_family;
  } else {
    if (pcb.local.address != in.local.address) return -1;
    points += 17;
  }
  if (pcb.connected()) {
    if (pcb.remote != in.remote) return -1;
    points += 8;
  }
  return points;
}

bool takes_group(const UdpPcb& pcb, const UdpArrival& in) {
  return !in.local.address.is_multicast() ||
         pcb.memberships.allow(in.local.address, in.interface, in.remote.address);
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

bool UdpMemberships::allow(const IpAddress& group, InterfaceId interface, const IpAddress& source) const {
  auto of_group = std::lower_bound(list.begin(), list.end(), group,
                                   [](const UdpMembership& m, const IpAddress& g) { return m.group < g; });
  for (; of_group != list.end() && of_group->group == group; ++of_group) {
    if (of_group->interface != interface) continue;
    const auto& sources = of_group->sources;
    const bool named = std::find(sources.begin(), sources.end(), source) != sources.end();
    return named != of_group->exclude;
  }
  return group.is_v4() ? all_v4 : all_v6;
}

UdpLayer::UdpLayer(StackCore& core)
    : core_(core),
      connected_(16, FlowHash{core.config.secret[0]}),
      path_mtus_(16, AddressHash{core.config.secret[0]}),
      // What peers see of IDs must tell nothing of what keys sequence numbers.
      ids_(siphash(core.config.secret, std::span(reinterpret_cast<const uint8_t*>("IP IDs"), 6))) {}

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
  auto* pcb = new (std::nothrow) UdpPcb;
  if (pcb == nullptr) return err(ENOMEM);
  pcb->owner = owner;
  pcb->local = local;
  pcb->remote = remote;
  pcb->v6_only = v6_only;
  pcb->receive_buffer = core_.config.udp_receive_buffer;
  hash_flow(*pcb);
  pcb->ip_id = ids_.begin(local, remote, core_.now);
  add(*pcb);
  ++sockets_;
  return pcb;
}

void UdpLayer::connect(UdpPcb& pcb, const Endpoint& local, const Endpoint& remote) {
  remove(pcb);
  pcb.local = local;
  pcb.remote = remote;
  hash_flow(pcb);
  pcb.ip_id = ids_.begin(local, remote, core_.now);
  add(pcb);
}

void UdpLayer::close(UdpPcb* pcb) {
  core_.unlist(*pcb);
  remove(*pcb);
  if (pcb->blocked) std::erase(blocked_, pcb);
  while (pcb->head) pop(*pcb);
  delete pcb;
  --sockets_;
}

void UdpLayer::set_memberships(UdpPcb& pcb, UdpMemberships memberships) {
  std::sort(memberships.list.begin(), memberships.list.end(),
            [](const UdpMembership& a, const UdpMembership& b) { return a.group < b.group; });
  pcb.memberships = std::move(memberships);
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
  to.memory += std::exchange(from.memory, 0);
}

// ---- receiving ----

UdpPcb* UdpLayer::find(const UdpArrival& in) {
  if (!connected_.empty())
    if (auto it = connected_.find({in.local, in.remote}); it != connected_.end())
      for (auto pcb = it->second.rbegin(); pcb != it->second.rend(); ++pcb)
        if (score(**pcb, in, core_.cpu) >= 0) return *pcb;
  auto it = by_port_.find(in.local.port);
  if (it == by_port_.end()) return nullptr;
  const Group& group = it->second;
  int best = -1, equals = 0;
  UdpPcb* found = nullptr;  // of equals the last that was bound
  for (UdpPcb* pcb : group) {
    const int points = score(*pcb, in, core_.cpu);
    if (points < 0 || points < best) continue;
    if (points > best) equals = 0;
    equals += pcb->reuse_port;
    best = points;
    found = pcb;
  }
  if (equals <= 1 || !found->reuse_port) return found;
  // SO_REUSEPORT: a flow stays with one socket of the group.
  int chosen = static_cast<int>(hash_tuple(in.local, in.remote, core_.config.secret[1]) %
                                static_cast<uint64_t>(equals));
  for (UdpPcb* pcb : group)
    if (pcb->reuse_port && score(*pcb, in, core_.cpu) == best && chosen-- == 0) return pcb;
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
    if (score(*pcb, in, core_.cpu) < 0 || !takes_group(*pcb, in)) return;
    if (last) queue(*last, *frame, nullptr, in);
    last = pcb;
  };
  if (auto it = by_port_.find(in.local.port); it != by_port_.end())
    for (UdpPcb* pcb : it->second) visit(pcb);
  if (auto it = connected_.find({in.local, in.remote}); it != connected_.end())
    for (UdpPcb* pcb : it->second) visit(pcb);
  if (!last) return core_.drop(frame, Counter::drop_no_socket);
  if (in.local.address.is_multicast()) core_.count(Counter::rx_group_datagrams);
  queue(*last, *frame, frame, in);
}

QueuedDatagram* UdpLayer::take_node() {
  QueuedDatagram* d = spare_;
  if (!d) return new (std::nothrow) QueuedDatagram;
  spare_ = d->next;
  --spares_;
  d->next = nullptr;
  return d;
}

void UdpLayer::give_node(QueuedDatagram* d) {
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

static uint32_t memory_of_chain(const Packet* frame) {
  uint32_t n = 0;
  for (const Packet* p = frame; p; p = p->more) n += p->capacity + static_cast<uint32_t>(sizeof(Packet));
  return n;
}

bool UdpLayer::has_memory(const UdpPcb& pcb, uint32_t more) const {
  return core_.udp_memory.allows(pcb.memory, more, core_.config.udp_receive_least, sockets_);
}

/// Frames in socket queues must not starve the receive ring, nor may a socket hold many times what SO_RCVBUF
/// says in frames that are mostly empty: beyond half the pool, or that, the bytes move to the heap.
bool UdpLayer::keeps_frame(const UdpPcb& pcb, const Packet* frame) const {
  return frame && core_.pool.available() >= core_.pool.size() / 2 && !core_.udp_memory.under_pressure() &&
         (!pcb.head || pcb.memory + memory_of_chain(frame) <= 2 * uint64_t{pcb.receive_buffer});
}

void UdpLayer::queue(UdpPcb& pcb, const Packet& bytes, Packet* frame, const UdpArrival& in) {
  const uint64_t charge = uint64_t{in.size} + kOverhead;
  // As the kernel: one datagram is always taken by an empty queue, however small SO_RCVBUF is.
  const bool full = pcb.head && pcb.charged_bytes + charge > pcb.receive_buffer;
  const bool stays = keeps_frame(pcb, frame);
  const auto memory =
      static_cast<uint32_t>(sizeof(QueuedDatagram)) + (stays ? memory_of_chain(frame) : in.size);
  QueuedDatagram* d = !full && has_memory(pcb, memory) ? take_node() : nullptr;
  if (d && !stays) {
    d->heap.reset(new (std::nothrow) uint8_t[in.size]);
    if (!d->heap) give_node(std::exchange(d, nullptr));
  }
  if (!d) {
    ++pcb.drops;
    core_.count(full ? Counter::drop_udp_queue_full : Counter::drop_udp_memory);
    return FramePool::release(frame);
  }
  d->info = {in.remote,    in.local,
             in.interface, in.tos,
             in.ttl,       bytes.timestamp,
             in.size,      core_.now,
             pcb.placing,  pcb.counts_drops ? static_cast<uint32_t>(pcb.drops) : 0};
  d->memory = memory;
  if (stays) {
    d->frame = frame;
  } else {
    const iovec whole{d->heap.get(), in.size};
    scatter(&bytes, {&whole, 1});
    FramePool::release(frame);
  }
  (pcb.head ? pcb.tail->next : pcb.head) = d;
  pcb.tail = d;
  pcb.queued_bytes += in.size;
  pcb.charged_bytes += charge;
  pcb.memory += memory;
  core_.udp_memory.charge(memory);
  pcb.rx_bytes += in.size;
  core_.mark_ready(pcb, kReadable);
}

void UdpLayer::pop(UdpPcb& pcb) {
  QueuedDatagram* d = pcb.head;
  pcb.head = d->next;
  pcb.queued_bytes -= d->info.size;
  pcb.charged_bytes -= uint64_t{d->info.size} + kOverhead;
  pcb.memory -= d->memory;
  core_.udp_memory.release(d->memory);
  give_node(d);
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

Result<void> UdpLayer::lend(UdpPcb& pcb, const LendLimit& most, Lent& lent, uint32_t& needed) {
  QueuedDatagram& d = *pcb.head;
  needed = d.heap ? 1 : 0;
  for (const Packet* p = d.frame; p; p = p->more) ++needed;
  if (needed > most.buffers) return err(EMSGSIZE);
  if (d.memory > most.memory) return err(ENOBUFS);
  if (d.heap) lent.add(std::move(d.heap), d.info.size, d.memory);
  uint64_t memory = d.frame ? d.memory : 0;  // of the whole chain
  while (Packet* p = d.frame) {
    d.frame = std::exchange(p->more, nullptr);
    lent.add(p, std::exchange(memory, 0));
  }
  pop(pcb);
  return {};
}

uint32_t UdpLayer::readiness(const UdpPcb& pcb) const {
  return (pcb.head ? kReadable : 0u) | (pcb.blocked ? 0u : kWritable) | (pcb.error ? kError : 0u);
}

int UdpLayer::take_error(UdpPcb& pcb) { return std::exchange(pcb.error, 0); }

/// __udp4_lib_err() and __udp6_lib_err(), with ip_sk_accept_pmtu().
IcmpFate UdpLayer::on_icmp_error(const Endpoint& local, const Endpoint& remote, InterfaceId interface,
                                 int error, bool fatal, const TooBig& too_big, bool kernel_sees) {
  UdpArrival in;
  in.local = local;
  in.remote = remote;
  in.interface = interface;
  UdpPcb* pcb = find(in);
  if (!pcb) return IcmpFate::kNotOurs;
  if (too_big.said) {
    const bool v4 = remote.address.is_v4();
    const MtuDiscovery discovery = v4 ? pcb->mtu.v4 : pcb->mtu.v6;
    const bool accepts = discovery < MtuDiscovery::kInterface;
    if (accepts) learn_path_mtu(remote.address, too_big);
    fatal = fatal && discovery != MtuDiscovery::kDont && (v4 || accepts);
  }
  // Without IP_RECVERR only a connected socket is told, and only of what will not pass.
  const bool told = fatal && pcb->connected();
  if (kernel_sees || pcb->wants_errors || too_big.said) {
    pcb->kernel_has_error |= told || pcb->wants_errors;
    return kernel_sees ? IcmpFate::kTaken : IcmpFate::kForKernel;
  }
  if (told) {
    pcb->error = error;
    core_.mark_ready(*pcb, kError);
  }
  return IcmpFate::kTaken;
}

// ---- sending ----

/// __ip_rt_update_pmtu() and __ip6_rt_update_pmtu(), which heeds nothing below IPv6's least MTU (RFC 8201
/// section 4).
void UdpLayer::learn_path_mtu(const IpAddress& destination, const TooBig& told) {
  if (!destination.is_v4() && told.mtu < kLeastMtuV6) return;
  auto known = path_mtus_.find(destination);
  // One that the keyed hash chooses makes way, so that forged errors do not keep out true ones.
  if (known == path_mtus_.end() && path_mtus_.size() >= kMaxPathMtus) path_mtus_.erase(path_mtus_.begin());
  if (known != path_mtus_.end() && known->second.locked && known->second.until > core_.now) return;
  path_mtus_[destination] = {told.mtu, told.locked, core_.now + kPathMtuAge};
}

UdpLayer::PathMtu UdpLayer::path_mtu(const IpAddress& destination, const Route& route) {
  PathMtu path{std::min(route.mtu, core_.interfaces[route.interface].info.mtu), route.mtu_locked, {}};
  if (path_mtus_.empty() || path.locked) return path;
  auto it = path_mtus_.find(destination);
  if (it == path_mtus_.end()) return path;
  if (it->second.until <= core_.now) {
    path_mtus_.erase(it);
    return path;
  }
  path.mtu = std::min(path.mtu, it->second.mtu);
  path.locked = it->second.locked;
  return path;
}

/// What __ip_make_skb() and udp_send_skb() decide, and their IPv6 twins.
Result<size_t> UdpLayer::send(UdpPcb& pcb, std::span<const iovec> data, const Endpoint& from,
                              const Endpoint& to, const Route& route, const UdpFields& fields, Instant now) {
  core_.now = now;
  using enum MtuDiscovery;
  const bool v4 = to.address.is_v4();
  const uint16_t segment = fields.segment;
  const size_t size = total_size(data);
  const size_t headers = (v4 ? 20 : 40) + sizeof(UdpHeader);
  const MtuDiscovery discovery = v4 ? pcb.mtu.v4 : pcb.mtu.v6;
  const PathMtu path =
      discovery <= kDo ? path_mtu(to.address, route)
                       : PathMtu{core_.interfaces[route.interface].info.mtu, false, {}};  // ip_sk_use_pmtu()
  const uint32_t most = v4 || pcb.mtu.most_v6 == 0 ? path.mtu : std::min(path.mtu, pcb.mtu.most_v6);
  const size_t each = segment != 0 ? std::min<size_t>(segment, size) : size;
  const size_t count = each != 0 ? (size + each - 1) / each : 1;
  if (size > kMaxUdpPayload || std::max<size_t>(each, segment) + headers > most || count > kMaxSegments)
    return err(EMSGSIZE);
  // A segmented send goes through IP as one packet.
  const bool want = discovery == kWant && !path.locked && size + headers <= path.mtu;
  const bool dont_fragment = want || discovery == kDo || discovery == kProbe;
  Hop& hop = *core_.hop(route);
  const bool offload = core_.of(hop).tx_checksum;
  HeaderTemplate t;
  HeaderFields header{fields.tos, fields.ttl, 0, dont_fragment};
  if (!v4)
    header.flow_label =
        core_.flow_label(fields.flow_label, pcb.flow_hash ? pcb.flow_hash : core_.flow_hash(from, to));
  core_.make_template(hop, from.address, to.address, Protocol::kUdp, header, t);
  // A sixteenth of the pool stays for TCP's acknowledgments and the receive ring.
  PacketQueue built;
  if (!core_.tx_full(hop) && core_.pool.available() >= core_.pool.size() / 16 + count) {
    uint16_t id = v4 ? reserve_ids(pcb, from, to, count) : uint16_t{0};
    Cursor cursor{data};
    for (size_t left = size; built.size() < count; left -= std::min(each, left)) {
      Packet* frame = build(cursor, std::min(each, left), from, to, t, id++, offload);
      if (!frame) break;
      built.push_back(frame);
    }
  }
  if (built.size() < count) {
    while (Packet* frame = built.pop_front()) FramePool::release(frame);
    if (!pcb.blocked) blocked_.push_back(&pcb);
    pcb.blocked = true;
    return err(EAGAIN);
  }
  while (Packet* frame = built.pop_front()) core_.transmit(frame, hop);
  core_.count(Counter::udp_sent, count);
  pcb.tx_bytes += size;
  return size;
}

/// ip_select_ident_segs(), which counts a segmented send for one, so that its IDs come twice. Here each
/// datagram has its own.
uint16_t UdpLayer::reserve_ids(UdpPcb& pcb, const Endpoint& from, const Endpoint& to, size_t count) {
  const bool never_cut = pcb.mtu.v4 == MtuDiscovery::kDo || pcb.mtu.v4 == MtuDiscovery::kProbe;
  if (pcb.connected()) return std::exchange(pcb.ip_id, static_cast<uint16_t>(pcb.ip_id + count));
  if (never_cut) return 0;
  return ids_.reserve(from.address, to.address, Protocol::kUdp, static_cast<uint32_t>(count), core_.now);
}

Packet* UdpLayer::build(Cursor& data, size_t size, const Endpoint& from, const Endpoint& to,
                        const HeaderTemplate& t, uint16_t id, bool offload) {
  Packet* frame = core_.new_frame();
  if (!frame) return nullptr;
  const uint32_t l4_length = static_cast<uint32_t>(sizeof(UdpHeader) + size);
  frame->length = put_headers(frame->data(), t, l4_length, 0, id) + static_cast<uint32_t>(sizeof(UdpHeader));
  auto& udp = wire_at<UdpHeader>(frame->data() + t.length);
  udp.source = from.port;
  udp.destination = to.port;
  udp.length = static_cast<uint16_t>(l4_length);
  udp.checksum = 0;
  PartSum sum;
  Packet* last = frame;
  while (size > 0) {
    const iovec& v = data.rest.front();
    if (data.used == v.iov_len) {
      data = {data.rest.subspan(1)};
      continue;
    }
    if (last->tailroom() == 0) {
      last = last->more = core_.new_frame();
      if (!last) {
        FramePool::release(frame);
        return nullptr;
      }
    }
    const auto n = static_cast<uint32_t>(std::min({size, v.iov_len - data.used, size_t{last->tailroom()}}));
    const uint8_t* at = static_cast<const uint8_t*>(v.iov_base) + data.used;
    uint8_t* to_bytes = last->data() + last->length;
    if (offload)
      std::memcpy(to_bytes, at, n);
    else
      sum.copy(to_bytes, at, n);
    last->length += n;
    data.used += n;
    size -= n;
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
    if (state.present && state.tx.size() > kTxBacklog) return;
  for (UdpPcb* pcb : blocked_) {
    pcb->blocked = false;
    core_.mark_ready(*pcb, kWritable);
  }
  blocked_.clear();
}

}  // namespace accel
