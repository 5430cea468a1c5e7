#include "engine/housekeeping.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "base/config.h"
#include "base/log.h"
#include "base/log_target.h"
#include "base/private_fds.h"
#include "base/real.h"
#include "engine/process.h"
#include "engine/stack_config.h"
#include "engine/stats.h"
#include "engine/tap.h"
#include "engine/wish.h"

namespace accel {
namespace {

using Request = HousekeepingRequests::Request;
constexpr Duration kRest = HousekeepingRequests::kRest;
constexpr Duration kTick = 100ms;    ///< a thread of the application was asleep in wait()
constexpr Duration kBusyTick = 8ms;  ///< the application makes passes and may stop any time
/// As kBusyTick, where no look of the last kTrustAfter has missed new passes: a thread that wakes takes a
/// CPU from the program or its peer, and has the scheduler move them.
constexpr Duration kTrustedTick = 20ms, kTrustAfter = 1s;
constexpr Duration kChores =
    100ms;  ///< between looks at ports, misdirected connections and filters: they take system calls
constexpr Duration kOfferAfter =
    20ms;  ///< so long it has to be away before what it has not accepted is offered
/// As kBusyTick, where so much comes that the rings would be full soon: at 40 000 frames a second a ring of
/// 512 takes 12 ms.
constexpr Duration kCrowdedTick = 4ms;
constexpr Duration kFollowSettings = 5s;  ///< of the host, of whose changes nothing tells
constexpr Duration kWatch = 1ms;          ///< threads are out that others rely on
constexpr int kWatchesInVain = 4;         ///< then it ends
constexpr Duration kOfferAgain = 5ms;     ///< connections that nobody has accepted
constexpr Duration kSettle = 10ms;        ///< changes of routes and links come in flocks: read once
constexpr Duration kSoonest = 100us;      ///< of what is due already, after a step

}  // namespace

Housekeeping::Housekeeping(Process& process) : process_(process), requests_(process.housekeeping) {
  ports_fd_ = keep_private(real.epoll_create1(EPOLL_CLOEXEC));
  const Instant now = clock_now();
  tick_due_ = now + kRest;
  settings_due_ = now + kFollowSettings;  // the stack has them as they are
}

Housekeeping::~Housekeeping() {
  if (ports_fd_ >= 0) close_private(ports_fd_);
}

int Housekeeping::requests_fd() const { return requests_.fd(); }
int Housekeeping::network_fd() const { return process_.netlink->event_fd(); }
void Housekeeping::wake() const { requests_.wake(); }

uint64_t Housekeeping::passes() const { return process_.passes(); }

void Housekeeping::abandon_in_child() {
  requests_.abandon_in_child();
  if (const int open = std::exchange(ports_fd_, -1); open >= 0) close_private(open);
}

Instant Housekeeping::next_deadline() const {
  return std::min({changes_due_, tick_due_, serving_due_, watch_due_, look_due_, opening_due_});
}

Housekeeping::Events Housekeeping::step(Ready ready) {
  thread_state.controls = true;
  Events events;
  if (ready.requests) take_requests();
  if (ready.network) take_changes();
  const Instant now = clock_now();
  if (changes_due_ <= now) {
    changes_due_ = kNever;
    NetworkChanges changes = std::exchange(pending_, {});
    follow(changes);
  }
  // The slot of a lost port is that of its device's next one, which comes behind.
  if (opening_due_ <= now && !process_.interfaces.any_lost()) open_ports();
  if (watch_due_ <= now) watch_threads();
  if (look_due_ <= now) look();
  if (serving_ && (ready.ports || serving_due_ <= now)) serve(events);
  if (tick_due_ <= now) tick(events);
  if (process_.counters_file.due(now)) write_counters(now);
  events.ports_opened = std::exchange(ports_opened_, false);
  events.port_lost = process_.interfaces.any_lost();
  events.hand_backs_due = process_.hand_backs.any();
  events.filters_changed = process_.filters_changed.exchange(false, std::memory_order_relaxed);
  return events;
}

void Housekeeping::write_counters(Instant now) {
  CountersFile::Values values;
  for (size_t i = 0; i < values.size(); ++i) values[i] = process_.count(static_cast<Counter>(i));
  process_.counters_file.write(values, now);
}

void Housekeeping::take_requests() {
  requests_.drain();
  const Instant now = clock_now();
  if (requests_.take(Request::kWatch)) {
    watched_in_vain_ = 0;
    watch_due_ = now + kWatch;
  }
  if (requests_.take(Request::kLook)) {
    const Locked held(process_);
    arm_look();
  }
  if (requests_.take(Request::kPorts)) opening_due_ = now;
  if (requests_.take(Request::kDoubt)) {
    doubted_ = now;
    if (!serving_) tick_due_ = std::min(tick_due_, now + kBusyTick);
  }
  if (serving_ || !requests_.take(Request::kTicks)) return;
  tick_after_ = kBusyTick;
  tick_due_ = now + tick_after_;
}

/// The application makes passes, and what was due it has done: its lock is left alone until the next chores.
bool Housekeeping::may_skip(bool came_by) const {
  const Instant now = clock_now();
  return came_by && ticks_busily_ && now < chores_due_ && now < process_.next_due();
}

void Housekeeping::tick(Events& events) {
  tick_due_ = clock_now() + tick_after_;
  const uint64_t made = passes();
  const bool came_by = std::exchange(passes_seen_, made) != made;
  if (may_skip(came_by)) return;
  if (look_round(events, came_by)) begin_serving(events);
}

/// Some thirty files of /proc: without the lock. nullopt: not yet, or /proc is out of reach.
std::optional<StackConfig> Housekeeping::read_settings() {
  const Instant now = clock_now();
  if (now < settings_due_) return std::nullopt;
  settings_due_ = now + kFollowSettings;
  return changed_stack_config(settings_);
}

/// What accel set changes. The stack follows with the host's settings, at once.
void Housekeeping::follow_wish() {
  const std::optional<std::string> wish = stats::wish();
  if (!wish) return;
  const size_t equals = wish->find('=');
  const std::string key = wish->substr(0, equals);
  if (key == "capture" && equals != std::string::npos)
    return stats::answer_wish(
        tap::turn(static_cast<uint32_t>(std::strtoul(wish->c_str() + equals + 1, nullptr, 10))));
  if (key == "reload") return stats::answer_wish(reload());
  auto rows = setting_texts();
  const auto row =
      std::find_if(rows.begin(), rows.end(), [&](const SettingText& r) { return r.name == key; });
  if (equals == std::string::npos || row == rows.end()) return stats::answer_wish("there is no such setting");
  if (!changes_live(key)) return stats::answer_wish("it is read once, when the program starts");
  if (!set_setting(settings_, static_cast<size_t>(row - rows.begin()), wish->substr(equals + 1)))
    return stats::answer_wish("not a value of it; allowed: " + row->allowed);
  apply_settings();
  stats::answer_wish("");
}

/// The settings that may change live take effect.
void Housekeeping::apply_settings() {
  set_log_level(settings_.log);
  set_log_rate(settings_.log_rate);
  process_.longest_spin = std::chrono::microseconds(settings_.spin);
  if (const auto changed = changed_stack_config(settings_)) process_.worker.stack->follow_host(*changed);
}

/// accel set --reload: the configuration is read again, and what may change live does. Nothing changes where
/// it has a mistake, or its file is gone.
std::string Housekeeping::reload() {
  std::vector<std::string> problems;
  ConfigSource source = process_source();
  if (!config().file.empty()) source.file_must_exist = true;  // it may be out of reach by now: chroot(2)
  const Config fresh = load_config(source, problems);
  if (!problems.empty()) return problems.front();
  std::string unchanged;
  const auto rows = setting_texts();
  for (size_t i = 0; i < rows.size(); ++i) {
    const std::string value = setting_value(fresh.settings, i);
    if (changes_live(rows[i].name))
      set_setting(settings_, i, value);
    else if (value != setting_value(settings_, i) && rows[i].name != "log_to")
      unchanged.append(unchanged.empty() ? "" : ", ").append(rows[i].name);
  }
  apply_settings();
  // No wish may name a file, the configuration may.
  const std::string why_not = open_log_target(fresh.settings.log_to);
  if (!why_not.empty() || unchanged.empty()) return why_not;
  return std::string(stats::kDone).append("needs a new start of the program: ").append(unchanged);
}

/// A program that waits for nothing has had its time to read.
void Housekeeping::note_look() {
  Stack& stack = *process_.worker.stack;
  if (looks_seen_ == stack.looks()) stack.note_look();
  looks_seen_ = stack.looks();
}

/// True: somebody has to stand in for the application.
bool Housekeeping::look_round(Events& events, bool came_by) {
  const bool sockets = process_.in_use();
  const std::optional<StackConfig> settings = read_settings();
  const Locked held(process_);
  const Instant now = clock_now();
  if (settings) process_.worker.stack->follow_host(*settings);
  const bool asleep = process_.sleepers.any_asleep();
  const bool chores = now >= chores_due_;
  if (chores) chores_due_ = now + kChores;
  const bool asked = stats::requested();
  if (asked) follow_wish();
  process_.tick(now, chores);
  if (chores) note_look();
  const bool woken = std::exchange(wakes_seen_, process_.sleepers.wakes()) != process_.sleepers.wakes();
  const bool doubtful = std::any_of(process_.slots.begin(), process_.slots.end(),
                                    [](const PortSlot& s) { return s.passed_by != 0; });
  const bool quiet = asleep && !woken && !asked && !doubtful && !process_.due_within(kRest, now);
  requests_.set_idle(sockets && quiet);
  const bool unaccepted = process_.has_unaccepted();
  const bool crowded = std::exchange(process_.worker.crowded, false);
  const uint64_t opened = process_.counters.get(Counter::sockets_accelerated);
  const bool absent = sockets && !asleep && !came_by;
  if (absent || crowded) doubted_ = now;
  const Duration busily = now - doubted_ < kTrustAfter ? kBusyTick : kTrustedTick;
  tick_after_ = quiet || (!sockets && !asked)       ? kRest
                : (asleep && !doubtful) || !sockets ? kTick
                : crowded                           ? kCrowdedTick
                                                    : busily;
  tick_due_ = now + tick_after_;
  ticks_busily_ = !absent && tick_after_ <= kTrustedTick;
  const bool trusting = ticks_busily_ && tick_after_ > kBusyTick;
  if (requests_.set_ticks(trusting, ticks_busily_, process_.due_uncovered(now), now)) arm_look();
  // Threads that sleep may have other things to do; so may those that come by and accept nothing.
  const bool accepts = std::exchange(opened_seen_, opened) != opened;
  events.unaccepted = std::exchange(unaccepted_seen_, unaccepted) && unaccepted && (asleep || !accepts);
  events.statistics = asked;
  events.ticked = sockets;
  events.absent = !came_by;
  return absent;
}

void Housekeeping::begin_serving(Events& events) {
  tick_due_ = kNever;
  serving_ = true;
  serving_since_ = clock_now();
  serve(events);
}

/// Under the worker's lock. Where there is no descriptor for it serve() looks at each tick.
void Housekeeping::watch_ports() {
  if (!watched_ports_.empty()) return;
  if (ports_fd_ < 0) ports_fd_ = keep_private(real.epoll_create1(EPOLL_CLOEXEC));
  if (ports_fd_ < 0) return;
  process_.sleepers.for_each_descriptor([this](int fd) {
    epoll_event event{};
    event.events = EPOLLIN;
    if (real.epoll_ctl(ports_fd_, EPOLL_CTL_ADD, fd, &event) == 0) watched_ports_.push_back(fd);
  });
}

/// Outside of serving no frame wakes this thread. A member that was closed is gone from the set by itself,
/// unless a copy of it is open (a child's, of fork()): then only a new set is rid of it.
void Housekeeping::forget_ports() {
  bool all = true;
  for (const int fd : watched_ports_) all = real.epoll_ctl(ports_fd_, EPOLL_CTL_DEL, fd, nullptr) == 0 && all;
  watched_ports_.clear();
  if (!all) close_private(std::exchange(ports_fd_, -1));
}

/// One pass in the application's stead; the next when a frame comes or the stack has something due.
void Housekeeping::serve(Events& events) {
  if (passes() != passes_seen_) return stop_serving();
  Instant next = kNever, now;
  bool lost = false, unaccepted = false;
  {
    const Locked held(process_);
    bool quiet = false;
    for (int i = 0; i < 16 && !quiet; ++i) {
      now = clock_now();
      process_.poll_all(now);
      process_.counters.add(Counter::housekeeping_polls);
      process_.work(now);
      quiet = process_.arm_ports();
    }
    process_.look_at_ports();
    process_.look_for_misdirected(now);
    process_.follow_firewall();
    if (stats::requested()) follow_wish();
    lost = process_.interfaces.any_lost();
    unaccepted = process_.has_unaccepted();
    next = quiet ? process_.next_poll(now) : now;
    watch_ports();
  }
  events.statistics = stats::requested();
  if (lost || !process_.in_use()) return stop_serving();
  const bool early = unaccepted && now - serving_since_ < kOfferAfter;
  events.unaccepted = unaccepted && !early;
  events.ticked = events.absent = true;
  // At least a tick: new ports, and who asks for statistics.
  const Duration longest = early ? kOfferAgain : ports_fd_ < 0 ? kBusyTick : kRest;
  now = clock_now();
  serving_due_ = std::clamp(next, now + kSoonest, now + longest);
}

void Housekeeping::look_soon() {
  if (serving_) serving_due_ = std::min(serving_due_, clock_now() + kOfferAgain);
}

void Housekeeping::stop_serving() {
  forget_ports();
  serving_due_ = kNever;
  serving_ = false;
  passes_seen_ = passes();
  doubted_ = clock_now();
  tick_after_ = kBusyTick;
  tick_due_ = doubted_ + tick_after_;
}

void Housekeeping::open_ports() {
  const Instant next = process_.open_requested(false, &ports_opened_);
  opening_due_ = next == kNever ? kNever : std::max(next, clock_now() + kSoonest);
  if (ports_opened_ && serving_) stop_serving();  // the new ones' descriptors
}

void Housekeeping::watch_threads() {
  const Locked held(process_);
  const Instant now = clock_now();
  const bool out = process_.sleepers.distrust_the_late(now, passes());
  watched_in_vain_ = out ? 0 : watched_in_vain_ + 1;
  process_.sleepers.set_watched(watched_in_vain_ < kWatchesInVain);
  watch_due_ = watched_in_vain_ < kWatchesInVain ? now + kWatch : kNever;
}

/// What is overdue has nobody done: the thread that sent does not wait in the library, or another's wait
/// began before it was due.
void Housekeeping::look() {
  const Locked held(process_);
  const Instant now = clock_now();
  if (process_.next_deadline() <= now) {
    process_.counters.add(Counter::housekeeping_polls);
    process_.poll(now);
    process_.work(now);
  }
  // An application that makes passes leaves its wait soon, and would wake this thread for the next look.
  const uint64_t made = passes();
  const bool active = std::exchange(passes_looked_at_, made) != made;
  const Instant due = active ? process_.next_poll(now) : process_.due_uncovered(now);
  requests_.set_next_look(std::max(due, now + HousekeepingRequests::kLookLate));
  arm_look();
}

void Housekeeping::take_changes() {
  NetworkChanges changes = process_.netlink->read_changes();
  pending_.links |= changes.links;
  pending_.addresses |= changes.addresses;
  pending_.routes |= changes.routes;
  pending_.neighbours |= changes.neighbours;
  pending_.source_rules |= changes.source_rules;
  if (!changes.events.empty()) {  // somebody may be waiting for a neighbour: at once
    NetworkChanges now;
    now.events = std::move(changes.events);
    follow(now);
  }
  if (pending_.any() && changes_due_ == kNever) changes_due_ = clock_now() + kSettle;
}

/// The port that takes a lost one's place has other descriptors: they are watched when it serves again.
void Housekeeping::follow(NetworkChanges& changes) {
  if (process_.follow(changes) && serving_) stop_serving();
}

}  // namespace accel
