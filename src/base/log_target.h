// The target of messages that do not go to stderr: a file, syslog or journald (setting log_to).
#pragma once

#include <string>
#include <string_view>

#include "base/log.h"

namespace accel {

/// Datagram sockets of the host's loggers; others in tests.
struct LogSockets {
  const char* syslog = "/dev/log";                      ///< RFC 3164, as syslog(3)
  const char* journal = "/run/systemd/journal/socket";  ///< systemd's native protocol
};

/// `target`: "stderr", "syslog", "journal", or an absolute path: of a file that is made where there is none,
/// and appended to. What was open before is closed; the same path again opens what has the name now. Returns
/// "", or why not: then messages go where they went before. Not for signal handlers.
std::string open_log_target(std::string_view target, const LogSockets& sockets = {});

/// Something other than stderr is open, and still what was opened.
bool has_log_target();
/// False: it does not take the line now. Safe in any thread and in signal handlers.
bool write_to_log_target(LogLevel level, std::string_view text);

}  // namespace accel
