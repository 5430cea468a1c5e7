// The pure core, in virtual time: a stack with one interface, and sockets as the layer above makes them of
// it.
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <list>
#include <map>
#include <sstream>

#include "base/counters.h"
#include "stack/frame_pool.h"
#include "stack/stack.h"
#include "stack/tcp/conn.h"
#include "stack/tcp/segment.h"
#include "stack/wire/eth.h"
#include "world.h"

namespace accel::scripts {
namespace {

using Kind = Operation::Kind;

constexpr uint32_t kFrame = 4096;  // as AF_XDP's
constexpr MacAddress kOwnMac{2, 0, 0, 0, 0, 1}, kPeerMac{2, 0, 0, 0, 0, 2};
constexpr Duration kTolerance = 1ms;

constexpr int64_t kTfoChild = 128;  // TCPI_OPT_TFO_CHILD

/// Two keys of net.ipv4.tcp_fastopen_key at most.
FastOpenServer fast_open_keys(const std::string& text) {
  FastOpenServer out;
  std::array<uint32_t, 4> words{};
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at < end && out.key_count < out.keys.size()) {
    for (uint32_t& word : words) {
      at = std::from_chars(at, end, word, 16).ptr;
      if (at < end) ++at;
    }
    out.keys[out.key_count++] = {uint64_t{words[1]} << 32 | words[0], uint64_t{words[3]} << 32 | words[2]};
  }
  return out;
}

/// A stream socket, told of edges as the layer above is.
struct Socket {
  TcpSettings settings;
  uint16_t port = 0;
  uint32_t backlog = 0;
  int64_t defer_accept = 0;
  uint32_t fast_open = 0;  ///< TCP_FASTOPEN
  bool nonblocking = false, connecting = false, shut_read = false, shut_write = false;
  bool linger = false;
  Duration linger_time{0};
  TcpListener* listener = nullptr;
  TcpConn* conn = nullptr;
  bool edge = false;
};

class CoreWorld final : public World {
 public:
  CoreWorld(const Addresses& ends, uint32_t mtu)
      : World(ends), mtu_(mtu), memory_(&frames()), pool_(*memory_, kFrame) {
    config_.secret = {0x0123456789abcdef, 0xfedcba9876543210};
    config_.timestamp_secret = {1, 2};
  }
  ~CoreWorld() override = default;

  Duration now() override { return now_ - kStart; }
  void run(Duration until) override;
  void inject(const Bytes& packet) override;
  std::shared_ptr<Pending> start(Operation operation) override;
  std::optional<int64_t> info(int fd, const std::string& field) override;
  bool set_sysctl(const std::string& name, const std::string& value) override;
  bool set_route(const std::string& metrics) override;
  Duration early() const override { return kTolerance; }
  Duration late(Duration) const override { return kTolerance; }
  Duration patience() const override { return kTolerance; }

 private:
  static constexpr Instant kStart = Instant{} + 1000s;
  struct Going {
    Operation operation;
    std::shared_ptr<Pending> pending;
    Instant begun;
    size_t done = 0;  ///< bytes that a write has given
    bool begins = true;
  };

  static std::vector<uint8_t>& frames() {
    static std::vector<uint8_t> memory(size_t{kFrame} * 2048);
    return memory;
  }
  Stack& stack();
  void settle();
  void retry();
  void send_frames();
  void answer_as_kernel(const Packet& packet);
  Endpoint own(uint16_t port) const { return {addresses.own, port}; }
  Endpoint peer(uint16_t port) const { return {addresses.peer, port}; }
  IpAddress gateway() const { return addresses.v6() ? kIpv6.peer : kIpv4.peer; }
  Socket* find(int fd) {
    auto found = sockets_.find(fd);
    return found == sockets_.end() ? nullptr : &found->second;
  }
  int add(Socket s) {
    sockets_[next_fd_] = std::move(s);
    return next_fd_++;
  }

  // Each gives an answer, or none when it is to wait for an edge.
  std::optional<Answer> attempt(Going& g);
  std::optional<Answer> accept(Going& g, Socket& s);
  std::optional<Answer> connect(Going& g, Socket& s);
  std::optional<Answer> read(Going& g, Socket& s);
  std::optional<Answer> write(Going& g, Socket& s);
  std::optional<Answer> open(Going& g, Socket& s);
  std::optional<Answer> write_first(Going& g, Socket& s);
  std::optional<Answer> poll(Going& g, Socket& s);
  std::optional<Answer> close(Going& g, Socket& s);
  Answer listen(const Operation& op, Socket& s);
  Answer shutdown(const Operation& op, Socket& s);
  Answer set_option(const Operation& op, Socket& s);
  Answer get_option(const Operation& op, Socket& s);
  Answer ioctl(const Operation& op, Socket& s);
  int poll_events(Socket& s);

  const uint32_t mtu_;
  Instant now_ = kStart;
  StackConfig config_;
  RouteMetrics metrics_;
  TcpSettings defaults_;
  Counters counters_;
  std::vector<uint8_t>* memory_;
  FramePool pool_;
  std::unique_ptr<Stack> stack_;
  std::map<int, Socket> sockets_;
  std::list<Going> going_;
  int next_fd_ = 100;
  uint16_t next_port_ = 50000;
  FastOpenServer fast_open_;  ///< net.ipv4.tcp_fastopen_key
};

// ---------------------------------------------------------------- time and frames

Stack& CoreWorld::stack() {
  if (stack_) return *stack_;
  stack_ = std::make_unique<Stack>(config_, pool_, counters_);
  Interface i;
  i.mac = kOwnMac;
  i.mtu = mtu_;
  stack_->set_interface(0, i);
  RouteEntry all_v4, all_v6;
  all_v4.prefix = IpAddress::any_v4();
  all_v4.prefix_length = 96;
  all_v4.gateway = kIpv4.peer;
  all_v6.gateway = kIpv6.peer;
  all_v4.mtu = all_v6.mtu = mtu_;
  all_v4.metrics = all_v6.metrics = stack_->metrics_id(metrics_).value();
  stack_->set_routes({all_v4, all_v6});
  for (const IpAddress& gateway : {kIpv4.peer, kIpv6.peer}) stack_->set_neighbour(0, gateway, kPeerMac);
  return *stack_;
}

void CoreWorld::send_frames() {
  PacketQueue& queue = stack().tx_queue(0);
  while (Packet* p = queue.pop_front()) {
    Bytes frame;
    for (const Packet* part = p; part; part = part->more)
      frame.insert(frame.end(), part->data(), part->data() + part->length);
    FramePool::release(p);
    auto s = segment_of(std::span(frame).subspan(sizeof(EthHeader)));
    if (!s) continue;
    s->at = now();
    s->packet.assign(frame.begin() + sizeof(EthHeader), frame.end());
    sent.push_back(std::move(*s));
  }
}

/// What the stack leaves to the kernel finds no socket there (RFC 9293 section 3.10.7.1).
void CoreWorld::answer_as_kernel(const Packet& packet) {
  const auto s = segment_of({packet.data(), packet.length});
  if (!s || (s->flags & kRst) != 0) return;
  const uint32_t occupied = s->length + ((s->flags & kSyn) ? 1 : 0) + ((s->flags & kFin) ? 1 : 0);
  Segment reset;
  reset.at = now();
  reset.source = s->destination;
  reset.destination = s->source;
  reset.from = s->to;
  reset.to = s->from;
  reset.flags = kRst;
  if ((s->flags & kAck) != 0) {
    reset.seq = s->ack;
  } else {
    reset.flags |= kAck;
    reset.ack = s->seq + occupied;
  }
  reset.packet = packet_of(reset);
  sent.push_back(std::move(reset));
}

/// The operations whose socket has had an edge.
void CoreWorld::retry() {
  for (auto g = going_.begin(); g != going_.end();) {
    Socket* s = find(g->operation.fd);
    if (s && !s->edge && !g->begins) {
      ++g;
      continue;
    }
    auto answer = attempt(*g);
    g->begins = false;
    if (!answer) {
      ++g;
      continue;
    }
    g->pending->answer = std::move(answer);
    g->pending->returned = now();
    g = going_.erase(g);
  }
  for (auto& [fd, s] : sockets_) s.edge = false;
}

void CoreWorld::settle() {
  if (stack().next_deadline() <= now_) stack().on_deadlines(now_);
  for (bool first = true;; first = false) {
    bool any = false;
    while (StackSocket* s = stack().take_ready()) {
      any = true;
      const uint32_t edges = std::exchange(s->edges, 0);
      if (s->owner && edges) static_cast<Socket*>(s->owner)->edge = true;
    }
    if (!first && !any) break;
    retry();
    stack().flush(now_);
    send_frames();
  }
  stack().flow_changes().clear();
  while (Packet* p = stack().frames_for_kernel().pop_front()) {
    answer_as_kernel(*p);
    FramePool::release(p);
  }
}

void CoreWorld::run(Duration until) {
  const Instant end = kStart + until;
  for (;;) {
    const size_t segments = sent.size(), calls = going_.size();
    settle();
    if (sent.size() > segments || going_.size() < calls) return;
    Instant next = stack().next_deadline();
    for (Going& g : going_)  // their own timeouts
      if ((g.operation.kind == Kind::kPoll && g.operation.second >= 0) || g.operation.kind == Kind::kClose) {
        const Socket* s = find(g.operation.fd);
        const Instant over = g.begun + (g.operation.kind == Kind::kPoll
                                            ? Duration(std::chrono::milliseconds(g.operation.second))
                                        : s ? s->linger_time
                                            : 0s);
        g.begins = over <= now_;
        next = std::min(next, g.begins ? now_ : over);
      }
    if (next > end) {
      now_ = std::max(now_, end);
      return;
    }
    now_ = std::max(now_, next);
  }
}

void CoreWorld::inject(const Bytes& packet) {
  Packet* p = pool_.take();
  if (!p) return;
  auto& eth = wire_at<EthHeader>(p->data());
  eth.destination = kOwnMac;
  eth.source = kPeerMac;
  eth.type = packet[0] >> 4 == 6 ? kEtherIpv6 : kEtherIpv4;
  std::memcpy(p->data() + sizeof eth, packet.data(), packet.size());
  p->length = static_cast<uint32_t>(sizeof eth + packet.size());
  stack().on_packets({&p, 1}, 0, now_);
  settle();
}

// ---------------------------------------------------------------- system calls

std::shared_ptr<Pending> CoreWorld::start(Operation operation) {
  auto pending = std::make_shared<Pending>();
  going_.push_back({std::move(operation), pending, now_});
  settle();
  return pending;
}

Answer answer(int64_t value, int64_t out = 0) { return {value, 0, out, {}, false, {}}; }

std::optional<Answer> CoreWorld::attempt(Going& g) {
  const Operation& op = g.operation;
  if (op.kind == Kind::kSocket) {
    Socket fresh;
    fresh.settings = defaults_;
    fresh.nonblocking = op.flags != 0;
    return answer(add(fresh));
  }
  Socket* found = find(op.fd);
  if (!found) return Answer::failed(EBADF);
  Socket& s = *found;
  switch (op.kind) {
    case Kind::kBind:
      s.port = static_cast<uint16_t>(op.number);
      return answer(0);
    case Kind::kNonblocking:
      s.nonblocking = op.number != 0;
      return answer(0);
    case Kind::kListen:
      return listen(op, s);
    case Kind::kAccept:
      return accept(g, s);
    case Kind::kConnect:
      return connect(g, s);
    case Kind::kRead:
      return read(g, s);
    case Kind::kWrite:
      return write(g, s);
    case Kind::kShutdown:
      return shutdown(op, s);
    case Kind::kClose:
      return close(g, s);
    case Kind::kSetOption:
      return set_option(op, s);
    case Kind::kGetOption:
      return get_option(op, s);
    case Kind::kPoll:
      return poll(g, s);
    case Kind::kIoctl:
      return ioctl(op, s);
    case Kind::kSocket:
      break;
  }
  return Answer::failed(ENOSYS);
}

Answer CoreWorld::listen(const Operation& op, Socket& s) {
  s.backlog = static_cast<uint32_t>(op.number);
  if (s.listener) {
    stack().tcp().set_backlog(*s.listener, s.backlog);
    return answer(0);
  }
  auto r = stack().tcp().listen({addresses.v6() ? IpAddress::any_v6() : IpAddress::any_v4(), s.port}, false,
                                false, s.backlog, s.settings, &s);
  if (!r) return Answer::failed(static_cast<int>(r.error()));
  s.listener = *r;
  if (s.defer_accept) stack().tcp().set_defer_accept(*s.listener, std::chrono::seconds(s.defer_accept));
  FastOpenServer fast = fast_open_;
  fast.limit = s.fast_open;
  stack().tcp().set_fast_open(*s.listener, fast);
  return answer(0);
}

std::optional<Answer> CoreWorld::accept(Going& g, Socket& s) {
  if (!s.listener) return Answer::failed(EINVAL);
  TcpConn* c = stack().tcp().accept(*s.listener);
  if (!c) {
    if (s.nonblocking) return Answer::failed(EAGAIN);
    return std::nullopt;
  }
  Socket fresh;
  fresh.conn = c;
  fresh.nonblocking = g.operation.flags != 0;
  fresh.linger = s.linger;
  fresh.linger_time = s.linger_time;
  const int fd = add(fresh);
  c->owner = &sockets_[fd];
  Answer out = answer(fd);
  out.peer = stack().tcp().remote(*c);
  return out;
}

/// connect() as far as it does not wait.
std::optional<Answer> CoreWorld::open(Going& g, Socket& s) {
  if (s.port == 0) s.port = next_port_++;
  Route route;
  route.source = addresses.own;
  route.next_hop = gateway();
  route.mtu = mtu_;
  route.metrics = stack().metrics_id(metrics_).value();
  auto r = stack().tcp().connect(own(s.port), peer(static_cast<uint16_t>(g.operation.number)), route,
                                 s.settings, &s, now_);
  if (!r) return Answer::failed(static_cast<int>(r.error()));
  s.conn = *r;
  s.connecting = true;
  return std::nullopt;
}

std::optional<Answer> CoreWorld::connect(Going& g, Socket& s) {
  if (!s.conn) {
    if (auto failed = open(g, s)) return failed;
    if (stack().tcp().waits_for_text(*s.conn)) return answer(0);
    if (s.nonblocking) return Answer::failed(EINPROGRESS);
    return std::nullopt;
  }
  const TcpState state = stack().tcp().state(*s.conn);
  if (state == TcpState::kSynSent || state == TcpState::kSynReceived) {
    if (stack().tcp().waits_for_text(*s.conn)) return Answer::failed(EISCONN);
    if (s.nonblocking) return Answer::failed(EALREADY);
    return std::nullopt;
  }
  if (!s.connecting) return Answer::failed(EISCONN);
  s.connecting = false;
  if (const int error = stack().tcp().take_error(*s.conn)) return Answer::failed(error);
  if (state == TcpState::kClosed) return Answer::failed(ECONNABORTED);
  return answer(0);
}

std::optional<Answer> CoreWorld::read(Going& g, Socket& s) {
  const Operation& op = g.operation;
  if (!s.conn) return Answer::failed(ENOTCONN);
  const bool wait = !s.nonblocking && (op.flags & MSG_DONTWAIT) == 0;
  Answer out;
  out.read.resize(op.size);
  const iovec v{out.read.data(), op.size};
  Result<size_t> r = err(EAGAIN);
  if ((op.flags & MSG_OOB) != 0) {
    r = stack().tcp().receive_urgent(*s.conn, out.read.data(), (op.flags & MSG_PEEK) != 0);
    if (!r) return Answer::failed(static_cast<int>(r.error()));
  } else if ((op.flags & MSG_TRUNC) != 0) {
    r = stack().tcp().discard(*s.conn, op.size, now_);
  } else if (!wait ||
             (stack().tcp().readiness(*s.conn) & (kReadable | kReadClosed | kHangUp | kError)) != 0) {
    r = stack().tcp().receive(*s.conn, {&v, 1}, (op.flags & MSG_PEEK) != 0, 0, now_);
  }
  if (r.is(EAGAIN) && wait) return std::nullopt;
  if (!r) return Answer::failed(static_cast<int>(r.error()));
  out.value = static_cast<int64_t>(*r);
  out.read.resize((op.flags & MSG_TRUNC) != 0 ? 0 : *r);
  out.peeked = (op.flags & MSG_PEEK) != 0;
  return out;
}

/// tcp_sendmsg_fastopen(), and what it does for TCP_FASTOPEN_CONNECT. Nothing: the write goes on as any.
std::optional<Answer> CoreWorld::write_first(Going& g, Socket& s) {
  const Operation& op = g.operation;
  const bool wait = !s.nonblocking && (op.flags & MSG_DONTWAIT) == 0;
  if ((op.flags & MSG_FASTOPEN) != 0 && g.begins && g.begun == now_ && g.done == 0) {
    if ((config_.fast_open & 1) == 0) return Answer::failed(EOPNOTSUPP);
    if (s.conn) {
      const TcpState state = stack().tcp().state(*s.conn);
      const bool opening = state == TcpState::kSynSent || state == TcpState::kSynReceived;
      return Answer::failed(opening ? EALREADY : EISCONN);
    }
    s.settings.fast_open |= kFastOpenMessage;
    if (auto failed = open(g, s)) return failed;
  }
  if (!s.conn || !stack().tcp().waits_for_text(*s.conn)) return std::nullopt;
  const iovec v{const_cast<uint8_t*>(op.bytes.data()), op.bytes.size()};
  auto r = stack().tcp().send(*s.conn, {&v, 1}, {}, now_);
  if (!r) return Answer::failed(static_cast<int>(r.error()));
  g.done = *r;
  if (!wait) return g.done > 0 ? answer(static_cast<int64_t>(g.done)) : Answer::failed(EINPROGRESS);
  return std::nullopt;
}

std::optional<Answer> CoreWorld::write(Going& g, Socket& s) {
  const Operation& op = g.operation;
  if (auto first = write_first(g, s)) return first;
  if (!s.conn) return Answer::failed(EPIPE);
  const bool wait = !s.nonblocking && (op.flags & MSG_DONTWAIT) == 0;
  const TcpWrite how{.more = (op.flags & MSG_MORE) != 0,
                     .urgent = (op.flags & MSG_OOB) != 0,
                     .record_end = (op.flags & MSG_EOR) != 0};
  const TcpState state = stack().tcp().state(*s.conn);
  if (wait && g.done > 0 && state == TcpState::kSynSent) return std::nullopt;
  while (g.done < op.bytes.size()) {
    const iovec v{const_cast<uint8_t*>(op.bytes.data()) + g.done, op.bytes.size() - g.done};
    auto r = stack().tcp().send(*s.conn, {&v, 1}, how, now_);
    if (r.is(EAGAIN) && wait) return std::nullopt;
    if (!r && g.done == 0) return Answer::failed(static_cast<int>(r.error()));
    if (!r) break;
    g.done += *r;
  }
  return answer(static_cast<int64_t>(g.done));
}

Answer CoreWorld::shutdown(const Operation& op, Socket& s) {
  if (!s.conn) return Answer::failed(ENOTCONN);
  auto r = stack().tcp().shutdown(*s.conn, static_cast<int>(op.number), now_);
  return r ? answer(0) : Answer::failed(static_cast<int>(r.error()));
}

std::optional<Answer> CoreWorld::close(Going& g, Socket& s) {
  if (s.listener) stack().tcp().close_listener(s.listener);
  if (s.conn && s.linger && s.linger_time > 0s && !s.nonblocking) {
    if (g.begins && g.begun == now_) (void)stack().tcp().shutdown(*s.conn, SHUT_RDWR, now_);
    if (!stack().tcp().all_acked(*s.conn) && now_ < g.begun + s.linger_time) return std::nullopt;
  }
  stack().note_look();  // the kernel's program knows of all that has come
  if (s.conn) stack().tcp().close(s.conn, s.linger && s.linger_time == 0s, now_);
  sockets_.erase(g.operation.fd);
  return answer(0);
}

int CoreWorld::poll_events(Socket& s) {
  const uint32_t ready = s.conn       ? stack().tcp().readiness(*s.conn)
                         : s.listener ? stack().tcp().readiness(*s.listener)
                                      : kHangUp;
  static constexpr std::pair<Ready, int> names[] = {
      {kReadable, POLLIN}, {kWritable, POLLOUT}, {kReadClosed, POLLRDHUP | POLLIN},
      {kHangUp, POLLHUP},  {kError, POLLERR},    {kUrgent, POLLPRI}};
  int out = 0;
  for (const auto& [bit, event] : names)
    if (ready & bit) out |= event;
  return out;
}

std::optional<Answer> CoreWorld::poll(Going& g, Socket& s) {
  const Operation& op = g.operation;
  const int out = poll_events(s) & (static_cast<int>(op.number) | POLLHUP | POLLERR);
  if (out == 0 && op.second != 0 && (op.second < 0 || now_ < g.begun + std::chrono::milliseconds(op.second)))
    return std::nullopt;
  return answer(out != 0, out);
}

bool take_congestion(TcpSettings& t, const std::string& name) {
  static const std::map<std::string, Congestion> known = {
      {"cubic", Congestion::kCubic}, {"reno", Congestion::kReno}, {"bbr", Congestion::kBbr}};
  const auto found = known.find(name);
  if (found == known.end()) return false;
  t.congestion = found->second;
  return true;
}

/// A socket's option as a field of TcpSettings. False: it is none.
bool take_tcp_option(TcpSettings& t, const Operation& op) {
  const int64_t v = op.number;
  const auto u = static_cast<uint32_t>(v);
  switch (op.name) {
    case TCP_NODELAY:
      return t.nodelay = v != 0, true;
    case TCP_CORK:
      return t.cork = v != 0, true;
    case TCP_QUICKACK:
      return t.quickack = v != 0, true;
    case TCP_KEEPIDLE:
      return t.keep_idle = std::chrono::seconds(v), true;
    case TCP_KEEPINTVL:
      return t.keep_interval = std::chrono::seconds(v), true;
    case TCP_KEEPCNT:
      return t.keep_count = static_cast<uint8_t>(u), true;
    case TCP_SYNCNT:
      return t.syn_retries = static_cast<uint8_t>(u), true;
    case TCP_USER_TIMEOUT:
      return t.user_timeout = std::chrono::milliseconds(v), true;
    case TCP_LINGER2:
      return t.fin_wait2 = std::chrono::seconds(v), true;
    case TCP_WINDOW_CLAMP:
      return t.window_clamp = u, true;
    case TCP_MAXSEG:
      return t.max_segment = static_cast<uint16_t>(v), true;
    case TCP_FASTOPEN_CONNECT:
      return t.fast_open |= kFastOpenConnect, true;
    case TCP_FASTOPEN_NO_COOKIE:
      return t.fast_open |= kFastOpenNoCookie, true;
    case TCP_NOTSENT_LOWAT:
      return t.notsent_low_water = u, true;
    case TCP_CONGESTION:
      return take_congestion(t, op.text);
    default:
      return false;
  }
}

bool take_socket_option(TcpSettings& t, const Operation& op) {
  const auto u = static_cast<uint32_t>(op.number);
  switch (op.name) {
    case SO_REUSEADDR:
      return t.reuse_address = u != 0, true;
    case SO_KEEPALIVE:
      return t.keepalive = u != 0, true;
    case SO_OOBINLINE:
      return t.oob_inline = u != 0, true;
    case SO_MAX_PACING_RATE:
      return t.max_pacing_rate = u, true;
    case SO_RCVBUF:
      return t.receive_buffer = u, true;
    case SO_SNDBUF:
      return t.send_buffer = 2 * u, true;
    case SO_RCVLOWAT:
      return t.receive_low_water = u, true;
    default:
      return false;
  }
}

Answer CoreWorld::set_option(const Operation& op, Socket& s) {
  if (op.level == SOL_SOCKET && op.name == SO_LINGER) {
    s.linger = op.number != 0;
    s.linger_time = std::chrono::seconds(op.second);
    return answer(0);
  }
  if (op.level == IPPROTO_TCP && op.name == TCP_DEFER_ACCEPT) {
    s.defer_accept = op.number;
    return answer(0);
  }
  if (op.level == IPPROTO_TCP && op.name == TCP_FASTOPEN) {
    s.fast_open = static_cast<uint32_t>(op.number);
    return answer(0);
  }
  TcpSettings& t = s.conn       ? stack().tcp().settings(*s.conn)
                   : s.listener ? stack().tcp().settings(*s.listener)
                                : s.settings;
  const bool known = op.level == SOL_SOCKET ? take_socket_option(t, op) : take_tcp_option(t, op);
  if (!known) return Answer::failed(ENOPROTOOPT);
  const bool push = op.level == IPPROTO_TCP &&
                    ((op.name == TCP_NODELAY && op.number != 0) || (op.name == TCP_CORK && op.number == 0));
  if (s.conn) stack().tcp().settings_changed(*s.conn, now_, push);
  return answer(0);
}

Answer CoreWorld::get_option(const Operation& op, Socket& s) {
  if (op.level == SOL_SOCKET && op.name == SO_ERROR && s.conn) {
    s.connecting = false;
    return answer(0, stack().tcp().take_error(*s.conn));
  }
  return Answer::failed(ENOPROTOOPT);
}

Answer CoreWorld::ioctl(const Operation& op, Socket& s) {
  if (!s.conn) return Answer::failed(EINVAL);
  if (op.number == SIOCINQ) return answer(0, static_cast<int64_t>(stack().tcp().readable_bytes(*s.conn)));
  if (op.number == SIOCOUTQ) return answer(0, static_cast<int64_t>(stack().tcp().unacked_bytes(*s.conn)));
  if (op.number == SIOCOUTQNSD) return answer(0, static_cast<int64_t>(stack().tcp().unsent_bytes(*s.conn)));
  if (op.number == SIOCATMARK) return answer(0, stack().tcp().at_mark(*s.conn));
  return Answer::failed(EINVAL);
}

// ---------------------------------------------------------------- what is told, and settings

std::optional<int64_t> CoreWorld::info(int fd, const std::string& field) {
  const Socket* s = find(fd);
  if (!s || !s->conn) return std::nullopt;
  const TcpInfo i = stack().tcp().info(*s->conn, now_);
  const std::map<std::string, int64_t> fields = {
      {"state", static_cast<int64_t>(i.state)},
      {"ca_state", i.congestion_state},
      {"retransmits", i.retransmits},
      {"probes", i.probes},
      {"backoff", i.backoff},
      {"options", (i.timestamps ? TCPI_OPT_TIMESTAMPS : 0) | (i.sack ? TCPI_OPT_SACK : 0) |
                      (i.window_scaling ? TCPI_OPT_WSCALE : 0) | (i.ecn ? TCPI_OPT_ECN : 0) |
                      (i.ecn_seen ? TCPI_OPT_ECN_SEEN : 0) | (i.syn_text ? TCPI_OPT_SYN_DATA : 0) |
                      (i.opened_by_syn ? kTfoChild : 0)},
      {"fastopen_client_fail", i.fast_open_failure},
      {"snd_wscale", i.snd_wscale},
      {"rcv_wscale", i.rcv_wscale},
      {"rto", i.rto_us},
      {"ato", i.ack_timeout_us},
      {"snd_mss", i.snd_mss},
      {"rcv_mss", i.rcv_mss},
      {"unacked", i.unacked_segments},
      {"sacked", i.sacked_segments},
      {"lost", i.lost_segments},
      {"retrans", i.resent_segments},
      {"pmtu", i.pmtu},
      {"rtt", i.rtt_us},
      {"rttvar", i.rttvar_us},
      {"snd_ssthresh", i.snd_ssthresh_segments},
      {"snd_cwnd", i.snd_cwnd_segments},
      {"advmss", i.advertised_mss},
      {"reordering", i.reordering},
      {"total_retrans", i.total_retransmits},
      {"bytes_acked", static_cast<int64_t>(i.bytes_acked)},
      {"bytes_received", static_cast<int64_t>(i.bytes_received)},
      {"segs_out", i.segments_out},
      {"segs_in", i.segments_in},
      {"notsent_bytes", i.notsent_bytes},
      {"min_rtt", i.min_rtt_us},
      {"data_segs_in", i.data_segments_in},
      {"data_segs_out", i.data_segments_out},
      {"bytes_sent", static_cast<int64_t>(i.bytes_sent)},
      {"bytes_retrans", static_cast<int64_t>(i.bytes_retransmitted)},
      {"delivered", i.delivered},
      {"delivered_ce", i.delivered_ce},
      {"pacing_rate", static_cast<int64_t>(i.pacing_rate)},
      {"max_pacing_rate", static_cast<int64_t>(i.max_pacing_rate)},
      {"delivery_rate", static_cast<int64_t>(i.delivery_rate)},
      {"dsack_dups", i.duplicates_reported},
      {"reord_seen", i.reorderings},
      {"rcv_ooopack", i.out_of_order_segments},
      {"snd_wnd", i.snd_wnd},
      {"rcv_wnd", i.rcv_wnd}};
  if (!field.starts_with("tcpi_")) return std::nullopt;
  auto found = fields.find(field.substr(5));
  return found == fields.end() ? std::nullopt : std::optional(found->second);
}

bool CoreWorld::set_sysctl(const std::string& name, const std::string& value) {
  std::vector<uint32_t> numbers;
  for (const char *at = value.data(), *end = at + value.size(); at < end; ++at) {
    uint32_t v = 0;
    const auto [next, error] = std::from_chars(at, end, v);
    if (error != std::errc()) break;
    numbers.push_back(v);
    at = next;
  }
  if (name == "net.ipv4.tcp_congestion_control") {
    return take_congestion(defaults_, value);
  }
  if (name == "net.ipv4.tcp_fastopen_key") {
    fast_open_ = fast_open_keys(value);
    return true;
  }
  if (numbers.empty()) return false;
  const uint32_t v = numbers[0];
  using Set = std::function<void()>;
  const std::map<std::string, Set> known = {
      {"tcp_sack", [&] { config_.sack = v != 0; }},
      {"tcp_timestamps", [&] { config_.timestamps = v != 0; }},
      {"tcp_window_scaling", [&] { config_.window_scaling = v != 0; }},
      {"tcp_syncookies", [&] { config_.syn_cookies = v != 0; }},
      {"tcp_abort_on_overflow", [&] { config_.abort_on_overflow = v != 0; }},
      {"tcp_slow_start_after_idle", [&] { config_.slow_start_after_idle = v != 0; }},
      {"tcp_frto", [&] { config_.frto = v != 0; }},
      {"tcp_ecn",
       [&] {
         config_.ecn_accept = v != 0;
         config_.ecn_ask = v == 1;
       }},
      {"tcp_fastopen", [&] { config_.fast_open = v; }},
      {"tcp_fastopen_blackhole_timeout_sec", [&] { config_.fast_open_black_hole = std::chrono::seconds(v); }},
      {"tcp_ecn_fallback", [&] { config_.ecn_fallback = v != 0; }},
      {"tcp_min_snd_mss", [&] { config_.min_snd_mss = v; }},
      {"tcp_syn_linear_timeouts", [&] { config_.syn_linear_timeouts = v; }},
      {"tcp_retries2", [&] { config_.retries = v; }},
      {"tcp_synack_retries", [&] { config_.synack_retries = v; }},
      {"tcp_syn_retries", [&] { defaults_.syn_retries = static_cast<uint8_t>(v); }},
      {"tcp_orphan_retries", [&] { config_.orphan_retries = v; }},
      {"tcp_fin_timeout", [&] { defaults_.fin_wait2 = std::chrono::seconds(v); }},
      {"tcp_invalid_ratelimit", [&] { config_.invalid_ratelimit = std::chrono::milliseconds(v); }},
      {"tcp_keepalive_time", [&] { defaults_.keep_idle = std::chrono::seconds(v); }},
      {"tcp_keepalive_intvl", [&] { defaults_.keep_interval = std::chrono::seconds(v); }},
      {"tcp_keepalive_probes", [&] { defaults_.keep_count = static_cast<uint8_t>(v); }},
      {"tcp_notsent_lowat", [&] { config_.notsent_low_water = v; }},
      {"tcp_rmem",
       [&] {
         config_.tcp_receive_least = numbers.at(0);
         config_.tcp_receive_first = numbers.at(1);
         config_.tcp_receive_most = numbers.at(2);
       }},
      {"tcp_wmem", [&] {
         config_.tcp_send_least = numbers.at(0);
         config_.tcp_send_first = numbers.at(1);
         config_.tcp_send_most = numbers.at(2);
       }}};
  if (!name.starts_with("net.ipv4.")) return false;
  auto found = known.find(name.substr(9));
  if (found == known.end()) return false;
  found->second();
  return true;
}

bool CoreWorld::set_route(const std::string& metrics) {
  std::istringstream words(metrics);
  for (std::string name, value; words >> name >> value;) {
    const uint32_t number = static_cast<uint32_t>(std::strtoul(value.c_str(), nullptr, 10));
    if (name == "initcwnd") {
      metrics_.initial_window = number;
    } else if (name == "rto_min" && value.ends_with("ms")) {
      metrics_.min_rto = std::chrono::milliseconds(number);
    } else if (name == "advmss") {
      metrics_.advertised_mss = static_cast<uint16_t>(number);
    } else if (name == "quickack") {
      metrics_.quickack = number != 0;
    } else if (name == "features" && value == "ecn") {
      metrics_.ecn = true;
    } else {
      return false;
    }
  }
  return true;
}

}  // namespace

std::unique_ptr<World> make_core_world(const Addresses& ends, uint32_t mtu) {
  return std::make_unique<CoreWorld>(ends, mtu);
}

}  // namespace accel::scripts
