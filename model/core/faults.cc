#include "model/core/faults.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace model {
namespace {

constexpr uint64_t kOvertakePatience = 2'000'000;  // with nothing behind it a frame goes on by itself

accel::Result<uint64_t> duration(const std::string& text) {
  static constexpr std::pair<const char*, uint64_t> kUnits[] = {
      {"ns", 1}, {"us", 1'000}, {"ms", 1'000'000}, {"s", 1'000'000'000}};
  char* end = nullptr;
  const uint64_t value = strtoull(text.c_str(), &end, 10);
  for (const auto& [unit, factor] : kUnits) {
    if (end != text.c_str() && std::string(end) == unit) return value * factor;
  }
  return accel::err(EINVAL);
}

accel::Result<double> probability(const std::string& text) {
  char* end = nullptr;
  const double value = strtod(text.c_str(), &end);
  if (end == text.c_str() || *end != 0 || !(value >= 0 && value <= 1)) return accel::err(EINVAL);
  return value;
}

accel::Result<void> set(FaultSpec& spec, const std::string& name, const std::string& value) {
  static constexpr std::pair<const char*, double FaultSpec::*> kProbabilities[] = {
      {"loss", &FaultSpec::loss},       {"duplicate", &FaultSpec::duplicate},
      {"reorder", &FaultSpec::reorder}, {"corrupt", &FaultSpec::corrupt},
      {"overrun", &FaultSpec::overrun}, {"send_error", &FaultSpec::send_error},
      {"delay", &FaultSpec::delay},     {"receive_error", &FaultSpec::receive_error},
      {"vouch", &FaultSpec::vouch}};
  const size_t colon = value.find(':');
  const std::string first = value.substr(0, colon);
  const std::string second = colon == std::string::npos ? "" : value.substr(colon + 1);
  if ((name == "delay" || name == "stall") != (colon != std::string::npos)) return accel::err(EINVAL);
  if (name == "seed") {
    spec.seed = strtoull(value.c_str(), nullptr, 10);
    return {};
  }
  if (name == "stall") {
    const auto every = duration(first), length = duration(second);
    if (!every || !length) return accel::err(EINVAL);
    spec.stall_every_ns = *every;
    spec.stall_ns = *length;
    return {};
  }
  if (name == "delay") {
    const auto length = duration(second);
    if (!length) return length.error();
    spec.delay_ns = *length;
  }
  for (const auto& [known, member] : kProbabilities) {
    if (name != known) continue;
    const auto p = probability(first);
    if (!p) return p.error();
    spec.*member = *p;
    return {};
  }
  return accel::err(EINVAL);
}

}  // namespace

accel::Result<FaultSpec> parse_faults(const std::string& text) {
  FaultSpec spec;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    const std::string item = text.substr(at, end - at);
    const size_t equals = item.find('=');
    if (equals == std::string::npos) return accel::err(EINVAL);
    if (auto done = set(spec, item.substr(0, equals), item.substr(equals + 1)); !done) return done.error();
    at = end + 1;
  }
  return spec;
}

void Impairment::pass(std::span<const uint8_t> frame, uint64_t now, const Sink& sink) {
  if (chance(spec_.loss)) {
    ++counters_.faults_loss;
    return;
  }
  if (chance(spec_.delay)) {
    ++counters_.faults_delay;
    held_.push_back({now + spec_.delay_ns, {frame.begin(), frame.end()}});
    return;
  }
  if (chance(spec_.reorder)) {
    ++counters_.faults_reorder;
    if (overtaken_.empty()) overtaken_since_ = now;
    overtaken_.emplace_back(frame.begin(), frame.end());
    return;
  }
  if (chance(spec_.corrupt)) {
    ++counters_.faults_corrupt;
    std::vector<uint8_t> copy(frame.begin(), frame.end());
    // Behind the Ethernet header: the frame still arrives here, with a bit turned that a checksum finds.
    const size_t from = std::min<size_t>(34, copy.size() - 1);
    copy[std::uniform_int_distribution<size_t>(from, copy.size() - 1)(random_)] ^= 1u << random_() % 8;
    sink(copy);
  } else {
    sink(frame);
  }
  if (chance(spec_.duplicate)) {
    ++counters_.faults_duplicate;
    sink(frame);
  }
  for (const auto& f : std::exchange(overtaken_, {})) sink(f);
}

void Impairment::due(uint64_t now, const Sink& sink) {
  if (!overtaken_.empty() && now - overtaken_since_ > kOvertakePatience) {
    for (const auto& f : std::exchange(overtaken_, {})) sink(f);
  }
  for (size_t i = 0; i < held_.size();) {
    if (held_[i].until > now) {
      ++i;
      continue;
    }
    const std::vector<uint8_t> frame = std::move(held_[i].frame);
    held_.erase(held_.begin() + static_cast<ptrdiff_t>(i));
    sink(frame);
  }
}

}  // namespace model
