#include "engine/housekeeping.h"

#include <ev.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <new>
#include <utility>
#include <vector>

#include "base/own_table.h"
#include "base/private_fds.h"
#include "base/real.h"
#include "base/served_call.h"
#include "engine/netlink.h"
#include "engine/stats.h"
#include "engine/worker.h"

namespace accel {
namespace {

constexpr double kTick = 0.1;  ///< seconds; a thread of the application was asleep in wait() or ours served
constexpr double kBusyTick = 0.008;  ///< the application makes passes and may stop any time
constexpr Duration kChores = 100ms;  ///< between looks at ports, strays and filters: they take system calls
constexpr Duration kOfferAfter =
    20ms;  ///< so long it has to be away before what it has not accepted is offered
/// As kBusyTick, where so much comes that the rings would be full soon: at 40 000 frames a second a ring of
/// 512 takes 12 ms.
constexpr double kCrowdedTick = 0.004;
constexpr double kRestTick = std::chrono::duration<double>(Housekeeping::kRest).count();
constexpr double kWatch = 0.001;       ///< threads are out that others rely on
constexpr int kWatchesInVain = 4;      ///< then it ends
constexpr double kOfferAgain = 0.005;  ///< connections that nobody has accepted
constexpr double kSettle = 0.01;       ///< changes of routes and links come in flocks: read once
constexpr size_t kStackSize = 512 << 10;
constexpr size_t kSecondStack = 256 << 10;  ///< of which a few pages are touched

double seconds(Duration d) { return std::chrono::duration<double>(d).count(); }

}  // namespace

struct Housekeeping::Loop {
  Loop(Engine& e, Housekeeping& h) : worker(Engine::Impl::of(e)), owner(h) {}

  Engine::Impl& worker;
  Housekeeping& owner;
  // Not epoll, whose descriptor libev keeps to itself, nor poll(2), which refuses more descriptors than
  // RLIMIT_NOFILE allows (a sandbox sets that to nothing): libev would abort.
  struct ev_loop* ev =
      ev_loop_new(unsigned{EVBACKEND_SELECT} | unsigned{EVFLAG_NOENV} | unsigned{EVFLAG_NOSIGMASK});
  // Instead of an ev_async, whose descriptor libev keeps to itself.
  int nudge_fd = keep_private(real.eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  ev_io nudge{};
  ev_io netlink_io{};
  ev_timer settle{};
  ev_timer tick{};
  ev_timer deadline{};
  ev_timer watch{};
  ev_timer look{};
  ev_timer opening{};
  int watched_in_vain = 0;
  std::array<char, kSecondStack> second_stack;  ///< in_own_table()'s
  // The ports' descriptors, while serving: a set of the kernel's, which one that is closed meanwhile leaves
  // (a port that goes, or rests over fork). Asked for in select(2) itself libev would find it invalid, and
  // abort. One set for the thread's life: a new one takes the program's lowest free number for a moment.
  int ports_fd = keep_private(real.epoll_create1(EPOLL_CLOEXEC));
  ev_io ports_io{};
  std::vector<int> watched_ports;
  std::atomic<bool> quit{false};
  NetworkChanges pending;
  uint64_t passes_seen = 0;
  uint64_t wakes_seen = 0;
  Instant chores_due{};
  bool ticks_busily = false;  ///< as the last tick left it
  bool serving = false;
  Instant serving_since{};
  bool unaccepted_seen = false;  ///< by the last tick
  uint64_t opened_seen = 0;      ///< accelerated sockets, then

  ~Loop() {
    if (ev) ev_loop_destroy(ev);
    close_descriptors();
  }
  void close_descriptors() const {
    if (nudge_fd >= 0) close_private(nudge_fd);
    if (ports_fd >= 0) close_private(ports_fd);
  }
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  void prepare();
  void wake() const {
    const uint64_t one = 1;
    (void)!real.write(nudge_fd, &one, sizeof one);
  }
  bool may_skip(bool came_by) const;
  void on_tick();
  void begin_serving();
  void serve();
  bool offer_unaccepted();
  void tell_of_tick(bool absent);
  void watch_ports() ACCEL_REQUIRES(worker_lock);
  void forget_ports();
  void stop_serving();
  void follow(NetworkChanges& changes);
  void on_watch();
  void on_look();
  void arm_look(Instant due);
  void open_ports();
  void take_changes();
  void apply_changes();
  uint64_t passes() const { return worker.passes.load(std::memory_order_relaxed); }

  template <void (Loop::*F)(), class Watcher>
  static void call(struct ev_loop*, Watcher* w, int) {
    try {
      (static_cast<Loop*>(w->data)->*F)();
    } catch (const std::bad_alloc&) {  // not through libev, which is C: the next look does it
    }
  }
};

Housekeeping::Housekeeping(Engine& engine) : engine_(engine) {}

Housekeeping::~Housekeeping() { stop(); }

void Housekeeping::stop() {
  if (!std::exchange(running_, false)) return;
  loop_->quit.store(true, std::memory_order_release);
  loop_->wake();
  pthread_join(thread_, nullptr);
}

Result<void> Housekeeping::start() {
  loop_ = std::make_unique<Loop>(engine_, *this);
  if (!loop_->ev) return err(ENOMEM);
  if (loop_->nudge_fd < 0) return err(EMFILE);
  loop_->prepare();
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, kStackSize);
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const int error = pthread_create(&thread_, &attributes, run, this);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_attr_destroy(&attributes);
  if (error != 0) return err(error);
  running_ = true;
  return {};
}

void Housekeeping::application_began() {
  resting_.store(false, std::memory_order_relaxed);
  ticks_wanted_.store(true, std::memory_order_relaxed);
  loop_->wake();
}

void Housekeeping::watch() {
  watch_wanted_.store(true, std::memory_order_relaxed);
  loop_->wake();
}

void Housekeeping::ports_requested() {
  ports_wanted_.store(true, std::memory_order_relaxed);
  loop_->wake();
}

void Housekeeping::end_rest() { application_began(); }

void Housekeeping::begin_look(Instant due, Instant now) {
  if (!loop_) return;
  next_look_ = std::max(due, now + kLookLate);
  look_wanted_.store(true, std::memory_order_relaxed);
  loop_->wake();
}

void Housekeeping::ticks_look(bool ticks, Instant due, Instant now) {
  if (ticks)
    next_look_ = kTicksLook;
  else if (next_look_ == kTicksLook)
    next_look_ = std::max(due, now + kLookLate);
}

void Housekeeping::abandon_in_child() {
  // libev has no descriptor of its own; the loop's memory is a copy of our own.
  if (loop_) loop_->close_descriptors();
  (void)loop_.release();
  running_ = false;
}

void* Housekeeping::run(void* self) {
  pthread_setname_np(pthread_self(), "libaccel");
  ServedCall::for_ever();
  Loop& loop = *static_cast<Housekeeping*>(self)->loop_;
  begin_own_tables(loop.second_stack.data(), loop.second_stack.size());
  ev_run(loop.ev, 0);
  return nullptr;
}

void Housekeeping::Loop::prepare() {
  auto nudged = [](struct ev_loop* l, ev_io* w, int) {
    auto& self = *static_cast<Loop*>(w->data);
    uint64_t count = 0;
    (void)!real.read(self.nudge_fd, &count,
                     sizeof count);  // before the wishes: one that comes now nudges again
    if (self.quit.load(std::memory_order_acquire)) return ev_break(l, EVBREAK_ALL);
    if (self.owner.watch_wanted_.exchange(false, std::memory_order_relaxed)) {
      self.watched_in_vain = 0;
      ev_timer_again(l, &self.watch);
    }
    if (self.owner.look_wanted_.exchange(false, std::memory_order_relaxed)) {
      self.worker.lock_in();
      const Instant due = self.owner.next_look_;
      self.worker.unlock_out();
      self.arm_look(due);
    }
    if (self.owner.ports_wanted_.exchange(false, std::memory_order_relaxed)) self.open_ports();
    if (self.serving || !self.owner.ticks_wanted_.exchange(false, std::memory_order_relaxed)) return;
    self.tick.repeat = kBusyTick;
    ev_timer_again(l, &self.tick);
  };
  ev_io_init(&nudge, nudged, nudge_fd, EV_READ);
  ev_io_init(&netlink_io, (call<&Loop::take_changes, ev_io>), worker.netlink->event_fd(), EV_READ);
  ev_init(&ports_io, (call<&Loop::serve, ev_io>));
  ev_init(&settle, (call<&Loop::apply_changes, ev_timer>));
  ev_init(&tick, (call<&Loop::on_tick, ev_timer>));
  ev_init(&deadline, (call<&Loop::serve, ev_timer>));
  ev_init(&watch, (call<&Loop::on_watch, ev_timer>));
  ev_init(&look, (call<&Loop::on_look, ev_timer>));
  ev_init(&opening, (call<&Loop::open_ports, ev_timer>));
  watch.repeat = kWatch;
  nudge.data = netlink_io.data = ports_io.data = settle.data = tick.data = deadline.data = watch.data =
      look.data = opening.data = this;
  ev_io_start(ev, &nudge);
  ev_io_start(ev, &netlink_io);
  tick.repeat = kRestTick;
  ev_timer_again(ev, &tick);
}

/// The application makes passes, and what was due it has done: its lock is left alone until the next chores.
bool Housekeeping::Loop::may_skip(bool came_by) const {
  const Instant now = clock_now();
  return came_by && ticks_busily && now < chores_due && now < worker.next_due.load(std::memory_order_relaxed);
}

void Housekeeping::Loop::on_tick() {
  const uint64_t made = passes();
  const bool came_by = std::exchange(passes_seen, made) != made;
  if (may_skip(came_by)) return;
  const bool sockets = worker.in_use();
  worker.lock_in();
  const Instant now = clock_now();
  const bool asleep = worker.sleepers.any_asleep();
  const bool chores = now >= chores_due;
  if (chores) chores_due = now + kChores;
  const bool asked = worker.tick(now, chores);
  const bool woken = std::exchange(wakes_seen, worker.sleepers.wakes()) != worker.sleepers.wakes();
  const bool doubtful = std::any_of(worker.slots.begin(), worker.slots.end(),
                                    [](const PortSlot& s) { return s.passed_by != 0; });
  const bool quiet = asleep && !woken && !asked && !doubtful && !worker.due_within(Housekeeping::kRest, now);
  owner.resting_.store(sockets && quiet, std::memory_order_relaxed);
  const bool unaccepted = worker.has_unaccepted();
  const bool crowded = std::exchange(worker.crowded, false);
  const uint64_t opened = worker.counters.get(Counter::sockets_accelerated);
  const bool absent = sockets && !asleep && !came_by;
  tick.repeat = quiet || (!sockets && !asked)       ? kRestTick
                : (asleep && !doubtful) || !sockets ? kTick
                : crowded                           ? kCrowdedTick
                                                    : kBusyTick;
  const Instant look_before = owner.next_look_;
  ticks_busily = !absent && tick.repeat <= kBusyTick;
  owner.ticks_look(ticks_busily, worker.due_uncovered(now), now);
  const Instant next_look = owner.next_look_;
  worker.unlock_out();
  if (next_look != look_before) arm_look(next_look);
  worker.tell_of_lost_ports();
  worker.tell_of_strays();
  // Threads that sleep may have other things to do; so may those that come by and accept nothing.
  const bool accepts = std::exchange(opened_seen, opened) != opened;
  if (std::exchange(unaccepted_seen, unaccepted) && unaccepted && (asleep || !accepts))
    (void)offer_unaccepted();
  if (sockets) tell_of_tick(!came_by);
  if (absent) return begin_serving();
  ev_timer_again(ev, &tick);
}

void Housekeeping::Loop::begin_serving() {
  ev_timer_stop(ev, &tick);
  serving = true;
  serving_since = clock_now();
  serve();
}

/// True: to be done again soon. The pass that it makes is not the application's.
bool Housekeeping::Loop::offer_unaccepted() {
  const uint64_t before = passes();
  const Upcalls::Offered done = worker.above.unaccepted();
  if (done == Upcalls::Offered::kLooked && passes_seen == before && passes() == before + 1) ++passes_seen;
  return done != Upcalls::Offered::kNobodyElses;
}

/// The pass that it makes is not the application's, as with offer_unaccepted().
void Housekeeping::Loop::tell_of_tick(bool absent) {
  const uint64_t before = passes();
  worker.above.each_tick(absent);
  if (passes_seen == before && passes() == before + 1) ++passes_seen;
}

/// Under the worker's lock. Where there is no descriptor for it serve() looks at each tick.
void Housekeeping::Loop::watch_ports() {
  if (!watched_ports.empty()) return;
  if (ports_fd < 0) ports_fd = keep_private(real.epoll_create1(EPOLL_CLOEXEC));
  if (ports_fd < 0) return;
  worker.sleepers.for_each_descriptor([this](int fd) {
    epoll_event event{};
    event.events = EPOLLIN;
    if (real.epoll_ctl(ports_fd, EPOLL_CTL_ADD, fd, &event) == 0) watched_ports.push_back(fd);
  });
}

/// Outside of serving no frame wakes this thread. A member that was closed is gone from the set by itself,
/// unless a copy of it is open (a child's, of fork()): then only a new set is rid of it.
void Housekeeping::Loop::forget_ports() {
  bool all = true;
  for (const int fd : watched_ports) all = real.epoll_ctl(ports_fd, EPOLL_CTL_DEL, fd, nullptr) == 0 && all;
  watched_ports.clear();
  if (!all) close_private(std::exchange(ports_fd, -1));
}

/// One pass in the application's stead, then asleep until a frame comes or the stack has something due.
void Housekeeping::Loop::serve() {
  if (passes() != passes_seen) return stop_serving();
  Instant next = kNever, now;
  bool quiet = false;
  worker.lock_in();
  worker.serving = true;
  for (int i = 0; i < 16 && !quiet; ++i) {
    now = clock_now();
    worker.poll_all(now);
    worker.counters.add(Counter::housekeeping_polls);
    worker.work(now);
    quiet = worker.arm_ports();
  }
  worker.look_at_ports();
  worker.look_for_strays(now);
  worker.follow_firewall();
  const bool lost = worker.interfaces.lost_untold();
  const bool unaccepted = worker.has_unaccepted();
  next = quiet ? worker.next_poll(now) : now;
  watch_ports();
  if (stats::requested()) worker.publish_statistics(clock_now());
  worker.serving = false;
  worker.unlock_out();
  if (ports_fd >= 0 && !ev_is_active(&ports_io)) {
    ev_io_set(&ports_io, ports_fd, EV_READ);
    ev_io_start(ev, &ports_io);
  }
  worker.tell_of_lost_ports();
  worker.tell_of_strays();
  if (lost || !worker.in_use()) return stop_serving();
  const bool early = unaccepted && now - serving_since < kOfferAfter;
  const bool again = early || (unaccepted && offer_unaccepted());
  tell_of_tick(true);
  // At least a tick: new ports, and who asks for statistics.
  ev_now_update(ev);
  const double longest = again ? kOfferAgain : ports_fd < 0 ? kBusyTick : kRestTick;
  deadline.repeat = next == kNever ? longest : std::clamp(seconds(next - now), 0.0001, longest);
  ev_timer_again(ev, &deadline);
}

void Housekeeping::Loop::stop_serving() {
  ev_io_stop(ev, &ports_io);
  forget_ports();
  ev_timer_stop(ev, &deadline);
  serving = false;
  passes_seen = passes();
  tick.repeat = kBusyTick;
  ev_timer_again(ev, &tick);
}

void Housekeeping::Loop::open_ports() {
  bool opened = false;
  const Instant next = worker.open_requested(false, &opened);
  if (opened) worker.above.ports_opened();
  if (opened && serving) stop_serving();  // the new ones' descriptors
  ev_timer_stop(ev, &opening);
  if (next == kNever) return;
  ev_now_update(ev);
  opening.repeat = std::max(seconds(next - clock_now()), 0.0001);
  ev_timer_again(ev, &opening);
}

void Housekeeping::Loop::on_watch() {
  worker.lock_in();
  const bool out = worker.sleepers.distrust_the_late(clock_now(), passes());
  watched_in_vain = out ? 0 : watched_in_vain + 1;
  worker.sleepers.set_watched(watched_in_vain < kWatchesInVain);
  worker.unlock_out();
  if (watched_in_vain >= kWatchesInVain) ev_timer_stop(ev, &watch);
}

/// Without the worker's lock, as all that starts a watcher: libev calls malloc(), which a thread that a
/// handler has interrupted may be in.
void Housekeeping::Loop::arm_look(Instant due) {
  ev_now_update(ev);
  look.repeat = due == kNever || due == kTicksLook ? 0 : std::max(seconds(due - clock_now()), 0.0001);
  ev_timer_again(ev, &look);
}

/// What is overdue has nobody done: the thread that sent does not wait in the library, or another's wait
/// began before it was due.
void Housekeeping::Loop::on_look() {
  worker.lock_in();
  const Instant now = clock_now();
  if (worker.next_deadline() <= now) {
    worker.counters.add(Counter::housekeeping_polls);
    worker.poll(now);
    worker.work(now);
  }
  const Instant due = worker.due_uncovered(now);
  owner.next_look_ = std::max(due, now + kLookLate);
  const Instant next = owner.next_look_;
  worker.unlock_out();
  arm_look(next);
}

void Housekeeping::Loop::take_changes() {
  NetworkChanges changes = worker.netlink->read_changes();
  pending.links |= changes.links;
  pending.addresses |= changes.addresses;
  pending.routes |= changes.routes;
  pending.neighbours |= changes.neighbours;
  pending.source_rules |= changes.source_rules;
  if (!changes.events.empty()) {  // somebody may be waiting for a neighbour: at once
    NetworkChanges now;
    now.events = std::move(changes.events);
    follow(now);
  }
  if (pending.any() && !ev_is_active(&settle)) {
    settle.repeat = kSettle;
    ev_timer_again(ev, &settle);
  }
}

void Housekeeping::Loop::apply_changes() {
  ev_timer_stop(ev, &settle);
  NetworkChanges now = std::move(pending);
  pending = {};
  follow(now);
}

/// The port that takes a lost one's place has other descriptors: they are watched when it serves again.
void Housekeeping::Loop::follow(NetworkChanges& changes) {
  if (worker.follow(changes) && serving) stop_serving();
}

}  // namespace accel
