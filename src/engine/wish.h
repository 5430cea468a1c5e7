// What accel set and accel capture want of the process, by the statistics page.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace accel {

/// `accel set` may change it while the process runs.
inline bool changes_live(std::string_view setting) {
  for (const char* live :
       {"spin", "log", "log_rate", "delayed_ack_ms", "min_rto_ms", "send_buffer", "receive_buffer"})
    if (setting == live) return true;
  return false;
}

namespace stats {

/// "key=value"; nullopt: nothing. For housekeeping, as requested() says.
std::optional<std::string> wish();
/// It is done (""), or why it is not. A text that begins with kDone is of something that is done, too.
inline constexpr char kDone[] = "done: ";
void answer_wish(const std::string& why_not);

}  // namespace stats
}  // namespace accel
