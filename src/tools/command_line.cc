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
  check->add_flag("--json", into.check.json, "Machine-readable output");
  check
      ->add_option("--root", into.check.root,
                   "RDMA devices of another tree (an image), by its sys, dev, etc and proc")
      ->check(CLI::ExistingDirectory);

  auto* stat =
      app.add_subcommand("stat", "Sockets, ports and counters of the programs that run with libaccel");
  stat->add_option("PROCESS", into.stat.target, "A pid, or a name (a glob): these processes only");
  stat->add_flag("--once", into.stat.once, "Print once; else it is live on a terminal");
  stat->add_flag("--json", into.stat.json, "Machine-readable output, with a version");
  stat->add_option("--filter", into.stat.filter,
                   "Sockets whose line has this text (path, state, address, reason, limit)");
  stat->add_option("--sort", into.stat.sort, "Order of sockets, the most first")
      ->check(CLI::IsMember(std::vector<std::string>{"rate", "rx", "tx", "rtt", "retransmits", "queue"}));
  stat->add_option("--interval", into.stat.interval, "Seconds between two looks of the live view")
      ->check(CLI::Range(0.1, 3600.0));

  auto* explain =
      app.add_subcommand("explain", "Each decision about one socket in order, and what would change it");
  explain->add_option("PID", into.explain.pid, "The process")->required();
  explain->add_option("SOCKET", into.explain.socket, "Its descriptor, or its ends: LOCAL or LOCAL-REMOTE")
      ->required();
  explain->add_flag("--json", into.explain.json, "Machine-readable output");

  auto* ss = app.add_subcommand("ss", "Sockets of accelerated programs in the columns of ss");
  ss->add_flag("-t,--tcp", into.ss.tcp, "TCP only");
  ss->add_flag("-u,--udp", into.ss.udp, "UDP only");
  ss->add_flag("-l,--listening", into.ss.listening, "Listeners only");
  ss->add_flag("-a,--all", into.ss.all, "Listeners too");
  ss->add_flag("-i,--info", into.ss.info, "TCP's figures below each connection");
  ss->add_flag("-p,--processes", into.ss.processes, "The process and descriptor");

  auto* set = app.add_subcommand("set", "Change a setting of a process while it runs");
  set->add_option("PID", into.set.pid, "The process")->required();
  set->add_option("ASSIGNMENT", into.set.assignments,
                  "KEY=VALUE: spin, log, log_rate, delayed_ack_ms, min_rto_ms, send_buffer, receive_buffer");
  set->add_flag(
      "--reload", into.set.reload,
      "Read the configuration again: what may change while it runs does, and its log is opened anew");

  auto* metrics =
      app.add_subcommand("metrics", "Counters and sockets of all processes as Prometheus reads them");
  metrics->add_option("--listen", into.metrics.listen,
                      "Serve them by HTTP at ADDRESS:PORT, path /metrics; else print them");

  auto* capture =
      app.add_subcommand("capture", "Frames of accelerated sockets, both ways, into a pcapng file");
  capture->add_option("TARGET", into.capture.target,
                      "A pid, a device, or a program's name; all for every process");
  capture->add_option("FILTER", into.capture.filter, "A filter of libpcap (tcpdump's)");
  capture->add_option("-w,--write", into.capture.file, "The file; - is standard output")->required();
  capture->add_option("--snap", into.capture.snap, "Most bytes of a frame")->check(CLI::Range(64, 65536));
  capture->add_option("--count", into.capture.count, "End after so many frames");
  capture->add_option("--seconds", into.capture.seconds, "End after so long")->check(CLI::Range(0.0, 1e6));

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
