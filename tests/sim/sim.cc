#include "sim.h"

#include <algorithm>

#include "stack/wire/checksum.h"
#include "stack/wire/eth.h"
#include "stack/wire/icmp.h"
#include "stack/wire/ipv4.h"
#include "stack/wire/ipv6.h"
#include "stack/wire/tcp.h"

namespace accel::sim {
namespace {

std::vector<uint8_t> flatten(const Packet* frame) {
  std::vector<uint8_t> bytes;
  for (const Packet* p = frame; p; p = p->more) bytes.insert(bytes.end(), p->data(), p->data() + p->length);
  return bytes;
}

/// Offsets of the headers of a frame that a stack built.
struct Layout {
  size_t ip, l4, end;
  bool v6;
  uint8_t protocol;
};
std::optional<Layout> layout(std::span<const uint8_t> f) {
  auto eth = parse_eth(f);
  if (!eth) return {};
  auto rest = f.subspan(eth->length);
  if (eth->type == kEtherIpv6) {
    auto ip = parse_ipv6(rest);
    if (!ip) return {};
    return Layout{eth->length, eth->length + ip->header_length, eth->length + ip->total_length, true,
                  ip->protocol};
  }
  auto ip = parse_ipv4(rest);
  if (!ip) return {};
  return Layout{eth->length, size_t{eth->length} + ip->header_length, size_t{eth->length} + ip->total_length,
                false, ip->protocol};
}

/// What a device with checksum offload does: the whole L4 checksum from scratch, and IPv4's.
void fill_checksums(std::vector<uint8_t>& f) {
  auto at = layout(f);
  if (!at) return;
  const size_t field = at->l4 + (at->protocol == 6 ? 16 : 6);
  f[field] = f[field + 1] = 0;
  uint64_t sum = at->v6 ? sum_bytes(&f[at->ip + 8], 32) : sum_bytes(&f[at->ip + 12], 8);
  sum += sum_of(at->protocol) + sum_of(static_cast<uint16_t>(at->end - at->l4));
  sum = add_sums(sum, sum_bytes(&f[at->l4], at->end - at->l4));
  uint16_t checksum = finish_sum(sum);
  store_checksum(&f[field], at->protocol == 17 && checksum == 0 ? 0xffff : checksum);
  if (at->v6) return;
  f[at->ip + 10] = f[at->ip + 11] = 0;
  store_checksum(&f[at->ip + 10], finish_sum(sum_bytes(&f[at->ip], 20)));
}

/// What a device with TSO does.
std::vector<std::vector<uint8_t>> cut(const std::vector<uint8_t>& f, size_t headers, size_t size) {
  std::vector<std::vector<uint8_t>> out;
  auto at = layout(f);
  if (!at) return out;
  for (size_t from = headers; from < f.size(); from += size) {
    const size_t n = std::min(size, f.size() - from);
    std::vector<uint8_t> piece(f.begin(), f.begin() + static_cast<long>(headers));
    piece.insert(piece.end(), f.begin() + static_cast<long>(from), f.begin() + static_cast<long>(from + n));
    auto& tcp = wire_at<TcpHeader>(&piece[at->l4]);
    tcp.sequence = static_cast<uint32_t>(tcp.sequence + (from - headers));
    if (from + n < f.size()) tcp.flags &= static_cast<uint8_t>(~(kFin | kPsh));
    if (from > headers) tcp.flags &= static_cast<uint8_t>(~kCwr);
    const auto ip_length = static_cast<uint16_t>(piece.size() - at->ip);
    if (at->v6)
      wire_at<Ipv6Header>(&piece[at->ip]).payload_length = static_cast<uint16_t>(ip_length - 40);
    else
      wire_at<Ipv4Header>(&piece[at->ip]).total_length = ip_length;
    fill_checksums(piece);
    out.push_back(std::move(piece));
  }
  return out;
}

/// RFC 3168 section 5. True: the packet is ECN-capable, and has CE now.
bool mark(std::vector<uint8_t>& f) {
  const auto at = layout(f);
  if (!at) return false;
  const size_t field = at->ip + 1;
  const int shift = at->v6 ? 4 : 0;
  if ((f[field] >> shift & 3) == 0 || (f[field] >> shift & 3) == 3) return false;
  f[field] |= static_cast<uint8_t>(3 << shift);
  if (at->v6) return true;
  f[at->ip + 10] = f[at->ip + 11] = 0;
  store_checksum(&f[at->ip + 10], finish_sum(sum_bytes(&f[at->ip], at->l4 - at->ip)));
  return true;
}

}  // namespace

bool sums_hold(std::span<const uint8_t> f) {
  auto at = layout(f);
  if (!at || at->end > f.size() || at->end < at->l4) return false;
  if (!at->v6 && finish_sum(sum_bytes(&f[at->ip], at->l4 - at->ip)) != 0) return false;
  uint64_t sum = at->v6 ? sum_bytes(&f[at->ip + 8], 32) : sum_bytes(&f[at->ip + 12], 8);
  sum += sum_of(at->protocol) + sum_of(static_cast<uint16_t>(at->end - at->l4));
  return finish_sum(add_sums(sum, sum_bytes(f.data() + at->l4, at->end - at->l4))) == 0;
}

// ---- hosts ----

Host::Host(Sim& sim_in, int number_in, const HostOptions& options_in)
    : sim(sim_in),
      number(number_in),
      options(options_in),
      memory(size_t{options_in.frames} * options_in.buffer_size),
      pool(memory, options_in.buffer_size) {
  StackConfig config = options.config;
  config.secret = {sim.rng.next(), sim.rng.next()};
  stack = std::make_unique<Stack>(config, pool, counters);
  Interface i;
  i.mac = mac();
  i.mtu = options.mtu;
  i.tx_checksum = options.tx_checksum;
  i.tso = options.tso;
  i.tso_max = options.tso_max;
  i.vlan = options.vlan;
  stack->set_interface(0, i);
  RouteEntry net4, net6;
  net4.prefix = IpAddress::v4(0x0a000000);
  net4.prefix_length = 96 + 8;
  net4.mtu = options.mtu;
  net6.prefix.bytes[0] = 0xfd;
  net6.prefix_length = 64;
  net6.mtu = options.mtu;
  net4.gateway = net6.gateway = IpAddress::any_v6();
  stack->set_routes({net4, net6});
}

IpAddress Host::v6() const {
  IpAddress a;
  a.bytes[0] = 0xfd;
  a.bytes[15] = static_cast<uint8_t>(number + 1);
  return a;
}

Route Host::route_to(const Host& other, bool v6_route) const {
  Route r;
  r.source = v6_route ? v6() : v4();
  r.next_hop = v6_route ? other.v6() : other.v4();
  r.mtu = options.mtu;
  return r;
}

// ---- the world ----

Sim::Sim(uint64_t seed, int host_count, HostOptions options) : rng(seed) {
  for (int i = 0; i < host_count; ++i) hosts.push_back(std::make_unique<Host>(*this, i, options));
  if (!options.knows_neighbours) return;
  for (auto& h : hosts)
    for (auto& other : hosts) {
      h->stack->set_neighbour(0, other->v4(), other->mac());
      h->stack->set_neighbour(0, other->v6(), other->mac());
    }
}
Sim::~Sim() = default;

void Sim::links(const std::function<void(Link&)>& change) {
  for (auto& h : hosts) change(h->link);
}

void Sim::push(Event event) {
  event.order = order_++;
  events_.push(std::move(event));
}

void Sim::after(Duration d, std::function<void()> what) {
  push({now + d, 0, -1, {}, false, std::move(what)});
}

void Sim::inject(int to, std::vector<uint8_t> frame) { push({now, 0, to, std::move(frame), false, {}}); }

void Sim::settle() {
  for (auto& h : hosts) pass(*h);
}

bool Sim::run_until(const std::function<bool()>& done, Duration limit) {
  const Instant end = now + limit;
  for (;;) {
    settle();
    if (done()) return true;
    Instant next = events_.empty() ? kNever : events_.top().at;
    for (auto& h : hosts) next = std::min(next, h->stack->next_deadline());
    if (next > end) {
      now = end;
      return false;
    }
    now = std::max(now, next);
    while (!events_.empty() && events_.top().at <= now) {
      Event e = std::move(const_cast<Event&>(events_.top()));
      events_.pop();
      if (e.to < 0)
        e.what();
      else
        deliver(*hosts[static_cast<size_t>(e.to)], e);
    }
  }
}

void Sim::refuse(int at, int to) {
  const std::vector<uint8_t> syn = hosts[static_cast<size_t>(at)]->to_kernel.at(0);
  const TcpHeader asked = tcp_of(syn);
  std::vector<uint8_t> frame(14);
  auto& eth = wire_at<EthHeader>(frame.data());
  eth.destination = hosts[static_cast<size_t>(to)]->mac();
  eth.source = hosts[static_cast<size_t>(at)]->mac();
  eth.type = kEtherIpv4;
  frame.insert(frame.end(), syn.begin(), syn.begin() + sizeof(Ipv4Header) + sizeof(TcpHeader));
  auto& ip = wire_at<Ipv4Header>(&frame[14]);
  std::swap(ip.source, ip.destination);
  ip.total_length = sizeof(Ipv4Header) + sizeof(TcpHeader);
  auto& tcp = wire_at<TcpHeader>(&frame[34]);
  tcp = asked;
  std::swap(tcp.source, tcp.destination);
  tcp.sequence = 0;
  tcp.acknowledgment = asked.sequence + 1;
  tcp.data_offset = 5 << 4;
  tcp.flags = kRst | kAck;
  fill_checksums(frame);
  inject(to, std::move(frame));
}

TcpHeader tcp_of(std::span<const uint8_t> packet) { return wire_at<TcpHeader>(&packet[sizeof(Ipv4Header)]); }

void Sim::deliver(Host& host, const Event& event) {
  // A device without a buffer drops.
  Packet* first = nullptr;
  Packet* last = nullptr;
  for (size_t at = 0; at < event.frame.size();) {
    Packet* p = host.pool.take();
    if (!p) return FramePool::release(first);
    const size_t n = std::min<size_t>(event.frame.size() - at, p->tailroom());
    std::memcpy(p->data(), &event.frame[at], n);
    p->length = static_cast<uint32_t>(n);
    at += n;
    (last ? last->more : first) = p;
    last = p;
  }
  if (!first) return;
  first->checksum_good = event.vouched;
  host.stack->on_packets({&first, 1}, 0, now, host.cpu);
  while (Packet* p = host.stack->frames_for_kernel().pop_front()) {
    host.to_kernel.push_back(flatten(p));
    FramePool::release(p);
  }
}

void Sim::pass(Host& host) {
  Stack& stack = *host.stack;
  if (stack.next_deadline() <= now) stack.on_deadlines(now);
  for (int turn = 0; turn < 1000; ++turn) {
    bool any = false;
    while (StackSocket* s = stack.take_ready()) {
      any = true;
      const uint32_t edges = std::exchange(s->edges, 0);
      if (s->owner && edges) static_cast<Actor*>(s->owner)->on_ready(edges);
    }
    if (turn > 0 && !any) break;
    stack.flush(now);
    drain(host);
  }
  for (const auto& change : stack.flow_changes()) {
    if (change.to == Stack::Flow::kOpened) host.steered[change.key]++;
    if (change.to == Stack::Flow::kClosed && --host.steered[change.key] <= 0) host.steered.erase(change.key);
  }
  stack.flow_changes().clear();
}

void Sim::drain(Host& host) {
  PacketQueue& queue = host.stack->tx_queue(0);
  while (Packet* p = queue.pop_front()) {
    std::vector<uint8_t> frame = flatten(p);
    if (p->tso_size) {
      ++host.cut_frames;
      for (auto& piece : cut(frame, p->header_length, p->tso_size)) to_wire(host, std::move(piece));
    } else {
      if (p->checksum_offload) fill_checksums(frame);
      to_wire(host, std::move(frame));
    }
    FramePool::release(p);
  }
}

void Sim::to_wire(Host& host, std::vector<uint8_t> frame) {
  Link& link = host.link;
  const auto at = layout(frame);
  const bool pass_filter = !filter || filter(host.number, frame);
  bool dropped = link.cut || !pass_filter || rng.chance(link.loss);
  if (tracing && at && at->protocol == 6) {
    const auto& tcp = wire_at<TcpHeader>(&frame[at->l4]);
    const uint32_t header = (tcp.data_offset >> 4) * 4u;
    const auto ecn = static_cast<uint8_t>(at->v6 ? frame[at->ip + 1] >> 4 & 3 : frame[at->ip + 1] & 3);
    trace.push_back({now, host.number, tcp.flags, tcp.sequence, tcp.acknowledgment, tcp.window,
                     static_cast<uint32_t>(at->end - at->l4 - header), ecn, dropped});
  }
  host.lost_frames += dropped;
  if (dropped) return;
  if (at && at->end - at->ip > link.mtu) {
    if (link.icmp) too_big(host, frame, link.mtu);
    return;
  }
  Instant leaves = now;
  bool queue_marks = false;
  if (link.bits_per_second) {
    constexpr size_t kWire = 24, kFullFrame = 1514;  // preamble, checksum, gap
    auto serial = [&link](size_t bytes) {
      return Duration{static_cast<int64_t>(bytes * 8 * 1'000'000'000 / link.bits_per_second)};
    };
    leaves = std::max(host.link_free, now);
    const Duration took = serial(std::max<size_t>(frame.size(), 60) + kWire);
    if (leaves + took - now > serial((kFullFrame + kWire) * (link.queue_frames + 1))) {
      ++host.lost_frames;
      return;
    }
    host.link_free = leaves = leaves + took;
    queue_marks =
        link.mark_frames != 0 && leaves - now > serial((kFullFrame + kWire) * (link.mark_frames + 1));
  }
  int to = -1;
  for (auto& h : hosts)
    if (h.get() != &host && std::equal(frame.begin(), frame.begin() + 6, h->mac().begin())) to = h->number;
  if (to < 0) return;
  if (queue_marks || rng.chance(link.mark)) {
    const bool marked = mark(frame);
    host.marked_frames += marked;
    if (tracing && at && at->protocol == 6) trace.back().marked = marked;
  }
  if (frame.size() < 60) frame.resize(60);  // as Ethernet pads
  Instant arrives = leaves + link.delay;
  if (rng.chance(link.duplicate))
    push({arrives + Duration(rng.below(1000000)), 0, to, frame, link.vouch, {}});
  if (rng.chance(link.reorder))
    arrives += Duration(rng.below(static_cast<uint64_t>(link.reorder_by.count())) + 1);
  // One bit behind the Ethernet header: what the checksums are sure to find.
  if (rng.chance(link.corrupt))
    frame[14 + rng.below(frame.size() - 14)] ^= static_cast<uint8_t>(1u << rng.below(8));
  push({arrives, 0, to, std::move(frame), link.vouch, {}});
}

void Sim::too_big(Host& sender, const std::vector<uint8_t>& frame, uint32_t mtu) {
  auto at = layout(frame);
  std::vector<uint8_t> f(frame.begin(), frame.begin() + static_cast<long>(at->ip));
  std::copy_n(sender.mac().begin(), 6, f.begin());
  const size_t quote = std::min<size_t>(frame.size() - at->ip, at->v6 ? 1200 : 68);
  const size_t l4 = at->ip + (at->v6 ? 40 : 20);
  f.resize(l4 + 8);
  f.insert(f.end(), frame.begin() + static_cast<long>(at->ip),
           frame.begin() + static_cast<long>(at->ip + quote));
  auto& icmp = wire_at<IcmpHeader>(&f[l4]);
  icmp = {};
  icmp.rest = mtu;
  const auto l4_length = static_cast<uint16_t>(8 + quote);
  uint64_t pseudo = 0;
  if (at->v6) {
    icmp.type = 2;
    auto& ip = wire_at<Ipv6Header>(&f[at->ip]);
    ip = {};
    ip.version_class_flow = 6u << 28;
    ip.payload_length = l4_length;
    ip.next_header = kProtocolIcmpv6;
    ip.hop_limit = 64;
    ip.source = {0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 99};
    std::copy_n(&frame[at->ip + 8], 16, ip.destination.begin());
    pseudo = sum_bytes(&f[at->ip + 8], 32) + sum_of(kProtocolIcmpv6) + sum_of(l4_length);
  } else {
    icmp.type = 3;
    icmp.code = 4;
    auto& ip = wire_at<Ipv4Header>(&f[at->ip]);
    ip = {};
    ip.version_ihl = 0x45;
    ip.total_length = static_cast<uint16_t>(20 + l4_length);
    ip.ttl = 64;
    ip.protocol = kProtocolIcmp;
    ip.source = {10, 0, 0, 99};
    std::copy_n(&frame[at->ip + 12], 4, ip.destination.begin());
    store_checksum(&ip.checksum, finish_sum(sum_bytes(&f[at->ip], 20)));
  }
  store_checksum(&icmp.checksum, finish_sum(add_sums(pseudo, sum_bytes(&f[l4], l4_length))));
  push({now + sender.link.delay, 0, sender.number, std::move(f), false, {}});
}

std::vector<Duration> Sim::data_times(int host) const {
  std::vector<Duration> out;
  for (const Sent& s : trace)
    if (s.host == host && s.payload) out.push_back(s.at - trace_start);
  return out;
}

std::vector<Sent> Sim::sent_by(int host) const {
  std::vector<Sent> out;
  std::copy_if(trace.begin(), trace.end(), std::back_inserter(out),
               [&](const Sent& s) { return s.host == host; });
  return out;
}

// ---- ends ----

uint8_t stream_byte(uint64_t seed, uint64_t i) {
  const uint64_t w = (seed + i / 8 + 1) * 0x9e3779b97f4a7c15ULL;
  return static_cast<uint8_t>((w ^ w >> 29) >> (i % 8 * 8));
}

void End::abandon() {
  if (conn) host.stack->tcp().close(std::exchange(conn, nullptr), true, host.sim.now);
}

void End::attach(TcpConn* c) {
  conn = c;
  conn->owner = static_cast<Actor*>(this);
  opened = true;
  on_ready(host.stack->tcp().readiness(*c));  // as epoll_ctl(ADD) looks
}

void End::on_ready(uint32_t edges) {
  if (!conn) return;
  if (edges & kError) error = host.stack->tcp().take_error(*conn);
  if (edges & (kReadable | kReadClosed | kHangUp)) read_some();
  if (edges & (kWritable | kHangUp)) write_some();
  if (!conn) return;
  if (error || (close_when_done && end_seen && shut)) {
    host.stack->tcp().close(std::exchange(conn, nullptr), false, host.sim.now);
  }
}

void End::write_some() {
  uint8_t buffer[65536];
  while (conn && written < to_write) {
    const uint64_t limit =
        std::min<uint64_t>({to_write - written, sizeof buffer, host.sim.rng.below(write_chunk) + 1});
    for (uint64_t i = 0; i < limit; ++i) buffer[i] = stream_byte(out, written + i);
    const iovec v{buffer, limit};
    auto r = host.stack->tcp().send(*conn, {&v, 1}, {}, host.sim.now);
    if (!r) {
      if (!r.is(EAGAIN) && !r.is(ENOTCONN)) error = static_cast<int>(r.error());
      return;
    }
    written += *r;
  }
  if (conn && written == to_write && shut_after_write && !shut) {
    shut = true;
    (void)host.stack->tcp().shutdown(*conn, SHUT_WR, host.sim.now);
  }
}

void End::read_some() {
  uint8_t buffer[65536];
  while (conn && !end_seen && !paused) {
    const iovec v{buffer, std::min<size_t>(sizeof buffer, host.sim.rng.below(read_chunk) + 1)};
    auto r = host.stack->tcp().receive(*conn, {&v, 1}, false, 0, host.sim.now);
    if (!r) {
      if (!r.is(EAGAIN) && !r.is(ENOTCONN)) error = static_cast<int>(r.error());
      return;
    }
    if (*r == 0) end_seen = true;
    for (size_t i = 0; i < *r; ++i) wrong |= buffer[i] != stream_byte(in, read + i);
    read += *r;
    if (read_pause.count()) {
      paused = true;
      host.sim.after(read_pause, [this] {
        paused = false;
        on_ready(kReadable);
      });
    }
  }
}

Acceptor::Acceptor(Host& host_in, const Endpoint& local, uint32_t backlog, TcpSettings settings, bool v6_only)
    : host(host_in) {
  auto r = host.stack->tcp().listen(local, v6_only, false, backlog, settings, static_cast<Actor*>(this));
  if (r) listener = *r;
}
Acceptor::~Acceptor() {
  if (listener) host.stack->tcp().close_listener(listener);
}
void Acceptor::on_ready(uint32_t) {
  if (!accepted) return;
  while (TcpConn* c = host.stack->tcp().accept(*listener)) accepted(c);
}

Pairs::Pairs(Sim& sim_in, PairOptions options_in)
    : sim(sim_in),
      options(options_in),
      acceptor(sim[1], {options_in.v6 ? sim[1].v6() : sim[1].v4(), options_in.port_b}, 128, options_in.b),
      next_port_(options_in.port_a) {
  acceptor.accepted = [this](TcpConn* c) {
    recorders.push_back(std::make_unique<Recorder>());
    c->owner = static_cast<Actor*>(recorders.back().get());
    accepted_.push_back(c);
  };
}

Pair Pairs::connect() {
  Pair p;
  const bool v6 = options.v6;
  recorders.push_back(std::make_unique<Recorder>());
  Actor* owner = recorders.back().get();
  auto r = sim[0].stack->tcp().connect({v6 ? sim[0].v6() : sim[0].v4(), next_port_++},
                                       {v6 ? sim[1].v6() : sim[1].v4(), options.port_b},
                                       sim[0].route_to(sim[1], v6), options.a, owner, sim.now);
  if (!r) return p;
  p.a = *r;
  const size_t before = accepted_.size();
  sim.run_until([&] { return accepted_.size() > before; });
  if (accepted_.size() > before) p.b = accepted_.back();
  return p;
}

Recorder& Pairs::recorder(TcpConn* c) { return *static_cast<Recorder*>(static_cast<Actor*>(c->owner)); }

Result<size_t> write(Host& host, TcpConn* conn, std::string_view text, TcpWrite how) {
  const iovec v{const_cast<char*>(text.data()), text.size()};
  return host.stack->tcp().send(*conn, {&v, 1}, how, host.sim.now);
}

Result<std::string> read(Host& host, TcpConn* conn, size_t at_most) {
  // Not at_most: most have little to read, and what is not there need not be zeroed.
  std::string text(std::min<size_t>(at_most, std::max(host.stack->tcp().unread(*conn), 1u)), 0);
  const iovec v{text.data(), text.size()};
  auto r = host.stack->tcp().receive(*conn, {&v, 1}, false, 0, host.sim.now);
  if (!r) return r.error();
  host.sim.settle();  // the window may have opened
  text.resize(*r);
  return text;
}

}  // namespace accel::sim
