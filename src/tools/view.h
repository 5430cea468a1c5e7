// What the commands that show processes share: which processes, which sockets.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tools/commands.h"
#include "tools/names.h"
#include "tools/page_reader.h"

namespace accel::tools {

/// A number is a pid; else it is a glob on names.
std::optional<int> pid_of(const std::string& target);
std::vector<ProcessStats> chosen_processes(const std::string& target);
/// Filtered and sorted as the options say.
std::vector<ShownSocket> chosen_sockets(const ProcessStats& p, const StatOptions& options);
/// One line on stderr that tells apart why there is nothing; returns 1.
int say_nothing_found(const char* command, const std::string& target);

/// The live view.
int top(const StatOptions& options);

}  // namespace accel::tools
