#include "engine/ports.h"

#include "base/config.h"
#include "xdp/xdp_port.h"

namespace accel {
namespace {

Reason reason_of(Errno error) {
  switch (static_cast<int>(error)) {
    case EPERM:
    case EACCES:
      return Reason::no_privilege;
    case EBUSY:
      return Reason::no_queue;
    case ENOMEM:
    case ENOBUFS:
    case EMFILE:
      return Reason::resources;
    default:
      return Reason::port_failed;
  }
}

OpenedPort open_xdp(const Link& link, uint32_t queues, FramePool& pool) {
  const Settings& settings = config().settings;
  XdpOptions options;
  options.netdev = link.name;
  options.queues = queues;
  options.rx_ring = settings.rx_ring;
  options.tx_ring = settings.tx_ring;
  if (settings.xdp_mode == XdpMode::kZerocopy) options.copy = XdpCopy::kForceZeroCopy;
  if (settings.xdp_mode == XdpMode::kCopy) options.copy = XdpCopy::kForceCopy;
  options.force_generic = settings.xdp_mode == XdpMode::kGeneric;
  OpenedPort opened;
  opened.kind = PathKind::kXdp;
  auto port = XdpPort::open(options, pool, &opened.detail);
  if (port)
    opened.port = std::move(*port);
  else
    opened.reason = reason_of(port.error());
  return opened;
}

/// The mlx5 port goes before AF_XDP here, for devices of that driver.
OpenedPort open_fastest(const Link& link, uint32_t queues, FramePool& pool) {
  return open_xdp(link, queues, pool);
}

}  // namespace

PortOpener open_port = open_fastest;

void abandon_port(OpenedPort& opened) {
  if (auto* xdp = dynamic_cast<XdpPort*>(opened.port.get())) {
    xdp->abandon_in_child();
    opened.port.reset();
  } else {
    (void)opened.port.release();  // of another kind: its destructor might touch the device
  }
}

bool carries_frames(const Link& link) {
  if (!link.ethernet || link.loopback || link.master != 0) return false;
  return link.kind.empty() || link.kind == "veth" || link.kind == "tun";
}

}  // namespace accel
