// The `accel` command: one function a subcommand. Each returns the exit status.
#pragma once

#include <cstdint>
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

struct CheckOptions {
  bool json = false;
  std::string root = "/";  ///< another tree: its RDMA devices are looked at, and no more
};
/// 0: at least one device can be used; 1: none, with the cure for each lack.
int check(const CheckOptions& options);

struct StatOptions {
  std::string target;  ///< a pid, or a glob on the program's name; "": all
  bool json = false;
  bool once = false;  ///< also on a terminal
  std::string filter, sort;
  double interval = 2;  ///< of the live view, in seconds
};
/// 0: something was shown; 1: no such process, or none uses libaccel.
int stat(const StatOptions& options);

struct SsOptions {
  bool tcp = false, udp = false, listening = false, all = false, info = false, processes = false;
};
/// Accelerated sockets in ss's columns.
int ss(const SsOptions& options);

struct ExplainOptions {
  int pid = 0;
  std::string socket;  ///< a descriptor, or ends: LOCAL, or LOCAL-REMOTE
  bool json = false;
};
/// Each decision about a socket in order, and what would change it.
int explain(const ExplainOptions& options);

struct SetOptions {
  int pid = 0;
  std::vector<std::string> assignments;  ///< "key=value"
  bool reload = false;                   ///< the configuration is read again, before them
};
int set(const SetOptions& options);

struct MetricsOptions {
  std::string listen;  ///< ADDRESS:PORT; "": print them once
};
/// Prometheus's text format.
int metrics(const MetricsOptions& options);

struct CaptureOptions {
  std::string target;  ///< a pid, a device, or a glob on the program's name; "": all
  std::vector<std::string> filter;
  std::string file;
  uint32_t snap = 65536;
  uint64_t count = 0;
  double seconds = 0;
};
/// Frames of accelerated sockets into a pcapng file, until it is told to end.
int capture(const CaptureOptions& options);

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
