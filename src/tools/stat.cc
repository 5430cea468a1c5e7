// accel stat --once and --json: what there is at this moment. top.cc has the live view.
#include <fmt/format.h>
#include <fnmatch.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/counters.h"
#include "tools/commands.h"
#include "tools/names.h"
#include "tools/page_reader.h"
#include "tools/view.h"

namespace accel::tools {
namespace {

using nlohmann::json;

/// Of the layout of --json: a program that reads it asks for this.
constexpr int kJsonVersion = 2;

json to_json(const ProcessStats& p, const ShownSocket& s) {
  json j = {{"fd", s.fd},
            {"protocol", protocol_name(s.protocol)},
            {"path", path_name(s.path)},
            {"reason", reason_text(s.reason).name},
            {"reason_text", why(p, s)},
            {"local", address_text(s.local)},
            {"remote", address_text(s.remote)}};
  // As the reason is called that has one: a firewall's rule, or the option.
  if (!s.detail.empty())
    j[std::strcmp(reason_text(s.reason).name, "option") == 0 ? "option" : "rule"] = printable(s.detail);
  if (s.protocol == IPPROTO_TCP) j["state"] = state_name(s.state);
  if (s.kernel) return j;
  j["rx_bytes"] = s.row.rx_bytes;
  j["tx_bytes"] = s.row.tx_bytes;
  j["queue_in"] = s.row.queue_in;
  j["queue_out"] = s.row.queue_out;
  j["drops"] = s.row.drops;
  if (s.protocol == IPPROTO_TCP) {
    j["rtt_us"] = s.row.rtt_us;
    j["rttvar_us"] = s.row.rttvar_us;
    j["cwnd"] = s.row.cwnd;
    j["mss"] = s.row.mss;
    j["retransmits"] = s.row.retransmits;
    j["limit"] = limit_name(s.row.limit);
    j["unsent"] = s.row.unsent;
    j["delivery_rate"] = s.row.delivery_rate;
    j["busy_us"] = s.row.busy_us;
    j["receiver_limited_us"] = s.row.receiver_limited_us;
    j["buffer_limited_us"] = s.row.buffer_limited_us;
  }
  return j;
}

json to_json(const stats::PortRow& p) {
  return {{"name", port_name(p)},
          {"path", path_name(p.kind)},
          {"ifindex", p.ifindex},
          {"queues_held", p.queues_held},
          {"queues_total", p.queues_total},
          {"zero_copy", p.zero_copy != 0},
          {"tx_checksum", p.tx_checksum != 0},
          {"tso", p.tso != 0},
          {"mtu", p.mtu}};
}

json to_json(const ProcessStats& p, const StatOptions& options) {
  json j = {{"pid", p.pid},
            {"program", printable(p.program)},
            {"profile", printable(p.profile)},
            {"application", printable(p.application)},
            {"config_file", printable(p.config_file)},
            {"mistake", printable(p.mistake)},
            {"engine", p.engine},
            {"helper", p.helper},
            {"no_helper", printable(p.no_helper)},
            {"fresh", p.answered},
            {"socket_count", uint64_t{p.socket_count} + p.kernel_sockets.size()},
            {"sockets", json::array()},
            {"ports", json::array()},
            {"children", json::array()},
            {"counters", p.counters}};
  for (const ShownSocket& s : chosen_sockets(p, options)) j["sockets"].push_back(to_json(p, s));
  for (auto& port : p.ports) j["ports"].push_back(to_json(port));
  for (auto& child : plain_children(p.pid))
    j["children"].push_back({{"pid", child.pid}, {"program", printable(child.program)}, {"why", child.why}});
  return j;
}

std::string fd_text(int fd) { return fd < 0 ? "-" : std::to_string(fd); }

void print_sockets(const ProcessStats& p, const std::vector<ShownSocket>& sockets) {
  constexpr const char* kRow =
      "  {:<5} {:>5} {:<9} {:<12} {:<22} {:<22} {:>12} {:>12} {:>8} {:>6} {:>7} {:<11}  {}\n";
  fmt::print(kRow, "PROTO", "FD", "PATH", "STATE", "LOCAL", "REMOTE", "RX", "TX", "RTT", "CWND", "RETRANS",
             "LIMIT", "REASON");
  for (const ShownSocket& s : sockets) {
    const bool tcp = s.protocol == IPPROTO_TCP;
    const bool connection = !s.kernel && tcp && s.row.rtt_us > 0;
    const auto figure = [&](uint64_t value) { return s.kernel ? std::string("-") : std::to_string(value); };
    fmt::print(
        kRow, protocol_name(s.protocol), fd_text(s.fd), path_name(s.path), tcp ? state_name(s.state) : "-",
        address_text(s.local), address_text(s.remote), figure(s.row.rx_bytes), figure(s.row.tx_bytes),
        connection ? fmt::format("{}us", s.row.rtt_us) : "-", connection ? std::to_string(s.row.cwnd) : "-",
        figure(s.row.retransmits), limit_name(s.limit), why(p, s));
  }
  if (p.socket_count > p.sockets.size()) fmt::print("  ... and {} more\n", p.socket_count - p.sockets.size());
}

void print(const ProcessStats& p, const StatOptions& options) {
  fmt::print("{} (pid {}), profile {}", printable(p.program), p.pid, printable(p.profile));
  if (!p.config_file.empty()) fmt::print(", {}", printable(p.config_file));
  if (!p.application.empty()) fmt::print(" [{}]", printable(p.application));
  if (!p.engine) fmt::print(", everything on the kernel's path");
  if (!p.answered) fmt::print(", DOES NOT ANSWER: stopped or busy, figures are old");
  fmt::print("\n");
  if (!p.mistake.empty()) fmt::print("  mistake in the configuration: {}\n", printable(p.mistake));
  if (!p.no_helper.empty())
    fmt::print("  no helper (peers learn of kill -9 when they next send): {}\n", printable(p.no_helper));
  if (p.sockets.empty() && p.kernel_sockets.empty())
    fmt::print("  no sockets\n");
  else
    print_sockets(p, chosen_sockets(p, options));
  for (auto& child : plain_children(p.pid))
    fmt::print("  child {} ({}): {}\n", child.pid, printable(child.program), child.why);
  if (!p.ports.empty())
    fmt::print("  {:<15} {:<5} {:>9} {:<10} {:>6}\n", "PORT", "KIND", "QUEUES", "MODE", "MTU");
  for (const stats::PortRow& port : p.ports)
    fmt::print("  {:<15} {:<5} {:>9} {:<10} {:>6}\n", port_name(port), path_name(port.kind),
               fmt::format("{}/{}", port.queues_held, port.queues_total),
               port.zero_copy ? "zero-copy" : "copy", port.mtu);
  bool heading = true;
  for (const CounterText& row : kCounterTexts) {
    auto found = p.counters.find(row.name);
    if (found == p.counters.end() || found->second == 0) continue;
    if (heading) fmt::print("  COUNTER\n");
    heading = false;
    fmt::print("  {:<24} {:>14}  {}\n", row.name, found->second, row.help);
  }
  fmt::print("\n");
}

}  // namespace

std::optional<int> pid_of(const std::string& target) {
  if (target.empty() || target.find_first_not_of("0123456789") != std::string::npos || target.size() > 9)
    return {};
  return std::stoi(target);
}

std::vector<ProcessStats> chosen_processes(const std::string& target) {
  const std::optional<int> pid = pid_of(target);
  std::vector<ProcessStats> all = read_processes(pid);
  if (!target.empty() && !pid)
    std::erase_if(all,
                  [&](const ProcessStats& p) { return fnmatch(target.c_str(), p.program.c_str(), 0) != 0; });
  return all;
}

std::vector<ShownSocket> chosen_sockets(const ProcessStats& p, const StatOptions& options) {
  std::vector<ShownSocket> all = sockets_of(p);
  if (!options.filter.empty())
    std::erase_if(all, [&](const ShownSocket& s) {
      const std::string text = fmt::format(
          "{} {} {} {} {} {} {}", protocol_name(s.protocol), path_name(s.path), state_name(s.state),
          address_text(s.local), address_text(s.remote), reason_text(s.reason).name, limit_name(s.limit));
      return text.find(options.filter) == std::string::npos;
    });
  const auto by = [&](auto key) {
    std::stable_sort(all.begin(), all.end(),
                     [&](const ShownSocket& a, const ShownSocket& b) { return key(a) > key(b); });
  };
  if (options.sort == "rx") by([](const ShownSocket& s) { return s.row.rx_bytes; });
  if (options.sort == "tx") by([](const ShownSocket& s) { return s.row.tx_bytes; });
  if (options.sort == "rtt") by([](const ShownSocket& s) { return s.row.rtt_us; });
  if (options.sort == "retransmits") by([](const ShownSocket& s) { return s.row.retransmits; });
  if (options.sort == "queue")
    by([](const ShownSocket& s) { return s.row.queue_in + uint64_t{s.row.queue_out}; });
  return all;
}

int say_nothing_found(const char* command, const std::string& target) {
  const std::optional<int> pid = pid_of(target);
  const std::string text = pid              ? text_of(look_for(*pid), *pid)
                           : target.empty() ? "no process of yours uses libaccel for a socket"
                                            : "no process of that name uses libaccel for a socket: " + target;
  fmt::print(stderr, "accel {}: {}\n", command, text);
  return 1;
}

int stat(const StatOptions& options) {
  if (!options.json && !options.once && isatty(STDOUT_FILENO) != 0) return top(options);
  const std::vector<ProcessStats> all = chosen_processes(options.target);
  if (options.json) {
    json j = {{"version", kJsonVersion}, {"processes", json::array()}};
    for (auto& p : all) j["processes"].push_back(to_json(p, options));
    fmt::print("{}\n", j.dump(2));
  } else {
    for (auto& p : all) print(p, options);
  }
  return all.empty() ? say_nothing_found("stat", options.target) : 0;
}

}  // namespace accel::tools
