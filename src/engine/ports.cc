#include "engine/ports.h"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <string_view>

#include "base/config.h"
#include "base/kernel_tcp.h"
#include "base/log.h"
#include "base/private_fds.h"
#include "base/start_paths.h"
#include "engine/lock.h"
#include "mlx5/mlx5_port.h"
#include "xdp/xdp_port.h"

namespace accel {
namespace {

Reason reason_of(Errno error) {
  switch (static_cast<int>(error)) {
    case EPERM:
    case EACCES:
      return Reason::no_privilege;
    case EAFNOSUPPORT:
      return Reason::no_xdp;
    case EBUSY:
      return Reason::no_queue;
    case ENOTUNIQ:
      return Reason::redirected;
    case ENOMEM:
    case ENOBUFS:
    case EMFILE:
      return Reason::resources;
    case ELIBACC:
      return start_paths_changed() != nullptr ? Reason::root_changed : Reason::port_failed;
    default:
      return Reason::port_failed;
  }
}

std::atomic<const PortServices*> services{nullptr};

enum class Queues : uint8_t { kTake, kLater, kLaterEvenIfHeld };

Result<void> claim_queue_by_helper(uint32_t owner, uint32_t queue, int socket) {
  const PortServices* given = services.load(std::memory_order_acquire);
  if (given == nullptr) return err(EPERM);
  helper::PrivilegedRequest request{helper::RequestType::kQueue, static_cast<int32_t>(queue), 0, {}, {}};
  request.rule.tag = owner;
  if (const auto claimed = given->helper.run(request, socket); !claimed) return claimed.error();
  return {};
}

OpenedPort open_xdp(const Link& link, uint32_t queues, FramePool& pool, Queues take = Queues::kTake) {
  const Settings& settings = config().settings;
  XdpOptions options;
  options.netdev = link.name;
  options.queues = queues;
  options.rx_ring = settings.rx_ring;
  options.tx_ring = settings.tx_ring;
  options.segmentation = settings.tso;
  options.note_descriptor = &note_private;
  options.native_only = link.passed_by;
  options.virtual_device = !link.kind.empty();
  options.without_queue = take != Queues::kTake;
  options.even_if_held = take == Queues::kLaterEvenIfHeld;
  options.claim_queue = &claim_queue_by_helper;
  if (settings.xdp_mode == XdpMode::kZerocopy) options.copy = XdpCopy::kForceZeroCopy;
  if (settings.xdp_mode == XdpMode::kCopy) options.copy = XdpCopy::kForceCopy;
  // Native XDP on a bond runs on its members, from where no frame may go to a socket of the bond
  // (xsk_rcv_check).
  options.force_generic = settings.xdp_mode == XdpMode::kGeneric || link.kind == "bond";
  OpenedPort opened;
  opened.kind = PathKind::kXdp;
  if (options.native_only && options.force_generic) {
    opened.reason = Reason::redirected;
    opened.detail =
        "frames come past its generic XDP hook, and another is not allowed (xdp_mode) or not there";
    return opened;
  }
  const MakingPrivate making;
  auto port = XdpPort::open(options, pool, &opened.detail);
  if (port) {
    opened.port = PortFaces(std::move(*port));
  } else {
    opened.reason = reason_of(port.error());
  }
  return opened;
}

/// Called with the engine's lock held, by the port.
void report_mlx5(const char* text) {
  log(LogLevel::kWarning, "%s", text);
  if (const PortServices* given = services.load(std::memory_order_acquire))
    given->counters.add(Counter::port_errors);
}

bool user_changes() {
  const PortServices* given = services.load(std::memory_order_acquire);
  return given != nullptr && given->keeping_ready.load(std::memory_order_relaxed);
}

/// For a process without CAP_NET_RAW; `device`: of its file. Gives the rule's handle.
Result<int> make_rule_by_helper(const FlowRule& rule, int device) {
  const PortServices* given = services.load(std::memory_order_acquire);
  if (given == nullptr) return err(EPERM);
  return given->helper.run({helper::RequestType::kRule, 0, 0, {}, rule}, device);
}

bool kernel_has(const Endpoint& local, const Endpoint& remote) {
  return kernel_tcp_state(local, remote).has_value();
}

OpenedPort open_mlx5(const Link& link, FramePool& pool) {
  const Settings& settings = config().settings;
  Mlx5Options options;
  options.netdev = link.name;
  options.ifindex = link.ifindex;
  options.mtu = link.mtu;
  options.mac = link.mac;
  options.rx_ring = settings.rx_ring;
  options.tx_ring = settings.tx_ring;
  options.inline_bytes = settings.mlx5_inline;
  options.tx_batch = settings.mlx5_tx_batch;
  options.multi_packet = settings.mlx5_multi_packet;
  options.striding = settings.mlx5_striding_rq;
  options.cqe_compression = settings.mlx5_cqe_compression;
  options.moderation_count = settings.mlx5_moderation_count;
  options.moderation_usec = settings.mlx5_moderation_usec;
  options.report = &report_mlx5;
  options.note_descriptor = &note_private;
  options.make_rule = &make_rule_by_helper;
  options.user_changes = &user_changes;
  options.rules_barred = &in_handler;
  options.kernel_has = &kernel_has;
  OpenedPort opened;
  opened.kind = PathKind::kMlx5;
  auto port = Mlx5Port::open(options, pool, &opened.detail);
  if (port) {
    opened.port = PortFaces(std::move(*port));
  } else {
    opened.reason = port.is(ENODEV) ? Reason::no_port : reason_of(port.error());
  }
  return opened;
}

void note_no_mlx5(const Link& link, const OpenedPort& opened) {
  if (opened.reason != Reason::no_port)
    log(LogLevel::kInfo, "%s: no mlx5 port, AF_XDP is tried: %s", link.name.c_str(), opened.detail.c_str());
}

/// mlx5 where the device has it, then AF_XDP. A test that requires one kind does not get the other.
OpenedPort open_fastest(const Link& link, uint32_t queues, FramePool& pool) {
  const Require require = config().settings.require;
  if (require != Require::kXdp) {
    OpenedPort opened = open_mlx5(link, pool);
    if (opened.port || require == Require::kMlx5) return opened;
    note_no_mlx5(link, opened);
  }
  return open_xdp(link, queues, pool);
}

}  // namespace

PortOpener open_port = open_fastest;

void serve_ports(const PortServices* given) { services.store(given, std::memory_order_release); }

bool load_port_modules(std::string& why) {
  const Require require = config().settings.require;
  const bool mlx5 = require == Require::kXdp || Mlx5Port::load_module(why);
  return (require == Require::kMlx5 || XdpPort::load_module(why)) && mlx5;
}

OpenedPort open_ready_port(const Link& link, uint32_t queues, FramePool& pool) {
  return open_xdp(link, queues, pool, Queues::kLaterEvenIfHeld);
}

OpenedPort begin_port(const Link& link, uint32_t queues, FramePool& pool) {
  // mlx5 makes its queues of the pool's buffers as it opens.
  if (open_port != open_fastest || Mlx5Port::can_serve(link.name, link.ifindex)) return {};
  return open_xdp(link, queues, pool, Queues::kLater);
}

void complete_port(OpenedPort& begun, const Link& link, uint32_t queues, FramePool& pool) {
  if (begun.kind == PathKind::kUndecided) {
    begun = open_port(link, queues, pool);
  } else if (begun.port) {
    take_queues(begun);
    if (begun.reason != Reason::accelerated) begun.port = {};
  }
}

void take_queues(OpenedPort& ready) {
  const MakingPrivate making;
  const auto taken = ready.port.life()->take_queues(&ready.detail);
  ready.reason = taken ? Reason::accelerated : reason_of(taken.error());
  if (!taken && ready.reason != Reason::no_queue) ready.port = {};
}

OpenedPort open_tagging_port(const Link& link, FramePool& pool) {
  if (config().settings.require == Require::kXdp) return {};
  OpenedPort opened = open_mlx5(link, pool);
  if (!opened.port) note_no_mlx5(link, opened);
  return opened;
}

void entrust(OpenedPort& opened, HelperClient& helper) {
  if (!opened.port || opened.entrusted != 0 || !opened.port.life()->has_rights()) return;
  const MakingPrivate making;
  const auto rights = opened.port.life()->entrust(&opened.detail);
  if (!rights) return;
  helper::PrivilegedRequest request{helper::RequestType::kPort, rights->ifindex, 0, {}, {}};
  request.rule.tag = rights->owner;
  if (helper.run(request, rights->descriptors)) opened.entrusted = rights->owner;
}

void seal(OpenedPort& opened) {
  if (!opened.port || !opened.port.life()->has_rights()) return;
  if (opened.entrusted != 0) return opened.port.life()->seal();
  static std::atomic<bool> told{false};
  if (!told.exchange(true))
    log(LogLevel::kWarning,
        "%s: this process has given up its privilege and can still write to the steering maps of all "
        "processes: %s",
        opened.port.frames()->info().name.c_str(),
        opened.detail.empty() ? "it has no helper" : opened.detail.c_str());
}

bool prove_end(const OpenedPort& opened, HelperClient& helper, const FlowKey& key, int socket) {
  if (opened.entrusted == 0 || socket < 0) return false;
  helper::PrivilegedRequest request = HelperClient::about(helper::RequestType::kEnd, key);
  request.rule.tag = opened.entrusted;
  return bool(helper.run(request, socket));
}

void abandon_port(OpenedPort& opened) {
  if (opened.port) opened.port.life()->abandon_in_child();
  opened.port = {};
}

void forget_inherited_ports() { XdpPort::forget_inherited(); }

bool carries_frames(const Link& link) {
  if (!link.ethernet || link.loopback || link.master != 0) return false;
  constexpr std::string_view kKinds[] = {"", "veth", "tun", "vlan", "bond", "macvlan"};
  return std::find(std::begin(kKinds), std::end(kKinds), link.kind) != std::end(kKinds);
}

}  // namespace accel
