// Control messages of sendmsg(), as ip_cmsg_send() (net/ipv4/ip_sockglue.c), ip6_datagram_send_ctl()
// (net/ipv6/datagram.c) and udp_cmsg_send() take them.
#include <linux/udp.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

#include "posix/udp_socket.h"

namespace accel::posix {
namespace {

/// More than all that are served take; the kernel has a limit of its own (net.core.optmem_max).
constexpr size_t kMostControl = 256;

/// Reads the messages one after the other, the last of a kind counts. False: the kernel's to serve or to
/// refuse.
class SendControlReader {
 public:
  SendControlReader(SendControl& out, bool v4, bool v6_socket) : out_(out), v4_(v4), v6_socket_(v6_socket) {}

  bool take(const cmsghdr& header, const char* data) {
    size_ = header.cmsg_len - sizeof header;
    data_ = data;
    switch (header.cmsg_level) {
      case IPPROTO_UDP:
        return header.cmsg_type == UDP_SEGMENT && read(out_.segment);
      case IPPROTO_IP:
        return v4_ && take_ip(header.cmsg_type);
      case IPPROTO_IPV6:
        if (v4_) return v6_socket_ && header.cmsg_type == IPV6_PKTINFO && take_mapped_pktinfo();
        return take_ip6(header.cmsg_type);
      default:
        return false;
    }
  }

 private:
  template <class T>
  bool read(T& value) const {
    if (size_ != sizeof value) return false;
    memcpy(&value, data_, sizeof value);
    return true;
  }
  template <class T>
  bool read(std::optional<T>& value) const {
    return read(value.emplace());
  }
  bool read_byte(std::optional<uint8_t>& to, int least) const {
    int value = 0;
    if (!read(value) || value < least || value > 255) return false;
    to = static_cast<uint8_t>(value);
    return true;
  }

  bool take_ip(int type) {
    switch (type) {
      case IP_PKTINFO: {
        in_pktinfo info{};
        if (!read(info)) return false;
        if (info.ipi_ifindex != 0) out_.ifindex = info.ipi_ifindex;
        out_.source = IpAddress::from_v4_bytes(&info.ipi_spec_dst);
        return true;
      }
      case IP_TOS:
        return size_ == 1 ? read(out_.tos) : read_byte(out_.tos, 0);
      case IP_TTL:
        return read_byte(out_.ttl, 1);
      default:
        return false;
    }
  }

  bool take_mapped_pktinfo() {
    in6_pktinfo info{};
    if (!read(info)) return false;
    const IpAddress source = IpAddress::from_v6_bytes(&info.ipi6_addr);
    if (!source.is_v4()) return false;
    if (info.ipi6_ifindex != 0) out_.ifindex = static_cast<int>(info.ipi6_ifindex);
    out_.source = source;
    return true;
  }

  /// -1, which means the socket's own, kernels do not all take for that in a traffic class.
  bool take_ip6(int type) {
    switch (type) {
      case IPV6_PKTINFO: {
        in6_pktinfo info{};
        if (out_.source || !read(info)) return false;
        out_.ifindex = static_cast<int>(info.ipi6_ifindex);
        out_.source = IpAddress::from_v6_bytes(&info.ipi6_addr);
        return !out_.source->is_link_local() && (out_.source->is_any() || !out_.source->is_v4());
      }
      case IPV6_TCLASS:
        return read_byte(out_.tos, 0);
      case IPV6_HOPLIMIT:
        return read_byte(out_.ttl, 1);
      default:
        return false;
    }
  }

  SendControl& out_;
  const bool v4_, v6_socket_;
  const char* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace

std::optional<SendControl> read_send_control(const msghdr& message, bool v4, bool v6_socket) {
  SendControl control;
  const auto* bytes = static_cast<const char*>(message.msg_control);
  const size_t room = message.msg_controllen;
  if (room > kMostControl) return {};
  SendControlReader reader(control, v4, v6_socket);
  for (size_t at = 0; at + sizeof(cmsghdr) <= room;) {
    cmsghdr header;
    memcpy(&header, bytes + at, sizeof header);
    if (header.cmsg_len < sizeof header || header.cmsg_len > room - at) return {};
    if (!reader.take(header, bytes + at + sizeof header)) return {};
    control.by_ip |= header.cmsg_level != IPPROTO_UDP;
    at += CMSG_ALIGN(header.cmsg_len);
  }
  return control;
}

}  // namespace accel::posix
