#include "engine/port_opening.h"

#include <algorithm>
#include <utility>

#include "base/config.h"

namespace accel {
namespace {

/// A process that opens connections only and has ended by then has no port.
constexpr Duration kShortLife = 50ms;
/// A program that names descriptors all the time gets its port all the same.
constexpr Duration kLongestPause = 1s;
/// A port that could not be opened is tried again after this, or when links or addresses change. Queues come
/// free when other processes end.
constexpr Duration retry_after(Reason failure) { return failure == Reason::no_queue ? 2s : 10s; }

}  // namespace

uint32_t PortOpening::queues_to_hold() const { return one_queue_only_ ? 1 : config().settings.queues; }

bool PortOpening::is_waited_for() const {
  const Settings& settings = config().settings;
  return settings.wait_for_ports || settings.require != Require::kOff || settings.path == Path::kStack ||
         config().wants_iwarp || keeps_ready();
}

void PortOpening::request(int ifindex, Need need, Instant now) {
  const Instant due = need == Need::kNow ? now : now + kShortLife;
  auto [entry, is_new] = requests_.try_emplace(ifindex, Request{due, need, now});
  if (!is_new && (need != Need::kNow || entry->second.need == Need::kNow)) return;
  entry->second = {due, need, now};
  notices_.add(Notices::kPortsRequested);
}

const std::pair<const int, PortOpening::Request>* PortOpening::first(Instant now, bool all) const {
  const auto found = std::min_element(requests_.begin(), requests_.end(),
                                      [](auto& a, auto& b) { return a.second.due < b.second.due; });
  if (found == requests_.end() || (!all && found->second.due > now)) return nullptr;
  return &*found;
}

Instant PortOpening::postpone(Instant now, Duration pause) {
  Instant next = kNever;
  for (auto& [ifindex, request] : requests_) {
    request.due = std::max(request.due, std::min(now + pause, request.asked + kLongestPause));
    next = std::min(next, request.due);
  }
  return next;
}

OpenedPort PortOpening::open(const Link& known, FramePool& pool) {
  Link link = known;
  link.passed_by = is_passed_by(link.ifindex);
  if (auto ready = ready_.extract(link.ifindex)) {
    OpenedPort& opened = ready.mapped();
    take_queues(opened);
    if (opened.reason != Reason::no_queue) return std::move(opened);
    OpenedPort none{{}, opened.kind, opened.reason, opened.detail};
    ready_.insert(std::move(ready));
    return none;
  }
  OpenedPort opened = open_port(link, queues_to_hold(), pool);
  if (keeps_ready() && opened.reason == Reason::no_queue)
    if (OpenedPort ready = open_ready_port(link, queues_to_hold(), pool); ready.port)
      ready_.emplace(link.ifindex, std::move(ready));
  return opened;
}

std::optional<Reason> PortOpening::failure(int ifindex, Instant now) const {
  const auto failed = failures_.find(ifindex);
  if (failed == failures_.end() || now - failed->second.when >= retry_after(failed->second.reason)) return {};
  return failed->second.reason;
}

}  // namespace accel
