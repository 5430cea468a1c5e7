// accel set: settings that may change while a process runs.
#include <fmt/format.h>

#include <cstdio>
#include <cstring>

#include "base/config.h"
#include "base/spelling.h"
#include "engine/wish.h"
#include "tools/commands.h"
#include "tools/names.h"
#include "tools/page_reader.h"

namespace accel::tools {
namespace {

/// What is wrong with it before anybody is asked; "": nothing.
std::string fault(const std::string& assignment) {
  const size_t equals = assignment.find('=');
  if (equals == std::string::npos) return "is not KEY=VALUE";
  const std::string key = assignment.substr(0, equals);
  std::vector<std::string_view> names;
  Settings probe;
  for (size_t i = 0; i < setting_texts().size(); ++i) {
    const SettingText& row = setting_texts()[i];
    names.push_back(row.name);
    if (row.name != key) continue;
    if (!changes_live(key))
      return "is read once, when the program starts: change the configuration and start it again";
    if (!set_setting(probe, i, assignment.substr(equals + 1)))
      return fmt::format("is not a value of it; allowed: {}", row.allowed);
    return "";
  }
  const std::string_view meant = nearest_word(key, names);
  return "is no setting" + (meant.empty() ? "" : fmt::format("; meant is perhaps {}", meant));
}

}  // namespace

int set(const SetOptions& options) {
  for (const std::string& assignment : options.assignments)
    if (const std::string wrong = fault(assignment); !wrong.empty()) {
      fmt::print(stderr, "accel set: {} {}\n", assignment, wrong);
      return 2;
    }
  std::vector<std::string> wishes = options.assignments;
  if (options.reload) wishes.insert(wishes.begin(), "reload");
  if (wishes.empty()) {
    fmt::print(stderr, "accel set: neither KEY=VALUE nor --reload is there\n");
    return 2;
  }
  for (const std::string& wish : wishes) {
    const std::string answer = send_wish(options.pid, wish);
    const bool done = answer.starts_with(stats::kDone);
    if (done)
      fmt::print("{}\n", printable(answer.substr(std::strlen(stats::kDone))));
    else if (!answer.empty()) {
      fmt::print(stderr, "accel set: {}: {}\n", wish, printable(answer));
      return 1;
    }
  }
  return 0;
}

}  // namespace accel::tools
