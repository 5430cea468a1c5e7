// Control messages of a received datagram, in the kernel's order: the socket's (sock_recv_cmsgs), then the
// protocol's.
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
// Behind <time.h>, which it needs.
#include <linux/errqueue.h>
#include <linux/udp.h>

#include <algorithm>

#include "base/user_memory.h"
#include "posix/udp_socket.h"

namespace accel::posix {
namespace {

/// put_cmsg() of net/core/scm.c: what does not fit is cut and MSG_CTRUNC set.
class ControlWriter {
 public:
  explicit ControlWriter(msghdr* m)
      : m_(m), at_(static_cast<char*>(m->msg_control)), room_(at_ ? m->msg_controllen : 0) {}
  ~ControlWriter() { m_->msg_controllen = used_; }
  ControlWriter(const ControlWriter&) = delete;
  ControlWriter& operator=(const ControlWriter&) = delete;

  template <class T>
  void put(int level, int type, const T& value) {
    size_t length = CMSG_LEN(sizeof value);
    if (room_ < sizeof(cmsghdr)) {
      m_->msg_flags |= MSG_CTRUNC;
      return;
    }
    if (room_ < length) {
      m_->msg_flags |= MSG_CTRUNC;
      length = room_;
    }
    cmsghdr header{};
    header.cmsg_level = level;
    header.cmsg_type = type;
    header.cmsg_len = length;
    if (!can_overwrite(at_, length)) return;  // put_cmsg()'s EFAULT, which nobody hears of
    memcpy(at_, &header, sizeof header);
    memcpy(at_ + sizeof header, &value, length - sizeof header);
    const size_t step = std::min(CMSG_SPACE(sizeof value), room_);
    at_ += step;
    room_ -= step;
    used_ += step;
  }

 private:
  msghdr* m_;
  char* at_;
  size_t room_;
  size_t used_ = 0;
};

timespec to_timespec(int64_t ns) { return {ns / 1000000000, ns % 1000000000}; }

/// __sock_recv_timestamp(). The _NEW options' messages look alike where time_t has 64 bits.
void put_stamps(ControlWriter& out, uint32_t control, const DatagramFacts& f) {
  const bool young = (control & kStampNew) != 0;
  if ((control & kTimestampNs) != 0) {
    out.put(SOL_SOCKET, young ? SO_TIMESTAMPNS_NEW : SO_TIMESTAMPNS, to_timespec(f.timestamp));
  } else if ((control & kTimestamp) != 0) {
    out.put(SOL_SOCKET, young ? SO_TIMESTAMP_NEW : SO_TIMESTAMP,
            timeval{f.timestamp / 1000000000, f.timestamp % 1000000000 / 1000});
  }
  scm_timestamping stamps{};
  const bool software = (control & kStampSoftware) != 0;
  if (software) stamps.ts[0] = to_timespec(f.timestamp);
  if (f.device_time != 0) stamps.ts[2] = to_timespec(f.device_time);
  if (software || f.device_time != 0)
    out.put(SOL_SOCKET, young ? SO_TIMESTAMPING_NEW : SO_TIMESTAMPING, stamps);
}

void put_socket_messages(ControlWriter& out, uint32_t control, const DatagramFacts& f) {
  put_stamps(out, control, f);
  if ((control & kOverflow) != 0 && f.datagram.drops != 0) out.put(SOL_SOCKET, SO_RXQ_OVFL, f.datagram.drops);
}

/// ip_cmsg_recv_offset().
void put_ip_messages(ControlWriter& out, uint32_t control, const DatagramFacts& f) {
  if ((control & kPktInfo) != 0) {
    in_pktinfo info{};
    memcpy(&info.ipi_addr, f.datagram.to.address.v4_bytes(), sizeof info.ipi_addr);
    if (f.datagram.placed) {  // ipv4_pktinfo_prepare()
      info.ipi_ifindex = f.ifindex;
      memcpy(&info.ipi_spec_dst, f.answered_by.v4_bytes(), sizeof info.ipi_spec_dst);
    }
    out.put(IPPROTO_IP, IP_PKTINFO, info);
  }
  if ((control & kRecvTtl) != 0) out.put(IPPROTO_IP, IP_TTL, int{f.datagram.ttl});
  if ((control & kRecvTos) != 0) out.put(IPPROTO_IP, IP_TOS, f.datagram.tos);
  if ((control & kOrigDst) != 0) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(f.datagram.to.port);
    memcpy(&to.sin_addr, f.datagram.to.address.v4_bytes(), sizeof to.sin_addr);
    out.put(IPPROTO_IP, IP_ORIGDSTADDR, to);
  }
}

/// ip6_datagram_recv_common_ctl() and its specific twin: the packet's info for IPv4 as well, the rest for
/// IPv6 only.
void put_ip6_messages(ControlWriter& out, uint32_t control, const DatagramFacts& f) {
  if ((control & kPktInfo6) != 0) {
    in6_pktinfo info{};
    info.ipi6_ifindex = static_cast<unsigned>(f.ifindex);
    memcpy(&info.ipi6_addr, f.datagram.to.address.bytes.data(), sizeof info.ipi6_addr);
    out.put(IPPROTO_IPV6, IPV6_PKTINFO, info);
  }
  if (f.datagram.to.address.is_v4()) return;
  if ((control & kHopLimit) != 0) out.put(IPPROTO_IPV6, IPV6_HOPLIMIT, int{f.datagram.ttl});
  if ((control & kTrafficClass) != 0) out.put(IPPROTO_IPV6, IPV6_TCLASS, int{f.datagram.tos});
}

}  // namespace

void put_control_messages(msghdr* message, uint32_t control, const DatagramFacts& facts) {
  ControlWriter out(message);
  if (control == 0) return;
  put_socket_messages(out, control, facts);
  if (facts.merged != 0) out.put(IPPROTO_UDP, UDP_GRO, static_cast<int>(facts.merged));  // udp_cmsg_recv()
  put_ip6_messages(out, control, facts);
  if (facts.datagram.to.address.is_v4()) put_ip_messages(out, control, facts);
}

}  // namespace accel::posix
