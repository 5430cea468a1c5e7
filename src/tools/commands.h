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

struct ImportOptions {
  std::vector<std::string> files;
  bool environment = false;
};
/// Prints libaccel.toml. 1: a file cannot be read, and nothing was printed.
int import(const ImportOptions& options);

/// The names that docs() knows: documents generated from the tables (docs/ and config/ hold the results), the
/// manual's pages, completions for shells, the schema of the configuration.
std::vector<std::string> documents();
int docs(const std::string& what);

/// The parts of docs() that are in files of their own.
void print_manual(const std::string& page);       ///< accel.1, libaccel.toml.5, libaccel.7
void print_completion(const std::string& shell);  ///< bash, zsh
void print_schema();

}  // namespace accel::tools
