// The process: what it has once, however many workers (engine/worker.h), and the work that goes over all of
// them.
//
// It is made of objects, each with a header of its own; what is left here works on several of them.
// Everything is under the lock unless it says otherwise. Which thread does what:
//   application's threads   passes and waits (process.cc, wait.cc), sockets (connect.cc, bound_flow.cc)
//   the control thread      netlink, ticks, passes for an absent application (housekeeping.cc)
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/config.h"
#include "engine/counters_file.h"
#include "engine/helper_client.h"
#include "engine/housekeeping_requests.h"
#include "engine/interfaces.h"
#include "engine/lock.h"
#include "engine/neighbours.h"
#include "engine/netlink.h"
#include "engine/packet_filter.h"
#include "engine/pass.h"
#include "engine/path_selector.h"
#include "engine/pending_hand_backs.h"
#include "engine/port_opening.h"
#include "engine/port_slots.h"
#include "engine/ports.h"
#include "engine/sleepers.h"
#include "engine/steering.h"
#include "engine/upcalls.h"
#include "engine/wait_request.h"
#include "engine/worker.h"
#include "shm/poller.h"
#include "siw_fallback/reactor.h"

namespace accel {

Instant clock_now();

/// A listener or bound UDP socket over every interface that its address covers.
struct BoundFlow : BoundEnd {
  TcpListener* listener = nullptr;
  UdpPcb* udp = nullptr;
  bool shared = false;                     ///< other processes may have a socket for the same local end
  bool leaving = false;                    ///< stop_taking(), or not yet begin_taking()
  int shadow = -1;                         ///< the kernel's socket with the local end
  Reason uncovered = Reason::accelerated;  ///< why `keys` is empty
  std::optional<uint8_t> refused;          ///< the rule (PathChoice::detail) for which no interface is left
  using Key = SteeredKey;
  std::vector<Key> keys;    ///< steered now
  std::vector<Key> paused;  ///< by stop_taking(): connections of theirs may be steered yet
};

class Process {
 public:
  /// `opens_ports`: see Engine::opens_ports().
  Process(Engine& engine, Upcalls& above, std::atomic<bool>& opens_ports);
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;
  /// Whose lock is held: a Pass is the proof.
  static Process& of(Pass& pass) ACCEL_ASSERTS_HELD(worker_lock) { return pass.process(); }
  /// Memory, stack, netlink snapshot. `ports`: there may be some. `one_queue_only`: see
  /// Engine::inherit_listener().
  Result<void> start(bool ports, bool one_queue_only);

  // ---- the pass (process.cc) ----
  void enter(Pass::Polling polling, Instant* now) ACCEL_ACQUIRE(worker_lock);
  /// The work, then the lock. `in_turn`: as Pass::in_turn().
  void leave(bool in_turn) ACCEL_RELEASE(worker_lock);
  /// Paired by hand only where a Locked cannot have the scope.
  void lock_in() ACCEL_ACQUIRE(worker_lock);
  void unlock_out() ACCEL_RELEASE(worker_lock);
  /// For clang alone: the lock is held here by a Pass of a caller's that this function does not see.
  void held() const ACCEL_ASSERTS_HELD(worker_lock) {}
  void wake_in_charge();
  void tell_housekeeping() ACCEL_REQUIRES(worker_lock);
  /// When the pass began, or polled last.
  Instant pass_now() const ACCEL_REQUIRES(worker_lock) { return worker.pass_now; }
  void set_pass_now(Instant now) ACCEL_REQUIRES(worker_lock) { worker.pass_now = now; }
  /// The sum over the process and its workers. Without the lock.
  uint64_t count(Counter c) const { return counters.get(c) + worker.counters.get(c); }
  /// The passes that the application's threads have made. Without the lock.
  uint64_t passes() const { return worker.passes.load(std::memory_order_relaxed); }
  /// due_uncovered() when the last pass ended. Without the lock.
  Instant next_due() const { return worker.next_due.load(std::memory_order_relaxed); }
  /// Receives, runs deadlines. False: nothing came and nothing was due.
  bool poll(Instant now) ACCEL_REQUIRES(worker_lock);
  /// Sends what became possible, tells of edges, wakes sleepers; what leaving a pass does before the lock
  /// goes.
  void work(Instant now) ACCEL_REQUIRES(worker_lock);
  void send(Instant now) ACCEL_REQUIRES(worker_lock);  ///< of that, what has to do with frames
  void tell(Instant now) ACCEL_REQUIRES(worker_lock);  ///< the rest of it
  void notify_edges() ACCEL_REQUIRES(worker_lock);
  bool notify_channels(Pass& pass) ACCEL_REQUIRES(worker_lock);
  bool notify_links(Pass& pass) ACCEL_REQUIRES(worker_lock);
  void count_channels() ACCEL_REQUIRES(worker_lock);
  bool arm_ports() ACCEL_REQUIRES(worker_lock);
  /// Polls that follow one that was cut short, before a call ends without an event: as much as a ring holds.
  /// Frames may go on coming.
  static constexpr int kPollsForRest = 16;
  /// Polls that empty a ring: more than one holds. A UDP socket's peer may send without end.
  static constexpr int kMostPolls = 64;
  /// Ports and channels: while a thread waits, and for an absent application. False: as poll(), with no
  /// channels, and nothing waits to be transmitted.
  bool poll_all(Instant now) ACCEL_REQUIRES(worker_lock);
  void give_to_kernel(PacketQueue& frames) ACCEL_REQUIRES(worker_lock);  ///< IP packets
  /// Somebody has to poll for the application when it does not.
  bool in_use() const;
  /// The stack's and the channels'.
  Instant next_deadline() const ACCEL_REQUIRES(worker_lock);
  /// The next moment at which a poll has something to do without a frame coming.
  Instant next_poll(Instant now) const ACCEL_REQUIRES(worker_lock);

  /// A thread's sleep is over (wait.cc).
  void end_sleep(Sleeper& s) ACCEL_REQUIRES(worker_lock);

  /// Visits the ports of all slots and those that wait for a queue.
  template <class F>
  void for_each_opened(F visit) ACCEL_REQUIRES(worker_lock) {
    for (PortSlot& slot : slots) visit(slot.opened);
    opening.for_each_ready(visit);
  }

  // ---- flows that the stack has opened and closed (process.cc) ----
  void steer_opened() ACCEL_REQUIRES(worker_lock);  ///< before flush(): the SYN-ACK must not overtake
  void unsteer_closed() ACCEL_REQUIRES(worker_lock);
  Result<void> steer_connection(InterfaceId id, const FlowKey& key, int shadow = -1)
      ACCEL_REQUIRES(worker_lock);
  /// The connection is there: the helper's table has its sequence numbers from now on.
  void note_numbers(InterfaceId id, const FlowKey& key) ACCEL_REQUIRES(worker_lock);

  // ---- ports opened in the background (opening.cc) ----
  using Need = PortOpening::Need;
  bool still_wanted(int ifindex) const ACCEL_REQUIRES(worker_lock);
  /// Opens the ports whose time has come, with `all` the others too, and gives when the next one's comes.
  /// The ports that are left come after `pause` at the earliest. The caller does not hold the lock.
  Instant open_requested(bool all, bool* opened, Duration pause = {});
  /// The device that is to have a port next. nullopt: none now, and `next` says when to ask again.
  std::optional<Link> next_to_open(bool all, Duration pause, Instant* next);
  /// The same in a thread of the program's. True: some have been, or could not be.
  bool open_here(bool all, Duration pause);
  void forget_requests() ACCEL_REQUIRES(worker_lock);
  void open_in_background(const Link& link);

  // ---- sockets and their paths (connect.cc, bound_flow.cc, pending_hand_backs.cc) ----
  void look_for_misdirected(Instant now) ACCEL_REQUIRES(worker_lock);
  bool has_unaccepted() const ACCEL_REQUIRES(worker_lock);
  void end_connections_of(InterfaceId id, Pass& pass) ACCEL_REQUIRES(worker_lock);
  void close_lost() ACCEL_REQUIRES(worker_lock);
  void empty_rings() ACCEL_REQUIRES(worker_lock);
  void answer_route_questions(Instant now) ACCEL_REQUIRES(worker_lock);
  void learn_route_of(const Stack::RouteQuestion& question) ACCEL_REQUIRES(worker_lock);
  /// The choice of a listener or bound UDP socket as it is now.
  PathChoice path_of(const BoundFlow& flow) const ACCEL_REQUIRES(worker_lock);
  void learn_address(const IpAddress& address) ACCEL_REQUIRES(worker_lock);
  /// Steers what an address that came brings, unsteers what one that went took. Gives what is steered.
  void tell_memberships(BoundFlow& flow) ACCEL_REQUIRES(worker_lock);
  PathSelector::Coverage cover_again(BoundFlow& flow) ACCEL_REQUIRES(worker_lock);
  Result<BoundFlow*> admit(std::unique_ptr<BoundFlow> flow, PathChoice& choice) ACCEL_REQUIRES(worker_lock);
  void drop_flow(BoundFlow* flow) ACCEL_REQUIRES(worker_lock);
  void end_pause(BoundFlow& flow) ACCEL_REQUIRES(worker_lock);

  // ---- the host's packet filters (firewall.cc) ----
  void follow_firewall() ACCEL_REQUIRES(worker_lock);
  void filter_connection(const TcpConn& conn) ACCEL_REQUIRES(worker_lock);
  bool firewall_listens(const Endpoint& local) const ACCEL_REQUIRES(worker_lock);

  // ---- changes of the network (follow.cc), called by housekeeping ----
  bool follow(NetworkChanges& changes);  ///< true: a port was lost
  void follow_links() ACCEL_REQUIRES(worker_lock);
  void follow_addresses(const std::vector<LocalAddress>& before) ACCEL_REQUIRES(worker_lock);
  void tell_of_link(InterfaceId id, const Link& link) ACCEL_REQUIRES(worker_lock);
  void follow_routes() ACCEL_REQUIRES(worker_lock);
  void follow_route(TcpConn& conn) ACCEL_REQUIRES(worker_lock);
  void cover_flows() ACCEL_REQUIRES(worker_lock);
  void look_at_ports() ACCEL_REQUIRES(worker_lock);
  void look_for_passing_by(InterfaceId id) ACCEL_REQUIRES(worker_lock);
  void follow_source_rules() ACCEL_REQUIRES(worker_lock);
  /// Housekeeping's regular look: overdue deadlines, neighbours; with `chores` dead ports, misdirected
  /// connections and packet filters, too.
  void tick(Instant now, bool chores) ACCEL_REQUIRES(worker_lock);
  /// The next deadline that no sleeper's timeout covers.
  Instant due_uncovered(Instant now) const ACCEL_REQUIRES(worker_lock) {
    const Instant due = next_poll(now);
    return sleepers.covers(due) ? kNever : due;
  }
  bool due_within(Duration d, Instant now) const ACCEL_REQUIRES(worker_lock) {
    return due_uncovered(now) < now + d;
  }

  Engine& engine;  ///< for Pass::engine() alone
  Upcalls& above;
  Worker worker{slots};
  Counters counters;  ///< but for the workers'
  CountersFile counters_file{config().settings.counters_to};
  HelperClient helper{counters};
  std::unique_ptr<Netlink> netlink;
  HousekeepingRequests housekeeping;
  PortSlots slots;
  Notices notices;
  Steering steering{slots, helper, counters, notices};
  Network network ACCEL_GUARDED_BY(worker_lock);
  PacketFilter filter{network};
  Sleepers sleepers{slots, notices};
  PortOpening opening{notices};
  Interfaces interfaces{slots, steering, sleepers, opening, network, worker, counters};
  PathSelector paths{network, filter, interfaces, slots, steering};
  Neighbours neighbours{network, slots, worker};
  PendingHandBacks hand_backs;
  const PortServices port_services{helper, counters, opening.keeping_ready()};
  uint64_t own_network = 0;  ///< network_of()

  WorkerLock opening_lock;  ///< of who opens ports: taken before the workers', and held over fork()
  bool sealed = false;      ///< the privilege has gone for good
  int shown ACCEL_GUARDED_BY(worker_lock) = -1;  ///< ShownSocket
  std::vector<std::unique_ptr<BoundFlow>> flows ACCEL_GUARDED_BY(worker_lock);

  std::unique_ptr<siw::Reactor> channels;  ///< soft-iWARP; nullptr: nobody has asked for it
  std::unique_ptr<shm::Poller> shm_links;  ///< shared memory; nullptr: nobody has asked for it
  std::atomic<uint32_t> channel_count{0};  ///< of both

  std::atomic<bool>& opens_ports;
  std::atomic<bool> filters_changed{false};  ///< Housekeeping::Events
  bool ending = false;                       ///< Engine::finish(): no port is opened any more
  bool cover_after_loss ACCEL_GUARDED_BY(worker_lock) =
      false;  ///< the lost port's flows may have another, on the same device or not
  bool redirected ACCEL_GUARDED_BY(worker_lock) = false;  ///< a port was lost since frames came past its hook

  bool awaits_absence ACCEL_GUARDED_BY(worker_lock) = false;  ///< Engine::wait_for_the_others() sleeps
  Duration longest_spin{0};
  Instant neighbours_kept ACCEL_GUARDED_BY(worker_lock){};  ///< when they were kept last
};

/// The worker's lock for the length of a scope, which an exception ends as well (memory is short).
class ACCEL_SCOPED_CAPABILITY Locked {
 public:
  explicit Locked(Process& process) ACCEL_ACQUIRE(worker_lock) : process_(process) { process.lock_in(); }
  ~Locked() ACCEL_RELEASE() { process_.unlock_out(); }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;

 private:
  Process& process_;
};

}  // namespace accel
