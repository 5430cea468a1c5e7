#include "posix/differential/option_sweep.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <utility>

#include "posix/differential/log.h"

namespace differential {

using std::to_string;

namespace {

constexpr int kOptions = 101;
constexpr int kLevels[] = {SOL_SOCKET, IPPROTO_IP, IPPROTO_IPV6, IPPROTO_TCP, IPPROTO_UDP};
constexpr socklen_t kLengths[] = {0, 1, 2, 3, 4, 5, 8, 12, 16, 64, 300, UINT_MAX};
constexpr size_t kMost = 300;
constexpr int kLarge = 600;  // as a descriptor: below the library's own

constexpr int kNetnsCookie = 71;  // SO_NETNS_COOKIE

/// Of sockets that are not raw it is the port, in as many bytes as that needs.
constexpr int kIpProtocol = 52;

/// Values that are another in each run, by nature; `ours`: once there was a connection.
constexpr struct {
  int level, option;
  bool ours;
} kOwnValues[] = {
    {SOL_SOCKET, SO_INCOMING_CPU, false},
    {SOL_SOCKET, SO_MEMINFO, false},
    {SOL_SOCKET, SO_INCOMING_NAPI_ID, false},
    {SOL_SOCKET, SO_COOKIE, false},
    {SOL_SOCKET, kNetnsCookie, false},
    {IPPROTO_TCP, TCP_INFO, false},
    {IPPROTO_TCP, TCP_TIMESTAMP, false},
    {IPPROTO_TCP, TCP_CC_INFO, false},
    {SOL_SOCKET, SO_SNDBUF, true},  // grows with the connection, as the next does
    {IPPROTO_TCP, TCP_WINDOW_CLAMP, true},
    {IPPROTO_TCP, TCP_CONGESTION, true},  // where the host's default is one that the stack has not
    {IPPROTO_TCP, TCP_QUICKACK, true},    // whether it acknowledges at once at this moment
};

}  // namespace

const char* OptionSweep::state_name(State state) {
  static const char* const kNames[] = {"TCP fresh",
                                       "TCP bound",
                                       "TCP listening",
                                       "TCP connected",
                                       "TCP accepted",
                                       "TCP shut down",
                                       "TCP shut down by the peer",
                                       "TCP ended",
                                       "TCP reset",
                                       "TCP disconnected",
                                       "UDP fresh",
                                       "UDP bound",
                                       "UDP connected",
                                       "UDP disconnected"};
  return kNames[static_cast<size_t>(state)];
}

OptionSweep::OptionSweep(uint64_t number, FarEnd& far, const Hosts& hosts) : far_(far), hosts_(hosts) {
  auto digit = [&](uint64_t base) {
    const uint64_t d = number % base;
    number /= base;
    return d;
  };
  option_ = static_cast<int>(digit(kOptions));
  level_ = kLevels[digit(std::size(kLevels))];
  state_ = static_cast<State>(digit(static_cast<uint64_t>(State::kCount)));
  six_ = digit(2) != 0;
  const bool runs_its_own = state_ == State::kListening && level_ == IPPROTO_TCP && option_ == TCP_CONGESTION;
  hides_value_ = runs_its_own || hides_value(false);
}

bool OptionSweep::hides_value(bool was_connected) const {
  return std::ranges::any_of(kOwnValues, [&](const auto& o) {
    return o.level == level_ && o.option == option_ && (!o.ours || was_connected);
  });
}

OptionSweep::~OptionSweep() {
  if (sock_ >= 0) ::close(sock_);
  far_.end();
}

const std::string& OptionSweep::play() {
  log_ = line({state_name(state_), six_ ? "IPv6, level" : "IPv4, level", to_string(level_), "option",
               to_string(option_)},
              "") +
         '\t';
  if (level_ == IPPROTO_IP && option_ == kIpProtocol) return log_;
  reach();
  get();
  for (int value : {-1, 0, 1, 2, kLarge, INT_MAX}) set(value);
  use();
  set_before();
  return log_;
}

std::string OptionSweep::connect() {
  const bool stream = state_ < State::kDatagramFresh;
  far_port_ = far_.begin(stream, far_address());
  const Name to = name(far_address(), far_port_);
  std::string result = shown(::connect(sock_, to.raw(), to.size));
  settle();
  hides_value_ = hides_value(stream);
  return stream ? result + ", far " + far_.accept() : result;
}

/// From `listener`, whose place the connection takes.
std::string OptionSweep::accept() {
  Name at;
  at.size = sizeof at.storage;
  if (getsockname(sock_, at.raw(), &at.size) != 0) return shown(-1);
  far_.end();
  std::string result = far_.call(at);
  settle();
  const int connection = accept4(sock_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  result += connection < 0 ? ", " + shown(connection) : ", accepted";
  ::close(std::exchange(sock_, connection));
  hides_value_ = hides_value(true);
  Name from;
  from.size = sizeof from.storage;
  if (getpeername(sock_, from.raw(), &from.size) == 0) far_port_ = from.port();
  return result;
}

void OptionSweep::make() {
  if (sock_ >= 0) ::close(sock_);
  const int type = state_ < State::kDatagramFresh ? SOCK_STREAM : SOCK_DGRAM;
  sock_ = ::socket(six_ ? AF_INET6 : AF_INET, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
}

std::string OptionSweep::bind() {
  const Name at = name(six_ ? hosts_.near6 : hosts_.near, 0);
  return shown(::bind(sock_, at.raw(), at.size));
}

std::string OptionSweep::listen() { return bind() + ", " + shown(::listen(sock_, 8)); }

void OptionSweep::reach() {
  make();
  switch (state_) {
    case State::kFresh:
    case State::kDatagramFresh:
    case State::kCount:
      return;
    case State::kBound:
    case State::kDatagramBound:
      return log("bind", bind());
    case State::kListening:
      return log("listen", listen());
    case State::kAccepted:
      log("listen", listen());
      return log("accept", accept());
    default:
      break;
  }
  log("connect", connect());
  if (state_ == State::kShutDown || state_ == State::kEnded)
    log("shutdown", shown(::shutdown(sock_, SHUT_WR)));
  if (state_ == State::kPeerShutDown || state_ == State::kEnded)
    log("far shuts down", far_.shutdown(SHUT_WR));
  if (state_ == State::kReset) log("far closes", far_.close(true));
  if (state_ == State::kDisconnected || state_ == State::kDatagramDisconnected) {
    sockaddr none{};
    none.sa_family = AF_UNSPEC;
    log("disconnect", shown(::connect(sock_, &none, sizeof none)));
  }
  settle();
}

/// What is set before there is a connection holds for it; what is set on a listener is inherited, or not.
void OptionSweep::set_before() {
  if (state_ != State::kFresh && state_ != State::kListening && state_ != State::kDatagramFresh) return;
  for (int value : {1, 2, kLarge}) {
    make();
    if (state_ == State::kListening) log("listen", listen());
    const std::string result = shown(setsockopt(sock_, level_, option_, &value, sizeof value));
    const std::string made = state_ == State::kListening ? accept() : connect();
    log(("set " + to_string(value)).c_str(), result + ", " + made + ", " + got(16));
  }
}

void OptionSweep::log(const char* what, const std::string& result) { log_ += line({what}, result) + '\t'; }

/// An accelerated end takes in what has come when it is called.
void OptionSweep::settle() {
  for (int round = 0; round < 2; ++round) {
    pollfd p{sock_, POLLIN, 0};
    poll(&p, 1, 0);
    far_.round_trip();
  }
  pollfd p{sock_, POLLIN, 0};
  poll(&p, 1, 0);
}

std::string OptionSweep::got(socklen_t room) const {
  uint8_t value[kMost];
  std::fill(std::begin(value), std::end(value), uint8_t{0x5a});
  socklen_t size = room;
  if (long r = getsockopt(sock_, level_, option_, value, &size); r != 0) return shown(r);
  std::string text = to_string(size);
  if (hides_value_) return text;
  if (level_ == SOL_SOCKET && option_ == SO_PEERNAME && size > 2) {
    const uint16_t port = htons(far_port_);  // another in each run
    uint8_t at[sizeof port];
    std::memcpy(at, &port, sizeof port);
    for (socklen_t i = 2; i < std::min(size, 4u); ++i) value[i] ^= at[i - 2];
  }
  size_t last = kMost;
  while (last > 0 && value[last - 1] == 0x5a) --last;
  return text + ":" + (last <= 16 ? bytes(value, last) : hash(value, last));
}

void OptionSweep::get() {
  std::string all;
  for (socklen_t length : kLengths) all += to_string(static_cast<int>(length)) + ": " + got(length) + "  ";
  log("get as it was", all);
}

void OptionSweep::set(int value) {
  uint8_t bytes[kMost] = {};
  std::memcpy(bytes, &value, sizeof value);
  std::string all;
  for (socklen_t length : kLengths) {
    const long r = setsockopt(sock_, level_, option_, bytes, length);
    all += to_string(static_cast<int>(length)) + ": " + shown(r) + (r == 0 ? " " + got(16) : "") + "  ";
  }
  log(("set " + to_string(value)).c_str(), all);
}

/// What the options left behind.
void OptionSweep::use() {
  if (state_ == State::kListening) return;
  pollfd p{sock_, POLLIN | POLLOUT | POLLPRI | POLLRDHUP, 0};
  const int n = poll(&p, 1, 0);
  log("poll", shown(n) + " " + to_string(p.revents));
  log("send", shown(::send(sock_, "x", 1, MSG_DONTWAIT | MSG_NOSIGNAL)));
  if (!far_.has_connection()) return;
  settle();
  log("far has", far_.waiting());
}

}  // namespace differential
