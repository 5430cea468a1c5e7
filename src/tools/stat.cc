#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>

#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/counters.h"
#include "tools/commands.h"
#include "tools/page_reader.h"

namespace accel::tools {
namespace {

using nlohmann::json;

struct ReasonText {
  const char* name;
  const char* text;
};
constexpr ReasonText kReasons[] = {
#define REASON(name, text) {#name, text},
#include "engine/reasons.def"
#undef REASON
};
constexpr ReasonText kNoReason{"unknown", "a reason that this version of accel does not know"};

const ReasonText& reason(uint8_t number) {
  return number < std::size(kReasons) ? kReasons[number] : kNoReason;
}

template <size_t N>
const char* pick(const char* const (&names)[N], uint8_t number) {
  return number < N ? names[number] : "?";
}
/// In the order of PathKind and of the kernel's TCP states (stack.h).
constexpr const char* kPaths[] = {"undecided", "kernel", "xdp", "mlx5", "iwarp", "shm"};
constexpr const char* kStates[] = {"-",          "established", "syn-sent",  "syn-received",
                                   "fin-wait-1", "fin-wait-2",  "time-wait", "closed",
                                   "close-wait", "last-ack",    "listen",    "closing"};

const char* protocol_name(uint8_t protocol) {
  return protocol == IPPROTO_TCP ? "tcp" : protocol == IPPROTO_UDP ? "udp" : "-";
}

std::string address_text(const stats::Address& a) {
  char text[INET6_ADDRSTRLEN] = "";
  bool v4 = true;
  for (int i = 0; i < 10; ++i) v4 = v4 && a.bytes[i] == 0;
  v4 = v4 && a.bytes[10] == 0xff && a.bytes[11] == 0xff;
  bool none = a.port == 0;
  for (int i = v4 ? 12 : 0; i < 16; ++i) none = none && a.bytes[i] == 0;
  if (none) return "*";
  if (v4) return fmt::format("{}:{}", inet_ntop(AF_INET, a.bytes + 12, text, sizeof text), a.port);
  return fmt::format("[{}]:{}", inet_ntop(AF_INET6, a.bytes, text, sizeof text), a.port);
}

/// Names come from another process: only what is printable.
std::string printable(const std::string& text) {
  std::string out;
  for (unsigned char c : text) out += c >= 32 && c < 127 ? static_cast<char>(c) : '?';
  return out;
}

std::string name_of(const stats::PortRow& port) {
  return printable({port.name, strnlen(port.name, sizeof port.name)});
}

json to_json(const ProcessStats& p, const stats::SocketRow& s) {
  json j = {{"fd", s.fd},
            {"protocol", protocol_name(s.protocol)},
            {"path", pick(kPaths, s.path)},
            {"reason", reason(s.reason).name},
            {"reason_text", reason(s.reason).text},
            {"local", address_text(s.local)},
            {"remote", address_text(s.remote)},
            {"rx_bytes", s.rx_bytes},
            {"tx_bytes", s.tx_bytes},
            {"queue_in", s.queue_in},
            {"queue_out", s.queue_out},
            {"drops", s.drops}};
  if (s.rule != 0) j["rule"] = printable(p.rules[s.rule]);
  if (s.protocol == IPPROTO_TCP) {
    j["state"] = pick(kStates, s.state);
    j["rtt_us"] = s.rtt_us;
    j["rttvar_us"] = s.rttvar_us;
    j["cwnd"] = s.cwnd;
    j["mss"] = s.mss;
    j["retransmits"] = s.retransmits;
  }
  return j;
}

json to_json(const KernelSocket& s) {
  json j = {{"fd", s.fd},
            {"protocol", protocol_name(s.protocol)},
            {"path", "kernel"},
            {"reason", reason(s.reason).name},
            {"reason_text", reason(s.reason).text},
            {"local", address_text(s.local)},
            {"remote", address_text(s.remote)}};
  if (!s.rule.empty()) j["rule"] = printable(s.rule);
  if (s.protocol == IPPROTO_TCP) j["state"] = pick(kStates, s.state);
  return j;
}

json to_json(const stats::PortRow& p) {
  return {{"name", name_of(p)},
          {"path", pick(kPaths, p.kind)},
          {"ifindex", p.ifindex},
          {"queues_held", p.queues_held},
          {"queues_total", p.queues_total},
          {"zero_copy", p.zero_copy != 0},
          {"tx_checksum", p.tx_checksum != 0},
          {"tso", p.tso != 0},
          {"mtu", p.mtu}};
}

json to_json(const ProcessStats& p) {
  json j = {{"pid", p.pid},
            {"program", printable(p.program)},
            {"profile", printable(p.profile)},
            {"application", printable(p.application)},
            {"config_file", printable(p.config_file)},
            {"engine", p.engine},
            {"helper", p.helper},
            {"no_helper", printable(p.no_helper)},
            {"fresh", p.answered},
            {"socket_count", uint64_t{p.socket_count} + p.kernel_sockets.size()},
            {"sockets", json::array()},
            {"ports", json::array()},
            {"counters", p.counters}};
  for (auto& s : p.sockets) j["sockets"].push_back(to_json(p, s));
  for (auto& s : p.kernel_sockets) j["sockets"].push_back(to_json(s));
  for (auto& port : p.ports) j["ports"].push_back(to_json(port));
  return j;
}

std::string fd_text(int fd) { return fd < 0 ? "-" : std::to_string(fd); }

void print_sockets(const ProcessStats& p) {
  fmt::print("  {:<5} {:>5} {:<9} {:<12} {:<22} {:<22} {:>12} {:>12} {:>8} {:>6} {:>7}  {}\n", "PROTO", "FD",
             "PATH", "STATE", "LOCAL", "REMOTE", "RX", "TX", "RTT", "CWND", "RETRANS", "REASON");
  for (const stats::SocketRow& s : p.sockets) {
    bool connection = s.protocol == IPPROTO_TCP && s.rtt_us > 0;
    fmt::print("  {:<5} {:>5} {:<9} {:<12} {:<22} {:<22} {:>12} {:>12} {:>8} {:>6} {:>7}  {}\n",
               protocol_name(s.protocol), fd_text(s.fd), pick(kPaths, s.path),
               s.protocol == IPPROTO_TCP ? pick(kStates, s.state) : "-", address_text(s.local),
               address_text(s.remote), s.rx_bytes, s.tx_bytes,
               connection ? fmt::format("{}us", s.rtt_us) : "-", connection ? std::to_string(s.cwnd) : "-",
               s.retransmits,
               s.rule == 0 ? reason(s.reason).text : "firewall: " + printable(p.rules[s.rule]));
  }
  for (const KernelSocket& s : p.kernel_sockets)
    fmt::print("  {:<5} {:>5} {:<9} {:<12} {:<22} {:<22} {:>12} {:>12} {:>8} {:>6} {:>7}  {}\n",
               protocol_name(s.protocol), fd_text(s.fd), "kernel",
               s.protocol == IPPROTO_TCP ? pick(kStates, s.state) : "-", address_text(s.local),
               address_text(s.remote), "-", "-", "-", "-", "-",
               s.rule.empty() ? reason(s.reason).text : "firewall: " + printable(s.rule));
  if (p.socket_count > p.sockets.size()) fmt::print("  ... and {} more\n", p.socket_count - p.sockets.size());
}

void print(const ProcessStats& p) {
  fmt::print("{} (pid {}), profile {}", printable(p.program), p.pid, printable(p.profile));
  if (!p.config_file.empty()) fmt::print(", {}", printable(p.config_file));
  if (!p.application.empty()) fmt::print(" [{}]", printable(p.application));
  if (!p.engine) fmt::print(", everything on the kernel's path");
  if (!p.answered) fmt::print(", DOES NOT ANSWER: stopped or busy, figures are old");
  fmt::print("\n");
  if (!p.no_helper.empty())
    fmt::print("  no helper (peers learn of kill -9 when they next send): {}\n", printable(p.no_helper));
  if (p.sockets.empty() && p.kernel_sockets.empty())
    fmt::print("  no sockets\n");
  else
    print_sockets(p);
  if (!p.ports.empty())
    fmt::print("  {:<15} {:<5} {:>9} {:<10} {:>6}\n", "PORT", "KIND", "QUEUES", "MODE", "MTU");
  for (const stats::PortRow& port : p.ports)
    fmt::print("  {:<15} {:<5} {:>9} {:<10} {:>6}\n", name_of(port), pick(kPaths, port.kind),
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

int stat(std::optional<int> pid, bool as_json) {
  std::vector<ProcessStats> all = read_processes(pid);
  if (as_json) {
    json j = {{"processes", json::array()}};
    for (auto& p : all) j["processes"].push_back(to_json(p));
    fmt::print("{}\n", j.dump(2));
  } else {
    for (auto& p : all) print(p);
  }
  if (!all.empty()) return 0;
  if (pid)
    fmt::print(stderr,
               "accel stat: process {} has no accelerated socket and was left none on the kernel, does not "
               "exist, or is another user's\n",
               *pid);
  else
    fmt::print(stderr, "accel stat: no process of yours uses libaccel for a socket\n");
  return 1;
}

}  // namespace accel::tools
