// The `accel` command: one function a subcommand. Each returns the exit status.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace accel::tools {

struct RunOptions {
  std::string profile;
  std::string config;
  bool require = false;
  std::vector<std::string> command;
};
/// Does not return when the command could be executed.
int run(const RunOptions& options);

/// 0: at least one device can be used; 1: none, with the cure for each lack.
int check(bool json);

/// 0: something was shown; 1: no such process, or none uses libaccel.
int stat(std::optional<int> pid, bool json);

/// `what`: settings, counters, reasons or sample. Generated from the tables; docs/ and config/ hold the
/// results.
int docs(const std::string& what);

}  // namespace accel::tools
