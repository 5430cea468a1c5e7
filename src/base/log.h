// One line on stderr, or where the setting log_to says (base/log_target.h), "libaccel: ...": each distinct
// message once for a process, never on stdout, never into a file or socket that the program has meanwhile
// opened as descriptor 2.
#pragma once

#include <cstdint>

namespace accel {

enum class LogLevel : uint8_t { kOff, kError, kWarning, kInfo, kDebug };

/// printf-like, without newline. Safe in any thread and in signal handlers (no allocation, no lock); errno is
/// kept.
[[gnu::format(printf, 2, 3)]] void log(LogLevel level, const char* format, ...);

/// Messages up to this level are shown; kWarning until the configuration says otherwise.
void set_log_level(LogLevel level);
bool log_enabled(LogLevel level);
/// So many messages a second at most. How many were left out is said with the next one.
void set_log_rate(uint32_t messages_per_second);

}  // namespace accel
