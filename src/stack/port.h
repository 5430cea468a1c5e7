// The lower end that moves frames: mlx5 raw-packet queues, AF_XDP queues, the simulator's link.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/ip.h"
#include "base/result.h"
#include "stack/packet.h"

namespace accel {

class Counters;  // base/counters.h

using MacAddress = std::array<uint8_t, 6>;

/// What a port offers; fixed once it is open, but for tso, which the port
/// may take back.
struct PortInfo {
  std::string name;  ///< netdev, "eth0"
  int ifindex = 0;
  MacAddress mac{};
  uint32_t mtu = 1500;        ///< bytes of an IP packet, when it was opened: the engine follows the device's
  uint32_t queues_held = 1;   ///< queues of the device that this port receives on
  uint32_t queues_total = 1;  ///< queues of the device that packets may arrive on
  bool zero_copy = false;
  bool told_by_call = false;        ///< tx_burst() costs a system call: frames had better come in bursts
  bool tx_checksum = false;         ///< honours Packet::checksum_offload
  bool tso = false;                 ///< honours Packet::tso_size
  bool vlan_tags = false;           ///< minds FlowKey::vlan, and sends and receives tagged frames as they are
  bool kernel_sees_errors = false;  ///< ICMP errors come here and to the kernel as well
  bool kernel_has_stamps =
      false;  ///< the kernel tells hardware time stamps of received frames, this port none
  uint32_t tso_max =
      kTsoPayload;  ///< TCP payload of such a frame at most; beyond 64 KiB IP's length field is not looked at
};

/// A TCP segment that was dropped: what is known of it, in host byte order. `flags`: TH_*.
struct StraySegment {
  uint32_t seq = 0, ack = 0;
  uint8_t flags = 0;
};

/// Two verbs for frames; the rest is for sleeping. Used by one thread at a time (the worker's lock).
class Port {
 public:
  virtual ~Port() = default;

  /// Fills `out` with received frames (whole chains); returns how many. The caller owns them. Refills the
  /// device's receive ring from the pool as far as the pool allows.
  virtual size_t rx_burst(std::span<Packet*> out) = 0;

  /// Sends frames in order; returns how many it took (it owns those, and releases them when the device is
  /// done). The caller keeps the rest and offers them again. The device has been told when this returns
  /// (but for defer_telling).
  virtual size_t tx_burst(std::span<Packet* const> frames) = 0;

  /// On: the device may be told later, without the lock, for processes whose threads would wait for the lock
  /// meanwhile. Before the lock is let go begin_telling() is asked, and where that is true tell() follows.
  virtual void defer_telling(bool) {}
  virtual bool begin_telling() { return false; }
  /// Without the lock, beside all other calls. False: the device did not take everything; the next rx_burst()
  /// or arm() has it told again.
  virtual bool tell() { return true; }

  /// Descriptors that turn readable when rx_burst would find something after arm().
  virtual std::span<const int> poll_fds() const = 0;

  /// Asks the device for a wake-up, and takes the events of earlier ones: after a sleep it is called before
  /// the next. False: frames are already waiting, do not sleep.
  virtual bool arm() = 0;

  /// Frames that tx_burst took and that were then dropped before the wire, since the last call.
  virtual uint64_t take_tx_dropped() { return 0; }

  /// Adds what happened on the device since the last call.
  virtual void count(Counters&) {}

  /// ns since the epoch, by the device's clock, of a received frame's Packet::timestamp. 0: not known.
  virtual int64_t time_of(uint64_t) const { return 0; }

  /// False once the device is gone or failed for good; the reason is then in failure().
  virtual bool alive() const { return true; }
  virtual std::string failure() const { return {}; }

  virtual const PortInfo& info() const = 0;

  /// Steering: from now on frames of this flow, arriving on the queues held, come to rx_burst; the rest stays
  /// with the kernel. For kTcp a key without remote takes SYNs only (the connections that they open are
  /// steered one by one as connected keys); for kUdp every datagram to the local end. Fragments always stay
  /// with the kernel. Errors: EEXIST (another process holds the key: it shares it where the device has a
  /// queue of its own for us, else this error), ENOSPC (table full), EIO.
  virtual Result<void> steer(const FlowKey& key) = 0;
  /// Undoes steer(); unknown keys are ignored.
  virtual void unsteer(const FlowKey& key) = 0;
  /// The local end gets no new frames, as after unsteer(), but connections whose handshake is under way may
  /// be steered yet. Until steer() or unsteer().
  virtual void pause(const FlowKey& key) { unsteer(key); }
  /// A steered connection is in TIME-WAIT: where other processes hold queues of the device, a SYN that comes
  /// in on one of theirs may take the tuple over. Until steer() or unsteer().
  virtual void rest(const FlowKey&) {}
  /// On: of this steered TCP key without remote not only SYNs come, but also segments with ACK and without
  /// SYN or RST that no connected key takes (SYN cookies). Until unsteer().
  virtual void take_acks(const FlowKey&, bool) {}
  /// Whether frames of steered connections, of any process, have been dropped since the last call, because
  /// they came on queues of the device that the owner does not hold.
  virtual bool has_strays() { return false; }
  /// What came so for this one last, since steer().
  virtual std::optional<StraySegment> strayed(const FlowKey&) const { return std::nullopt; }
};

}  // namespace accel
