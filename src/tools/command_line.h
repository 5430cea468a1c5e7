// What the command line of `accel` is: for main(), the manual's page and the shells' completions.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

#include "tools/commands.h"

namespace accel::tools {

struct CommandLine {
  RunOptions run;
  CheckOptions check;
  StatOptions stat;
  SsOptions ss;
  ExplainOptions explain;
  SetOptions set;
  MetricsOptions metrics;
  CaptureOptions capture;
  ImportOptions import;
  std::string document;
};

/// The subcommands and their options; `into` is what they fill.
void describe_command_line(CLI::App& app, CommandLine& into);

/// The words that the option takes ("a", "b"), or none.
std::vector<std::string> choices(const CLI::Option& option);

}  // namespace accel::tools
