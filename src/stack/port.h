// The lower end that moves frames: mlx5 raw-packet queues, AF_XDP queues, the simulator's link.
#pragma once

#include <array>
#include <cerrno>
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
struct MisdirectedSegment {
  uint32_t seq = 0, ack = 0;
  uint8_t flags = 0;
};

// An open port has three faces: its frames, its steering, its life. One object has all of them; who holds it
// (engine/ports.h) hands each to whom it concerns. Used by one thread at a time (the worker's lock).

/// Frames and sleeping.
class Port {
 public:
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

  /// ns since the epoch, by the device's clock, of a received frame's Packet::timestamp. 0: not known.
  virtual int64_t time_of(uint64_t) const { return 0; }

  virtual const PortInfo& info() const = 0;

 protected:
  ~Port() = default;
};

/// Which frames come: from steer() on those of a flow, arriving on the queues held, come to rx_burst; the
/// rest stays with the kernel. For kTcp a key without remote takes SYNs only (the connections that they open
/// are steered one by one as connected keys); for kUdp every datagram to the local end. Fragments always stay
/// with the kernel.
class FlowSteering {
 public:
  /// Errors: EEXIST (another process holds the key: it shares it where the device has a queue of its own for
  /// us, else this error), EPERM (what the process could prove to its helper first), ENOSPC (table full),
  /// EIO.
  virtual Result<void> steer(const FlowKey& key) = 0;
  /// Of a local end where other processes may receive too: some devices can divide it.
  virtual Result<void> steer_shared(const FlowKey& key) { return steer(key); }
  /// Undoes steer(); unknown keys are ignored.
  virtual void unsteer(const FlowKey& key) = 0;
  /// The local end gets no new frames, as after unsteer(), but connections whose handshake is under way may
  /// be steered yet. Until steer() or unsteer().
  virtual void pause(const FlowKey& key) { unsteer(key); }
  /// A steered connection is in TIME-WAIT: where other processes hold queues of the device, a SYN that comes
  /// in on one of theirs may take the tuple over. Until steer() or unsteer().
  virtual void enter_time_wait(const FlowKey&) {}
  /// On: of this steered TCP key without remote not only SYNs come, but also segments with ACK and without
  /// SYN or RST that no connected key takes (SYN cookies). Until unsteer().
  virtual void take_acks(const FlowKey&, bool) {}
  /// Whether frames of steered connections, of any process, have been dropped since the last call, because
  /// they came on queues of the device that the owner does not hold.
  virtual bool has_misdirected() { return false; }
  /// What came so for this one last, since steer().
  virtual std::optional<MisdirectedSegment> misdirected(const FlowKey&) const { return std::nullopt; }
  /// Each key is a rule of the device. To make one takes CAP_NET_RAW, the helper's where the process has
  /// given it up, and malloc(), so no handler of a signal may; a local end that is taken is another
  /// process's, whatever queues are free.
  virtual bool by_device_rules() const { return false; }

 protected:
  ~FlowSteering() = default;
};

/// What a process leaves to its helper when it gives up its privilege. The descriptors are the port's.
struct PortRights {
  uint32_t owner = 0;  ///< the port's mark
  int ifindex = 0;
  std::array<int, 4> descriptors{-1, -1, -1, -1};  ///< of helper::RequestType::kPort
};

/// What happens to it between its opening and its end.
class PortLife {
 public:
  virtual ~PortLife() = default;

  /// What opening has left out: once, before any use. Needs no privilege (Linux 5.19), and uses the pool, as
  /// opening does not where it leaves this out. EBUSY: all queues are held, to be tried again.
  virtual Result<void> take_queues(std::string*) { return {}; }
  /// In a child after fork(): lets go of descriptors without touching queues or steering, which are still the
  /// parent's. Then destroy the port.
  virtual void abandon_in_child() = 0;

  /// False once the device is gone or failed for good; the reason is then in failure().
  virtual bool alive() const { return true; }
  virtual std::string failure() const { return {}; }
  /// Adds what happened on the device since the last call.
  virtual void count(Counters&) {}
  /// The largest MTU whose frames its buffers hold.
  virtual uint32_t mtu_most() const { return ~0u; }
  /// Frames have come to the device since the port was opened, and not to the port's program. To be believed
  /// when it is said twice: a frame may be on its way from the one to the other.
  virtual bool is_passed_by() { return false; }
  /// It cannot be told yet: the program has not seen enough.
  virtual bool may_be_passed_by() const { return false; }

  /// The netdev has another MAC address.
  virtual void address_changed(const MacAddress&) {}
  /// The process has become another user.
  virtual void user_changed() {}
  /// The port has descriptors by which the process could write to other processes' entries.
  virtual bool has_rights() const { return false; }
  /// The process is about to give up its privilege: what its helper is to have. Again: the same answer.
  virtual Result<PortRights> entrust(std::string*) { return err(EOPNOTSUPP); }
  /// Behind it, after entrust(): closes those descriptors. From here on steer() takes local ends that were
  /// steered at this moment, and what the helper enters; else EPERM.
  virtual void seal() {}
};

}  // namespace accel
