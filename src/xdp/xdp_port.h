// The AF_XDP port as the engine sees it. Opening it loads libaccel-xdp.so; nothing of libbpf and libxdp is in
// the process before.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "stack/frame_pool.h"
#include "stack/port.h"

namespace accel {

enum class XdpCopy : uint8_t { kAuto, kForceCopy, kForceZeroCopy };

struct XdpOptions {
  std::string netdev;       ///< name in the caller's network namespace
  uint32_t queues = 0;      ///< queues to hold; 0: all that are free
  uint32_t rx_ring = 2048;  ///< descriptors of a queue, powers of two
  uint32_t tx_ring = 2048;
  uint32_t flow_table =
      262144;  ///< flows the netdev's table can hold; counts for the first port on the netdev only
  XdpCopy copy =
      XdpCopy::kAuto;  ///< kAuto: generic mode where that is faster (netdev.h), else the best there is
  void (*note_descriptor)(int fd, bool open) =
      nullptr;                  ///< told of each that is opened, and just before it is closed
  bool segmentation = true;     ///< in copy mode: the kernel cuts frames with Packet::tso_size
  bool force_generic = false;   ///< attach in generic (SKB) mode even where the driver could
  bool native_only = false;     ///< frames come past the generic hook: see PortLife::is_passed_by()
  bool virtual_device = false;  ///< its driver cannot take buffers of ours (zero copy)
  bool without_queue = false;   ///< all that takes privilege and time, and no queue: take_queues() follows
  bool even_if_held = false;    ///< with that: also where all queues are held now
  /// take_queues() once the port is sealed: the helper enters the socket for the port `owner`.
  Result<void> (*claim_queue)(uint32_t owner, uint32_t queue, int socket) = nullptr;
};

struct XdpStats {
  uint64_t redirected = 0;  ///< frames that the program handed to sockets (all processes on the netdev)
  uint64_t dropped_other_queue =
      0;                      ///< frames of connected flows on a queue that their owner does not hold (ditto)
  uint64_t rx_dropped = 0;    ///< this port: frame too long, or no room
  uint64_t rx_ring_full = 0;  ///< this port: rx_burst came too late
  uint64_t fill_ring_empty = 0;  ///< this port: the pool had no buffer to give
  uint64_t tx_invalid = 0;       ///< this port: descriptors the kernel refused
};

/// Bytes of a receive buffer that are not for the packet: what the kernel keeps for itself at its start
/// (XDP_PACKET_HEADROOM), Ethernet, and one VLAN tag.
constexpr uint32_t kBufferOverhead = 256 + 18;

/// The smaller of the sizes that AF_XDP has, 2048 and 4096, if it holds a packet of `mtu` bytes.
constexpr uint32_t least_buffer(uint32_t mtu) { return mtu + kBufferOverhead <= 2048 ? 2048 : 4096; }

/// One AF_XDP socket for each queue held, all on one UMEM. The kernel pins that at once and can add nothing
/// later. Where it copies frames the UMEM is a part of the pool's region that this port has for itself, a few
/// hundred buffers for each queue, what the rings need; received frames that stay, and frames to send, may
/// lie in the pool's other buffers, which cost a copy here. A driver that takes the buffers themselves (zero
/// copy) has all.
///
/// The region must be a shared mapping (MAP_SHARED | MAP_ANONYMOUS, or a memfd): the kernel pins its pages,
/// and after a fork a private mapping's next write would give the parent other pages than those the kernel
/// fills. buffer_size: 2048 or 4096 (least_buffer()).
///
/// A frame leaves by the queue number hash(its two ports) mod queues_held, counted among the queues held: a
/// flow stays in order on one queue, and both its directions hash alike.
///
/// poll_fds turn readable for received frames. A frame that the kernel could not take yet (EAGAIN) is offered
/// to it again by the next rx_burst, tx_burst or arm; arm() is false meanwhile.
///
/// In copy mode frames with Packet::tso_size leave by a packet socket (PortInfo::tso), in order with the
/// rest, where netdev.h's conditions hold.
///
/// Frames pass by where they come by a redirect of tc, which the generic hook leaves alone
/// (netif_receive_generic_xdp()), as those of bpf_redirect_peer() pass by the native one of veth.
///
/// A process that gives up its privilege keeps no descriptor by which it could write to other processes'
/// entries in the netdev's maps (docs/security.md, "The steering maps"): entrust() makes a program that
/// writes for this port, which takes Linux 6.1, and gives the link that keeps the XDP program attached, and
/// the maps accel_xsks, accel_owners and accel_ends (flow_abi.h).
///
/// After abandon_in_child() the netdev's program stays known, so that the child can open ports of its own
/// beside the parent without CAP_SYS_ADMIN.
///
/// steer() wants exact local addresses: the engine makes a key for each address of a wildcard.
class XdpPort : public Port, public FlowSteering, public PortLife {
 public:
  /// Errors, each with its cause and cure in *why: ENOENT (no such netdev), EPERM (which capability), EBUSY
  /// (all queues are held by others), EEXIST (foreign XDP program), ENOTUNIQ (native_only, and the device
  /// has the program on its generic hook), EPROTONOSUPPORT (kernel without AF_XDP),
  /// ENOBUFS (RLIMIT_MEMLOCK), EINVAL (buffer size and MTU), ELIBACC (libaccel-xdp.so cannot be loaded), or
  /// the kernel's.
  static Result<std::unique_ptr<XdpPort>> open(const XdpOptions& options, FramePool& pool, std::string* why);

  /// Loads libaccel-xdp.so, which open() does otherwise. False: why is appended to.
  static bool load_module(std::string& why);

  /// False: the kernel's generic mode is used.
  virtual bool native() const = 0;
  virtual XdpStats stats() const = 0;

  /// In a process that has no privilege: closes what abandon_in_child() kept. Loads nothing.
  static void forget_inherited();
};

}  // namespace accel
