// accel: run a program with libaccel, see what a machine offers, see what running programs do.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <string_view>

#include "tools/commands.h"

namespace {

/// Takes COMMAND and all that follows off the arguments of `accel run`: it is not ours to parse.
std::vector<std::string> take_command(int& argc, char** argv) {
  std::vector<std::string> command;
  if (argc < 2 || std::string_view(argv[1]) != "run") return command;
  int i = 2;
  for (; i < argc; ++i) {
    std::string_view argument = argv[i];
    if (argument == "--" || argument.empty() || argument[0] != '-') break;
    if (argument == "--profile" || argument == "--config") ++i;
  }
  if (i >= argc) return command;
  command.assign(argv + i + (std::string_view(argv[i]) == "--" ? 1 : 0), argv + argc);
  argc = i;
  return command;
}

int parse_and_run(int argc, char** argv) {
  using namespace accel::tools;
  std::vector<std::string> command = take_command(argc, argv);
  CLI::App app{"libaccel: a TCP/IP stack on the NIC's queues for unmodified programs"};
  app.set_version_flag("--version", ACCEL_VERSION);
  app.require_subcommand(1);

  RunOptions run_options;
  auto* run_command = app.add_subcommand(
      "run", "Run a program with libaccel preloaded: accel run [OPTIONS] -- COMMAND [ARGUMENT...]");
  run_command->add_option("--profile", run_options.profile, "Defaults for this run (ACCEL_PROFILE)")
      ->check(CLI::IsMember({"default", "latency", "throughput", "frugal"}));
  run_command->add_option("--config", run_options.config, "Configuration file (ACCEL_CONFIG)")
      ->check(CLI::ExistingFile);
  run_command->add_flag("--require", run_options.require,
                        "Sockets that cannot be accelerated fail (ACCEL_REQUIRE=1)");

  bool check_json = false;
  auto* check_command = app.add_subcommand("check", "What each NIC offers, what is missing, and its cure");
  check_command->add_flag("--json", check_json, "Machine-readable output");

  bool stat_json = false;
  std::optional<int> pid;
  auto* stat_command =
      app.add_subcommand("stat", "Sockets, ports and counters of the programs that run with libaccel");
  stat_command->add_option("PID", pid, "This process only");
  stat_command->add_flag("--json", stat_json, "Machine-readable output");

  std::string document;
  auto* docs_command = app.add_subcommand("docs", "Print generated documents");
  docs_command->add_option("DOCUMENT", document, "settings, counters, reasons or sample")
      ->required()
      ->check(CLI::IsMember({"settings", "counters", "reasons", "sample"}));

  CLI11_PARSE(app, argc, argv);
  if (*run_command) {
    run_options.command = std::move(command);
    return run(run_options);
  }
  if (*check_command) return check(check_json);
  if (*stat_command) return stat(pid, stat_json);
  return docs(document);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return parse_and_run(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "accel: %s\n", e.what());
    return 2;
  }
}
