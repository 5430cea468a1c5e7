// A listener whose backlog is full: SYNs that cookies answer, and the ACKs that bring them back.
#include <algorithm>

#include "stack/tcp/context.h"
#include "stack/tcp/syn_cookie.h"

namespace accel::tcp {

/// From now on ACKs to that local end come to us, for kCookieValid at least.
static void note_cookie(TcpContext& t, const TcpSegmentInfo& s, Instant now) {
  for (auto& end : t.cookie_ends) {
    if (end.local != s.local || end.interface != s.interface) continue;
    end.until = now + kCookieValid;
    return;
  }
  t.cookie_ends.push_back({s.local, s.interface, now + kCookieValid});
  t.core.flow_changes.push_back({{Protocol::kTcp, s.local, {}}, s.interface, FlowEvent::kTakesAcks});
}

bool takes_cookies(TcpContext& t, const TcpSegmentInfo& s, Instant now) {
  const auto end = std::find_if(t.cookie_ends.begin(), t.cookie_ends.end(), [&](const auto& e) {
    return e.local == s.local && e.interface == s.interface;
  });
  if (end == t.cookie_ends.end()) return false;
  if (now < end->until) return true;
  t.core.flow_changes.push_back({{Protocol::kTcp, s.local, {}}, s.interface, FlowEvent::kLeavesAcks});
  t.cookie_ends.erase(end);
  return false;
}

void answer_with_cookie(TcpContext& t, const TcpListener& l, const TcpSegmentInfo& s, const TcpOptions& o,
                        const Way& way, Instant now) {
  TcpOptions offered = o;
  if (!o.has_timestamps) {  // tcp_clear_options(): nothing would bring them back
    offered.has_wscale = false;
    offered.sack_permitted = false;
  }
  const uint16_t mss = offered.mss ? offered.mss : (s.local.address.is_v4() ? 536 : 1220);
  const uint32_t cookie = make_syn_cookie(t.core.config.secret, s.local, s.remote, s.seq, mss, now);
  TcpConn answer;  // for its SYN-ACK only
  fill_embryo(t, answer, l, s, offered, cookie, way, now);
  if (!o.has_timestamps) answer.ecn = 0;
  const uint32_t clock = timestamp_clock(now);
  answer.ts_offset += cookie_timestamp(clock, offered, answer.ecn != 0) - clock;
  send_syn(t, answer, true, now);
  t.count(Counter::tcp_cookies_sent);
  note_cookie(t, s, now);
}

/// cookie_v4_check(). nullptr: no connection; `held`: it holds a cookie, and there is no room.
static TcpConn* open_by_cookie(TcpContext& t, TcpListener& l, const TcpSegmentInfo& s, const TcpOptions& o,
                               bool& held, Instant now) {
  const auto mss = check_syn_cookie(t.core.config.secret, s.local, s.remote, s.seq - 1, s.ack - 1, now);
  if (!mss) return nullptr;
  held = true;
  if (accept_queue_full(l)) {
    t.count(Counter::drop_tcp_backlog);
    return nullptr;
  }
  TcpOptions offered;
  bool ecn = false;
  if (o.has_timestamps) {
    const uint32_t stamp = o.tsecr - timestamp_offset(t, s.local.address, s.remote.address);
    offered = options_of_cookie(stamp);
    ecn = (stamp & kCookieEcn) != 0;
    offered.has_timestamps = true;
    offered.tsval = o.tsval;
  }
  offered.mss = *mss;
  TcpSegmentInfo syn = s;
  --syn.seq;
  const Way way = way_back(t, s);
  TcpConn* c = way.hop ? create(t) : nullptr;
  if (c == nullptr) {
    t.count(Counter::drop_tcp_limit);
    return nullptr;
  }
  fill_embryo(t, *c, l, syn, offered, s.ack - 1, way, now);
  c->ecn = static_cast<uint8_t>(ecn && accepts_ecn(t, *c) ? kEcnOk : 0);
  insert(t, *c);
  link_embryo(l, *c);
  t.core.flow_changes.push_back({{Protocol::kTcp, s.local, s.remote}, s.interface, FlowEvent::kOpened});
  t.count(Counter::tcp_cookies_accepted);
  return c;
}

bool input_cookie(TcpContext& t, Packet* frame, const TcpSegmentInfo& s, Instant now) {
  TcpListener* l = find_listener(t, s.local, s.remote, s.interface);
  TcpOptions o;
  if (l == nullptr || !parse_options(s.options, o)) return false;
  bool held = false;
  TcpConn* c = open_by_cookie(t, *l, s, o, held, now);
  if (c == nullptr && !held) {
    t.count(Counter::tcp_cookies_bad);
    return false;
  }
  if (c == nullptr) {
    FramePool::release(frame);
    return true;
  }
  Working working(t, *c);
  ++c->segments_in;
  enter_established(t, *c, s, now);
  take_from_ack_on(t, *c, s, o, frame, now);
  return true;
}

}  // namespace accel::tcp
