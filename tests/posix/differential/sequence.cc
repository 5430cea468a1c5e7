#include "posix/differential/sequence.h"

#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "posix/differential/log.h"

namespace differential {

using std::to_string;

const char* kind_name(Kind kind) {
  static const char* const kNames[] = {"tcp_connect",   "tcp_accept", "tcp_fresh",
                                       "udp_connected", "udp_bound",  "udp_fresh"};
  return kNames[static_cast<size_t>(kind)];
}

constexpr int kSegment = 1448;  ///< where more is unsent it is not MSG_MORE that holds it

const Sequence::Step Sequence::kSteps[] = {
    {10, &Sequence::receive},        {4, &Sequence::receive_message},  {8, &Sequence::send},
    {3, &Sequence::send_message},    {2, &Sequence::read_vector},      {3, &Sequence::receive_messages},
    {3, &Sequence::write_vector},    {3, &Sequence::send_messages},    {2, &Sequence::wait_to_receive},
    {4, &Sequence::ready_by_poll},   {4, &Sequence::ready_by_epoll},   {2, &Sequence::ready_by_ppoll},
    {3, &Sequence::ready_by_select}, {3, &Sequence::change_watch},     {2, &Sequence::names},
    {4, &Sequence::count_bytes},     {2, &Sequence::shut_down},        {3, &Sequence::duplicate},
    {2, &Sequence::close_one},       {2, &Sequence::set_wide_option},  {1, &Sequence::bind},
    {1, &Sequence::listen},          {1, &Sequence::connect},          {1, &Sequence::disconnect},
    {1, &Sequence::accept},          {1, &Sequence::too_many_buffers}, {3, &Sequence::set_option},
    {4, &Sequence::get_option},      {1, &Sequence::set_linger},       {12, &Sequence::far_sends},
    {4, &Sequence::far_drains},      {1, &Sequence::far_shuts_down},   {1, &Sequence::far_closes},
    {1, &Sequence::far_calls},
};

Sequence::Sequence(uint64_t seed, FarEnd& far, const Hosts& hosts, const std::vector<Kind>& kinds,
                   uint64_t leaving)
    : random_(seed),
      far_(far),
      hosts_(hosts),
      kind_(any(kinds)),
      stream_(kind_ < Kind::kUdpConnected),
      six_(chance(25)),
      leaving_(leaving) {}

Sequence::~Sequence() {
  for (int fd : extra_) ::close(fd);
  for (int fd : twins_) ::close(fd);
  if (sock_ >= 0) ::close(sock_);
  if (set_ >= 0) ::close(set_);
  far_.end();
}

const std::string& Sequence::play() {
  log({kind_name(kind_), six_ ? "IPv6" : "IPv4"}, "");
  far_port_ = far_.begin(stream_, far_address());
  begin();
  uint32_t total = 0;
  for (const Step& step : kSteps) total += static_cast<uint32_t>(step.weight);
  for (uint32_t left = 3 + below(20); left > 0; --left) {
    const Step* step = kSteps;
    for (auto at = static_cast<int>(below(total)); at >= step->weight; ++step) at -= step->weight;
    (this->*step->play)();
  }
  settle();
  log({"far took"}, far_.drain([this] { settle(); }));
  for (int fd : extra_) ::close(fd);
  extra_.clear();
  for (int fd : twins_) ::close(fd);
  twins_.clear();
  const int closed = ::close(sock_);
  sock_ = -1;
  settle();  // a reset comes alike then: how far_.drain() tells it depends on when
  log({"close"}, shown(closed));
  log({"far took"}, far_.drain([this] { settle(); }));
  return log_;
}

void Sequence::log(std::initializer_list<std::string_view> words, std::string_view result) {
  log_ += line(words, result) += '\t';
}

void Sequence::log_sent(std::initializer_list<std::string_view> words, std::string_view result) {
  settle();
  log(words, std::string(result) + ", far has " + far_.waiting());
}

void Sequence::settle() {
  for (int round = 0; round < 2; ++round) {
    pollfd p{sock_, POLLIN, 0};
    if (sock_ >= 0) poll(&p, 1, 0);  // an accelerated end takes in what has come
    far_.round_trip();
  }
  pollfd p{sock_, POLLIN, 0};
  if (sock_ >= 0) poll(&p, 1, 0);
}

std::string Sequence::hidden(long result, const Name& n) const {
  if (result < 0) return shown(result);
  if (n.size == 0) return "no name";
  uint16_t port = n.port();
  return bytes(n.storage.ss_family == AF_INET6 ? reinterpret_cast<const char*>(&n.storage) + 8
                                               : reinterpret_cast<const char*>(&n.storage) + 4,
               n.storage.ss_family == AF_INET6 ? 16 : 4) +
         (port == 0           ? " no port"
          : port == far_port_ ? " far's port"
                              : " port");
}

int Sequence::held_bytes() const {
  int unsent = 0;
  const bool known = stream_ && held_ && ioctl(sock_, SIOCOUTQNSD, &unsent) == 0;
  return known && unsent < kSegment ? unsent : 0;
}

/// Data that come in let go what MSG_MORE holds back when they find no room in memory that the kernel has
/// accounted for already (tcp_rcv_established(): truesize against sk_forward_alloc, which is what is left of
/// a page after all that both queues hold). That depends on what a driver makes of frames, so libaccel keeps
/// it always, but for what comes beside data (a window, urgent data, FIN, a new ACK), which lets it go in
/// both. What the kernel did is in its transcript: the accelerated end follows, by a call that does the same
/// (tcp_push_pending_frames()), and all else must agree.
void Sequence::follow_kernel(int held) {
  if (held == 0) return;
  if ((leaving_ >> times_held_++ & 1) != 0) {
    const int off = 0;
    setsockopt(sock_, IPPROTO_TCP, TCP_CORK, &off, sizeof off);
    settle();
  }
  log({"held", to_string(held)}, to_string(held_bytes()));
}

void Sequence::far_sends() {
  // Fragments come through the kernel, whatever the path: between them and whole datagrams there is no order.
  size_t n = any<size_t>({1, 10, 200, six_ ? 1452u : 1472u, stream_ ? 4000u : 50u});
  bool urgent = stream_ && chance(15);
  Name to;
  if (stream_) {
    far_.accept();
    if (!far_.has_connection()) return;
  } else {
    to.size = sizeof to.storage;
    if (!far_.has_connection() || getsockname(sock_, to.raw(), &to.size) < 0 || to.port() == 0) return;
    to = name(near(), to.port());
  }
  const int held = urgent ? 0 : held_bytes();
  std::string result = far_.send(n, urgent, stream_ ? nullptr : &to);
  settle();
  log({"far sends", to_string(n), urgent ? "OOB" : ""}, result);
  follow_kernel(held);
}

void Sequence::far_drains() {
  far_.accept();
  log({"far took"}, far_.drain([this] { settle(); }));
}

void Sequence::far_shuts_down() {
  if (!stream_ || !far_.has_connection()) return;
  int how = any<int>({0, 1, 1, 2});
  std::string result = far_.shutdown(how);
  settle();
  log({"far shuts down", to_string(how)}, result);
}

void Sequence::far_closes() {
  std::string result = far_.close(chance(40));
  settle();
  log({"far closes"}, result);
}

void Sequence::far_calls() {
  Name to;
  to.size = sizeof to.storage;
  if (!stream_ || far_.has_connection() || getsockname(sock_, to.raw(), &to.size) < 0 || to.port() == 0)
    return;
  std::string result = far_.call(name(near(), to.port()));
  settle();
  log({"far calls"}, result);
}

}  // namespace differential
