#include <netinet/in.h>
#include <netinet/tcp.h>
#include <netinet/udp.h>
#include <sys/socket.h>

#include <array>

#include "posix/differential/log.h"
#include "posix/differential/sequence.h"

namespace differential {

using std::to_string;

namespace {

struct Option {
  int level, name;
};

const std::vector<Option> kAny = {{SOL_SOCKET, SO_KEEPALIVE}, {SOL_SOCKET, SO_REUSEADDR},
                                  {SOL_SOCKET, SO_BROADCAST}, {SOL_SOCKET, SO_ERROR},
                                  {SOL_SOCKET, SO_TYPE},      {SOL_SOCKET, SO_ACCEPTCONN},
                                  {SOL_SOCKET, SO_OOBINLINE}, {SOL_SOCKET, SO_RCVLOWAT},
                                  {SOL_SOCKET, SO_DOMAIN},    {SOL_SOCKET, SO_PROTOCOL},
                                  {SOL_SOCKET, SO_PRIORITY},  {SOL_SOCKET, SO_REUSEPORT},
                                  {SOL_SOCKET, 9999},         {777, 1}};
const std::vector<Option> kIp4 = {{IPPROTO_IP, IP_TOS}, {IPPROTO_IP, IP_TTL}, {IPPROTO_IP, IP_MTU}};
const std::vector<Option> kIp6 = {
    {IPPROTO_IPV6, IPV6_TCLASS}, {IPPROTO_IPV6, IPV6_UNICAST_HOPS}, {IPPROTO_IPV6, IPV6_V6ONLY}};
const std::vector<Option> kUdp = {
    {IPPROTO_UDP, UDP_CORK}, {SOL_SOCKET, SO_TIMESTAMP}, {SOL_SOCKET, SO_TIMESTAMPNS}};
const std::vector<Option> kUdp4 = {
    {IPPROTO_IP, IP_PKTINFO}, {IPPROTO_IP, IP_RECVTOS}, {IPPROTO_IP, IP_RECVTTL}};
const std::vector<Option> kUdp6 = {
    {IPPROTO_IPV6, IPV6_RECVPKTINFO}, {IPPROTO_IPV6, IPV6_RECVTCLASS}, {IPPROTO_IPV6, IPV6_RECVHOPLIMIT}};
const std::vector<Option> kTcp = {
    {IPPROTO_IPV6, IPV6_MTU},        {IPPROTO_TCP, TCP_NODELAY},       {IPPROTO_TCP, TCP_CORK},
    {IPPROTO_TCP, TCP_KEEPIDLE},     {IPPROTO_TCP, TCP_KEEPINTVL},     {IPPROTO_TCP, TCP_KEEPCNT},
    {IPPROTO_TCP, TCP_SYNCNT},       {IPPROTO_TCP, TCP_LINGER2},       {IPPROTO_TCP, TCP_DEFER_ACCEPT},
    {IPPROTO_TCP, TCP_USER_TIMEOUT}, {IPPROTO_TCP, TCP_NOTSENT_LOWAT}, {IPPROTO_TCP, 9999}};

std::vector<Option> joined(std::initializer_list<const std::vector<Option>*> parts) {
  std::vector<Option> all;
  for (const auto* part : parts) all.insert(all.end(), part->begin(), part->end());
  return all;
}

const std::vector<Option>& options(bool stream, bool six) {
  static const std::vector<Option> kAll[2][2] = {
      {joined({&kAny, &kIp4, &kUdp, &kUdp4}), joined({&kAny, &kIp6, &kUdp, &kUdp6})},
      {joined({&kAny, &kIp4, &kTcp}), joined({&kAny, &kIp6, &kTcp})}};
  return kAll[stream][six];
}

}  // namespace

void Sequence::set_option() {
  Option option = any(options(stream_, six_));
  auto size = any<socklen_t>({4, 4, 4, 4, 4, 1, 0, 3, 5, 8});
  int value[2] = {any<int>({0, 1, 1, 2, 5, 100, -1, 5000}), 0};
  long r = setsockopt(sock_, option.level, option.name, value, size);
  log_sent(
      {"setsockopt", to_string(option.level), to_string(option.name), to_string(size), to_string(value[0])},
      shown(r));
}

void Sequence::get_option() {
  Option option = any(options(stream_, six_));
  std::array<uint8_t, 12> value{};
  auto size = any<socklen_t>({4, 4, 4, 4, 0, 1, 3, 12});
  socklen_t got = size;
  long r = getsockopt(sock_, option.level, option.name, value.data(), &got);
  log({"getsockopt", to_string(option.level), to_string(option.name), to_string(size)},
      shown(r) + (r == 0 ? " " + to_string(got) + ": " + bytes(value.data(), value.size()) : ""));
}

/// Options with values of their own. Buffers are so large that what a driver makes of frames, which each
/// path counts its own way, does not show.
void Sequence::set_wide_option() {
  const uint32_t which = below(stream_ ? 5 : 4);
  const int name = std::array{SO_RCVTIMEO, SO_SNDTIMEO, SO_RCVBUF, SO_SNDBUF, SO_PEEK_OFF}[which];
  std::array<uint8_t, 16> value{};
  std::string text;
  if (which < 2) {
    const timeval limit{any<long>({0, 1, -1}), any<long>({0, 1, 300000, 1000000, -1})};
    std::memcpy(value.data(), &limit, sizeof limit);
    text = to_string(limit.tv_sec) + " " + to_string(limit.tv_usec);
  } else {
    const int number = which == 4 ? any<int>({0, 0, 1, 5, 1000, -1, -2}) : any<int>({150000, 200000, -1});
    std::memcpy(value.data(), &number, sizeof number);
    text = to_string(number);
  }
  const socklen_t size = which < 2 ? any<socklen_t>({16, 16, 16, 15, 8}) : 4;
  const long r = setsockopt(sock_, SOL_SOCKET, name, value.data(), size);
  std::array<uint8_t, 20> now{};
  auto got = any<socklen_t>({20, 20, 16, 5, 4, 0});
  const long g = r == 0 ? getsockopt(sock_, SOL_SOCKET, name, now.data(), &got) : 0;
  log({"setsockopt", to_string(name), to_string(size), text},
      shown(r) + (r == 0 ? ", " + shown(g) + " " + to_string(got) + ": " + bytes(now.data(), got) : ""));
}

void Sequence::set_linger() {
  linger value{any<int>({0, 1}), any<int>({0, 0, 0, 1})};
  log({"SO_LINGER", to_string(value.l_onoff), to_string(value.l_linger)},
      shown(setsockopt(sock_, SOL_SOCKET, SO_LINGER, &value, sizeof value)));
}

}  // namespace differential
