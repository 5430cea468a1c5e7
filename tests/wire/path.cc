#include "path.h"

#include <algorithm>
#include <charconv>

namespace accel::wire {

constexpr size_t kEthernet = 14;
constexpr size_t kLeastIp = kEthernet + 20;

// ---------------------------------------------------------------- what the words say

static bool parse_number(std::string_view text, double& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || value < 0) return false;
  const std::string_view unit(end, static_cast<size_t>(text.data() + text.size() - end));
  constexpr std::pair<std::string_view, double> kUnits[] = {{"", 1},    {"us", 1e3}, {"ms", 1e6}, {"s", 1e9},
                                                            {"k", 1e3}, {"m", 1e6},  {"g", 1e9}};
  for (const auto& [name, factor] : kUnits)
    if (unit == name) {
      value *= factor;
      return true;
    }
  return false;
}

static bool set(Impairment& i, std::string_view name, double value) {
  const std::pair<std::string_view, uint64_t*> amounts[] = {
      {"delay", &i.delay},           {"jitter", &i.jitter},       {"rate", &i.rate},
      {"queue", &i.queue},           {"mark", &i.mark},           {"mtu", &i.mtu},
      {"reorder_by", &i.reorder_by}, {"dark_from", &i.dark_from}, {"dark_for", &i.dark_for},
      {"dark_every", &i.dark_every}, {"burst", &i.burst}};
  const std::pair<std::string_view, double*> chances[] = {
      {"loss", &i.loss}, {"duplicate", &i.duplicate}, {"corrupt", &i.corrupt}, {"reorder", &i.reorder}};
  for (const auto& [known, field] : amounts)
    if (known == name) {
      *field = static_cast<uint64_t>(value);
      return true;
    }
  for (const auto& [known, field] : chances)
    if (known == name) {
      *field = value;
      return value <= 1;
    }
  return false;
}

bool parse(std::string_view text, Impairment& into) {
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(','));
    text.remove_prefix(std::min(word.size() + 1, text.size()));
    const size_t equals = word.find('=');
    double value = 0;
    if (equals == std::string_view::npos || !parse_number(word.substr(equals + 1), value)) return false;
    if (!set(into, word.substr(0, equals), value)) return false;
  }
  return true;
}

// ---------------------------------------------------------------- what happens to a frame

/// splitmix64: the same with every library.
uint64_t Path::next() {
  uint64_t z = random_ += 0x9e3779b97f4a7c15ULL;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ z >> 27) * 0x94d049bb133111ebULL;
  return z ^ z >> 31;
}

bool Path::chance(double p) { return p > 0 && static_cast<double>(next() >> 11) * 0x1p-53 < p; }

static bool is_ip(std::span<const uint8_t> f) {
  return f.size() >= kLeastIp && ((f[12] == 0x08 && f[13] == 0x00) || (f[12] == 0x86 && f[13] == 0xdd));
}

/// RFC 3168 section 5: sets CE where the packet is ECN-capable. True: it has been set now.
static bool mark_ce(std::span<uint8_t> f) {
  if (f[12] == 0x86) {  // IPv6: the traffic class lies across two bytes
    if ((f[15] & 0x30) == 0) return false;
    f[15] |= 0x30;
    return true;
  }
  const uint8_t before = f[15];
  if ((before & 3) == 0 || (before & 3) == 3) return false;
  f[15] |= 3;
  // RFC 1624: the header's sum follows the change.
  uint32_t sum = uint32_t{f[24]} << 8 | f[25];
  sum = (~sum & 0xffff) + (~uint32_t{before} & 0xffff) + f[15];
  sum = (sum & 0xffff) + (sum >> 16);
  sum = (sum & 0xffff) + (sum >> 16);
  sum = ~sum & 0xffff;
  f[24] = static_cast<uint8_t>(sum >> 8);
  f[25] = static_cast<uint8_t>(sum);
  return true;
}

bool Path::loses(std::span<const uint8_t> frame, uint64_t now) {
  const Impairment& i = impairment_;
  if (i.mtu && frame.size() > i.mtu + kEthernet) return ++counts_.too_long, true;
  if (i.dark_for && now >= i.dark_from) {
    const uint64_t since = now - i.dark_from;
    if ((i.dark_every ? since % i.dark_every : since) < i.dark_for) return ++counts_.dark, true;
  }
  const bool in_burst = now < burst_ends_;
  if (!in_burst && !chance(i.loss)) return false;
  if (!in_burst) burst_ends_ = now + i.burst;
  ++counts_.lost;
  return true;
}

Path::Fate Path::take(std::span<uint8_t> frame, uint64_t now) {
  const Impairment& i = impairment_;
  ++counts_.frames;
  counts_.bytes += frame.size();
  if (!is_ip(frame)) return {1, {now + i.delay}};  // ARP: the hosts find each other whatever the path
  if (loses(frame, now)) return {};
  if (i.rate) {
    const uint64_t begins = std::max(free_at_, now);
    const uint64_t waiting =
        static_cast<uint64_t>(static_cast<double>(begins - now) * static_cast<double>(i.rate) / 8e9);
    if (i.queue && waiting + frame.size() > i.queue) return ++counts_.overflowed, Fate{};
    if (i.mark && waiting > i.mark && mark_ce(frame)) ++counts_.marked;
    free_at_ =
        begins + static_cast<uint64_t>(static_cast<double>(frame.size()) * 8e9 / static_cast<double>(i.rate));
    now = free_at_;
  }
  if (chance(i.corrupt)) {
    const uint64_t bit = next() % ((frame.size() - kEthernet) * 8);
    frame[kEthernet + bit / 8] ^= static_cast<uint8_t>(1u << bit % 8);
    ++counts_.corrupted;
  }
  uint64_t leaves = now + i.delay + (i.jitter ? next() % i.jitter : 0);
  if (chance(i.reorder)) {
    ++counts_.reordered;
    leaves += i.reorder_by;
  } else {
    leaves = last_leaves_ = std::max(leaves, last_leaves_);
  }
  Fate fate{1, {leaves}};
  if (chance(i.duplicate)) {
    ++counts_.duplicated;
    fate.at[fate.copies++] = leaves;
  }
  return fate;
}

}  // namespace accel::wire
