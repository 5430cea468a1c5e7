// The settings of a process, generated from settings.def.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/log.h"

namespace accel {

/// What the operator wants for a socket; what it gets is PathKind (engine/engine.h).
enum class Path : uint8_t { kAuto, kStack, kKernel };
enum class Require : uint8_t { kOff, kAny, kXdp, kMlx5, kShm };
enum class SameHost : uint8_t { kOff, kAuto, kRequire };
enum class Profile : uint8_t {
  kDefault,
  kLatency,
  kThroughput,
  kFrugal,
  kNginx,
  kRedis,
  kHaproxy,
  kMemcached,
  kMarketData
};
enum class XdpMode : uint8_t { kAuto, kZerocopy, kCopy, kGeneric };
enum class Iwarp : uint8_t { kOff, kPrefer, kRequire };
enum class FirewallUse : uint8_t { kRespect, kIgnore };

/// How the words of an enumeration are spelt, in the order of its values.
template <class E>
inline constexpr std::array<std::string_view, 0> kWords{};
template <>
inline constexpr std::array<std::string_view, 3> kWords<Path>{"auto", "stack", "kernel"};
template <>
inline constexpr std::array<std::string_view, 5> kWords<Require>{"off", "any", "xdp", "mlx5", "shm"};
template <>
inline constexpr std::array<std::string_view, 9> kWords<Profile>{
    "default", "latency", "throughput", "frugal", "nginx", "redis", "haproxy", "memcached", "market-data"};
template <>
inline constexpr std::array<std::string_view, 4> kWords<XdpMode>{"auto", "zerocopy", "copy", "generic"};
template <>
inline constexpr std::array<std::string_view, 3> kWords<Iwarp>{"off", "prefer", "require"};
template <>
inline constexpr std::array<std::string_view, 3> kWords<SameHost>{"off", "auto", "require"};
template <>
inline constexpr std::array<std::string_view, 2> kWords<FirewallUse>{"respect", "ignore"};
template <>
inline constexpr std::array<std::string_view, 5> kWords<LogLevel>{"off", "error", "warning", "info", "debug"};

template <class E>
constexpr std::string_view word(E value) {
  return kWords<E>[static_cast<size_t>(value)];
}

struct Settings {
#define SETTING(name, env, type, default_value, min, max, help) type name = default_value;
#define FLAG(name, env, default_value, help) bool name = default_value;
#define CHOICE(name, env, type, default_value, help) type name = type::default_value;
#define TEXT(name, env, default_value, help) std::string name = default_value;
#include "base/settings.def"
#undef SETTING
#undef FLAG
#undef CHOICE
#undef TEXT
};

/// A row of the table, for documents, messages and print-outs.
struct SettingText {
  std::string_view name;
  std::string_view env;
  std::string default_value;  ///< as the file would spell it
  std::string allowed;        ///< "0-256", "true | false", "auto | stack | kernel", "text"
  std::string_view help;
  bool quoted;  ///< its value is a string in the file
  /// It decides how something is done, not for whom or whether: where its value is not understood, the
  /// default serves.
  bool tuning;
};
std::span<const SettingText> setting_texts();

/// The value of row `index` as the file would spell it, without quotes.
std::string setting_value(const Settings& settings, size_t index);

/// Reads `text` into row `index`. False: not allowed, nothing changed.
bool set_setting(Settings& settings, size_t index, std::string_view text);

/// The purpose of a profile; "" of the default.
std::string_view profile_text(Profile profile);

/// What the profile changes of `settings`.
void apply_profile(Settings& settings, Profile profile);

}  // namespace accel
