#include "xdp/segment_socket.h"

#include <arpa/inet.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <optional>

#include "base/bare_syscall.h"
#include "base/kernel_version.h"

namespace accel::xdp {
namespace {

/// linux/virtio_net.h, which is no C++.
struct VirtioNetHeader {
  uint8_t flags, gso_type;
  uint16_t header_length, gso_size, checksum_start, checksum_offset;
};
constexpr uint8_t kNeedsChecksum = 1, kGsoTcp4 = 1, kGsoTcp6 = 4;
static_assert(sizeof(VirtioNetHeader) == 10);

/// Bytes under way to a device that completes late; a veth pair completes at once.
constexpr int kSendBuffer = 4 << 20;
/// Programs write 64 or 128 KiB at a time: the last partial segment goes along instead of on a way of its
/// own.
constexpr uint32_t kLargeFrame = 128 << 10;
/// Such a frame in buffers of 2048 bytes, and the headers.
constexpr size_t kMaxParts = 72;
constexpr uint16_t kChecksumOffset = 16;  // in the TCP header

struct Layout {
  uint16_t l4 = 0;
  bool v6 = false;
};

/// Adds a number to the ones-complement sum in a checksum field.
void add_to_sum(uint8_t* field, uint32_t number) {
  uint16_t sum = 0;
  std::memcpy(&sum, field, sizeof(sum));
  uint32_t wide =
      uint32_t{sum} + htons(static_cast<uint16_t>(number)) + htons(static_cast<uint16_t>(number >> 16));
  wide = (wide & 0xffff) + (wide >> 16);
  sum = static_cast<uint16_t>(wide + (wide >> 16));
  std::memcpy(field, &sum, sizeof(sum));
}

std::optional<Layout> layout(const Packet& frame) {
  const uint8_t* p = frame.data();
  auto type = [p](size_t at) { return p[at] << 8 | p[at + 1]; };
  size_t ip = 14;
  if (frame.header_length > kMaxHeaders || frame.length < frame.header_length) return {};
  if (type(12) == ETHERTYPE_VLAN) ip = 18;
  const bool v6 = type(ip - 2) == ETHERTYPE_IPV6;
  if (!v6 && type(ip - 2) != ETHERTYPE_IP) return {};
  const size_t l4 = ip + (v6 ? 40 : (p[ip] & 0x0fu) * 4);
  if (l4 + 20 > frame.header_length) return {};
  return Layout{static_cast<uint16_t>(l4), v6};
}

}  // namespace

bool SegmentSocket::open(int ifindex) {
  // Protocol 0: it receives nothing.
  Fd fd(socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0));
  if (!fd) return false;
  const int on = 1;
  if (setsockopt(fd.get(), SOL_PACKET, PACKET_VNET_HDR, &on, sizeof(on)) != 0) return false;
  sockaddr_ll address{};
  address.sll_family = AF_PACKET;
  address.sll_ifindex = ifindex;
  if (bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) return false;
  if (setsockopt(fd.get(), SOL_SOCKET, SO_SNDBUFFORCE, &kSendBuffer, sizeof(kSendBuffer)) != 0)
    setsockopt(fd.get(), SOL_SOCKET, SO_SNDBUF, &kSendBuffer, sizeof(kSendBuffer));
  fd_ = high(std::move(fd));
  return true;
}

uint32_t SegmentSocket::limit(bool by_device) {
  // Until 6.5 tcp_gso_segment() reckoned checksums with 16 bits of the length.
  return !by_device && kernel_is_at_least(6, 5) ? kLargeFrame : kTsoPayload;
}

SegmentSocket::Outcome SegmentSocket::send(const Packet& frame) {
  const auto at = layout(frame);
  if (!fd_ || !at) return Outcome::kRefused;
  VirtioNetHeader offload{
      kNeedsChecksum, at->v6 ? kGsoTcp6 : kGsoTcp4, frame.header_length, frame.tso_size, at->l4,
      kChecksumOffset};
  // In a copy, since the frame may be offered again: the kernel's pseudo-header has the whole frame's length
  // (tcp_offload.c, tcp_gso_segment), the stack's 0 (stack/egress.h).
  std::array<uint8_t, kMaxHeaders> headers;
  std::memcpy(headers.data(), frame.data(), frame.header_length);
  add_to_sum(&headers[at->l4 + kChecksumOffset], frame.total() - at->l4);

  std::array<iovec, kMaxParts> parts;
  size_t n = 0;
  parts[n++] = {&offload, sizeof(offload)};
  parts[n++] = {headers.data(), frame.header_length};
  if (frame.length > frame.header_length)
    parts[n++] = {const_cast<uint8_t*>(frame.data()) + frame.header_length,
                  frame.length - frame.header_length};
  for (const Packet* p = frame.more; p; p = p->more) {
    if (n == kMaxParts) return Outcome::kRefused;
    parts[n++] = {const_cast<uint8_t*>(p->data()), p->length};
  }
  msghdr message{};
  message.msg_iov = parts.data();
  message.msg_iovlen = n;
  const long sent = bare_syscall(SYS_sendmsg, fd_.get(), reinterpret_cast<intptr_t>(&message), MSG_DONTWAIT);
  if (sent >= 0) return Outcome::kSent;
  switch (-sent) {
    case EAGAIN:
    case EINTR:
      return Outcome::kFull;
    case ENOBUFS:
    case ENOMEM:
      return Outcome::kDropped;
    case ENXIO:
    case ENETDOWN:
      return Outcome::kNoDevice;
    default:
      return Outcome::kRefused;
  }
}

}  // namespace accel::xdp
