// Passive opens: which listener a SYN is for, its embryonic connections, its accept queue.
#include <algorithm>

#include "stack/tcp/context.h"
#include "stack/tcp/tcp.h"

namespace accel::tcp {

/// How well a listener fits a local address: 0 not at all; the kernel's order (inet_hashtables.c,
/// compute_score(): the address counts before the device, the device before the family, that before the CPU).
/// Of two that fit alike the one that has stopped is the worse.
static int score(const TcpListener& l, const Endpoint& local, InterfaceId interface, int cpu) {
  if (l.device != kAnyInterface && l.device != interface) return 0;
  const int rest = (l.device != kAnyInterface ? 8 : 0) + (l.settings.incoming_cpu == cpu ? 2 : 0) - l.stopped;
  if (l.local.address == local.address) return 32 + rest;
  if (!l.local.address.is_any()) return 0;
  bool v4 = local.address.is_v4();
  if (l.local.address.is_v4()) return v4 ? 8 + rest : 0;
  if (v4) return l.v6_only ? 0 : 4 + rest;
  return 8 + rest;
}

TcpListener* find_listener(const TcpContext& t, const Endpoint& local, const Endpoint& remote,
                           InterfaceId interface) {
  auto group = t.listeners.find(local.port);
  if (group == t.listeners.end()) return nullptr;
  int best = 0;
  uint32_t matches = 0;
  TcpListener* found = nullptr;
  for (TcpListener* l : group->second) {
    int s = score(*l, local, interface, t.core.cpu);
    if (s > best) {
      best = s;
      found = l;
      matches = 1;
    } else if (s != 0 && s == best) {
      ++matches;
    }
  }
  if (matches <= 1) return found;
  // SO_REUSEPORT: the same listener for the same tuple, as long as the group stays as it is and one CPU
  // brings what comes.
  uint64_t choice = (hash_tuple(local, remote, t.core.config.secret[1]) >> 32) * matches >> 32;
  for (TcpListener* l : group->second)
    if (score(*l, local, interface, t.core.cpu) == best && choice-- == 0) return l;
  return found;
}

bool accept_queue_full(const TcpListener& l) { return l.accept_size > l.backlog; }  // sk_acceptq_is_full()

void link_embryo(TcpListener& l, TcpConn& c) {
  c.listener = &l;
  c.accept_next = l.embryo_head;
  c.embryo_prev = nullptr;
  (l.embryo_head ? l.embryo_head->embryo_prev : l.embryo_tail) = &c;
  l.embryo_head = &c;
  ++l.embryo_size;
}

void unlink_embryo(TcpConn& c) {
  if (!c.listener || c.queued) return;
  TcpListener& l = *c.listener;
  (c.embryo_prev ? c.embryo_prev->accept_next : l.embryo_head) = c.accept_next;
  (c.accept_next ? c.accept_next->embryo_prev : l.embryo_tail) = c.embryo_prev;
  c.accept_next = c.embryo_prev = nullptr;
  c.listener = nullptr;
  --l.embryo_size;
}

bool has_listener(TcpContext& t, TcpConn& c) {
  if (c.tcp_state != TcpState::kSynReceived || c.active || c.listener) return true;
  TcpListener* l = find_listener(t, c.local, c.remote, c.interface);
  if (l) link_embryo(*l, c);
  return l != nullptr;
}

void queue_accepted(TcpContext& t, TcpConn& c) {
  TcpListener& l = *c.listener;
  unlink_embryo(c);
  c.listener = &l;
  c.queued = true;
  c.options_generation = l.options_generation;
  c.accept_next = nullptr;
  (l.accept_head ? l.accept_tail->accept_next : l.accept_head) = &c;
  l.accept_tail = &c;
  ++l.accept_size;
  t.core.mark_ready(l, kReadable);
}

/// What both kinds of open set before their SYN.
static void prepare(TcpContext& t, TcpConn& c, uint32_t iss, Instant now) {
  c.iss = iss;
  c.snd_una = iss;
  c.snd_nxt = c.snd_pushed = iss + 1;
  c.send_queue.start(iss + 1);
  c.ts_offset = timestamp_offset(t, c.local.address, c.remote.address);
  c.wscale_ok = t.core.config.window_scaling;
  c.sack_ok = t.core.config.sack;
  c.timestamps_ok = t.core.config.timestamps;
  c.ecn = 0;
  c.rcv_wscale = c.wscale_ok ? window_scale(t, c) : 0;
  c.rto = std::max<Duration>(kInitialRto, t.core.config.min_rto);
  c.stuck_since = now;
}

Way way_back(TcpContext& t, const TcpSegmentInfo& s) {
  return t.core.way_back({s.remote.address, s.local.address, s.interface});
}

void fill_embryo(TcpContext& t, TcpConn& c, const TcpListener& l, const TcpSegmentInfo& s,
                 const TcpOptions& o, uint32_t iss, const Way& way, Instant now) {
  c.local = s.local;
  c.remote = s.remote;
  c.settings = l.settings;
  c.read_shut = l.read_shut;
  c.write_shut = l.write_shut;
  c.tcp_state = TcpState::kSynReceived;
  prepare(t, c, iss, now);
  c.irs = s.seq;
  c.rcv_nxt = c.rcv_wup = c.copied_seq = s.seq + 1;
  c.rcv_edge = c.rcv_nxt + std::min(receive_space(t, c), 65535u);
  set_way(t, c, way);
  c.interface = s.interface;
  take_syn_options(t, c, o, now);
  if (agrees_to_ecn(t, c, s)) c.ecn = kEcnOk;
  c.snd_wnd = c.max_window = s.window;
  c.snd_wl1 = s.seq;
}

/// At least as many handshakes are kept as this, however short the backlog: connections that need no cookie
/// keep all their options.
constexpr uint32_t kLeastHandshakes = 64;

/// The part of on_syn() that has a way for its answers.
static void open_passively(TcpContext& t, TcpListener& l, const TcpSegmentInfo& s, const Packet* frame,
                           const Way& way, uint32_t iss, Instant now) {
  auto options = parse_options(s.options);
  if (!options) return t.count(Counter::drop_tcp_header);
  if (accept_queue_full(l)) return t.count(Counter::drop_tcp_backlog);
  if (s.remote.port == 0 || s.remote.address.is_multicast() || s.local.address.is_multicast())
    return t.count(Counter::drop_no_socket);
  const bool full = l.embryo_size > std::max(l.backlog, kLeastHandshakes);
  if (full && !t.core.config.syn_cookies) return t.count(Counter::drop_tcp_backlog);
  if (full) return answer_with_cookie(t, l, s, *options, way, now);
  TcpConn* c = create(t);
  if (!c) return t.count(Counter::drop_tcp_limit);
  fill_embryo(t, *c, l, s, *options, iss ? iss : initial_sequence(t, s.local, s.remote, now), way, now);
  insert(t, *c);
  link_embryo(l, *c);
  t.core.flow_changes.push_back({{Protocol::kTcp, s.local, s.remote}, s.interface, FlowEvent::kOpened});
  (void)open_at_once(t, l, *c, s, frame, now);
  c->handshake_due = true;  // by flush(), when the flow has been steered
  want_output(t, *c);
}

bool on_syn(TcpContext& t, TcpListener& l, const TcpSegmentInfo& s, const Packet* frame, uint32_t iss,
            Instant now) {
  if (l.stopped) return false;
  const Way way = way_back(t, s);
  if (way.by_kernel) return false;
  if (way.hop)
    open_passively(t, l, s, frame, way, iss, now);
  else
    t.count(Counter::drop_no_way_back);
  return true;
}

}  // namespace accel::tcp

namespace accel {

using namespace tcp;

Result<TcpConn*> TcpLayer::connect(const Endpoint& local, const Endpoint& remote, const Route& route,
                                   const TcpSettings& settings, void* owner, Instant now) {
  TcpContext& t = *context_;
  uint32_t iss = initial_sequence(t, local, remote, now);
  if (TcpEntry* e = find(t, hash_of(t, local, remote), local, remote)) {
    if (e->kind != TcpEntry::Kind::kTimeWait) return err(EADDRINUSE);
    // tcp_twsk_unique(): with timestamps, beyond all old sequence numbers.
    auto& w = static_cast<TcpTimeWait&>(*e);
    if (!w.timestamps || now - w.entered < t.core.config.time_wait_reuse) return err(EADDRINUSE);
    iss = w.snd_nxt + 65535 + 2;
    destroy_time_wait(t, w, true);  // its steering; the caller has steered the tuple anew
  }
  TcpConn* c = create(t);
  if (!c) return err(ENOBUFS);
  c->local = local;
  c->remote = remote;
  c->settings = settings;
  c->owner = owner;
  c->held = c->active = true;
  c->tcp_state = TcpState::kSynSent;
  prepare(t, *c, iss, now);
  c->rcv_edge = std::min(receive_space(t, *c), 65535u);  // relative until the peer's SYN
  set_way(t, *c, t.core.way(route));
  if (t.core.config.ecn_ask || metrics_of(t, *c).ecn) c->ecn = kEcnOk;
  insert(t, *c);
  if (!begin_fast_open(t, *c, now)) send_handshake(t, *c, now);
  return c;
}

Result<TcpListener*> TcpLayer::listen(const Endpoint& local, bool v6_only, bool reuse_port, uint32_t backlog,
                                      const TcpSettings& settings, void* owner, InterfaceId device) {
  auto& group = context_->listeners[local.port];
  for (const TcpListener* l : group)
    if (l->local == local && l->v6_only == v6_only && l->device == device && !(l->reuse_port && reuse_port))
      return err(EADDRINUSE);
  auto* l = new (std::nothrow) TcpListener;
  if (!l) return err(ENOMEM);
  l->local = local;
  l->v6_only = v6_only;
  l->reuse_port = reuse_port;
  l->device = device;
  l->backlog = backlog;
  l->settings = settings;
  l->owner = owner;
  group.push_back(l);
  return l;
}

TcpConn* TcpLayer::accept(TcpListener& l) {
  TcpConn* c = l.accept_head;
  if (!c) return nullptr;
  l.accept_head = c->accept_next;
  if (!l.accept_head) l.accept_tail = nullptr;
  --l.accept_size;
  c->accept_next = nullptr;
  c->listener = nullptr;
  c->queued = false;
  c->held = true;
  know_unread(*c);
  return c;
}

void TcpLayer::put_back(TcpListener& l, TcpConn& c) {
  c.accept_next = l.accept_head;
  l.accept_head = &c;
  if (!l.accept_tail) l.accept_tail = &c;
  ++l.accept_size;
  c.listener = &l;
  c.queued = true;
  c.held = false;
}

static void complete_handshake(TcpContext& t, TcpConn& c, Instant now) {
  if (c.makes_way) return;
  send_handshake(t, c, now);
  take_for_established(t, c, now);
}

void TcpLayer::complete_handshakes(TcpListener& l, Instant now) {
  TcpContext& t = *context_;
  for (TcpConn *c = l.embryo_tail, *newer; c; c = newer) {
    newer = c->embryo_prev;
    // A peer that has the SYN-ACK is established and never sends its SYN again. Who has been silent through
    // so many, and has not said it either (TCP_DEFER_ACCEPT), is taken for dead.
    const bool silent = c->retransmits > kYoungRetries && !c->defer_acked;
    if (!silent) complete_handshake(t, *c, now);
  }
}

static bool is_embryo(const TcpConn& c) { return c.tcp_state == TcpState::kSynReceived && !c.active; }

bool TcpLayer::misdirected(const FlowKey& key, const MisdirectedSegment& s, Instant now) {
  TcpContext& t = *context_;
  TcpConn* c = find_connection(t, key.local, key.remote);
  if (c == nullptr || c->tcp_state == TcpState::kSynSent || c->tcp_state == TcpState::kClosed) return false;
  if ((s.flags & kRst) != 0 && s.seq != c->rcv_nxt) return false;  // RFC 5961 section 3.2
  if (is_embryo(*c)) {
    if ((s.flags & kRst) == 0 && s.ack == c->snd_nxt) {
      complete_handshake(t, *c, now);
      return true;
    }
    destroy(t, *c);
    return false;
  }
  if ((s.flags & kRst) == 0) return true;
  end_with(*c, ECONNRESET);
  return false;
}

void TcpLayer::set_deaf(const FlowKey& key, bool deaf) {
  TcpConn* c = find_connection(*context_, key.local, key.remote);
  if (c != nullptr) c->deaf = deaf;
}

void TcpLayer::end_handshake(const FlowKey& key) {
  TcpConn* c = find_connection(*context_, key.local, key.remote);
  if (c != nullptr && is_embryo(*c)) destroy(*context_, *c);
}

void TcpLayer::leave_handshakes(TcpListener& l) {
  while (l.embryo_head) unlink_embryo(*l.embryo_head);
}

void TcpLayer::close_listener(TcpListener* l) {
  TcpContext& t = *context_;
  auto group = t.listeners.find(l->local.port);
  if (group != t.listeners.end()) {
    std::erase(group->second, l);
    if (group->second.empty()) t.listeners.erase(group);
  }
  while (TcpConn* c = l->embryo_head) {
    if (c->handshake_due) send_handshake(t, *c, t.core.now);  // it came before close(): its ACK is reset
    destroy(t, *c);
  }
  leave_listener(t, *l);
  while (TcpConn* c = accept(*l)) close(c, true, t.core.now);
  t.core.unlist(*l);
  delete l;
}

void TcpLayer::set_device(TcpListener& l, InterfaceId device) { l.device = device; }
void TcpLayer::set_backlog(TcpListener& l, uint32_t backlog) { l.backlog = backlog; }
TcpSettings& TcpLayer::settings(TcpListener& l) { return l.settings; }
void TcpLayer::listen_shut(TcpListener& l, bool read, bool write) {
  l.read_shut = read;
  l.write_shut = write;
}
void TcpLayer::set_defer_accept(TcpListener& l, Duration d) { l.defer_accept = d; }
uint32_t TcpLayer::accept_queue_length(const TcpListener& l) const { return l.accept_size; }
uint32_t TcpLayer::readiness(const TcpListener& l) const { return l.accept_size > 0 ? kReadable : 0u; }

}  // namespace accel
