#include "player.h"

#include <sys/socket.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "assertions.h"
#include "stack/tcp/options.h"
#include "stack/tcp/segment.h"

namespace accel::scripts {
namespace {

std::string text_of_time(Duration d) {
  char out[32];
  std::snprintf(out, sizeof out, "%.6f", static_cast<double>(d.count()) / 1e9);
  return out;
}

template <class... F>
struct Visitor : F... {
  using F::operator()...;
};
template <class... F>
Visitor(F...) -> Visitor<F...>;

constexpr Duration kLongest = 10s;  ///< for a segment that may come whenever it likes

}  // namespace

Player::Flow& Player::flow_of(Ports p) {
  auto [at, fresh] = flows_.try_emplace(p);
  if (fresh) at->second.peer = 0xfffff000u + p.first;  // so that it wraps in each script
  return at->second;
}

void Player::note(Duration at, const char* direction, const SegmentSpec& s) {
  trace_.push_back(text_of_time(at) + " " + direction + " " + text_of(s));
}

std::optional<Failure> Player::play() {
  try {
    for (const auto& [name, value] : script_.sysctls)
      if (!world_.set_sysctl(name, value)) throw ScriptError(0, "no such setting here: " + name);
    if (const std::string metrics = script_.option("route"); !metrics.empty() && !world_.set_route(metrics))
      throw ScriptError(0, "no such route here: " + metrics);
    for (const Event& e : script_.events) {
      line_ = e.line;
      if (auto failed = on(e)) return failed;
    }
    return end();
  } catch (const ScriptError& e) {
    return failure(e.what());
  }
}

std::optional<Failure> Player::on(const Event& e) {
  const auto* expected = std::get_if<Expect>(&e.action);
  if (expected) return expect(expected->segment, e.moment);
  call_took_ = Duration{0};
  const Duration at = due(e.moment);
  while (world_.now() < at) world_.run(at);
  last_ = std::max(last_, e.moment.relative ? world_.now() : at);
  if (std::holds_alternative<Call>(e.action) || std::holds_alternative<Check>(e.action))
    wait_for_due_answers();
  if (auto failed = take_answers()) return failed;
  return std::visit(Visitor{[&](const Inject& i) { return inject(i.segment); },
                            [&](const InjectIcmp& i) { return inject_icmp(i); },
                            [&](const Call& c) { return call(c); }, [&](const Check& c) { return check(c); },
                            [&](const ExpectNothing&) { return expect_nothing(); },
                            [&](const Expect&) { return std::optional<Failure>(); }},
                    e.action);
}

/// Where in its stream a segment's text begins: the SYN has the number before it.
static uint32_t first_byte(const SegmentSpec& s) { return s.seq - ((s.flags & kSyn) != 0 ? 0 : 1); }

std::optional<Failure> Player::inject(const SegmentSpec& s) {
  const Ports ports = s.ports ? Ports{s.ports->from, s.ports->to} : default_;
  Flow& flow = flow_of(ports);
  if ((s.flags & (kSyn | kAck)) == kSyn) flow.renewed = true;
  Segment out;
  out.source = world_.addresses.peer;
  out.destination = world_.addresses.own;
  out.from = ports.first;
  out.to = ports.second;
  out.seq = s.seq + flow.peer;
  out.ack = s.ack ? *s.ack + flow.own : 0;
  out.flags = s.flags;
  out.window = s.window.value_or(65535);
  out.urgent = s.urgent.value_or(0);
  out.ecn = s.ecn.value_or(0);
  out.options = s.options;
  for (OptionSpec& o : out.options) {
    for (auto& [begin, end] : o.sack) {
      begin += flow.own;
      end += flow.own;
    }
    if (o.kind != option::kTimestamps || !o.b) continue;
    auto known = flow.stamps.find(*o.b);
    if (known != flow.stamps.end())
      o.b = known->second;
    else if (flow.stamp_offset)
      *o.b += *flow.stamp_offset;
  }
  for (uint32_t i = 0; i < s.length; ++i) out.payload.push_back(stream_byte(first_byte(s) + i));
  note(world_.now(), "<", s);
  world_.inject(packet_of(out));
  return std::nullopt;
}

std::optional<Failure> Player::inject_icmp(const InjectIcmp& icmp) {
  Segment quoted;
  quoted.source = world_.addresses.own;
  quoted.destination = world_.addresses.peer;
  quoted.from = default_.second;
  quoted.to = default_.first;
  quoted.seq = icmp.seq + flow_of(default_).own;
  quoted.payload.resize(icmp.length);
  InjectIcmp error = icmp;
  if (error.mtu != 0) error.mtu = static_cast<uint16_t>(error.mtu + world_.addresses.longer_header());
  world_.inject(icmp_packet_of(error, quoted));
  return std::nullopt;
}

// ---------------------------------------------------------------- segments that are to leave

SegmentSpec Player::in_script_numbers(const Segment& s) const {
  SegmentSpec out;
  auto found = flows_.find({s.to, s.from});
  const Flow flow = found == flows_.end() ? Flow{} : found->second;
  if (Ports{s.to, s.from} != default_) out.ports = {s.from, s.to};
  out.flags = s.flags;
  out.seq = s.seq - flow.own;
  if ((s.flags & kSyn) != 0 && !flow.own_known) out.seq = 0;
  out.length = s.length;
  if ((s.flags & kAck) != 0) out.ack = s.ack - flow.peer;
  out.window = s.window;
  if ((s.flags & kUrg) != 0) out.urgent = s.urgent;
  out.options = s.options;
  for (OptionSpec& o : out.options) {
    for (auto& [begin, end] : o.sack) {
      begin -= flow.peer;
      end -= flow.peer;
    }
    if (o.kind == option::kTimestamps && flow.stamp_offset) *o.a -= *flow.stamp_offset;
  }
  return out;
}

std::optional<Failure> Player::expect(const SegmentSpec& expected, const Moment& when) {
  const Duration from = when.any ? Duration{0} : due(when);
  const Duration waited = when.any ? Duration{0} : from - last_;
  const Duration to = when.any ? world_.now() + kLongest : (when.to ? from - when.from + *when.to : from);
  const Duration latest = to + world_.late(waited) + std::exchange(call_took_, Duration{0});
  uint32_t got = 0;
  do {  // text may come in several segments
    while (world_.sent.empty()) {
      if (world_.now() >= latest) {
        auto failed =
            failure("no segment left by " + text_of_time(latest) + ", expected " + text_of(expected));
        if (auto answer = take_answers()) return answer;
        return failed;
      }
      world_.run(latest);
    }
    const Segment s = world_.sent.front();
    world_.sent.pop_front();
    if (!expected.ports && (s.flags & (kSyn | kAck)) == kSyn) default_ = {s.to, s.from};
    const Ports ports = expected.ports ? Ports{expected.ports->to, expected.ports->from} : default_;
    SegmentSpec part = expected;
    part.seq += got;
    part.length -= got;
    if (s.length > 0 && s.length < part.length) {
      part.length = s.length;
      part.flags &= static_cast<uint8_t>(~(kPsh | kFin));  // the last one has them
    }
    std::string wrong =
        Ports{s.to, s.from} != ports ? "its ports are others" : difference(part, s, flow_of(ports));
    const SegmentSpec shown = in_script_numbers(s);
    note(s.at, ">", shown);
    if (wrong.empty() && s.at < from - world_.early())
      wrong = "it left " + text_of_time(from - s.at) + " s early";
    if (wrong.empty() && s.at > latest) wrong = "it left " + text_of_time(s.at - to) + " s late";
    if (!wrong.empty())
      return failure(wrong + ": expected " + text_of(expected) + ", got " + text_of(shown) + " at " +
                     text_of_time(s.at));
    last_ = std::max(last_, s.at);
    got += s.length;
  } while (got < expected.length);
  return take_answers();
}

std::string Player::difference(const SegmentSpec& expected, const Segment& s, Flow& flow) {
  if ((s.flags & kSyn) != 0 && (!flow.own_known || flow.renewed)) {
    flow.own = s.seq - expected.seq;
    flow.own_known = true;
    flow.renewed = false;
  }
  if (s.flags != expected.flags) return "flags";
  if (s.seq - flow.own != expected.seq) return "sequence number";
  if (s.length != expected.length) return "length";
  if (expected.ack && s.ack - flow.peer != *expected.ack) return "acknowledgment";
  if (expected.window && s.window != *expected.window) return "window";
  if (expected.urgent.value_or(0) != s.urgent) return "urgent pointer";
  if (expected.ecn && s.ecn != *expected.ecn) return "ECN";
  for (uint32_t i = 0; i < s.length; ++i)
    if (s.payload[i] != stream_byte(first_byte(expected) + i))
      return "byte " + std::to_string(i) + " of its text";
  return expected.any_options ? "" : option_difference(expected, s, flow);
}

std::string Player::option_difference(const SegmentSpec& expected, const Segment& s, Flow& flow) {
  if (s.options.size() != expected.options.size()) return "options";
  for (size_t i = 0; i < s.options.size(); ++i) {
    const OptionSpec &a = expected.options[i], &b = s.options[i];
    if (a.kind != b.kind || a.sack.size() != b.sack.size() || a.cookie != b.cookie) return "options";
    if (a.kind == option::kTimestamps) {
      if (std::string wrong = stamp_difference(a, b, flow); !wrong.empty()) return wrong;
    } else if (a.a != b.a) {
      return "an option's value";
    }
    for (size_t n = 0; n < a.sack.size(); ++n)
      if (b.sack[n].first - flow.peer != a.sack[n].first || b.sack[n].second - flow.peer != a.sack[n].second)
        return "SACK blocks";
  }
  return "";
}

std::string Player::stamp_difference(const OptionSpec& expected, const OptionSpec& o, Flow& flow) {
  if (expected.b && *expected.b != *o.b) return "TSecr";
  if (!expected.a) return "";
  if (!flow.stamp_offset) flow.stamp_offset = *o.a - *expected.a;
  flow.stamps[*expected.a] = *o.a;
  const auto off = static_cast<int32_t>(*o.a - *flow.stamp_offset - *expected.a);
  const auto most = std::chrono::duration_cast<std::chrono::milliseconds>(world_.late(0s)).count() + 1;
  return off < -most || off > most ? "TSval" : "";
}

std::optional<Failure> Player::expect_nothing() {
  if (world_.sent.empty()) return std::nullopt;
  const Segment& s = world_.sent.front();
  return failure("a segment left at " + text_of_time(s.at) + ": " + text_of(in_script_numbers(s)));
}

// ---------------------------------------------------------------- calls

std::optional<Failure> Player::call(const Call& c) {
  Operation operation = operation_of(c, fds_);
  if (operation.kind == Operation::Kind::kConnect)
    for (auto& [ports, flow] : flows_) flow.renewed = true;
  const Duration begun = last_;
  Running r{&c, line_, operation, world_.start(operation), begun, Duration{0}};
  if (c.end) {
    const Event& e = *std::find_if(script_.events.begin(), script_.events.end(),
                                   [&](const Event& one) { return std::get_if<Call>(&one.action) == &c; });
    r.due = c.end_relative ? begun - e.moment.from + *c.end : *c.end;
    r.waited = r.due - begun;
  } else {
    const Duration latest = begun + world_.patience();
    while (!r.pending->answer && world_.now() < latest) world_.run(latest);
    if (!r.pending->answer) return failure(c.name + "() does not return");
    call_took_ = r.pending->returned - begun;
    r.due = r.pending->returned;
  }
  running_.push_back(std::move(r));
  return take_answers();
}

/// What comes next may want their results.
void Player::wait_for_due_answers() {
  for (const Running& r : running_) {
    const Duration latest = r.due + world_.late(r.waited);
    while (r.due <= last_ && !r.pending->answer && world_.now() < latest) world_.run(latest);
  }
}

std::optional<Failure> Player::take_answers() {
  for (size_t i = 0; i < running_.size();) {
    Running& r = running_[i];
    const bool over = world_.now() > r.due + world_.late(r.waited);
    if (!r.pending->answer && !over) {
      ++i;
      continue;
    }
    if (!r.pending->answer)
      return Failure{r.line, r.call->name + "() did not return by " + text_of_time(r.due)};
    std::string wrong = accel::scripts::difference(*r.call, r.operation, *r.pending->answer, fds_);
    const Duration off = r.pending->returned - r.due;
    if (wrong.empty() && (off > world_.late(r.waited) || off < -world_.early()))
      wrong = r.call->name + "() returned at " + text_of_time(r.pending->returned);
    if (!wrong.empty()) return Failure{r.line, wrong};
    const auto kind = r.operation.kind;
    if (kind == Operation::Kind::kAccept && r.pending->answer->value >= 0) info_fd_ = r.call->result.number;
    const bool opens = kind == Operation::Kind::kConnect || (r.operation.flags & MSG_FASTOPEN) != 0;
    if (opens) info_fd_ = r.call->arguments[0].number;
    running_.erase(running_.begin() + static_cast<long>(i));
  }
  return std::nullopt;
}

std::optional<Failure> Player::check(const Check& c) {
  auto value_of = [&](const std::string& name) -> std::optional<int64_t> {
    auto fd = fds_.live.find(info_fd_);
    if (fd == fds_.live.end()) throw ScriptError(0, "no connection to ask");
    auto value = world_.info(fd->second, name);
    if (value && name == "tcpi_pmtu") *value -= world_.addresses.longer_header();
    return value;
  };
  std::string failed = failed_assertion(c.code, value_of);
  if (failed.empty()) return std::nullopt;
  return failure("does not hold: " + failed);
}

std::optional<Failure> Player::end() {
  while (!running_.empty()) {
    const Running& r = running_.front();
    const Duration latest = r.due + world_.late(r.waited) + Duration{1};
    line_ = r.line;
    while (!r.pending->answer && world_.now() < latest) world_.run(latest);
    if (auto failed = take_answers()) return failed;
  }
  return expect_nothing();
}

}  // namespace accel::scripts
