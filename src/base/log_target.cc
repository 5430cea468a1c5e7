#include "base/log_target.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>

#include "base/private_fds.h"
#include "base/real.h"
#include "base/settings.h"

namespace accel {
namespace {

enum class Kind : uint8_t { kStderr, kFile, kSyslog, kJournal };

constexpr mode_t kFileMode = 0640;
constexpr int kUserFacility = 1 << 3;  // LOG_USER

struct Target {
  std::atomic<Kind> kind{Kind::kStderr};
  std::atomic<int> fd{-1};
  // Which file or socket it is: the program may have closed it by a system call of its own, and have another
  // one by that number.
  std::atomic<uint64_t> device{0}, inode{0};
  sockaddr_un logger{};  ///< written before anybody may write to it
};
constinit Target target;

/// Priorities of syslog(3), which journald has as well.
int priority_of(LogLevel level) {
  switch (level) {
    case LogLevel::kError:
      return 3;
    case LogLevel::kWarning:
      return 4;
    case LogLevel::kInfo:
      return 6;
    default:
      return 7;
  }
}

/// The descriptor is still what was opened.
bool is_open() { return is_file(target.fd, target.device, target.inode); }

int open_logger(const char* path, sockaddr_un& name) {
  const int fd = real.socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  name.sun_family = AF_UNIX;
  std::snprintf(name.sun_path, sizeof name.sun_path, "%s", path);
  if (fd >= 0 && real.connect(fd, reinterpret_cast<const sockaddr*>(&name), sizeof name) == 0) return fd;
  const int saved = errno;
  if (fd >= 0) real.close(fd);
  errno = saved;
  return -1;
}

/// RFC 3339 in UTC. localtime_r() takes a lock, which a signal handler must not.
int print_time(char* out, size_t size) {
  using namespace std::chrono;
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  const sys_seconds at{seconds{now.tv_sec}};
  const auto day = floor<days>(at);
  const year_month_day date{day};
  const hh_mm_ss time{at - day};
  return std::snprintf(out, size, "%04d-%02u-%02uT%02d:%02d:%02d.%03ldZ", static_cast<int>(date.year()),
                       static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()),
                       static_cast<int>(time.hours().count()), static_cast<int>(time.minutes().count()),
                       static_cast<int>(time.seconds().count()), now.tv_nsec / 1'000'000);
}

}  // namespace

std::string open_log_target(std::string_view to, const LogSockets& sockets) {
  const bool replaces = is_open();
  const char* const instead = replaces ? "; messages go where they went" : "; messages go to stderr";
  Kind kind = Kind::kStderr;
  int fd = -1;
  sockaddr_un logger{};
  if (to == "syslog" || to == "journal") {
    kind = to == "syslog" ? Kind::kSyslog : Kind::kJournal;
    fd = open_logger(kind == Kind::kSyslog ? sockets.syslog : sockets.journal, logger);
  } else if (to.starts_with("/")) {
    kind = Kind::kFile;
    fd = real.open(std::string(to).c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK,
                   kFileMode);
  } else if (to != "stderr") {
    return "log_to: \"" + std::string(to) + "\" is neither stderr, syslog, journal nor an absolute path" +
           instead;
  }
  struct stat facts {};
  if (kind != Kind::kStderr && (fd < 0 || fstat(fd, &facts) != 0))
    return std::string(to) + ": " + std::strerror(errno) + instead;
  target.kind = Kind::kStderr;  // while the rest changes
  target.logger = logger;
  const int before = target.fd;
  if (kind != Kind::kStderr) {
    target.device = facts.st_dev;
    target.inode = facts.st_ino;
    if (replaces) {  // by the same number: another thread may be about to write
      real.dup3(fd, before, O_CLOEXEC);
      real.close(fd);
    } else {
      target.fd = keep_private(fd);
    }
    target.kind = kind;
  } else if (before >= 0) {
    target.fd = -1;
    if (replaces) close_private(before);
  }
  return "";
}

bool has_log_target() { return target.kind.load() != Kind::kStderr && is_open(); }

bool write_to_log_target(LogLevel level, std::string_view text) {
  const Kind kind = target.kind;
  if (kind == Kind::kStderr) return false;
  char line[1400];
  int size = 0;
  const auto length = static_cast<int>(text.size());
  const char* const program = program_invocation_short_name;
  if (kind == Kind::kFile) {
    char time[40];
    print_time(time, sizeof time);
    size = std::snprintf(line, sizeof line, "%s %s[%d] %.*s: %.*s\n", time, program, getpid(),
                         static_cast<int>(word(level).size()), word(level).data(), length, text.data());
  } else if (kind == Kind::kSyslog) {
    size = std::snprintf(line, sizeof line, "<%d>%s[%d]: %.*s", kUserFacility | priority_of(level), program,
                         getpid(), length, text.data());
  } else {
    size = std::snprintf(line, sizeof line, "PRIORITY=%d\nSYSLOG_IDENTIFIER=%s\nMESSAGE=%.*s\n",
                         priority_of(level), program, length, text.data());
  }
  if (size < 0) return false;
  const size_t bytes = std::min(static_cast<size_t>(size), sizeof line - 1);
  const int fd = target.fd;
  // Past the program's (and our own) calls: cancellation does not strike here.
  if (kind == Kind::kFile) return real.syscall(SYS_write, fd, line, bytes) >= 0;
  const auto send = [&] {
    return real.syscall(SYS_sendto, fd, line, bytes, MSG_DONTWAIT | MSG_NOSIGNAL, nullptr, 0) >= 0;
  };
  if (send()) return true;
  if (errno != ECONNREFUSED && errno != ENOTCONN) return false;
  // The logger has been started again.
  return real.syscall(SYS_connect, fd, &target.logger, sizeof target.logger) == 0 && send();
}

}  // namespace accel
