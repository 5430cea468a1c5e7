// The engine's life: opening, forks, the end.
#include "engine/engine.h"

#include <linux/capability.h>
#include <sched.h>
#include <sys/auxv.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <new>
#include <utility>

#include "base/cancellation.h"
#include "base/config.h"
#include "base/inherited_filter.h"
#include "base/kernel_version.h"
#include "base/libraries.h"
#include "base/log.h"
#include "base/memory_room.h"
#include "base/own_table.h"
#include "base/proc.h"
#include "base/real.h"
#include "base/start_paths.h"
#include "engine/accept_queue.h"
#include "engine/housekeeping.h"
#include "engine/inject.h"
#include "engine/process.h"
#include "engine/stack_config.h"
#include "engine/stats.h"
#include "xdp/xdp_port.h"

namespace accel {
namespace {

constexpr uint32_t kFramesWithoutPorts = 64;
/// A cgroup's memory is the program's: frames may take this part of what is left of it as the engine opens.
constexpr uint64_t kRoomPart = 4;
constexpr uint32_t kLeastFrames = 1024;

WorkerLock open_lock;
/// Why this process has no engine, once that is settled; nothing that is found out here changes while it
/// runs.
std::optional<Reason> refused ACCEL_GUARDED_BY(open_lock);
/// The same for ports: it would have nothing but connections within the host.
std::optional<Reason> no_ports ACCEL_GUARDED_BY(open_lock);
bool listener_inherited = false;

/// The child has this thread only, and another may have held the lock.
void forget_refusal() ACCEL_LOCKS_UNCHECKED {
  new (&open_lock) WorkerLock;
  refused.reset();
  no_ports.reset();
}

using CapabilitySet = __u32 __user_cap_data_struct::*;

bool has_capability(int number, CapabilitySet set = &__user_cap_data_struct::effective) {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct sets[2]{};
  return real.syscall(SYS_capget, &header, sets) == 0 && (sets[number / 32].*set & 1u << number % 32) != 0;
}

/// It is, or seteuid() can make it so again.
bool may_be_privileged() { return has_capability(CAP_NET_RAW, &__user_cap_data_struct::permitted); }

std::optional<Reason> obstacle() {
  if (getauxval(AT_SECURE)) return Reason::secure;
  if (config().disabled) return Reason::disabled;
  if (const char* call = killing_filter()) {
    log(LogLevel::kWarning,
        "its sockets stay on the kernel: the filter of system calls (seccomp) that it was started under "
        "kills for %s(): allow that call (systemd: SystemCallFilter=%s)",
        call, call);
    return Reason::filter;
  }
  return {};
}

std::optional<Reason> obstacle_for_ports() {
  if (config().wants_iwarp) return {};
  if (config().misread) return Reason::misread;
  if (config().settings.path == Path::kKernel && config().rules.empty()) return Reason::path_setting;
  if (!Engine::privileged()) {
    log(LogLevel::kInfo, "its sockets stay on the kernel: %s", reason_text(Reason::no_privilege));
    return Reason::no_privilege;
  }
  return {};
}

std::optional<Reason> missing_library() {
  const char* missing = nullptr;
  bool loaded = false;
  in_own_table([&] { loaded = load_libraries(&missing); });
  if (!loaded) {
    if (const char* changed = start_paths_changed()) {
      log(LogLevel::kWarning, "its sockets stay on the kernel, since %s is not loaded: %s", missing, changed);
      return Reason::root_changed;
    }
    log(LogLevel::kWarning, "%s cannot be loaded: is its package installed?", missing);
    return Reason::libraries;
  }
  return {};
}

/// The boot's random UUID: what all processes of this host have in common and no other host knows. {} without
/// /proc.
std::array<uint64_t, 2> host_key() {
  std::array<uint64_t, 2> key{};
  int digits = 0;
  for (const char c : read_proc("/proc/sys/kernel/random/boot_id")) {
    if (std::isxdigit(static_cast<unsigned char>(c)) == 0) continue;
    uint64_t& word = key[digits++ / 16 % 2];
    word = word << 4 | static_cast<uint64_t>(c <= '9' ? c - '0' : c - 'a' + 10);
  }
  return key;
}

/// Bytes of a buffer that holds a packet of every device that may get a port. A device whose MTU is raised
/// later may have larger ones: its port then says so.
uint32_t frame_size(const Network& network) {
  uint32_t mtu = 0;
  for (const auto& [ifindex, link] : network.links)
    if (link.ethernet && !link.loopback) mtu = std::max(mtu, link.mtu);
  return least_buffer(mtu);
}

/// As the setting says, or as the cgroup's room allows.
uint32_t frames_to_have(uint32_t size) {
  const uint32_t wanted = config().settings.frames;
  const uint64_t room = memory_room() / kRoomPart / size;
  if (room >= wanted) return wanted;
  const uint32_t frames = std::max(static_cast<uint32_t>(room), kLeastFrames);
  log(LogLevel::kInfo, "%u packet buffers instead of %u: the memory cgroup leaves no room for more", frames,
      wanted);
  return frames;
}

uint32_t usable_cpus() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? static_cast<uint32_t>(CPU_COUNT(&set)) : CPU_SETSIZE;
}

}  // namespace

std::atomic<Engine*> Engine::instance_{nullptr};
constinit std::atomic<bool> Engine::opens_ports_{false};

Engine::Engine(Upcalls& above) : process_(std::make_unique<Process>(*this, above, opens_ports_)) {}
Engine::~Engine() = default;
Process::Process(Engine& e, Upcalls& u, std::atomic<bool>& o) : engine(e), above(u), opens_ports(o) {}
Process::~Process() = default;

Result<void> Process::start(bool ports, bool one_queue_only) {
  const Settings& settings = config().settings;
  auto n = Netlink::open();
  if (!n) return n.error();
  netlink = std::move(*n);
  own_network = network_of(netlink->event_fd());
  if (auto r = netlink->read_all(network); !r) return r;
  const uint32_t size = frame_size(network);
  const size_t frames = ports ? frames_to_have(size) : kFramesWithoutPorts;
  StackConfig c = stack_config(settings);
  c.timestamp_secret = host_key();
  if (getrandom(c.secret.data(), sizeof(c.secret), 0) != sizeof(c.secret)) return err(EIO);
  if (auto r = worker.start(frames, size, ports && settings.huge_pages, c); !r) return r;
  interfaces.begin(ports ? Reason::accelerated : Reason::no_privilege);
  paths.begin(*netlink, own_network);
  neighbours.begin(*netlink);
  longest_spin = std::chrono::microseconds(settings.spin);
  sleepers.set_cpus(usable_cpus());
  opening.set_one_queue_only(one_queue_only);
  return housekeeping.open();
}

Result<Engine*> Engine::start_new(Upcalls& above, Result<void> (*start_control)(Engine&)) {
  Engine* fresh = nullptr;
  Result<void> started = err(ENOMEM);
  try {
    fresh = new Engine(above);
    started = fresh->process_->start(privileged(), listener_inherited);  // soft-iWARP needs no privilege
    if (started) fresh->housekeeping_ = std::make_unique<Housekeeping>(*fresh->process_);
    if (started) started = start_control(*fresh);
  } catch (const std::bad_alloc&) {
  }
  if (started) return fresh;
  delete fresh;
  return started.error();
}

bool Engine::may_open(Reason* why) {
  const ScopedLock settled(open_lock);
  if (!refused) refused = obstacle();
  if (!refused && !no_ports) no_ports = obstacle_for_ports();
  if (refused || no_ports) *why = refused ? *refused : *no_ports;
  return !refused && !no_ports;
}

Engine* Engine::open(Upcalls& above, Result<void> (*start_control)(Engine&), Reason* why, Opening opening) {
  if (Engine* engine = get()) return engine;
  if (in_handler()) return *why = Reason::handler, nullptr;
  const Inside own_calls_go_to_the_kernel;  // through our wrappers
  const ScopedLock settled(open_lock);
  Engine* engine = get();
  if (!engine && !refused) {
    refused = obstacle();
    if (!refused && opening == Opening::kForPorts) {
      if (!no_ports) no_ports = obstacle_for_ports();
      if (no_ports) return *why = *no_ports, nullptr;
    } else if (!refused) {
      if (config().misread) return *why = Reason::misread, nullptr;
      // An engine that is opened now would have no ports when the privilege is back.
      if (!privileged() && may_be_privileged()) return *why = Reason::no_privilege, nullptr;
    }
    if (!refused) refused = missing_library();
    if (!refused) {
      if (auto started = start_new(above, start_control)) {
        stats::open();
        engine = *started;
        serve_ports(&engine->process_->port_services);
        instance_.store(engine, std::memory_order_release);
      } else {
        const LogLevel level = opening == Opening::kForPorts ? LogLevel::kWarning : LogLevel::kInfo;
        log(level, "the engine could not start: %s", strerrordesc_np(static_cast<int>(started.error())));
        refused = Reason::resources;
      }
    }
  }
  if (!engine) *why = *refused;
  return engine;
}

Stack& Engine::stack() {
  process_->held();
  return *process_->worker.stack;
}
Housekeeping& Engine::housekeeping() { return *housekeeping_; }
bool Engine::inside() { return signal_brackets.worker; }
Counters& Engine::counters() { return process_->counters; }
Leases& Engine::leases(Pass& pass) const { return Process::of(pass).worker.leases; }
int Engine::receiving_cpu(Pass& pass) const { return Process::of(pass).worker.stack->receiving_cpu(); }
uint32_t Engine::interface_count(Pass& pass) const { return Process::of(pass).slots.count(); }
const PortInfo* Engine::port_info(Pass& pass, InterfaceId id) const {
  Process& p = Process::of(pass);
  return id < p.slots.count() ? p.slots.info_of(id) : nullptr;
}
int Engine::ifindex_of(Pass& pass, const TcpConn& conn) const {
  const PortInfo* port = port_info(pass, pass.stack().tcp().interface(conn));
  return port != nullptr ? port->ifindex : 0;
}
int Engine::ifindex_of(Pass& pass, const BoundFlow& flow) const {
  int found = 0;
  for (const BoundFlow::Key& key : flow.keys) {
    const PortInfo* port = port_info(pass, key.interface);
    const int ifindex = port != nullptr ? port->ifindex : 0;
    if (found != 0 && ifindex != found) return 0;
    found = ifindex;
  }
  return found;
}
std::vector<int> Engine::devices(Pass& pass) const {
  std::vector<int> found;
  for (const auto& [ifindex, link] : Process::of(pass).network.links)
    if (carries_frames(link)) found.push_back(ifindex);
  return found;
}
int Engine::device_with(Pass& pass, const IpAddress& address) const {
  for (const LocalAddress& a : Process::of(pass).network.addresses)
    if (a.usable && a.address == address) return a.ifindex;
  return 0;
}
IpAddress Engine::source_towards(Pass& pass, const IpAddress& remote) {
  const auto route = Process::of(pass).paths.route_to({remote, {}, 0, 0, 0});
  return route ? route->source : IpAddress{};
}
int64_t Engine::device_time(Pass& pass, const Datagram& datagram) const {
  Process& p = Process::of(pass);
  const InterfaceId id = datagram.interface;
  const Port* port = id < p.slots.count() ? p.slots.port_of(id) : nullptr;
  return port ? port->time_of(datagram.timestamp) : 0;
}
PathKind Engine::port_kind(Pass& pass, InterfaceId id) const {
  Process& p = Process::of(pass);
  return id < p.slots.count() ? p.slots[id].opened.kind : PathKind::kUndecided;
}

bool Engine::privileged() { return has_capability(CAP_NET_RAW); }
bool Engine::reads_filters() { return has_capability(CAP_NET_ADMIN); }

bool Engine::ports_outlive_privilege() { return kernel_is_at_least(5, 19); }

void Engine::privileges_changed() {
  if (!privileged()) {
    if (!may_be_privileged()) forget_inherited_ports();
    return;
  }
  const ScopedLock settled(open_lock);
  no_ports.reset();
}

bool Engine::begin_keeping_ready(Pass& pass) {
  Process& p = Process::of(pass);
  if (p.interfaces.barred() != Reason::accelerated) return false;
  p.helper.begin();
  if (!p.helper.running()) return false;
  Injector::keep_sockets();
  p.paths.refresh_filter(p.pass_now());  // without privilege, what is read now holds
  p.opening.keep_ready(true);
  return true;
}

void Engine::done_keeping_ready(Pass& pass) {
  Process& p = Process::of(pass);
  p.opening.keep_ready(false);
  p.steering.tell_helper_of_local_ends();
  p.for_each_opened([&p](OpenedPort& opened) { entrust(opened, p.helper); });
}

void Engine::user_changed(Pass& pass) {
  Process& p = Process::of(pass);
  if (!may_be_privileged()) {
    (void)p.helper.run({helper::RequestType::kSeal, 0, 0, {}, {}}, -1);
    p.for_each_opened(seal);
    p.sealed = true;
  }
  for (InterfaceId id = 0; id < p.slots.count(); ++id)
    if (PortLife* port = p.slots[id].life()) port->user_changed();
}

void Engine::tell_helper(Pass& pass, const Endpoint& local, bool v6_only) {
  Process& p = Process::of(pass);
  p.helper.tell_local_end(Protocol::kTcp, local, 0);
  if (local.address == IpAddress::any_v6() && !v6_only)
    p.helper.tell_local_end(Protocol::kTcp, {IpAddress::any_v4(), local.port}, 0);
}

void Engine::open_all_ports(Pass& pass) {
  Process& p = Process::of(pass);
  Reason ignored;
  for (const LocalAddress& a : p.network.addresses)
    if (a.usable && !a.address.is_loopback()) (void)p.interfaces.of(a.ifindex, &ignored, p.pass_now());
}

void Engine::inherit_listener() { listener_inherited = true; }

bool Engine::others_wait(Pass& pass) const { return Process::of(pass).sleepers.any_asleep(); }

// Both locks are held over fork().
void Engine::before_fork() ACCEL_LOCKS_UNCHECKED {
  process_->opening_lock.lock();  // a half-opened port's descriptors would be the child's, too
  process_->lock_in();
  try {
    if (process_->worker.turns.keeping())
      process_->send(clock_now());   // the program may wait for the child next
  } catch (const std::bad_alloc&) {  // the next pass sends it
  }
}
void Engine::after_fork_in_parent() ACCEL_LOCKS_UNCHECKED {
  process_->unlock_out();
  process_->opening_lock.unlock();
}

void Engine::after_fork_in_child() {
  stats::after_fork_in_child();
  forget_refusal();
  const Duration spin = thread_state.spin;  // the program has set it for the thread, which goes on
  thread_state = ThreadState{};
  thread_state.spin = spin;
  signal_brackets.worker = false;
  admit_cancellation();
  opens_ports_.store(false, std::memory_order_relaxed);
  serve_ports(nullptr);
  Engine* engine = instance_.exchange(nullptr, std::memory_order_acq_rel);
  if (!engine) return;
  Process& p = *engine->process_;
  p.held();  // the copy is this thread's alone
  p.sleepers.abandon_in_child();
  p.for_each_opened(abandon_port);
  if (p.channels) p.channels->abandon_in_child();
  if (p.shm_links) p.shm_links->abandon_in_child();
  p.helper.abandon_in_child();
  p.netlink->abandon_in_child();
  p.filter.abandon_in_child();
  p.paths.abandon_in_child();
  abandon_accept_queue_in_child();
  p.counters_file.abandon_in_child();
  engine->housekeeping_->abandon_in_child();
  // The rest is a copy that nobody uses: freeing it would only copy its pages.
}

}  // namespace accel
