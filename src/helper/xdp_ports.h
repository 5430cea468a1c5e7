// AF_XDP ports of a process that has given up its privilege: the helper has the descriptors by which their
// netdevs' maps can be written (PortRights), and enters what the process proves to be its own.
// Freestanding.
#pragma once

#include <linux/bpf.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdint>

#include "helper/freestanding.h"
#include "helper/local_ends.h"
#include "helper/privileged_request.h"
#include "helper/shown_socket.h"
#include "xdp/flow_abi.h"

namespace accel::helper {

class XdpPorts {
 public:
  /// Keeps the descriptors: `fds` has none of them any more. 0, or a negative errno value.
  long add(const PrivilegedRequest& request, int (&fds)[kMostDescriptors]) {
    for (const int fd : fds)
      if (fd < 0) return -EBADF;
    if (find(request.rule.tag) != nullptr) return 0;
    if (count_ == kMost) return -ENOSPC;
    Port& port = ports_[count_++];
    port.owner = request.rule.tag;
    port.ifindex = request.value;
    for (int i = 0; i < kMostDescriptors; ++i) {
      port.fds[i] = fds[i];
      fds[i] = -1;
    }
    return 0;
  }

  long add_end(const PrivilegedRequest& request, int socket) const {
    const Port* port = find(request.rule.tag);
    if (port == nullptr || !is_bound_there(socket, request.rule, *port)) return -EPERM;
    accel_flow_key key{};
    key.protocol = request.rule.protocol;
    key.local_port = __builtin_bswap16(request.rule.local_port);
    key.remote_port = __builtin_bswap16(request.rule.remote_port);
    memcpy(key.local, request.rule.local, sizeof key.local);
    memcpy(key.remote, request.rule.remote, sizeof key.remote);
    const uint32_t there = 1;
    return update(port->fds[kEnds], &key, &there, BPF_ANY);
  }

  /// The kernel keeps a socket from another queue's frames (xsk_rcv_check()) and takes it out when it goes.
  /// So a place that is free may be given to whoever asks. What a dead port left is to match no longer before
  /// the socket is there.
  long claim(const PrivilegedRequest& request, int socket) const {
    const Port* port = find(request.rule.tag);
    const auto queue = static_cast<uint32_t>(request.value);
    if (port == nullptr || socket < 0) return -EPERM;
    if (const long taken = enter(*port, queue, socket)) return taken;
    remove(port->fds[kXsks], &queue);
    if (const long failed = update(port->fds[kOwners], &queue, &port->owner, BPF_ANY)) return failed;
    return enter(*port, queue, socket);
  }

  void close_all() {
    for (; count_ > 0; --count_)
      for (const int fd : ports_[count_ - 1].fds) call(SYS_close, fd);
  }

 private:
  static constexpr size_t kMost = 64;
  enum { kLink, kXsks, kOwners, kEnds };
  struct Port {
    uint32_t owner = 0;
    int ifindex = 0;
    int fds[kMostDescriptors] = {};
  };

  const Port* find(uint32_t owner) const {
    for (size_t i = 0; i < count_; ++i)
      if (ports_[i].owner == owner) return &ports_[i];
    return nullptr;
  }

  /// A listening or UDP socket has its local end. A TCP socket that does not listen may share it with another
  /// user's (SO_REUSEADDR), so it proves one connection.
  static bool is_bound_there(int fd, const FlowRule& rule, const Port& port) {
    const LocalEnd end = LocalEnd::of(rule);
    const bool one_connection = rule.remote_port != 0;
    if (fd < 0 || end.port == 0 || option_of(fd, SOL_SOCKET, SO_PROTOCOL) != rule.protocol) return false;
    const int domain = option_of(fd, SOL_SOCKET, SO_DOMAIN);
    if ((domain != AF_INET && domain != AF_INET6) || !is_of_own_network(fd)) return false;
    const int device = option_of(fd, SOL_SOCKET, SO_BINDTOIFINDEX);
    if (device != 0 && device != port.ifindex) return false;
    if (!has_port(fd, domain) || !is_at(fd, end)) return false;
    if (!is_of_this_host(end, static_cast<uint32_t>(port.ifindex))) return false;
    if (rule.protocol == IPPROTO_UDP) return true;
    if (rule.protocol != IPPROTO_TCP) return false;
    const int state = state_of(fd);
    return state == kTcpListen || (state == kTcpClose && one_connection);
  }

  static long update(int map, const void* key, const void* value, uint64_t flags) {
    bpf_attr attributes{};
    attributes.map_fd = static_cast<uint32_t>(map);
    attributes.key = reinterpret_cast<uintptr_t>(key);
    attributes.value = reinterpret_cast<uintptr_t>(value);
    attributes.flags = flags;
    return call(SYS_bpf, BPF_MAP_UPDATE_ELEM, &attributes, sizeof attributes);
  }
  static void remove(int map, const void* key) {
    bpf_attr attributes{};
    attributes.map_fd = static_cast<uint32_t>(map);
    attributes.key = reinterpret_cast<uintptr_t>(key);
    call(SYS_bpf, BPF_MAP_DELETE_ELEM, &attributes, sizeof attributes);
  }
  static long enter(const Port& port, uint32_t queue, int socket) {
    const auto fd = static_cast<uint32_t>(socket);
    const long entered = update(port.fds[kXsks], &queue, &fd, BPF_NOEXIST);
    return entered == -EEXIST ? -EBUSY : entered;
  }

  Port ports_[kMost] = {};
  size_t count_ = 0;
};

}  // namespace accel::helper
