#include "base/settings.h"

#include <charconv>
#include <limits>
#include <type_traits>
#include <vector>

namespace accel {
namespace {

enum Row : size_t {
#define SETTING(name, env, type, default_value, min, max, help) kRow_##name,
#define FLAG(name, env, default_value, help) kRow_##name,
#define CHOICE(name, env, type, default_value, help) kRow_##name,
#define TEXT(name, env, default_value, help) kRow_##name,
#include "base/settings.def"
#undef SETTING
#undef FLAG
#undef CHOICE
#undef TEXT
};

/// "300", "64K", "4M", "1G" (powers of 1024, as XLIO's sizes); a B may follow the unit.
bool parse_number(std::string_view text, uint64_t min, uint64_t max, uint64_t* out) {
  uint64_t value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end == text.data()) return false;
  std::string_view unit = text.substr(static_cast<size_t>(end - text.data()));
  int shift = 0;
  if (!unit.empty()) {
    constexpr std::string_view kUnits = "KMG";
    size_t at = kUnits.find(unit[0]);
    if (at == std::string_view::npos || (unit.size() > 1 && unit.substr(1) != "B")) return false;
    shift = static_cast<int>(10 * (at + 1));
  }
  if (value > (std::numeric_limits<uint64_t>::max() >> shift)) return false;
  value <<= shift;
  if (value < min || value > max) return false;
  *out = value;
  return true;
}

bool parse_flag(std::string_view text, bool* out) {
  if (text == "true" || text == "1" || text == "on" || text == "yes")
    *out = true;
  else if (text == "false" || text == "0" || text == "off" || text == "no")
    *out = false;
  else
    return false;
  return true;
}

template <class E>
bool parse_word(std::string_view text, E* out) {
  for (size_t i = 0; i < kWords<E>.size(); ++i)
    if (text == kWords<E>[i]) {
      *out = static_cast<E>(i);
      return true;
    }
  return false;
}

/// ACCEL_REQUIRE=1 is what everybody writes.
bool parse_word(std::string_view text, Require* out) {
  bool flag = false;
  if (text.empty() || parse_flag(text, &flag)) {
    *out = flag ? Require::kAny : Require::kOff;
    return true;
  }
  return parse_word<Require>(text, out);
}

template <class E>
std::string list_words() {
  std::string all;
  for (auto w : kWords<E>) all.append(all.empty() ? "" : " | ").append(w);
  return all;
}

/// The words that decide how; all others decide which sockets are accelerated.
template <class E>
constexpr bool is_tuning = std::is_same_v<E, XdpMode> || std::is_same_v<E, LogLevel>;

}  // namespace

std::span<const SettingText> setting_texts() {
  // Never destroyed: a thread may still need it while the program's destructors run.
  static const auto& rows = *new std::vector<SettingText>{
#define SETTING(name, env, type, default_value, min, max, help)                                      \
  {#name, env, std::to_string(default_value), std::to_string(min) + "-" + std::to_string(max), help, \
   false, true},
#define FLAG(name, env, default_value, help) \
  {#name, env, default_value ? "true" : "false", "true | false", help, false, true},
#define CHOICE(name, env, type, default_value, help) \
  {#name, env, std::string(word(type::default_value)), list_words<type>(), help, true, is_tuning<type>},
#define TEXT(name, env, default_value, help) {#name, env, default_value, "text", help, true, false},
#include "base/settings.def"
#undef SETTING
#undef FLAG
#undef CHOICE
#undef TEXT
  };
  return rows;
}

std::string setting_value(const Settings& settings, size_t index) {
  switch (index) {
#define SETTING(name, env, type, default_value, min, max, help) \
  case kRow_##name:                                             \
    return std::to_string(settings.name);
#define FLAG(name, env, default_value, help) \
  case kRow_##name:                          \
    return settings.name ? "true" : "false";
#define CHOICE(name, env, type, default_value, help) \
  case kRow_##name:                                  \
    return std::string(word(settings.name));
#define TEXT(name, env, default_value, help) \
  case kRow_##name:                          \
    return settings.name;
#include "base/settings.def"
#undef SETTING
#undef FLAG
#undef CHOICE
#undef TEXT
    default:
      return {};
  }
}

bool set_setting(Settings& settings, size_t index, std::string_view text) {
  uint64_t number = 0;
  switch (index) {
#define SETTING(name, env, type, default_value, min, max, help) \
  case kRow_##name:                                             \
    if (!parse_number(text, min, max, &number)) return false;   \
    settings.name = static_cast<type>(number);                  \
    return true;
#define FLAG(name, env, default_value, help) \
  case kRow_##name:                          \
    return parse_flag(text, &settings.name);
#define CHOICE(name, env, type, default_value, help) \
  case kRow_##name:                                  \
    return parse_word(text, &settings.name);
#define TEXT(name, env, default_value, help) \
  case kRow_##name:                          \
    settings.name = text;                    \
    return true;
#include "base/settings.def"
#undef SETTING
#undef FLAG
#undef CHOICE
#undef TEXT
    default:
      return false;
  }
}

std::string_view profile_text(Profile profile) {
#define PROFILE_TEXT(of, text) \
  if (profile == Profile::of) return text;
#include "base/settings.def"
#undef PROFILE_TEXT
  return {};
}

void apply_profile(Settings& settings, Profile profile) {
  settings.profile = profile;
#define PROFILE(of, setting, value) \
  if (profile == Profile::of) settings.setting = value;
#include "base/settings.def"
#undef PROFILE
}

}  // namespace accel
