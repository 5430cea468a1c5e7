#include "tools/command_line.h"

#include "base/settings.h"

namespace accel::tools {
namespace {

std::vector<std::string> profile_names() {
  std::vector<std::string> names;
  for (std::string_view name : kWords<Profile>) names.emplace_back(name);
  return names;
}

}  // namespace

void describe_command_line(CLI::App& app, CommandLine& into) {
  app.description("libaccel: a TCP/IP stack on the NIC's queues for unmodified programs");
  app.set_version_flag("--version", ACCEL_VERSION, "Print the version");
  app.require_subcommand(1);

  auto* run = app.add_subcommand("run", "Run a program with libaccel preloaded");
  run->footer("accel run [OPTIONS] -- COMMAND [ARGUMENT...]");
  run->add_option("--profile", into.run.profile, "Defaults for this run (ACCEL_PROFILE)")
      ->check(CLI::IsMember(profile_names()));
  run->add_option("--config", into.run.config, "Configuration file (ACCEL_CONFIG)")->check(CLI::ExistingFile);
  run->add_flag("--require", into.run.require, "Sockets that cannot be accelerated fail (ACCEL_REQUIRE=1)");

  auto* check =
      app.add_subcommand("check", "What this machine and each NIC offer, what is missing, its cure");
  check->add_flag("--json", into.check_json, "Machine-readable output");

  auto* stat =
      app.add_subcommand("stat", "Sockets, ports and counters of the programs that run with libaccel");
  stat->add_option("PID", into.stat_pid, "This process only");
  stat->add_flag("--json", into.stat_json, "Machine-readable output");

  auto* import =
      app.add_subcommand("import", "Translate a configuration of VMA, XLIO or Onload into libaccel.toml");
  import->add_option("FILE", into.import.files,
                     "libvma.conf, libxlio.conf, XLIO's JSON, an environment file, a profile (.opf)");
  import->add_flag("--environment", into.import.environment,
                   "The variables VMA_*, XLIO_* and EF_* of this environment");

  auto* docs = app.add_subcommand("docs", "Print a generated document");
  docs->add_option("DOCUMENT", into.document, "What to print")->required()->check(CLI::IsMember(documents()));
}

std::vector<std::string> choices(const CLI::Option& option) {
  // CLI11 tells them as text: "TEXT:{a,b}".
  std::string text = option.get_type_name();
  const size_t open = text.find('{'), shut = text.find('}');
  std::vector<std::string> words;
  if (open == std::string::npos || shut == std::string::npos) return words;
  text = text.substr(open + 1, shut - open - 1);
  for (size_t at = 0; at <= text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    words.push_back(text.substr(at, comma - at));
    at = comma + 1;
  }
  return words;
}

}  // namespace accel::tools
