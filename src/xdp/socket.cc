#include "xdp/socket.h"

#include <fcntl.h>
#include <linux/if_xdp.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <cstring>

#include "base/module_fd.h"

namespace accel::xdp {
namespace {

Errno fail(std::string* why, int error, const std::string& text) {
  if (why) *why = text;
  return err(error);
}

Errno explain_umem(std::string* why, int error, const std::string& netdev) {
  switch (error) {
    case EPERM:
    case EACCES:
      return fail(why, EPERM,
                  "not allowed to make an AF_XDP socket for " + netdev + ": the process needs CAP_NET_RAW");
    case EAFNOSUPPORT:
      return fail(why, EAFNOSUPPORT,
                  "no AF_XDP sockets: the kernel lacks CONFIG_XDP_SOCKETS, or the service may not make any "
                  "(systemd: RestrictAddressFamilies=AF_XDP)");
    case ENOBUFS:
      return fail(why, ENOBUFS,
                  "the frame region is larger than RLIMIT_MEMLOCK: raise it (ulimit -l, LimitMEMLOCK=) or "
                  "give CAP_IPC_LOCK");
    default:
      return fail(why, error, std::string("the kernel refused the frame region: ") + std::strerror(error));
  }
}

}  // namespace

Result<void> create_umem(Umem& umem, Queue& first, const std::string& netdev, std::string* why) {
  xsk_umem_config config{};
  config.fill_size = umem.rings.fill;
  config.comp_size = umem.rings.completion;
  config.frame_size = umem.buffer_size;
  const int error = -xsk_umem__create(&umem.handle, umem.region.data(), umem.region.size(), &first.fill,
                                      &first.completion, &config);
  if (error != 0) return explain_umem(why, error, netdev);
  first.fd = xsk_umem__fd(umem.handle);
  note(first.fd, true);
  fcntl(first.fd, F_SETFD, FD_CLOEXEC);
  return {};
}

Result<void> bind_queue(Umem& umem, Queue& queue, const BindOptions& options, std::string* why) {
  xsk_socket_config config{};
  config.rx_size = umem.rings.rx;
  config.tx_size = umem.rings.tx;
  config.libxdp_flags = XSK_LIBXDP_FLAGS__INHIBIT_PROG_LOAD;
  config.bind_flags = options.flags | XDP_USE_NEED_WAKEUP;
  const int error = -xsk_socket__create_shared(&queue.handle, options.netdev.c_str(), queue.id, umem.handle,
                                               &queue.rx, &queue.tx, &queue.fill, &queue.completion, &config);
  if (error == 0) {
    queue.fd = xsk_socket__fd(queue.handle);
    note(queue.fd, true);
    fcntl(queue.fd, F_SETFD, FD_CLOEXEC);
    return {};
  }
  queue.handle = nullptr;
  const std::string name = options.netdev + " queue " + std::to_string(queue.id);
  switch (error) {
    case EBUSY:
      return fail(why, EBUSY, name + " is held by another AF_XDP socket");
    case EPERM:
      return fail(why, EPERM,
                  "not allowed to bind an AF_XDP socket to " + name + ": the process needs CAP_NET_RAW");
    case ENETDOWN:
      return fail(why, ENETDOWN, options.netdev + " is down: ip link set dev " + options.netdev + " up");
    case EOPNOTSUPP:
      return fail(why, EOPNOTSUPP, "the driver of " + options.netdev + " has no AF_XDP zero-copy");
    default:
      return fail(why, error, "cannot bind an AF_XDP socket to " + name + ": " + std::strerror(error));
  }
}

Result<void> hide_rings_from_children(const Queue& queue, const RingSizes& sizes, std::string* why) {
  xdp_mmap_offsets offsets{};
  socklen_t length = sizeof(offsets);
  if (getsockopt(queue.fd, SOL_XDP, XDP_MMAP_OFFSETS, &offsets, &length) != 0 || length != sizeof(offsets))
    return fail(why, EPROTONOSUPPORT, "the kernel's AF_XDP rings are too old (5.4 or later is needed)");
  auto hide = [](void* descriptors, uint64_t offset, uint64_t bytes) {
    return descriptors == nullptr ||
           madvise(static_cast<uint8_t*>(descriptors) - offset, offset + bytes, MADV_DONTFORK) == 0;
  };
  if (hide(queue.fill.ring, offsets.fr.desc, sizes.fill * sizeof(uint64_t)) &&
      hide(queue.completion.ring, offsets.cr.desc, sizes.completion * sizeof(uint64_t)) &&
      hide(queue.rx.ring, offsets.rx.desc, sizes.rx * sizeof(xdp_desc)) &&
      hide(queue.tx.ring, offsets.tx.desc, sizes.tx * sizeof(xdp_desc)))
    return {};
  return fail(why, errno, "cannot keep AF_XDP rings out of child processes (madvise)");
}

bool is_zero_copy(const Queue& queue) {
  xdp_options options{};
  socklen_t length = sizeof(options);
  return getsockopt(queue.fd, SOL_XDP, XDP_OPTIONS, &options, &length) == 0 &&
         (options.flags & XDP_OPTIONS_ZEROCOPY);
}

bool queue_is_bound(int ifindex, uint32_t queue) {
  constexpr size_t kChunk = 4096;
  constexpr int kEntries = 2;
  void* memory = mmap(nullptr, kChunk, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return true;
  bool bound = true;
  if (Fd fd(socket(AF_XDP, SOCK_RAW | SOCK_CLOEXEC, 0)); fd) {
    xdp_umem_reg umem{};
    umem.addr = reinterpret_cast<uintptr_t>(memory);
    umem.len = umem.chunk_size = kChunk;
    auto set = [&](int what, const void* value, socklen_t size) {
      return setsockopt(fd.get(), SOL_XDP, what, value, size) == 0;
    };
    sockaddr_xdp address{};
    address.sxdp_family = AF_XDP;
    address.sxdp_flags = XDP_COPY;
    address.sxdp_ifindex = static_cast<uint32_t>(ifindex);
    address.sxdp_queue_id = queue;
    // Anything but success proves nothing: then the queue counts as bound, and its owner as alive.
    bound = !set(XDP_UMEM_REG, &umem, sizeof(umem)) ||
            !set(XDP_UMEM_FILL_RING, &kEntries, sizeof(kEntries)) ||
            !set(XDP_UMEM_COMPLETION_RING, &kEntries, sizeof(kEntries)) ||
            !set(XDP_RX_RING, &kEntries, sizeof(kEntries)) ||
            bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0;
  }
  munmap(memory, kChunk);
  return bound;
}

}  // namespace accel::xdp
