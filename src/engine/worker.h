// The worker: one stack and its ports behind one lock, and what the engine keeps beside them.
//
// Everything here is under the lock unless it says otherwise. Which thread does what:
//   application's threads   passes and waits (worker.cc, wait.cc), paths (path_select.cc, bound_flow.cc)
//   housekeeping            netlink, ticks, passes for an absent application (housekeeping.cc)
#pragma once

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/engine.h"
#include "engine/frame_region.h"
#include "engine/lock.h"
#include "engine/netlink.h"
#include "engine/ports.h"
#include "engine/spin.h"

namespace accel {

Instant clock_now();

struct FlowKeyHash {
  size_t operator()(const FlowKey& k) const {
    return static_cast<size_t>(hash_tuple(k.local, k.remote, static_cast<uint64_t>(k.protocol)));
  }
};

/// One interface of the stack.
struct PortSlot {
  OpenedPort opened;
  int ifindex = 0;
  bool lost = false;  ///< its device is gone: the slot stays, since connections name it
  bool table_full = false;
  /// Keys steered, and by how many sockets (several listeners of the process may share one).
  std::unordered_map<FlowKey, uint32_t, FlowKeyHash> steered;
  Port* port() const { return lost ? nullptr : opened.port.get(); }
};

/// A thread's means to sleep and to be woken. Made at its first wait, registered with the engine until the
/// thread ends.
struct Sleeper {
  Engine* engine = nullptr;
  int wake_fd = -1;                ///< eventfd
  int epoll_fd = -1;               ///< wake_fd, kernel_fd and, of the one in charge, the ports' descriptors
  int kernel_fd = -1;              ///< of the last wait; -1: none
  bool has_ports = false;          ///< the ports' descriptors are in epoll_fd
  bool by_poll = false;            ///< this sleep is a ppoll(), which nobody can add to
  WaitRequest* request = nullptr;  ///< while asleep
  const void* frame = nullptr;     ///< of the wait that has it
  bool woken = false;              ///< wake_fd has been written for this sleep
  SpinPolicy spin;
};

/// A listener or bound UDP socket over every interface that its address covers.
struct BoundFlow {
  TcpListener* listener = nullptr;
  UdpPcb* udp = nullptr;
  Protocol protocol = Protocol::kTcp;
  Endpoint local, remote;
  bool v6_only = false;
  int bound_ifindex = 0;
  struct Key {
    InterfaceId interface;
    FlowKey key;
    bool operator==(const Key&) const = default;
  };
  std::vector<Key> keys;  ///< steered now
};

class Housekeeping;

struct Engine::Impl {
  explicit Impl(Engine& e);
  static Impl& of(Engine& e) { return *e.impl_; }
  ~Impl();
  Result<void> start();  ///< memory, stack, netlink snapshot, thread

  // ---- the pass (worker.cc) ----
  void enter(Pass::Polling polling, Instant* now);
  void leave();  ///< the work, then the lock
  void lock_in();
  void unlock_out();
  /// Receives, runs deadlines.
  void poll(Instant now);
  /// Sends what became possible, tells the notifier, wakes sleepers; what leaving a pass does before the lock
  /// goes.
  void work(Instant now);
  void transmit(PortSlot& slot, InterfaceId id);
  bool arm_ports();
  bool tx_waiting() const;
  /// The next moment at which a poll has something to do without a frame coming.
  Instant next_poll(Instant now) const;

  // ---- sleepers (wait.cc) ----
  void wake_ready_sleepers();
  void wake(Sleeper& s);
  void watch_port(Sleeper& s, InterfaceId id);
  void watch_ports(Sleeper& s, bool watch);
  void add_port(InterfaceId id);
  void unwatch_port(InterfaceId id);
  /// Of the threads that wait, one is in charge of the ports: it polls them or sleeps on them, and wakes the
  /// others as their conditions come true. Whoever begins to wait takes charge, since the next frames are
  /// likely its own; whoever ends its wait gives charge to one that is asleep.
  bool take_charge(Sleeper& s, Instant now, Instant until);
  void give_charge(Sleeper& s);
  void forget(Sleeper& s);
  /// Its sleep is over: nobody looks at its request any more.
  void leave_sleep(Sleeper& s);
  void abandon_sleepers_in_child();

  // ---- steering (steering.cc) ----
  Result<void> steer(InterfaceId id, const FlowKey& key);
  void unsteer(InterfaceId id, const FlowKey& key);
  void steer_opened();  ///< before flush(): the SYN-ACK must not overtake
  void unsteer_closed();

  // ---- paths (path_select.cc) ----
  /// The interface of a device, its port opened if need be; or why there is none.
  Result<InterfaceId> interface_of(int ifindex, Reason* why);
  void lose_port(InterfaceId id);
  /// Gives the device's queues back; the slot is taken again when the device is needed again.
  void close_port(InterfaceId id);
  void tell_stack_of(InterfaceId id);
  void tell_routes();
  PathChoice choose(const FlowRequest& request, bool needs_all_queues);
  PathChoice by_configuration(Role role, const Endpoint& endpoint) const;
  Result<RouteAnswer> route_to(const RouteQuestion& question);
  /// Local addresses that a socket bound to `local` is reached at, with their interfaces.
  std::vector<BoundFlow::Key> coverage(Protocol protocol, const Endpoint& local, const Endpoint& remote,
                                       bool v6_only, int bound_ifindex, Reason* why);
  /// Steers what an address that came brings, unsteers what one that went took. False: no interface is left.
  bool cover_again(BoundFlow& flow, Reason* why);
  Result<BoundFlow*> admit(std::unique_ptr<BoundFlow> flow, PathChoice& choice);
  void drop_flow(BoundFlow* flow);

  // ---- changes of the network (follow.cc), called by housekeeping ----
  void follow(NetworkChanges& changes);
  void follow_links();
  void follow_neighbours(const NetworkChanges& changes);
  void resolve_neighbours();
  void keep_neighbours(Instant now);
  /// Housekeeping's regular look: overdue deadlines, dead ports, neighbours, statistics.
  void tick(Instant now);

  Engine& engine;
  WorkerLock lock;
  Counters counters;
  FrameRegion region;
  std::unique_ptr<FramePool> pool;
  std::unique_ptr<Stack> stack;
  std::unique_ptr<Netlink> netlink;
  std::unique_ptr<Housekeeping> housekeeping;
  Network network;

  std::array<PortSlot, kMaxInterfaces> slots;
  InterfaceId slot_count = 0;
  struct Failure {
    Reason reason;
    Instant when;
  };
  std::map<int, Failure> failed_ports;               ///< by ifindex: not tried again for a while
  std::map<RouteQuestion, RouteAnswer> route_cache;  ///< emptied when the network changes
  std::vector<std::unique_ptr<BoundFlow>> flows;
  std::vector<Stack::FlowChange> closed_flows;

  Notifier notifier = nullptr;
  void (*after_unlock)() = nullptr;

  Instant last_poll{};
  Instant pass_now{};
  std::atomic<uint64_t> passes{0};  ///< by the application's threads
  std::atomic<uint32_t> asleep_count{0};
  std::atomic<uint32_t> steered_count{
      0};                          ///< keys on all ports: above 0 the application has accelerated sockets
  std::vector<Sleeper*> sleepers;  ///< every thread's
  std::vector<Sleeper*> asleep;
  Sleeper* in_charge = nullptr;
  Instant in_charge_until{};      ///< when it polls: until then. When it is asleep: it is in `asleep`
  Sleeper* timekeeper = nullptr;  ///< the one whose timeout covers the stack's deadlines
  Instant timekeeper_until = kNever;
  Duration longest_spin{0};
  bool one_queue_only = false;  ///< a forked child that shares its listener with others
  Instant neighbours_kept{};    ///< when keep_neighbours() last ran
  bool serving = false;         ///< housekeeping is in a pass
};

}  // namespace accel
