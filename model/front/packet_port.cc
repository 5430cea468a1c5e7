#include "model/front/packet_port.h"

#include <arpa/inet.h>
#include <linux/filter.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <sys/ioctl.h>

#include <cstring>
#include <iterator>
#include <utility>

#include "model/core/bytes.h"
#include "model/core/frame.h"
#include "model/front/raw.h"

namespace model {
namespace {

constexpr int kQueueBytes = 64 << 20;
constexpr int kPacketIgnoreOutgoing = 23;

/// A packet socket of a netdev; `type` 0: it only sends.
accel::Result<int> open_on(const char* netdev, uint16_t type, const sock_fprog* filter) {
  const int fd = raw::socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return accel::err(-fd);
  const auto failed = [fd](long result) {
    raw::close(fd);
    return accel::err(static_cast<int>(-result));
  };
  ifreq request{};
  strncpy(request.ifr_name, netdev, IFNAMSIZ - 1);
  if (const long r = raw::call(SYS_ioctl, fd, SIOCGIFINDEX, raw::word(&request)); r < 0) return failed(r);
  if (filter != nullptr)
    if (const long r = raw::setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, filter, sizeof *filter); r < 0)
      return failed(r);
  sockaddr_ll address{};
  address.sll_family = AF_PACKET;
  address.sll_protocol = htons(type);
  address.sll_ifindex = request.ifr_ifindex;
  if (const long r = raw::call(SYS_bind, fd, raw::word(&address), sizeof address); r < 0) return failed(r);
  return fd;
}

void grow(int fd, int option, int forced) {
  if (raw::setsockopt(fd, SOL_SOCKET, forced, &kQueueBytes, sizeof kQueueBytes) < 0)
    raw::setsockopt(fd, SOL_SOCKET, option, &kQueueBytes, sizeof kQueueBytes);
}

}  // namespace

accel::Result<PacketPort> PacketPort::open(const std::string& netdev, uint32_t mark) {
  const auto out = open_on(netdev.c_str(), 0, nullptr);
  if (!out) return out.error();
  PacketPort port;
  port.out_ = *out;
  sock_filter steps[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<uint32_t>(SKF_AD_OFF + SKF_AD_MARK)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, mark, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, UINT32_MAX),
      BPF_STMT(BPF_RET | BPF_K, 0),
  };
  const sock_fprog filter{std::size(steps), steps};
  const auto in = open_on("lo", ETH_P_ALL, &filter);
  if (!in) return in.error();
  port.in_ = *in;
  const int on = 1;
  raw::setsockopt(port.in_, SOL_PACKET, kPacketIgnoreOutgoing, &on, sizeof on);
  raw::setsockopt(port.in_, SOL_PACKET, PACKET_AUXDATA, &on, sizeof on);
  raw::setsockopt(port.out_, SOL_PACKET, PACKET_QDISC_BYPASS, &on, sizeof on);
  grow(port.in_, SO_RCVBUF, SO_RCVBUFFORCE);
  grow(port.out_, SO_SNDBUF, SO_SNDBUFFORCE);
  port.buffer_ = new uint8_t[kFrame];
  return port;
}

PacketPort::PacketPort(PacketPort&& other) noexcept { *this = std::move(other); }

PacketPort& PacketPort::operator=(PacketPort&& other) noexcept {
  std::swap(in_, other.in_);
  std::swap(out_, other.out_);
  std::swap(buffer_, other.buffer_);
  return *this;
}

PacketPort::~PacketPort() {
  close();
  delete[] buffer_;
}

void PacketPort::close() {
  for (int* fd : {&in_, &out_}) {
    if (*fd >= 0) raw::close(*fd);
    *fd = -1;
  }
}

void PacketPort::transmit(std::span<const uint8_t> frame) {
  // A frame that the netdev does not take (down, queue full) is lost, as on a wire.
  if (out_ >= 0)
    raw::call(SYS_sendto, out_, raw::word(frame.data()), raw::word(frame.size()), MSG_DONTWAIT, 0, 0);
}

std::span<const uint8_t> PacketPort::receive() {
  if (in_ < 0) return {};
  // Room before the frame to put a VLAN tag back where the kernel took it out.
  iovec vector{buffer_ + kVlanTag, kFrame - kVlanTag};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(tpacket_auxdata))];
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const long n = raw::call(SYS_recvmsg, in_, raw::word(&message), MSG_DONTWAIT);
  if (n < static_cast<long>(kEthernetHeader)) return {};
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level != SOL_PACKET || c->cmsg_type != PACKET_AUXDATA) continue;
    tpacket_auxdata aux;
    memcpy(&aux, CMSG_DATA(c), sizeof aux);
    if ((aux.tp_status & TP_STATUS_VLAN_VALID) == 0) continue;
    memmove(buffer_, buffer_ + kVlanTag, 12);
    store16(buffer_ + 12, kTypeVlan);
    store16(buffer_ + 14, aux.tp_vlan_tci);
    return {buffer_, static_cast<size_t>(n) + kVlanTag};
  }
  return {buffer_ + kVlanTag, static_cast<size_t>(n)};
}

uint64_t PacketPort::lost() {
  tpacket_stats stats{};
  socklen_t size = sizeof stats;
  if (in_ < 0) return 0;
  if (raw::call(SYS_getsockopt, in_, SOL_PACKET, PACKET_STATISTICS, raw::word(&stats), raw::word(&size)) < 0)
    return 0;
  return stats.tp_drops;
}

}  // namespace model
