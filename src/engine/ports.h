// Opening the port of a netdev.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "base/counters.h"
#include "engine/helper_client.h"
#include "engine/netlink.h"
#include "engine/path.h"
#include "stack/frame_pool.h"
#include "stack/port.h"

namespace accel {

/// The three faces of one port, which it owns; or none.
class PortFaces {
 public:
  PortFaces() = default;
  template <class P>
  explicit PortFaces(std::unique_ptr<P> port)
      : frames_(port.get()), flows_(port.get()), life_(std::move(port)) {}

  explicit operator bool() const { return life_ != nullptr; }
  Port* frames() const { return life_ ? frames_ : nullptr; }
  FlowSteering* flows() const { return life_ ? flows_ : nullptr; }
  PortLife* life() const { return life_.get(); }

 private:
  Port* frames_ = nullptr;
  FlowSteering* flows_ = nullptr;
  std::unique_ptr<PortLife> life_;
};

struct OpenedPort {
  PortFaces port;
  PathKind kind = PathKind::kUndecided;
  Reason reason = Reason::accelerated;  ///< why not, when there is no port
  std::string detail;                   ///< cause and cure, for the log
  uint32_t entrusted = 0;               ///< the port's mark, if the helper writes to its device's maps
};

/// The engine's parts that ports ask for, within their own functions.
struct PortServices {
  HelperClient& helper;
  Counters& counters;
  const std::atomic<bool>& keeping_ready;  ///< PortOpening::keeps_ready()
};
/// nullptr: there are none (any more), and ports do without.
void serve_ports(const PortServices* services);

/// `queues`: how many to hold, 0: all that are free. Tries the kinds of port from the fastest on.
using PortOpener = OpenedPort (*)(const Link& link, uint32_t queues, FramePool& pool);
extern PortOpener open_port;  ///< tests put their own here before the engine opens

/// Loads the modules that opening a port would load. False: why is appended to.
bool load_port_modules(std::string& why);

/// As open_port, in two steps. The first has the parts of AF_XDP that take long, and needs no lock: it does
/// not use the pool. The second does the rest.
OpenedPort begin_port(const Link& link, uint32_t queues, FramePool& pool);
void complete_port(OpenedPort& begun, const Link& link, uint32_t queues, FramePool& pool);

/// An AF_XDP port that has all that takes privilege and no queue; take_queues() is to give it one. No port:
/// `reason`.
OpenedPort open_ready_port(const Link& link, uint32_t queues, FramePool& pool);
/// `reason` tells: accelerated, or no_queue (to be tried again), or what else failed: then the port is gone.
void take_queues(OpenedPort& ready);

/// For VLANs upon the device: a port that carries tagged frames (PortInfo::vlan_tags), if it can have one.
OpenedPort open_tagging_port(const Link& link, FramePool& pool);

/// The process is about to give up its privilege: the helper gets what it needs to write to the device's
/// maps for it (PortLife::entrust()).
void entrust(OpenedPort& opened, HelperClient& helper);
/// Behind it: see PortLife::seal(). Where that cannot be, the process keeps write access, and the log says so
/// once.
void seal(OpenedPort& opened);
/// For the port's key, which it has refused with EPERM: `socket` is bound there, which the helper looks at.
/// False: it has not agreed.
bool prove_end(const OpenedPort& opened, HelperClient& helper, const FlowKey& key, int socket);

/// Gives a port up in a forked child, without a trace on the device.
void abandon_port(OpenedPort& port);
/// In a process that has no privilege: closes what abandon_port() kept.
void forget_inherited_ports();

/// Whether a port can make sense on the device at all: Ethernet, and frames arrive on it itself.
bool carries_frames(const Link& link);

}  // namespace accel
