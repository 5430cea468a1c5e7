// AF_XDP sockets and their UMEM (libxdp's xsk.h), with the errors told apart.
#pragma once

#include <linux/if_xdp.h>
#include <xdp/xsk.h>

#include <memory>
#include <span>
#include <string>

#include "base/result.h"
#include "stack/packet.h"

// Linux 6.6; Debian 12 builds with the headers of 6.1.
#ifndef XDP_USE_SG
#define XDP_USE_SG (1 << 4)
#endif
#ifndef XDP_PKT_CONTD
#define XDP_PKT_CONTD (1 << 0)
#endif

namespace accel::xdp {

struct RingSizes {
  uint32_t fill, completion, rx, tx;
};

/// The pool's region as the kernel knows it. Outlives its sockets.
struct Umem {
  xsk_umem* handle = nullptr;
  std::span<uint8_t> region;
  uint32_t buffer_size = 0;
  RingSizes rings{};
};

/// One queue's socket, its four rings, and where we are in them.
struct Queue {
  uint32_t id = 0;
  xsk_socket* handle = nullptr;
  int fd = -1;
  xsk_ring_prod fill{};
  xsk_ring_cons completion{};
  xsk_ring_cons rx{};
  xsk_ring_prod tx{};
  uint32_t filled = 0;         ///< buffers in the fill ring or on their way into the rx ring
  uint32_t fill_level = 0;     ///< what `filled` is brought up to
  bool may_have_lost = false;  ///< frames: the kernel's numbers are to be read
  uint32_t largest_burst = 0, epoch_frames = 0;  ///< received since fill_level was fitted
  uint32_t sent = 0;                             ///< buffers submitted and not completed
  bool kick = false;                             ///< the kernel has not taken all of the tx ring
  Packet* chain = nullptr;                       ///< a received frame whose last buffers are still to come
  Packet* chain_end = nullptr;
};

/// Registers the region and makes the socket and two rings of the first queue, which must be the first to be
/// bound.
Result<void> create_umem(Umem& umem, Queue& first, const std::string& netdev, std::string* why);

struct BindOptions {
  std::string netdev;
  uint16_t flags = 0;  ///< XDP_COPY, XDP_ZEROCOPY, XDP_USE_SG
};
/// Makes the socket of queue.id. EBUSY: another socket has the queue; `queue` can be tried on another number.
Result<void> bind_queue(Umem& umem, Queue& queue, const BindOptions& options, std::string* why);

/// Keeps the rings (those that there are) out of children: they would hold the socket, and so the queue,
/// after the parent's end.
Result<void> hide_rings_from_children(const Queue& queue, const RingSizes& sizes, std::string* why);

bool is_zero_copy(const Queue& queue);

/// Whether some process has a socket on the queue, found out by trying to bind one.
bool queue_is_bound(int ifindex, uint32_t queue);

}  // namespace accel::xdp
