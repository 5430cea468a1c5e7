// accel explain: the decisions that a socket passes, in their order; the one that held it, and what would
// change that.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/config.h"
#include "tools/view.h"

namespace accel::tools {
namespace {

/// In their order.
enum Step {
  kProcess,
  kSocket,
  kConfiguration,
  kDestination,
  kFilters,
  kDevice,
  kPort,
  kSteering,
  kConnection,
  kAccelerated,  ///< passed all
  kUndecided,    ///< not asked yet
};
constexpr const char* kQuestions[] = {
    "the process may be accelerated",
    "the socket is of a kind and has options that are served",
    "the configuration wants it",
    "the destination is reached by a plain route to another host",
    "the host's packet filters accept it",
    "the route's device may be used",
    "the device's port is open",
    "its frames come by queues that the process holds",
    "the connection began, and stays, on the accelerated path",
};

struct Row {
  const char* reason;
  Step step;
  const char* cure;
};
constexpr Row kRows[] = {
#define EXPLAIN(reason, step, cure) {#reason, step, cure},
#include "tools/explain.def"
#undef EXPLAIN
};
constexpr std::string_view kReasons[] = {
#define REASON(name, text) #name,
#include "engine/reasons.def"
#undef REASON
};
/// In the same order, so that none is forgotten.
constexpr bool complete() {
  if (std::size(kRows) != std::size(kReasons)) return false;
  for (size_t i = 0; i < std::size(kRows); ++i)
    if (kReasons[i] != kRows[i].reason) return false;
  return true;
}
static_assert(complete());

/// "5", "10.0.0.1:80", "10.0.0.1:80-10.0.0.2:4711".
bool is_meant(const ShownSocket& s, const std::string& text) {
  if (const std::optional<int> fd = pid_of(text)) return s.fd == *fd;
  const std::string local = address_text(s.local), remote = address_text(s.remote);
  return text == local || text == local + "-" + remote || text == remote + "-" + local;
}

/// What is known of each step beside yes or no.
std::string detail(const ProcessStats& p, const ShownSocket& s, int step) {
  switch (step) {
    case kProcess:
      return fmt::format("libaccel is in {} ({})", printable(p.program), p.pid);
    case kConfiguration: {
      std::string text = p.config_file.empty() ? "no file: defaults" : printable(p.config_file);
      if (!p.application.empty()) text += fmt::format(", application {}", printable(p.application));
      return text + fmt::format(", profile {}", printable(p.profile));
    }
    case kDestination:
      return fmt::format("{} -> {}", address_text(s.local), address_text(s.remote));
    case kPort: {
      std::string text;
      for (const stats::PortRow& port : p.ports)
        text += fmt::format("{}{} by {}, {} of {} queues", text.empty() ? "" : "; ", port_name(port),
                            path_name(port.kind), port.queues_held, port.queues_total);
      return text;
    }
    default:
      return "";
  }
}

nlohmann::json judged(const ProcessStats& p, const ShownSocket& s, const Row& row) {
  nlohmann::json steps = nlohmann::json::array();
  for (int step = 0; step <= kConnection; ++step) {
    const bool held = step == row.step;
    const char* verdict = row.step == kUndecided ? "open"
                          : step < row.step      ? "yes"
                          : held                 ? "no"
                                                 : "not reached";
    nlohmann::json j = {{"question", kQuestions[step]}, {"verdict", verdict}};
    if (std::string text = held ? why(p, s) : detail(p, s, step); !text.empty() && step <= row.step)
      j["detail"] = text;
    if (held) j["cure"] = row.cure;
    steps.push_back(j);
  }
  return {{"pid", p.pid},
          {"fd", s.fd},
          {"protocol", protocol_name(s.protocol)},
          {"local", address_text(s.local)},
          {"remote", address_text(s.remote)},
          {"path", path_name(s.path)},
          {"reason", row.reason},
          {"reason_text", why(p, s)},
          {"cure", row.cure},
          {"decisions", steps}};
}

void print(const nlohmann::json& j) {
  const auto text = [](const nlohmann::json& value) { return value.get<std::string>(); };
  fmt::print("{} {} -> {}, descriptor {} of {}: path {}, {}\n", text(j["protocol"]), text(j["local"]),
             text(j["remote"]), j["fd"].get<int>(), j["pid"].get<int>(), text(j["path"]), text(j["reason"]));
  int number = 0;
  for (const auto& step : j["decisions"]) {
    fmt::print("  {}. {:<62} {}\n", ++number, text(step["question"]), text(step["verdict"]));
    if (step.contains("detail")) fmt::print("     {}\n", text(step["detail"]));
    if (step.contains("cure")) fmt::print("     what would change it: {}\n", text(step["cure"]));
  }
  if (text(j["decisions"].back()["verdict"]) == "open") fmt::print("  {}\n", text(j["cure"]));
}

}  // namespace

int explain(const ExplainOptions& options) {
  const std::vector<ProcessStats> all = read_processes(options.pid);
  if (all.empty()) return say_nothing_found("explain", std::to_string(options.pid));
  std::vector<nlohmann::json> found;
  for (const ShownSocket& s : sockets_of(all.front())) {
    if (!is_meant(s, options.socket)) continue;
    const Row unknown{"unknown", kUndecided, "an accel of the program's own version"};
    found.push_back(judged(all.front(), s, s.reason < std::size(kRows) ? kRows[s.reason] : unknown));
  }
  if (found.empty()) {
    fmt::print(
        stderr,
        "accel explain: process {} has no such socket: {} (accel stat {} lists them; a socket that was never "
        "bound, connected or listening is not known)\n",
        options.pid, printable(options.socket), options.pid);
    return 1;
  }
  if (options.json)
    fmt::print("{}\n", nlohmann::json{{"version", 1}, {"sockets", found}}.dump(2));
  else
    for (const auto& j : found) print(j);
  return 0;
}

}  // namespace accel::tools
