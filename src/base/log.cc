#include "base/log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <string_view>

#include "base/log_target.h"
#include "base/real.h"

namespace accel {
namespace {

std::atomic<LogLevel> max_level{LogLevel::kWarning};

/// Hashes of the messages shown so far. When it is full, a process that says 256 different things has said
/// enough.
std::array<std::atomic<uint64_t>, 256> shown;

bool first_time(std::string_view text) {
  uint64_t hash = 14695981039346656037ull;  // FNV-1a
  for (unsigned char c : text) hash = (hash ^ c) * 1099511628211ull;
  if (hash == 0) hash = 1;
  for (size_t i = 0; i < shown.size(); ++i) {
    auto& slot = shown[(hash + i) % shown.size()];
    uint64_t seen = 0;
    if (slot.compare_exchange_strong(seen, hash)) return true;
    if (seen == hash) return false;
  }
  return false;
}

constexpr uint32_t kDefaultRate = 20;  ///< until the configuration says otherwise
std::atomic<uint32_t> rate{kDefaultRate};
std::atomic<int64_t> second{0};  ///< of CLOCK_MONOTONIC, in which `in_second` were shown
std::atomic<uint32_t> in_second{0}, left_out{0};

bool within_rate() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  if (second.exchange(now.tv_sec, std::memory_order_relaxed) != now.tv_sec)
    in_second.store(0, std::memory_order_relaxed);
  if (in_second.fetch_add(1, std::memory_order_relaxed) < rate.load(std::memory_order_relaxed)) return true;
  left_out.fetch_add(1, std::memory_order_relaxed);
  return false;
}

/// What descriptor 2 was when the program began.
struct stat stderr_at_start;
bool stderr_was_open = false;

[[gnu::constructor]] void remember_stderr() { stderr_was_open = fstat(2, &stderr_at_start) == 0; }

/// A daemon closes descriptor 2, and the next file or socket gets that number: a message there would corrupt
/// data.
bool stderr_is_for_messages() {
  struct stat now;
  if (fstat(2, &now) != 0) return false;
  if (stderr_was_open && now.st_dev == stderr_at_start.st_dev && now.st_ino == stderr_at_start.st_ino)
    return true;
  if (S_ISCHR(now.st_mode) || S_ISFIFO(now.st_mode)) return true;
  int flags = real.fcntl(2, F_GETFL);
  return S_ISREG(now.st_mode) && flags >= 0 && (flags & O_APPEND) != 0;  // a log
}

/// `line` has room for one more character.
void show(LogLevel level, char* line, size_t size) {
  if (has_log_target() && write_to_log_target(level, {line, size})) return;
  if (!stderr_is_for_messages()) return;
  line[size++] = '\n';
  // Past the program's (and our own) write(): the line is one, and cancellation does not strike here.
  [[maybe_unused]] long written = real.syscall(SYS_write, 2, line, size);
}

}  // namespace

void set_log_level(LogLevel level) { max_level.store(level, std::memory_order_relaxed); }

bool log_enabled(LogLevel level) {
  return level != LogLevel::kOff && level <= max_level.load(std::memory_order_relaxed);
}

void set_log_rate(uint32_t messages_per_second) {
  rate.store(messages_per_second, std::memory_order_relaxed);
}

void log(LogLevel level, const char* format, ...) {
  if (!log_enabled(level)) return;
  int saved = errno;
  char line[1024];
  constexpr std::string_view kPrefix = "libaccel: ";
  std::memcpy(line, kPrefix.data(), kPrefix.size());
  size_t room = sizeof line - kPrefix.size() - 1;
  va_list arguments;
  va_start(arguments, format);
  int wanted = vsnprintf(line + kPrefix.size(), room, format,
                         arguments);  // NOLINT(clang-analyzer-valist.Uninitialized)
  va_end(arguments);
  if (wanted >= 0) {
    size_t size = kPrefix.size() + std::min(static_cast<size_t>(wanted), room - 1);
    for (size_t i = 0; i < size; ++i)
      if (static_cast<unsigned char>(line[i]) < 32 || line[i] == 127) line[i] = '?';
    if ((has_log_target() || stderr_is_for_messages()) && first_time({line, size}) && within_rate()) {
      if (const uint32_t missing = left_out.exchange(0, std::memory_order_relaxed); missing != 0) {
        char about[96];
        const int n =
            std::snprintf(about, sizeof about, "libaccel: %u messages were left out (log_rate)", missing);
        show(LogLevel::kWarning, about, static_cast<size_t>(n));
      }
      show(level, line, size);
    }
  }
  errno = saved;
}

}  // namespace accel
