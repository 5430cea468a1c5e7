// Opening the port of a netdev.
#pragma once

#include <memory>
#include <string>

#include "engine/engine.h"
#include "engine/guardian.h"
#include "engine/netlink.h"
#include "stack/frame_pool.h"
#include "stack/port.h"

namespace accel {

struct OpenedPort {
  std::unique_ptr<Port> port;
  PathKind kind = PathKind::kUndecided;
  Reason reason = Reason::accelerated;  ///< why not, when there is no port
  std::string detail;                   ///< cause and cure, for the log
  uint32_t mtu_most = ~0u;              ///< opened anew when the device has a larger one
  uint32_t entrusted = 0;               ///< the port's mark, if the guardian writes to its device's maps
};

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

/// Port::steer() of a local end where other processes may receive too: some ports can divide it.
Result<void> steer_shared(Port& port, const FlowKey& key);

/// The process has become another user: some ports ask again who shares local ends with it.
void tell_of_user(Port& port);

/// The process is about to give up its privilege: the guardian gets what it needs to write to the device's
/// maps for it (XdpPort::entrust()). Nothing to do for other kinds of port.
void entrust(OpenedPort& opened, Guardian& guardian);
/// Behind it: see XdpPort::seal(). Where that cannot be, the process keeps write access, and the log says so
/// once.
void seal(OpenedPort& opened);
/// For the port's key, which it has refused with EPERM: `socket` is bound there, which the guardian looks at.
/// False: it has not agreed.
bool prove_end(const OpenedPort& opened, Guardian& guardian, const FlowKey& key, int socket);

/// The netdev has this MAC address now.
void tell_of_address(Port& port, const MacAddress& mac);

/// Gives a port up in a forked child, without a trace on the device.
void abandon_port(OpenedPort& port);

/// Frames come to the device, and none of them to its XDP program, since the port was opened. To be believed
/// when it is said twice: a frame may be on its way from the one to the other.
bool is_passed_by(Port& port);
/// It cannot be told yet.
bool may_be_passed_by(Port& port);

/// Whether a port can make sense on the device at all: Ethernet, and frames arrive on it itself.
bool carries_frames(const Link& link);

}  // namespace accel
