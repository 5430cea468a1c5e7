#include "posix/shm_meeting.h"

#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <cstddef>
#include <cstdio>
#include <cstring>

#include "base/kernel_tcp.h"
#include "base/real.h"
#include "base/socket_option.h"
#include "posix/address.h"

#ifndef SO_NETNS_COOKIE
#define SO_NETNS_COOKIE 71  // 5.14
#endif

namespace accel::posix {
namespace {

constexpr uint8_t kEstablished = 1, kSynSent = 2;
/// What the kernel shows of a user that this user namespace does not know: it may be anybody.
constexpr uid_t kUnknownUser = 65534;
constexpr int kTries = 8;

uint64_t network_of(int fd) {
  uint64_t cookie = 0;
  socklen_t size = sizeof cookie;
  return real.getsockopt(fd, SOL_SOCKET, SO_NETNS_COOKIE, &cookie, &size) == 0 ? cookie : 0;
}

std::optional<tcp_info> info_of(int fd) {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (real.getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return std::nullopt;
  if (size < offsetof(tcp_info, tcpi_bytes_retrans) + sizeof info.tcpi_bytes_retrans) return std::nullopt;
  return info;
}

bool is_tcp(int fd) {
  return int_option(fd, SOL_SOCKET, SO_PROTOCOL) == IPPROTO_TCP &&
         int_option(fd, SOL_SOCKET, SO_TYPE) == SOCK_STREAM;
}

}  // namespace

std::optional<ConnectionNames> names_of_connection(int fd) {
  if (!is_tcp(fd)) return std::nullopt;
  const ConnectionNames names{kernel_name(fd), kernel_peer_name(fd)};
  const auto info = info_of(fd);
  if (names.remote.port == 0 || !info || info->tcpi_state != kEstablished) return std::nullopt;
  return names;
}

bool is_connecting(int fd) {
  const auto info = info_of(fd);
  return info && info->tcpi_state == kSynSent;
}

std::string meeting_name(const ConnectionNames& names) {
  const bool first = names.local < names.remote;
  std::string name = "accel-shm-1-";  // of the memory's layout as well
  for (const Endpoint& end : {first ? names.local : names.remote, first ? names.remote : names.local}) {
    char text[3];
    const auto add = [&](uint8_t byte) {
      snprintf(text, sizeof text, "%02x", byte);
      name += text;
    };
    if (end.address.is_v4())
      for (int i = 0; i < 4; ++i) add(end.address.v4_bytes()[i]);
    else
      for (const uint8_t byte : end.address.bytes) add(byte);
    add(static_cast<uint8_t>(end.port >> 8));
    add(static_cast<uint8_t>(end.port));
  }
  return name;
}

bool is_of_peers_user(int bell, const ConnectionNames& names) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (real.getsockopt(bell, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || peer.uid == kUnknownUser)
    return false;
  return kernel_tcp_user(names.remote, names.local) == peer.uid;
}

bool is_other_end(int came, int own, const ConnectionNames& names) {
  const std::optional<ConnectionNames> other = came >= 0 ? names_of_connection(came) : std::nullopt;
  const uint64_t network = network_of(own);
  return other && other->local == names.remote && other->remote == names.local && network != 0 &&
         network_of(came) == network && int_option(came, SOL_SOCKET, SO_BINDTOIFINDEX) == 0;
}

std::optional<StreamCounts> stream_counts(int fd) {
  for (int i = 0; i < kTries; ++i) {
    int before = 0, after = 0;
    if (real.ioctl(fd, SIOCINQ, &before) != 0) return std::nullopt;
    const auto info = info_of(fd);
    if (!info || info->tcpi_state != kEstablished || (info->tcpi_options & TCPI_OPT_SYN_DATA) != 0)
      return std::nullopt;
    if (real.ioctl(fd, SIOCINQ, &after) != 0) return std::nullopt;
    if (before != after) continue;  // bytes came between
    const auto unread = static_cast<uint64_t>(after);
    if (info->tcpi_bytes_received < unread) return std::nullopt;
    return StreamCounts{info->tcpi_bytes_sent - info->tcpi_bytes_retrans + info->tcpi_notsent_bytes,
                        info->tcpi_bytes_received - unread};
  }
  return std::nullopt;
}

}  // namespace accel::posix
