#include "mlx5/kernel_inlet.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/module_fd.h"

namespace accel::mlx5 {
namespace {

constexpr uint32_t kEthernetHeader = 14, kTag = 4;
constexpr size_t kMaxPieces = 8;

}  // namespace

KernelInlet::~KernelInlet() { close(); }

void KernelInlet::close() {
  v4_ = Fd();
  v6_ = Fd();
}

void KernelInlet::open() {
  (void)socket_for(false);
  (void)socket_for(true);
}

int KernelInlet::socket_for(bool v6) {
  Fd& fd = v6 ? v6_ : v4_;
  // IPPROTO_RAW: the header is the sender's, and nothing is received.
  if (!fd)
    fd = high(Fd(socket(v6 ? AF_INET6 : AF_INET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_RAW)));
  return fd.get();
}

bool KernelInlet::give(const Packet& frame) {
  const uint8_t* p = frame.data();
  uint32_t at = kEthernetHeader;
  if (frame.length < at + kTag + 20) return false;
  if (p[12] == 0x81 && p[13] == 0x00) at += kTag;
  const uint8_t version = p[at] >> 4;
  const bool v6 = version == 6;
  if ((version != 4 && !v6) || frame.length < at + (v6 ? 40 : 20)) return false;
  // What Ethernet padded a short frame with is not the packet's.
  uint32_t left = v6 ? 40 + (uint32_t{p[at + 4]} << 8 | p[at + 5]) : uint32_t{p[at + 2]} << 8 | p[at + 3];
  sockaddr_in to4{};
  sockaddr_in6 to6{};
  to4.sin_family = AF_INET;
  to6.sin6_family = AF_INET6;
  if (v6)
    std::memcpy(&to6.sin6_addr, p + at + 24, 16);
  else
    std::memcpy(&to4.sin_addr, p + at + 16, 4);

  std::array<iovec, kMaxPieces> pieces;
  msghdr message{};
  message.msg_iov = pieces.data();
  for (const Packet* part = &frame; part && left != 0; part = part->more) {
    if (message.msg_iovlen == kMaxPieces) return false;
    const uint32_t n = std::min(part->length - at, left);
    pieces[message.msg_iovlen++] = {const_cast<uint8_t*>(part->data()) + at,
                                    n};  // NOLINT: iovec has no const
    left -= n;
    at = 0;
  }
  if (left != 0) return false;
  message.msg_name = v6 ? static_cast<void*>(&to6) : &to4;
  message.msg_namelen = v6 ? sizeof(to6) : sizeof(to4);
  const int fd = socket_for(v6);
  return fd >= 0 && sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0;
}

}  // namespace accel::mlx5
