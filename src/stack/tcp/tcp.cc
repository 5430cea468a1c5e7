// TcpLayer: passes, and the calls of the layer above.
#include "stack/tcp/tcp.h"

#include <sys/socket.h>

#include <algorithm>

#include "base/user_memory.h"
#include "stack/tcp/context.h"

namespace accel {

using namespace tcp;

TcpLayer::TcpLayer(StackCore& core) : context_(std::make_unique<TcpContext>(core)) {}

TcpLayer::~TcpLayer() {
  TcpContext& t = *context_;
  while (t.all_head) destroy(t, *t.all_head);
  for (TcpEntry*& head : t.buckets)
    while (TcpEntry* e = head) destroy_time_wait(t, static_cast<TcpTimeWait&>(*e), false);
  for (auto& [port, group] : t.listeners)
    for (TcpListener* l : group) {
      t.core.unlist(*l);
      delete l;
    }
}

void TcpLayer::on_segment(Packet* frame, const TcpSegmentInfo& segment, Instant now) {
  tcp::on_segment(*context_, frame, segment, now);
}

bool TcpLayer::expects(const TcpSegmentInfo& s) const {
  const TcpConn* c = find_connection(*context_, s.local, s.remote);
  return c != nullptr && c->synchronized() && s.seq == c->rcv_nxt && c->out_of_order == nullptr &&
         !c->urgent_in;
}

bool TcpLayer::on_icmp_error(const Endpoint& local, const Endpoint& remote, uint32_t seq, int error,
                             bool hard, uint32_t mtu, Instant now) {
  TcpContext& t = *context_;
  TcpConn* found = find_connection(t, local, remote);
  if (found == nullptr) return false;
  TcpConn& c = *found;
  // RFC 5927 section 4: only about what is in flight.
  uint32_t oldest = c.synchronized() ? c.snd_una : c.iss;
  if (seq_lt(seq, oldest) || seq_gt(seq, c.snd_nxt)) return false;
  Working working(t, c);
  if (mtu != 0) {
    mtu = path_mtu(c, mtu);
    if (mtu >= c.mtu || (c.local.address.is_v4() && !c.settings.dont_fragment)) return true;
    c.mtu = mtu;
    c.mtu_lowered = now;
    refresh_mss(t, c);
    if (!c.synchronized()) return true;
    // What was too big is gone; no sign of congestion (RFC 1191 section 6.4).
    for (uint32_t i = 0; i < c.sent.size(); ++i)
      if (SentSegment& s = c.sent[i]; !s.sacked && !s.lost && s.length() > c.snd_mss) mark_lost(c, s);
    c.cwnd = std::max(c.cwnd, uint32_t{c.snd_mss});
    want_output(t, c);
    return true;
  }
  bool opening = c.tcp_state == TcpState::kSynSent || (c.tcp_state == TcpState::kSynReceived && c.active);
  if (opening && hard) {
    fail(t, c, error);
  } else {
    c.soft_error = static_cast<int16_t>(error);  // RFC 5461: what to say if it times out
  }
  return true;
}

void TcpLayer::on_deadlines(Instant now) {
  TcpContext& t = *context_;
  t.wheel.advance(now, [&](TimerNode& node) { on_timer(t, node, now); });
}

Instant TcpLayer::next_deadline() const {
  const TcpContext& t = *context_;
  if (!t.pending_head) return t.wheel.next();
  // Something waits for flush(): at once, or, where frames were short, in a moment.
  return std::min(t.wheel.next(), t.stalled_until == kNever ? t.core.now : t.stalled_until);
}

bool TcpLayer::has_to_send() const { return context_->pending_head != nullptr; }

void TcpLayer::flush(Instant now) {
  TcpContext& t = *context_;
  if (!t.pending_head) return;
  TcpConn* last = t.pending_tail;  // what gets listed again meanwhile waits for the next flush
  t.stalled_until = kNever;
  bool more = true;
  while (more && t.pending_head) {
    TcpConn& c = *t.pending_head;
    more = &c != last;
    unlist_pending(t, c);
    Working working(t, c);
    output(t, c, now);
  }
}

// ---------------------------------------------------------------- receiving

/// Calls visit(pointer, length) for [offset, offset + n) of the receive queue.
template <class Visit>
static void walk_received(const TcpConn& c, size_t offset, size_t n, Visit&& visit) {
  for (const Packet* p = c.receive_queue.front(); p && n > 0; p = p->next) {
    if (offset >= p->length) {
      offset -= p->length;
      continue;
    }
    size_t part = std::min<size_t>(n, p->length - offset);
    visit(p->data() + offset, part);
    n -= part;
    offset = 0;
  }
}

static void consume(TcpContext& t, TcpConn& c, size_t n) {
  c.copied_seq += static_cast<uint32_t>(n);
  while (n > 0) {
    Packet* p = c.receive_queue.front();
    auto part = static_cast<uint32_t>(std::min<size_t>(n, p->length));
    p->trim_front(part);
    p->seq += part;
    n -= part;
    if (p->length > 0) break;
    pop_received(t, c);
  }
  if (c.urgent_in && seq_gt(c.copied_seq, c.urgent_seq)) c.urgent_in = c.urgent_valid = false;
}

/// Linux' tcp_cleanup_rbuf(): the application has read; tell the peer when that opens the window, or when an
/// ACK waits.
static void after_read(TcpContext& t, TcpConn& c, Instant now) {
  if (!c.synchronized() || c.fin_received) return;
  tune_receive_buffer(t, c, now);
  uint32_t window = c.window_left();
  bool owed = c.rcv_nxt != c.rcv_wup;
  bool ack = owed && (c.rcv_nxt - c.rcv_wup > c.rcv_mss || (c.unread() == 0 && c.pushed && !c.pingpong));
  if (!ack) {
    uint32_t space = receive_space(t, c);
    ack = space >= 2 * window && space >= window + receive_step(c);
  }
  if (!ack) return;
  c.ack_now = true;
  want_output(t, c);
}

static Result<size_t> nothing_to_read(TcpLayer& layer, TcpConn& c) {
  if (c.fin_received) return size_t{0};
  if (int error = layer.take_error(c)) return err(error);
  if (c.read_shut) return size_t{0};
  if (c.tcp_state == TcpState::kClosed) return err(ENOTCONN);
  return err(EAGAIN);
}

/// How many bytes from `offset` on may be read in one go, skipping an urgent byte that lies right there
/// (`skip`).
static uint32_t readable_run(const TcpConn& c, uint32_t offset, bool first, uint32_t& skip) {
  skip = 0;
  uint32_t available = c.unread() > offset ? c.unread() - offset : 0;
  if (!c.urgent_in || available == 0) return available;
  uint32_t to_mark = c.urgent_seq - (c.copied_seq + offset);
  if (to_mark >= available) return available;
  if (to_mark > 0) return to_mark;
  if (!first) return 0;  // a read stops at the mark
  if (!c.settings.oob_inline) skip = 1;
  return available - skip;
}

void TcpLayer::know_unread(TcpConn& c) {
  if (Packet* oldest = c.receive_queue.front()) oldest->look = static_cast<uint16_t>(context_->core.look - 1);
}

Result<size_t> TcpLayer::receive(TcpConn& c, std::span<const iovec> into, bool peek, size_t peek_offset,
                                 Instant now) {
  TcpContext& t = *context_;
  size_t done = 0;
  auto offset = static_cast<uint32_t>(std::min<size_t>(peek ? peek_offset : 0, c.unread()));
  uint32_t skip = 0;
  uint32_t run = readable_run(c, offset, true, skip);
  if (run == 0 && skip == 0) return nothing_to_read(*this, c);
  if (!can_overwrite(into, run)) return err(EFAULT);
  if (skip && !peek)
    consume(t, c, 1);
  else
    offset += skip;
  if (run == 0) return nothing_to_read(*this, c);
  for (const iovec& v : into) {
    size_t n = std::min<size_t>(v.iov_len, run - done);
    auto* to = static_cast<uint8_t*>(v.iov_base);
    walk_received(c, offset, n, [&](const uint8_t* p, size_t part) {
      std::memcpy(to, p, part);
      to += part;
    });
    done += n;
    if (peek)
      offset += static_cast<uint32_t>(n);
    else
      consume(t, c, n);
    if (done == run) break;
  }
  know_unread(c);
  if (!peek) after_read(t, c, now);
  return done;
}

Result<size_t> TcpLayer::discard(TcpConn& c, size_t n, Instant now) {
  TcpContext& t = *context_;
  uint32_t skip = 0;
  uint32_t run = readable_run(c, 0, true, skip);
  if (skip) consume(t, c, 1);
  if (run == 0) return nothing_to_read(*this, c);
  n = std::min<size_t>(n, run);
  consume(t, c, n);
  know_unread(c);
  after_read(t, c, now);
  return n;
}

Result<size_t> TcpLayer::lend(TcpConn& c, const LendLimit& most, Instant now, Lent& lent) {
  TcpContext& t = *context_;
  uint32_t skip = 0;
  uint32_t run = readable_run(c, 0, true, skip);
  if (run != 0 && memory_of(*c.receive_queue.front()) > most.memory) return err(ENOBUFS);
  if (skip) consume(t, c, 1);
  if (run == 0) return nothing_to_read(*this, c);
  if (c.receive_queue.front()->length > run) return err(EOPNOTSUPP);
  size_t done = 0;
  while (Packet* p = c.receive_queue.front()) {
    const uint32_t memory = memory_of(*p), length = p->length;
    if (lent.buffers() == most.buffers || lent.memory() + memory > most.memory || length > run) break;
    lent.add(take_received(t, c), memory);
    c.copied_seq += length;
    run -= length;
    done += length;
  }
  if (done == 0) return err(ENOBUFS);
  if (c.urgent_in && seq_gt(c.copied_seq, c.urgent_seq)) c.urgent_in = c.urgent_valid = false;
  know_unread(c);
  after_read(t, c, now);
  return done;
}

Result<size_t> TcpLayer::receive_urgent(TcpConn& c, uint8_t* byte, bool peek) {
  const bool was_read = !c.urgent_valid && seq_gt(c.rcv_nxt, c.urgent_seq);
  if (c.settings.oob_inline || !c.urgent_in || was_read) return err(EINVAL);
  if (c.tcp_state == TcpState::kClosed && !c.fin_received) return err(ENOTCONN);
  if (!c.urgent_valid) {
    if (c.tcp_state == TcpState::kClosed || c.read_shut) return size_t{0};
    return err(EAGAIN);
  }
  *byte = c.urgent_byte;
  know_unread(c);
  if (!peek) c.urgent_valid = false;
  return size_t{1};
}

bool TcpLayer::at_mark(const TcpConn& c) const { return c.urgent_in && c.urgent_seq == c.copied_seq; }

// ---------------------------------------------------------------- closing

/// Linux' tcp_close_state(): true when a FIN is to be sent.
static bool begin_close(TcpConn& c) {
  switch (c.tcp_state) {
    case TcpState::kSynReceived:
    case TcpState::kEstablished:
      c.tcp_state = TcpState::kFinWait1;
      break;
    case TcpState::kCloseWait:
      c.tcp_state = TcpState::kLastAck;
      break;
    default:
      return false;
  }
  c.fin_queued = true;
  c.more = false;
  return true;
}

Result<void> TcpLayer::shutdown(TcpConn& c, int how, Instant now) {
  TcpContext& t = *context_;
  if (c.tcp_state == TcpState::kClosed) {
    t.core.mark_ready(c, kWritable);  // inet_shutdown() wakes those who poll all the same
    return err(ENOTCONN);
  }
  Working working(t, c);
  if (c.tcp_state == TcpState::kSynSent) {
    fail(t, c, ECONNRESET);  // inet_shutdown() disconnects
    return {};
  }
  if (how == SHUT_RD || how == SHUT_RDWR) c.read_shut = true;
  if (how == SHUT_WR || how == SHUT_RDWR) {
    if (c.tcp_state == TcpState::kSynReceived)
      c.fin_queued = true;  // leaves when the handshake is through
    else if (begin_close(c))
      output(t, c, now);
  }
  uint32_t edges = (c.read_shut ? kReadable | kReadClosed : 0u) | (c.fin_queued ? kWritable : 0u);
  if (c.read_shut && c.fin_queued) edges |= kHangUp;
  t.core.mark_ready(c, edges);
  return {};
}

void TcpLayer::close(TcpConn* conn, bool abort, Instant now) {
  TcpContext& t = *context_;
  TcpConn& c = *conn;
  t.core.unlist(c);
  c.owner = nullptr;
  c.held = false;
  c.edges = 0;
  bool unread = c.unread() > 0;
  Working working(t, c);
  if (c.tcp_state == TcpState::kClosed) return destroy(t, c);
  if (c.tcp_state == TcpState::kSynSent) return finish(t, c);
  bool reset = unread || (abort && c.tcp_state != TcpState::kClosing && c.tcp_state != TcpState::kLastAck);
  if (reset || abort) {
    // The program has closed before it could know of the text, which crosses the FIN then.
    const Packet* oldest = c.receive_queue.front();
    const bool crosses = unread && !abort && oldest && oldest->look == t.core.look && c.synchronized();
    if (crosses && begin_close(c)) output(t, c, now);
    if (reset) send_reset(t, c, now);
    return finish(t, c);
  }
  if (t.orphans >= t.core.config.max_orphans) {  // tcp_check_oom()
    t.count(Counter::tcp_orphans_limited);
    send_reset(t, c, now);
    return finish(t, c);
  }
  c.orphan = true;
  ++t.orphans;
  c.read_shut = true;
  clear_timer(c, kTimerKeepalive);
  if (c.tcp_state == TcpState::kSynReceived) {
    if (!c.active) {
      send_reset(t, c, now);
      return finish(t, c);
    }
    c.fin_queued = true;
    return;
  }
  if (begin_close(c))
    output(t, c, now);
  else if (c.tcp_state == TcpState::kFinWait2)
    wait_for_fin(t, c, now);
}

// ---------------------------------------------------------------- asking

/// Linux' tcp_poll().
uint32_t TcpLayer::readiness(const TcpConn& c) const {
  const TcpContext& t = *context_;
  uint32_t ready = 0;
  bool closed = c.tcp_state == TcpState::kClosed;
  if (closed || (c.read_shut && c.write_ended())) ready |= kHangUp;
  if (c.read_shut) ready |= kReadable | kReadClosed;
  if (c.tcp_state != TcpState::kSynSent && c.tcp_state != TcpState::kSynReceived) {
    uint32_t target = std::max(c.settings.receive_low_water, 1u);
    if (c.urgent_in && c.urgent_seq == c.copied_seq && !c.settings.oob_inline) ++target;
    if (has_for_reader(t, c, target)) ready |= kReadable;
    if (c.write_ended() || (send_space_wakes(t, c) && wakes_writer(t, c) && !c.no_memory))
      ready |= kWritable;
    else
      c.no_space = true;
    if (c.urgent_valid) ready |= kUrgent;
  }
  if ((c.fast_open & kFastOpenWaits) != 0) ready |= kWritable;
  if (c.error) ready |= kError;
  return ready;
}

int TcpLayer::take_error(TcpConn& c) { return std::exchange(c.error, int16_t{0}); }
int TcpLayer::peek_error(const TcpConn& c) const { return c.error; }
TcpSettings& TcpLayer::settings(TcpConn& c) { return c.settings; }

void TcpLayer::settings_changed(TcpConn& c, Instant now, bool push) {
  TcpContext& t = *context_;
  if (c.hop) refresh_headers(t, c);
  if (c.synchronized()) {
    refresh_mss(t, c);
    if (c.settings.keepalive && c.deadlines[kTimerKeepalive] == kNever) restart_keepalive(t, c, now);
    if (c.settings.keepalive) {  // a shorter idle time counts from when the peer was last heard
      Instant heard = std::max(c.last_received, c.last_ack_received);
      if (c.keep_probes == 0) set_timer(t, c, kTimerKeepalive, std::max(heard + c.settings.keep_idle, now));
    } else {
      clear_timer(c, kTimerKeepalive);
    }
    if (c.settings.quickack) {
      c.pingpong = false;
      c.quick_acks = kQuickAcks;
      if (c.rcv_nxt != c.rcv_wup) c.ack_now = true;
    }
    choose_congestion(c, now);
    begin_pacing(c, now);
    if (!c.settings.cork) release_cork(c);
    if (push) {
      c.more = false;
      if (c.settings.nodelay && unsent(c) > 0) c.push = true;
    }
    Working working(t, c);
    output(t, c, now);
  }
}

TcpState TcpLayer::state(const TcpConn& c) const { return c.tcp_state; }
Endpoint TcpLayer::local(const TcpConn& c) const { return c.local; }
Endpoint TcpLayer::remote(const TcpConn& c) const { return c.remote; }
InterfaceId TcpLayer::interface(const TcpConn& c) const { return c.interface; }

std::optional<BbrInfo> TcpLayer::bbr_info(const TcpConn& c) const {
  return runs_bbr(c) ? std::optional(tcp::bbr_info(c)) : std::nullopt;
}

/// Linux' tcp_inq(): up to the urgent mark.
size_t TcpLayer::readable_bytes(const TcpConn& c) const {
  if (!c.synchronized() && c.tcp_state != TcpState::kClosed) return 0;
  if ((c.fast_open & kFastOpenHalf) != 0) return 0;
  if (!c.urgent_in || c.settings.oob_inline || seq_lt(c.urgent_seq, c.copied_seq) ||
      !seq_lt(c.urgent_seq, c.rcv_nxt))
    return c.unread();
  return c.urgent_seq - c.copied_seq;
}

/// Linux' tcp_ioctl(): a FIN counts, what a closed connection had left stays.
size_t TcpLayer::unacked_bytes(const TcpConn& c) const {
  if (c.tcp_state == TcpState::kClosed) return c.left_unacked;
  return c.synchronized() && (c.fast_open & kFastOpenHalf) == 0 ? c.write_seq() - c.snd_una : 0;
}
size_t TcpLayer::unsent_bytes(const TcpConn& c) const {
  if (c.tcp_state == TcpState::kClosed) return c.left_unsent;
  return c.synchronized() && (c.fast_open & kFastOpenHalf) == 0 ? c.write_seq() - c.snd_nxt : 0;
}
void TcpLayer::connect_shut(TcpConn& c, bool read, bool write) {
  c.read_shut |= read;
  c.write_shut |= write;
}
uint32_t TcpLayer::max_window(const TcpConn& c) const { return c.max_window; }
bool TcpLayer::all_acked(const TcpConn& c) const {
  return c.tcp_state == TcpState::kClosed || (c.send_queue.size() == 0 && (!c.fin_queued || c.fin_acked));
}

size_t TcpLayer::lingering() const {
  size_t n = 0;
  for (const TcpConn* c = context_->all_head; c; c = c->all_next)
    if (!c->held && !c->queued && !c->deaf && c->fin_queued && !all_acked(*c)) ++n;
  return n;
}

void TcpLayer::for_each(void (*visit)(TcpConn& conn, void* context), void* context) {
  TcpConn* next = nullptr;
  for (TcpConn* c = context_->all_head; c; c = next) {
    next = c->all_next;
    if (c->tcp_state != TcpState::kClosed) visit(*c, context);
  }
}

bool TcpLayer::port_in_use(const IpAddress& local, uint16_t port) const {
  const TcpContext& t = *context_;
  if (t.listeners.contains(port)) return true;
  if (!t.ports.contains(port)) return false;
  if (local.is_any()) return true;
  for (const TcpEntry* e : t.buckets)
    for (; e; e = e->hash_next)
      if (e->local.port == port && e->local.address == local) return true;
  return false;
}

static bool overlaps(const IpAddress& bound, bool v6_only, const IpAddress& address) {
  if (!bound.is_any()) return bound == address;
  return bound.is_v4() ? address.is_v4() : !v6_only || !address.is_v4();
}

bool TcpLayer::bind_conflicts(const Endpoint& local, bool v6_only, bool reuse_address) const {
  const TcpContext& t = *context_;
  if (!t.ports.contains(local.port)) return false;
  auto conflicts = [&](const TcpEntry& e) {
    if (e.local.port != local.port || !overlaps(local.address, v6_only, e.local.address)) return false;
    return !reuse_address ||
           !(e.kind == TcpEntry::Kind::kConn ? static_cast<const TcpConn&>(e).settings.reuse_address
                                             : static_cast<const TcpTimeWait&>(e).reuse_address);
  };
  for (const TcpEntry* e : t.buckets)
    for (; e; e = e->hash_next)
      if (conflicts(*e)) return true;
  return false;
}

void TcpLayer::note_numbers(const FlowKey& key, TcpNumbers* numbers) {
  TcpConn* c = find_connection(*context_, key.local, key.remote);
  if (c == nullptr) return;
  c->numbers = numbers;
  note_numbers_sent(*c);
}

Followed TcpLayer::follow_route(TcpConn& c) {
  StackCore& core = context_->core;
  if (!c.hop) return Followed::kStays;
  if (core.routes.is_question(c.remote.address, c.local.address)) return Followed::kQuestion;
  const Way way = core.way_on({c.remote.address, c.local.address, c.hop->interface}, *c.hop);
  if (way.hop == nullptr && !way.by_kernel) {
    c.hop = HopRef(core.nowhere(c.hop->interface));
    return Followed::kStays;
  }
  if (way.hop == nullptr || way.hop->interface != c.hop->interface) return Followed::kLeaves;
  if (way.hop == c.hop.get() && path_mtu(c, way.mtu) == c.route_mtu && way.metrics == c.metrics)
    return Followed::kStays;
  const InterfaceId comes_by = c.interface;
  set_way(*context_, c, way);
  c.interface = comes_by;
  return Followed::kStays;
}

static uint8_t congestion_state(const TcpConn& c) {
  enum : uint8_t { kOpen, kDisorder, kReduced, kRecovery, kLoss };
  if (c.recovery == Recovery::kTimeout) return kLoss;
  if (c.recovery == Recovery::kFast) return kRecovery;
  if (c.recovery == Recovery::kReduced) return kReduced;
  return c.sacked_segments > 0 || c.dupacks > 0 ? kDisorder : kOpen;
}

/// tcp_get_info_chrono_stats().
static void put_busy_times(const TcpConn& c, Instant now, TcpInfo& i) {
  std::array<uint64_t, 3> us{};
  for (size_t k = 0; k < us.size(); ++k) {
    uint64_t ticks = c.busy_ticks[k];
    if (c.busy == static_cast<Busy>(k + 1)) ticks += busy_clock(now) - c.busy_since;
    us[k] = (ticks << 20) / 1000;
    i.busy_us += us[k];
  }
  i.window_limited_us = us[1];
  i.buffer_limited_us = us[2];
}

TcpInfo TcpLayer::info(const TcpConn& c, Instant now) const {
  auto us = [](Duration d) { return static_cast<uint32_t>(d.count() / 1000); };
  auto ms_since = [now](Instant i) { return static_cast<uint32_t>((now - i).count() / 1'000'000); };
  TcpInfo i;
  const bool half = (c.fast_open & kFastOpenHalf) != 0 && c.tcp_state == TcpState::kEstablished;
  i.state = half ? TcpState::kSynReceived : c.tcp_state;
  i.syn_text = (c.fast_open & kFastOpenTaken) != 0;
  i.opened_by_syn = (c.fast_open & kFastOpenChild) != 0;
  i.fast_open_failure = c.fast_open_failure;
  i.congestion_state = congestion_state(c);
  i.backoff = c.backoff;
  i.probes = std::max(c.probes_out, c.keep_probes);
  i.retransmits = c.probes_out > 0 ? 0 : static_cast<uint8_t>(std::min<uint16_t>(c.retransmits, 255));
  i.window_scaling = c.wscale_ok;
  i.snd_wscale = c.snd_wscale;
  i.rcv_wscale = c.rcv_wscale;
  i.timestamps = c.timestamps_ok;
  i.sack = c.sack_ok;
  i.ecn = (c.ecn & kEcnOk) != 0;
  i.ecn_seen = (c.ecn & kEcnSeen) != 0;
  i.rto_us = us(c.rto);
  i.rtt_us = us(c.srtt);
  i.rttvar_us = us(c.rttvar);
  i.min_rtt_us = c.min_rtt_us;
  i.snd_mss = c.snd_mss;
  i.rcv_mss = c.rcv_mss;
  i.advertised_mss = advertised_mss(c);
  i.receive_rtt_us = c.receive_tuning.rtt_us8 / 8;
  i.receive_space = c.receive_tuning.space;
  i.ack_timeout_us = c.ato_ns / 1000;
  i.pmtu = c.mtu;
  uint32_t mss = std::max<uint32_t>(c.snd_mss, 1);
  i.snd_cwnd_segments = std::max(1u, c.cwnd / mss);
  i.snd_ssthresh_segments = c.ssthresh >= kNoThreshold ? kNoThreshold : c.ssthresh / mss;
  i.unacked_segments = c.tcp_state == TcpState::kSynSent ? 1 : c.sent.size();
  i.sacked_segments = c.sack_ok ? c.sacked_segments : c.dupacks;
  for (uint32_t k = 0; k < c.sent.size(); ++k) {
    i.lost_segments += c.sent[k].lost;
    i.resent_segments += c.sent[k].resent;
  }
  i.snd_wnd = c.snd_wnd;
  i.rcv_wnd = seq_gt(c.rcv_edge, c.rcv_wup) ? c.rcv_edge - c.rcv_wup : 0;
  i.window_clamp = most_window(c);
  i.total_retransmits = c.total_retransmits;
  i.notsent_bytes = c.tcp_state == TcpState::kClosed ? 0 : unsent(c);
  // tcp_ack() and tcp_rcv_nxt_update() count by sequence numbers.
  i.bytes_acked = c.bytes_acked + (c.active && c.delivered > 0) + c.fin_acked;
  i.bytes_received = c.rx_bytes + c.fin_received;
  i.bytes_sent = c.bytes_sent;
  i.bytes_retransmitted = c.bytes_retransmitted;
  i.segments_in = c.segments_in;
  i.segments_out = c.segments_out;
  i.data_segments_in = c.data_segments_in;
  i.data_segments_out = c.data_segments_out;
  i.delivered = c.delivered;
  i.delivered_ce = c.delivered_ce;
  i.duplicates_reported = c.duplicates_reported;
  i.reordering = c.reordering;
  i.reorderings = c.reorderings;
  i.rehashes = c.rehashes;
  i.out_of_order_segments = c.out_of_order_segments;
  i.pacing_rate = c.paced ? c.rates->pacing_rate : window_rate(c);
  i.max_pacing_rate = c.settings.max_pacing_rate;
  i.delivery_rate = delivery_rate(c);
  i.delivery_rate_app_limited = c.rates && c.rates->best_app_limited;
  put_busy_times(c, now, i);
  i.last_data_sent_ms = ms_since(c.last_sent);
  i.last_data_received_ms = ms_since(c.last_received);
  i.last_ack_received_ms = ms_since(c.last_ack_received);
  return i;
}

}  // namespace accel
