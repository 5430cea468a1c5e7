#include "tests/model/front/packet_port.h"

#include <arpa/inet.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <sys/ioctl.h>

#include <cstring>
#include <utility>

#include "tests/model/core/bytes.h"
#include "tests/model/core/frame.h"
#include "tests/model/front/raw.h"

namespace model {
namespace {

constexpr int kQueueBytes = 64 << 20;
constexpr int kPacketIgnoreOutgoing = 23;
constexpr uint16_t kNothing = ETH_P_LOOP;  // a type that no frame has

long bind_to(int fd, int ifindex, uint16_t protocol) {
  sockaddr_ll address{};
  address.sll_family = AF_PACKET;
  address.sll_protocol = htons(protocol);
  address.sll_ifindex = ifindex;
  return raw::call(SYS_bind, fd, raw::word(&address), sizeof address);
}

accel::Errno failed(int fd, long result) {
  if (fd >= 0) raw::close(fd);
  return accel::err(static_cast<int>(-result));
}

}  // namespace

accel::Result<PacketPort> PacketPort::open(const std::string& netdev) {
  const int fd = raw::socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return failed(-1, fd);
  ifreq request{};
  strncpy(request.ifr_name, netdev.c_str(), IFNAMSIZ - 1);
  if (const long r = raw::call(SYS_ioctl, fd, SIOCGIFINDEX, raw::word(&request)); r < 0) return failed(fd, r);
  const int on = 1;
  raw::setsockopt(fd, SOL_PACKET, kPacketIgnoreOutgoing, &on, sizeof on);
  raw::setsockopt(fd, SOL_PACKET, PACKET_QDISC_BYPASS, &on, sizeof on);
  raw::setsockopt(fd, SOL_PACKET, PACKET_AUXDATA, &on, sizeof on);
  if (raw::setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &kQueueBytes, sizeof kQueueBytes) < 0) {
    raw::setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &kQueueBytes, sizeof kQueueBytes);
  }
  raw::setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &kQueueBytes, sizeof kQueueBytes);
  if (const long r = bind_to(fd, request.ifr_ifindex, kNothing); r < 0) return failed(fd, r);
  PacketPort port;
  port.fd_ = fd;
  port.ifindex_ = request.ifr_ifindex;
  port.buffer_ = new uint8_t[kFrame];
  return port;
}

PacketPort::PacketPort(PacketPort&& other) noexcept { *this = std::move(other); }

PacketPort& PacketPort::operator=(PacketPort&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(ifindex_, other.ifindex_);
  std::swap(listens_, other.listens_);
  std::swap(buffer_, other.buffer_);
  return *this;
}

PacketPort::~PacketPort() {
  if (fd_ >= 0) raw::close(fd_);
  delete[] buffer_;
}

void PacketPort::listen(bool on) {
  if (fd_ >= 0 && on != listens_ && bind_to(fd_, ifindex_, on ? ETH_P_ALL : kNothing) == 0) listens_ = on;
}

void PacketPort::transmit(std::span<const uint8_t> frame) {
  // A frame that the netdev does not take (down, queue full) is lost, as on a wire.
  if (fd_ >= 0)
    raw::call(SYS_sendto, fd_, raw::word(frame.data()), raw::word(frame.size()), MSG_DONTWAIT, 0, 0);
}

std::span<const uint8_t> PacketPort::receive() {
  if (fd_ < 0) return {};
  // Room before the frame to put a VLAN tag back where the kernel took it out.
  iovec vector{buffer_ + kVlanTag, kFrame - kVlanTag};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(tpacket_auxdata))];
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const long n = raw::call(SYS_recvmsg, fd_, raw::word(&message), MSG_DONTWAIT);
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
  if (fd_ < 0) return 0;
  if (raw::call(SYS_getsockopt, fd_, SOL_PACKET, PACKET_STATISTICS, raw::word(&stats), raw::word(&size)) < 0)
    return 0;
  return stats.tp_drops;
}

}  // namespace model
