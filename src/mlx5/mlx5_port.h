// The port on ConnectX raw-packet queues as the engine sees it. Opening it loads libaccel-mlx5.so, and with
// it libibverbs and libmlx5; nothing of them is in the process before.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/flow_rule.h"
#include "mlx5/lack.h"
#include "stack/frame_pool.h"
#include "stack/port.h"

namespace accel {

struct Mlx5Options {
  std::string netdev;
  int ifindex = 0;
  uint32_t mtu = 1500;
  MacAddress mac{};
  uint32_t rx_ring = 2048;  ///< descriptors, powers of two
  uint32_t tx_ring = 2048;
  uint32_t inline_bytes = 204;                 ///< frames up to this travel in their descriptor
  uint32_t tx_batch = 64;                      ///< descriptors to one completion
  bool multi_packet = true;                    ///< several small frames in a descriptor, where the device can
  bool striding = false;                       ///< a striding receive queue, where the device can
  bool cqe_compression = false;                ///< receive completions compressed, where the device can
  uint32_t moderation_count = 0;               ///< frames before a sleeper is woken ...
  uint32_t moderation_usec = 0;                ///< ... or microseconds; 0: at once
  void (*report)(const char* text) = nullptr;  ///< events that an operator should know
  /// Told of each descriptor that the port opens, and just before it is closed.
  void (*note_descriptor)(int fd, bool open) = nullptr;
  /// Has a rule made for a process that has given CAP_NET_RAW up; `device`: the descriptor of its file. Gives
  /// the rule's handle.
  Result<int> (*make_rule)(const FlowRule& rule, int device) = nullptr;
  /// The process is about to become another user.
  bool (*user_changes)() = nullptr;
  /// The calling thread must not make or remove rules now: libibverbs takes malloc() for them, and a handler
  /// may have interrupted that.
  bool (*rules_barred)() = nullptr;
  /// Whether the kernel has a TCP connection of that tuple.
  bool (*kernel_has)(const Endpoint& local, const Endpoint& remote) = nullptr;
};

struct Mlx5Stats {
  uint64_t recoveries = 0;    ///< times that error completions had the queues reset
  uint64_t rx_refused = 0;    ///< frames of impossible length, or longer than their buffers
  uint64_t rx_no_buffer = 0;  ///< refills that found the pool empty
  uint64_t tx_refused = 0;    ///< frames that no descriptor can hold
  uint64_t to_kernel = 0;     ///< frames that came by our rules and were the kernel's: given to it
  uint64_t to_kernel_failed = 0;
  uint64_t other_host = 0;                      ///< frames that were neither: for another MAC address
  uint64_t rules = 0;                           ///< steering rules in the device now
  uint64_t shares_taken = 0, shares_given = 0;  ///< of local ends that other processes have too
};

/// One raw-packet queue pair on the netdev's RDMA device; its memory region is the pool's.
///
/// Every frame of a flow that is steered comes here, whatever receive queue of the netdev it would have gone
/// to: queues_held and queues_total are both 1. What a listener's rule brings and is the kernel's (segments
/// of its own connections, fragments) goes back to it by a raw socket. ICMP errors come to the kernel; copies
/// come here.
///
/// A local end where other processes may receive too is divided among them (shares.h); who refused to share
/// one is asked again by user_changed(). Rules do not match the MAC address: what comes for another host's is
/// dropped, as are frames of an MTU above mtu_most().
///
/// An error completion resets the queues: frames under way are lost, connections go on by retransmission.
class Mlx5Port : public Port, public FlowSteering, public PortLife {
 public:
  /// Loads libaccel-mlx5.so, libibverbs and the driver of each RDMA device, which open() does otherwise;
  /// where the host has no RDMA device, nothing. False: why is appended to.
  static bool load_module(std::string& why);

  /// Whether open() would try: else it says ENODEV.
  static bool can_serve(const std::string& netdev, int ifindex);
  /// Errors, each with cause and cure in *why: the errno of what lacked. ENODEV: the netdev is not an mlx5
  /// one.
  static Result<std::unique_ptr<Mlx5Port>> open(const Mlx5Options& options, FramePool& pool,
                                                std::string* why);

  virtual Mlx5Stats stats() const = 0;
};

}  // namespace accel
