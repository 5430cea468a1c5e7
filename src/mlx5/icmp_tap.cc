#include "mlx5/icmp_tap.h"

#include <arpa/inet.h>
#include <linux/filter.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <iterator>

#include "base/module_fd.h"

namespace accel::mlx5 {
namespace {

// packet(7), PACKET_RX_RING. Errors quote little: RFC 1812 bounds them to 576 bytes, RFC 4443 to 1280.
constexpr uint32_t kSlot = 2048, kSlots = 64, kRingBlock = 16384;
constexpr uint32_t kAddresses = 12, kVlanTag = 4;  // of Ethernet
constexpr size_t kRing = size_t{kSlot} * kSlots;

constexpr uint32_t kAccept = 0xffff;
constexpr sock_filter kErrors[] = {
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<uint32_t>(SKF_AD_OFF + SKF_AD_PKTTYPE)),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, PACKET_HOST, 0, 18),
    BPF_STMT(BPF_LD | BPF_H | BPF_ABS, 12),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ETH_P_IPV6, 10, 0),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ETH_P_IP, 0, 15),
    BPF_STMT(BPF_LD | BPF_H | BPF_ABS, 20),
    BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, 0x3fff, 13, 0),  // a fragment
    BPF_STMT(BPF_LD | BPF_B | BPF_ABS, 23),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, IPPROTO_ICMP, 0, 11),
    BPF_STMT(BPF_LDX | BPF_B | BPF_MSH, 14),
    BPF_STMT(BPF_LD | BPF_B | BPF_IND, 14),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 3, 7, 0),   // unreachable, too big
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 11, 6, 0),  // time exceeded
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 12, 5, 6),  // parameter problem
    BPF_STMT(BPF_LD | BPF_B | BPF_ABS, 20),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, IPPROTO_ICMPV6, 0, 4),
    BPF_STMT(BPF_LD | BPF_B | BPF_ABS, 54),
    BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, 1, 0, 2),
    BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, 4, 1, 0),
    BPF_STMT(BPF_RET | BPF_K, kAccept),
    BPF_STMT(BPF_RET | BPF_K, 0),
};

}  // namespace

bool IcmpTap::open(int ifindex) {
  fd_ = high(Fd(socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)));
  if (!fd_) return false;
  const sock_fprog filter{std::size(kErrors), const_cast<sock_filter*>(kErrors)};  // NOLINT: it is read only
  const int version = TPACKET_V2, yes = 1;
  tpacket_req ring{};
  ring.tp_block_size = kRingBlock;
  ring.tp_block_nr = kRing / kRingBlock;
  ring.tp_frame_size = kSlot;
  ring.tp_frame_nr = kSlots;
  sockaddr_ll address{};
  address.sll_family = AF_PACKET;
  address.sll_protocol = htons(ETH_P_ALL);
  address.sll_ifindex = ifindex;
  void* mapped = MAP_FAILED;
  // Else the kernel copies the head of each frame that the netdev sends, for the filter to refuse (from Linux
  // 4.20 on it can be asked not to).
  (void)setsockopt(fd_.get(), SOL_PACKET, PACKET_IGNORE_OUTGOING, &yes, sizeof(yes));
  if (setsockopt(fd_.get(), SOL_SOCKET, SO_ATTACH_FILTER, &filter, sizeof(filter)) == 0 &&
      setsockopt(fd_.get(), SOL_PACKET, PACKET_VERSION, &version, sizeof(version)) == 0 &&
      setsockopt(fd_.get(), SOL_PACKET, PACKET_RX_RING, &ring, sizeof(ring)) == 0)
    mapped = mmap(nullptr, kRing, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0);
  if (mapped != MAP_FAILED) ring_ = static_cast<uint8_t*>(mapped);
  if (ring_ && bind(fd_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) return true;
  const int error = errno;
  close();
  errno = error;
  return false;
}

void IcmpTap::close() {
  if (ring_) munmap(ring_, kRing);
  ring_ = nullptr;
  fd_ = Fd();
}

uint8_t* IcmpTap::slot() const { return ring_ + size_t{next_} * kSlot; }

bool IcmpTap::ready() const {
  if (!ring_) return false;
  const auto* header = reinterpret_cast<const tpacket2_hdr*>(slot());
  return (__atomic_load_n(&header->tp_status, __ATOMIC_ACQUIRE) & TP_STATUS_USER) != 0;
}

Packet* IcmpTap::take(FramePool& pool, uint64_t& refused) {
  auto* header = reinterpret_cast<tpacket2_hdr*>(slot());
  Packet* frame = pool.take();
  if (!frame) return nullptr;                                                    // it stays in the ring
  const uint32_t tag = header->tp_status & TP_STATUS_VLAN_VALID ? kVlanTag : 0;  // the kernel took it out
  const bool whole = header->tp_snaplen == header->tp_len && header->tp_len + tag <= frame->tailroom();
  if (whole) {
    frame->length = header->tp_len + tag;
    uint8_t* to = frame->data();
    const uint8_t* from = slot() + header->tp_mac;
    std::memcpy(to, from, kAddresses);
    const uint16_t words[] = {htons(ETH_P_8021Q), htons(header->tp_vlan_tci)};
    std::memcpy(to + kAddresses, words, tag);
    std::memcpy(to + kAddresses + tag, from + kAddresses, header->tp_len - kAddresses);
  } else {
    ++refused;
    FramePool::release(std::exchange(frame, nullptr));
  }
  __atomic_store_n(&header->tp_status, TP_STATUS_KERNEL, __ATOMIC_RELEASE);
  next_ = (next_ + 1) % kSlots;
  return frame;
}

}  // namespace accel::mlx5
