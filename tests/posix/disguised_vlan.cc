// Preloaded where the kernel has no VLAN devices: a netdev named LOWER.N is reported by rtnetlink as VLAN N
// upon LOWER. What libaccel then sends and receives for it goes by LOWER's port with the tag; the device
// itself carries only what the kernel sends by it.
#include <dlfcn.h>
#include <linux/if_ether.h>
#include <linux/if_link.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

namespace {

/// By the kernel itself: libc's functions are the library's, which may be asking.
int index_of(const char* name, size_t length) {
  ifreq request{};
  if (length >= IFNAMSIZ) return 0;
  memcpy(request.ifr_name, name, length);
  const long fd = syscall(SYS_socket, AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const bool known = syscall(SYS_ioctl, fd, SIOCGIFINDEX, &request) == 0;
  syscall(SYS_close, fd);
  return known ? request.ifr_ifindex : 0;
}

/// Writes one attribute and returns where the next begins.
char* put(char* at, unsigned short type, const void* value, size_t size) {
  const rtattr header{static_cast<unsigned short>(RTA_LENGTH(size)), type};
  memcpy(at, &header, sizeof header);
  if (size != 0) memcpy(at + sizeof header, value, size);
  return at + RTA_SPACE(size);
}

/// IFLA_LINKINFO of a VLAN, in the room of an attribute that nobody here reads.
void describe(rtattr* room, uint16_t vlan) {
  const uint16_t protocol = __builtin_bswap16(ETH_P_8021Q);
  char data[32], info[64];
  char* end = put(data, IFLA_VLAN_ID, &vlan, sizeof vlan);
  end = put(end, IFLA_VLAN_PROTOCOL, &protocol, sizeof protocol);
  char* info_end = put(info, IFLA_INFO_KIND, "vlan", sizeof "vlan");
  info_end = put(info_end, IFLA_INFO_DATA, data, static_cast<size_t>(end - data));
  const size_t left = RTA_ALIGN(room->rta_len);
  char* rest = put(reinterpret_cast<char*>(room), IFLA_LINKINFO, info, static_cast<size_t>(info_end - info));
  const auto unused =
      static_cast<unsigned short>(left - static_cast<size_t>(rest - reinterpret_cast<char*>(room)));
  const rtattr padding{unused, IFLA_PAD};
  memcpy(rest, &padding, sizeof padding);
}

void disguise(nlmsghdr* message) {
  auto* link = static_cast<ifinfomsg*>(NLMSG_DATA(message));
  rtattr* found[IFLA_MAX + 1] = {};
  auto left = static_cast<int>(IFLA_PAYLOAD(message));
  for (rtattr* a = IFLA_RTA(link); RTA_OK(a, left); a = RTA_NEXT(a, left))
    if ((a->rta_type & NLA_TYPE_MASK) <= IFLA_MAX) found[a->rta_type & NLA_TYPE_MASK] = a;
  if (!found[IFLA_IFNAME] || !found[IFLA_LINK] || !found[IFLA_STATS64]) return;
  const char* name = static_cast<const char*>(RTA_DATA(found[IFLA_IFNAME]));
  const char* dot = strchr(name, '.');
  const int lower = dot != nullptr ? index_of(name, static_cast<size_t>(dot - name)) : 0;
  if (lower == 0) return;
  memcpy(RTA_DATA(found[IFLA_LINK]), &lower, sizeof lower);
  for (const int unfit : {IFLA_LINKINFO, IFLA_LINK_NETNSID})
    if (found[unfit]) found[unfit]->rta_type = IFLA_PAD;
  describe(found[IFLA_STATS64], static_cast<uint16_t>(atoi(dot + 1)));
}

}  // namespace

extern "C" __attribute__((visibility("default"))) ssize_t recvmsg(int fd, msghdr* message, int flags) {
  static auto* const next = reinterpret_cast<ssize_t (*)(int, msghdr*, int)>(dlsym(RTLD_NEXT, "recvmsg"));
  const ssize_t n = next(fd, message, flags);
  const auto* from = static_cast<const sockaddr*>(message->msg_name);
  const bool is_netlink =
      n > 0 && from != nullptr && message->msg_namelen != 0 && from->sa_family == AF_NETLINK;
  if (!is_netlink || message->msg_iovlen != 1) return n;
  auto left = static_cast<unsigned>(n);
  for (auto* m = static_cast<nlmsghdr*>(message->msg_iov->iov_base);
       static_cast<size_t>(n) <= message->msg_iov->iov_len && NLMSG_OK(m, left); m = NLMSG_NEXT(m, left))
    if (m->nlmsg_type == RTM_NEWLINK) disguise(m);
  return n;
}
