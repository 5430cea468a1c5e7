// The engine does the work: one worker per process (stack + ports behind one lock), path selection, steering
// and sleeping. The layer above (posix) includes this header, and for its control thread
// engine/housekeeping.h.
//
// A call on an accelerated socket is:   Pass pass(engine);  ... stack calls ...  (~Pass sends frames, wakes
// others) A call that blocks is:                while (!done) { woke = engine.wait(pass, request); ... }
#pragma once

#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/config.h"
#include "base/instant.h"
#include "base/ip.h"
#include "base/result.h"
#include "engine/groups.h"
#include "engine/pass.h"
#include "engine/path.h"
#include "engine/upcalls.h"
#include "engine/wait_request.h"
#include "stack/stack.h"

namespace accel {

class Housekeeping;
class Leases;
class Process;
namespace siw {
class Reactor;
}
namespace shm {
class Poller;
}

/// A listener or bound UDP socket over every interface that its address covers; follows address changes.
struct BoundFlow;

class Engine {
 public:
  /// The process's engine, or nullptr when there is none (yet). One load.
  static Engine* get() { return instance_.load(std::memory_order_acquire); }
  /// Opens it at the first need: configuration, netlink snapshot; ports open when a route needs them.
  /// `start_control` starts the thread that does the work of housekeeping(), before others see the engine: an
  /// engine without it serves nobody. nullptr when this process stays on the kernel; `why` then says why. Not
  /// to be called from a signal handler.
  /// kForLinks: a connection within the host wants it, which needs neither a port nor a privilege.
  enum class Opening : uint8_t { kForPorts, kForLinks };
  static Engine* open(Upcalls& above, Result<void> (*start_control)(Engine&), Reason* why,
                      Opening opening = Opening::kForPorts);
  /// Whether open() would try for ports, as far as can be told without loading anything. Thread-safe.
  static bool may_open(Reason* why);
  /// For the control thread.
  Housekeeping& housekeeping();

  // ---- privilege (posix/privilege.h) ----
  /// Whether there can be a port at all (CAP_NET_RAW); what one kind needs besides, its opening tells.
  static bool privileged();
  /// Whether this process may read all of the host's packet filters (CAP_NET_ADMIN).
  static bool reads_filters();
  /// Since Linux 5.19 an open BPF map can be written without privilege, so a port goes on without it.
  static bool ports_outlive_privilege();
  /// The privilege may be back: what was refused for lack of it is asked again.
  static void privileges_changed();
  /// Before the privilege goes. False: what comes after needs a helper, and there is none. From then on
  /// until done_keeping_ready() a device whose queues are all held gets a port without a queue, which takes
  /// one that comes free.
  bool begin_keeping_ready(Pass& pass);
  void done_keeping_ready(Pass& pass);
  /// A socket of this process has the local end. While it has the privilege: its helper will help there.
  void tell_helper(Pass& pass, const Endpoint& local, bool v6_only);
  /// Opens what has been asked for (Reason::port_opening), while the privilege is there. Without a Pass.
  /// True: as Housekeeping::Events::ports_opened.
  [[nodiscard]] bool open_requested_ports();
  /// Ports have been asked for that are not open yet. To open one takes the lowest free descriptors for
  /// moments, which a program sees that relies on their numbers.
  static bool opens_ports() { return opens_ports_.load(std::memory_order_relaxed); }
  /// Opens those that are due, in this thread. Others come at least 50 ms later. Likewise.
  [[nodiscard]] bool settle_ports();
  /// Behind it: the process has become another user.
  void user_changed(Pass& pass);
  void open_all_ports(Pass& pass);

  /// The choice of a listener or bound UDP socket as it is now.
  PathChoice path_of(Pass& pass, const BoundFlow& flow) const;

  Stack& stack();
  Leases& leases(Pass& pass) const;

  /// True from before the calling thread takes the lock until after it has let go (async-signal-safe, one
  /// thread-local): a signal's handler that finds this is put off until then.
  static bool inside();

  // ---- paths (call with a Pass) ----
  PathChoice choose(Pass& pass, const FlowRequest& request);
  /// Steers, then opens. On failure the choice's path turns to kKernel with the reason, and the error is what
  /// the stack said.
  Result<TcpConn*> connect(Pass& pass, PathChoice& choice, const Endpoint& local, const Endpoint& remote,
                           const TcpSettings& settings, void* owner);
  /// Listens on every accelerated interface that `local` covers. choice.path is kKernel when there is none.
  Result<BoundFlow*> listen(Pass& pass, PathChoice& choice, const Endpoint& local, bool v6_only,
                            bool reuse_port, uint32_t backlog, const TcpSettings& settings, int bound_ifindex,
                            void* owner);
  /// kShared: other processes may have the local end too (SO_REUSEPORT, or inherited). kNotYet: the devices
  /// bring nothing before begin_taking().
  enum class Taking : uint8_t { kAlone, kShared, kNotYet };
  Result<BoundFlow*> bind_udp(Pass& pass, PathChoice& choice, const Endpoint& local, const Endpoint& remote,
                              bool v6_only, Taking taking, int bound_ifindex, void* owner,
                              const Groups& groups = {});
  /// The socket's multicast is otherwise from now on.
  void set_groups(Pass& pass, BoundFlow& flow, Groups groups);
  /// As set_groups() last said, whether there is a device that can bring them or not.
  bool takes_groups(Pass& pass, const BoundFlow& flow) const;
  /// The devices bring what comes to some group.
  bool brings_groups(Pass& pass, const BoundFlow& flow) const;
  /// By which address this host would answer `remote`; any(): there is no route.
  IpAddress source_towards(Pass& pass, const IpAddress& remote);
  /// Those that frames can come by.
  std::vector<int> devices(Pass& pass) const;
  /// 0: none has the address.
  int device_with(Pass& pass, const IpAddress& address) const;
  /// Forgets the connection without a packet; from now on its frames are the kernel's.
  void forget(Pass& pass, TcpConn* conn);
  /// The host has another device with an address: what is sent by `sent_by` may be answered through that one.
  bool replies_may_be_misdirected(Pass& pass, InterfaceId sent_by) const;
  TcpListener* listener(BoundFlow& flow);
  UdpPcb* udp(BoundFlow& flow);
  void reconnect_udp(Pass& pass, BoundFlow& flow, const Endpoint& local, const Endpoint& remote);
  void close(Pass& pass, BoundFlow* flow);
  /// When the pass began that the calling thread is in.
  Instant pass_began() const;
  /// Another thread is asleep in wait().
  bool others_wait(Pass& pass) const;
  /// The devices bring it no more SYNs, or datagrams; what they have brought is in the stack. Of a listener
  /// without a connection under way it may lie in the rings, where other flows are to be served.
  void stop_taking(Pass& pass, BoundFlow& flow);
  /// And again. Where they cannot it has what the kernel's socket gets.
  void begin_taking(Pass& pass, BoundFlow& flow);
  bool is_taking(const BoundFlow& flow) const;
  /// The path that serves it now: `chosen`, or the kernel's where rules of the firewall have come since.
  PathChoice path_of(Pass& pass, const BoundFlow& flow, const PathChoice& chosen) const;
  /// For fork(), between before_fork() and the fork itself. True when `flows` is all that this engine serves.
  bool serves_only(Pass& pass, size_t flows) const;
  /// Closes those flows and the ports that nobody uses then: their queues are free for the children.
  void release_queues(Pass& pass, std::span<BoundFlow* const> flows);
  /// The route to a destination that an unconnected UDP socket sends to; cached, followed by netlink.
  PathChoice choose_udp_destination(Pass& pass, const FlowRequest& request);
  /// One of the host's own that may be sent from, on whatever device.
  bool has_address(Pass& pass, const IpAddress& address) const;
  /// A socket is of the network namespace in which it was made, the engine of that in which it was opened.
  bool is_of_our_network(int socket) const;
  /// Whether some usable interface could serve `local` (exact or wildcard): for sockets that must decide
  /// early.
  PathChoice covers(Pass& pass, const FlowRequest& request, bool v6_only);

  /// The packet filters' word on an open connection within the host, whichever end has begun it: the kernel's
  /// path with the rule where they would not let all of it pass, else `accelerated`. Unknown rules are none.
  PathChoice judge_on_host(Pass& pass, const Endpoint& local, const Endpoint& remote);

  // ---- soft-iWARP ----
  /// The process's channels, made at the first need. nullptr: no descriptor for them.
  siw::Reactor* channels();
  /// Likewise its connections in shared memory. nullptr: no descriptor for them.
  shm::Poller* links();

  // ---- waiting ----
  /// For calls that ask for readiness: the channels' progress, which takes a system call while there are any,
  /// and the edges of what entering the pass brought, which else reach Upcalls::notify at its end. wait()
  /// does both.
  void catch_up(Pass& pass);
  /// epoll_wait(), poll() or select() gives the calling thread the events of so many sockets of ours.
  void begin_turn(Pass& pass, size_t sockets);
  /// For calls that tell, or end, what has been sent: what a turn keeps leaves before.
  void send_kept(Pass& pass);
  /// The last poll has left frames in a ring. A call that finds nothing of the stack's takes them, and their
  /// edges, before it tells of what the kernel has, or of nothing.
  bool has_rest(Pass& pass) const;
  void take_rest(Pass& pass);
  /// Spins for a while (adaptive), then sleeps in the kernel on the ports, request.kernel_fds and a wake
  /// eventfd. The pass's lock is released meanwhile and held again on return; pass.now() is fresh.
  Woke wait(Pass& pass, WaitRequest& request);
  /// How long the calling thread's waits poll, whatever the setting says; negative: as that says. Kept over
  /// fork().
  static void set_thread_spin(Duration longest);
  static Duration thread_spin();
  /// Signals: the handlers' trampolines (posix/signals.cc) report here, on the thread that ran them.
  static void signal_ran(bool restarts);
  /// Of the handlers that ran in this thread since its wait began: had all of them SA_RESTART?
  static bool signal_restarts();
  /// The trampolines tell where a handler's frame is, and put back what was there before.
  static const void* enter_handler(const void* frame);
  static void leave_handler(const void* outer);
  /// A condition may have changed by other means than packets (shutdown, close, another thread's call): wakes
  /// as needed.
  void touch();

  // ---- hand-back ----
  /// Moves a connection into `shadow`, an unconnected kernel TCP socket of the same family, with TCP_REPAIR;
  /// `conn` is gone on success. Errors: EPERM (no CAP_NET_ADMIN), ENOTCONN and others: the connection is then
  /// untouched.
  /// `listener`: a socket that listens at the connection's local end, or -1: one that a process without
  /// privilege has bound serves as proof (helper/privileged_request.h).
  Result<void> hand_back(Pass& pass, TcpConn* conn, int shadow, int listener = -1);

  // ---- a device that is gone ----
  /// What this thread's waits retain that a handler has left by siglongjmp(), as far as they are known to be
  /// over: their frames are. Also done by the next wait, and at the thread's end.
  void give_up_abandoned(Pass& pass);
  bool lost(Pass& pass, const TcpConn& conn) const;
  bool lost(Pass& pass, const BoundFlow& flow) const;  ///< an unaccepted connection of it
  /// What is left of the lost ports' connections: those that the application has closed are handed back as
  /// far as they owe bytes, the others end with ENETDOWN. Then the rules go. True: what a listener or UDP
  /// socket has instead is known, as with Housekeeping::Events::ports_opened.
  [[nodiscard]] bool end_lost_ports(Pass& pass);

  // ---- connections that are to be handed back: misdirected, or refused by the firewall ----
  bool hand_back_due(Pass& pass, const TcpConn& conn) const;
  bool hand_back_due(Pass& pass, const BoundFlow& flow) const;  ///< an unaccepted connection of it
  /// The kernel's path with the reason, of one that hand_back_due() names.
  PathChoice hand_back_reason(Pass& pass, const TcpConn& conn) const;
  /// Those that the application has closed.
  void finish_hand_backs(Pass& pass);

  // ---- process life ----
  /// Around fork(): the lock is held across it, so the child has a consistent copy.
  void before_fork();
  void after_fork_in_parent();
  /// The child owns nothing of it: drops descriptors and mappings without a packet, and instance() is nullptr
  /// again.
  static void after_fork_in_child();
  /// At exit, exec and fatal signals: hands back what is not delivered; else waits for it, at most `limit`.
  /// `for_good`: the process ends, where exec may fail. Without a Pass.
  void finish(Duration limit, bool for_good);

  /// As at exit, while the process goes on without an engine's work: the ports are closed, and there is no
  /// housekeeping to be done any more. For when the layer above has nothing of ours open any more; who is in
  /// wait() has been told to leave it. Without a Pass.
  void retire(Duration limit);

  /// In a forked child (before its engine opens) that inherits a listening socket: it holds one queue of each
  /// device only, so that its siblings have theirs.
  static void inherit_listener();

  // ---- for statistics ----
  /// To add to. What is written for each frame is counted by the worker (Process::count() has the sum).
  Counters& counters();
  /// That of the thread which last brought frames to the stack; -1: none has.
  int receiving_cpu(Pass& pass) const;
  uint32_t interface_count(Pass& pass) const;
  const PortInfo* port_info(Pass& pass, InterfaceId id) const;
  /// Port::time_of() of the port that the datagram came in by. 0: not known.
  int64_t device_time(Pass& pass, const Datagram& datagram) const;
  PathKind port_kind(Pass& pass, InterfaceId id) const;
  /// The device by which it comes; 0: none, or several.
  int ifindex_of(Pass& pass, const TcpConn& conn) const;
  int ifindex_of(Pass& pass, const BoundFlow& flow) const;

  Process& process() const { return *process_; }

 private:
  explicit Engine(Upcalls& above);
  ~Engine();
  static Result<Engine*> start_new(Upcalls& above, Result<void> (*start_control)(Engine&));
  void wait_for_the_others(Pass& pass, Duration limit);
  /// Of what connections owe that could not be handed back, and channels.
  void wait_for_delivery(Pass& pass, Duration limit);
  static std::atomic<Engine*> instance_;
  static constinit std::atomic<bool> opens_ports_;
  const std::unique_ptr<Process> process_;
  std::unique_ptr<Housekeeping> housekeeping_;
};

inline Pass::Pass(Engine& engine, Polling polling) : Pass(engine.process(), polling) {}
inline Pass::Pass(Engine& engine, OverFork over) : Pass(engine.process(), over) {}

}  // namespace accel
