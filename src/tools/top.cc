// accel stat on a terminal: like top, with rates.
#include <curses.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <thread>
#include <tuple>
#include <utility>

#include "tools/view.h"

namespace accel::tools {
namespace {

using Clock = std::chrono::steady_clock;

struct Screen {
  Screen() {
    initscr();
    cbreak();
    noecho();
    keypad(stdscr, TRUE);
    curs_set(0);
  }
  ~Screen() { endwin(); }
  Screen(const Screen&) = delete;
  Screen& operator=(const Screen&) = delete;
};

std::string rate_text(double bytes) {
  const char* unit = "";
  for (const char* next : {"K", "M", "G"}) {
    if (bytes < 10000) break;
    bytes /= 1000;
    unit = next;
  }
  return fmt::format("{:.0f}{}", bytes, unit);
}

/// Clock ticks that the process has used.
uint64_t cpu_ticks(int pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string text;
  std::getline(file, text);
  const size_t end = text.rfind(')');
  if (end == std::string::npos) return 0;
  std::istringstream fields(text.substr(end + 1));
  std::string skipped;
  for (int i = 0; i < 11; ++i) fields >> skipped;
  uint64_t user = 0, system = 0;
  fields >> user >> system;
  return user + system;
}

/// A connection in two samples: its ends tell more than its descriptor, which may be used again.
using End = std::array<uint8_t, 18>;
using SocketKey = std::tuple<int, End, End, uint8_t>;
struct Bytes {
  uint64_t rx = 0, tx = 0;
};
struct Sample {
  Clock::time_point at;
  std::vector<ProcessStats> processes;
  std::map<SocketKey, Bytes> bytes;
  std::map<int, uint64_t> ticks;
};

End end_of(const stats::Address& a) {
  End end;
  std::memcpy(end.data(), a.bytes, sizeof a.bytes);
  std::memcpy(end.data() + sizeof a.bytes, &a.port, sizeof a.port);
  return end;
}

SocketKey key_of(const ProcessStats& p, const ShownSocket& s) {
  return {p.pid, end_of(s.local), end_of(s.remote), s.protocol};
}

Sample take(const StatOptions& options) {
  Sample sample;
  sample.processes = chosen_processes(options.target);
  sample.at = Clock::now();
  for (const ProcessStats& p : sample.processes) {
    sample.ticks[p.pid] = cpu_ticks(p.pid);
    for (const ShownSocket& s : sockets_of(p))
      if (!s.kernel) sample.bytes[key_of(p, s)] = {s.row.rx_bytes, s.row.tx_bytes};
  }
  return sample;
}

struct SocketLine {
  ShownSocket socket;
  double rx = 0, tx = 0;  ///< bytes a second
};
struct Line {
  std::string text;
  bool heading = false;
  std::optional<SocketLine> socket;  ///< instead of a text, which is made where it is seen
};

double per_second(uint64_t now, uint64_t before, double seconds) {
  return now >= before && seconds > 0 ? static_cast<double>(now - before) / seconds : 0;
}

uint64_t counter(const ProcessStats& p, const char* name) {
  const auto found = p.counters.find(name);
  return found == p.counters.end() ? 0 : found->second;
}

const ProcessStats* find(const Sample& sample, int pid) {
  for (const ProcessStats& p : sample.processes)
    if (p.pid == pid) return &p;
  return nullptr;
}

std::string process_line(const ProcessStats& p, const Sample& now, const Sample& before, double seconds) {
  std::string text = fmt::format("{} ({}), profile {}", printable(p.program), p.pid, printable(p.profile));
  if (const auto had = before.ticks.find(p.pid); had != before.ticks.end() && seconds > 0)
    text += fmt::format(", CPU {:.0f} %", per_second(now.ticks.at(p.pid), had->second, seconds) * 100 /
                                              static_cast<double>(sysconf(_SC_CLK_TCK)));
  if (const ProcessStats* then = find(before, p.pid)) {
    const auto rate = [&](const char* name) {
      return per_second(counter(p, name), counter(*then, name), seconds);
    };
    const double hits = rate("spin_hits"), sleeps = rate("sleeps");
    if (hits + sleeps > 0) text += fmt::format(", poll hits {:.0f} %", hits * 100 / (hits + sleeps));
    text += fmt::format(", frames in {:.0f}/s out {:.0f}/s", rate("rx_frames"), rate("tx_frames"));
  }
  for (const stats::PortRow& port : p.ports)
    text += fmt::format(", {} {} {}/{} queues", port_name(port), path_name(port.kind), port.queues_held,
                        port.queues_total);
  if (!p.engine) text += ", everything on the kernel's path";
  if (!p.answered) text += ", DOES NOT ANSWER";
  return text;
}

std::string text_of(const SocketLine& line) {
  const ShownSocket& s = line.socket;
  const bool tcp = s.protocol == IPPROTO_TCP;
  return fmt::format("  {:<4} {:>5} {:<9} {:<11} {:<21} {:<21} {:>7} {:>7} {:>7} {:>5} {:>5} {:<11} {}",
                     protocol_name(s.protocol), s.fd < 0 ? "-" : std::to_string(s.fd), path_name(s.path),
                     tcp ? state_name(s.state) : "-", address_text(s.local), address_text(s.remote),
                     s.kernel ? "-" : rate_text(line.rx), s.kernel ? "-" : rate_text(line.tx),
                     tcp && s.row.rtt_us ? std::to_string(s.row.rtt_us) : "-",
                     tcp && s.row.rtt_us ? std::to_string(s.row.cwnd) : "-",
                     s.kernel ? "-" : std::to_string(s.row.retransmits), limit_name(s.limit),
                     reason_text(s.reason).name);
}

/// Their rates since the sample before, in the order that is asked for.
std::vector<SocketLine> socket_lines(const ProcessStats& p, const Sample& before, double seconds,
                                     const StatOptions& options) {
  std::vector<SocketLine> lines;
  std::vector<std::pair<double, size_t>> order;
  for (ShownSocket& s : chosen_sockets(p, options)) {
    const auto had = before.bytes.find(key_of(p, s));
    const Bytes then = had == before.bytes.end() ? Bytes{s.row.rx_bytes, s.row.tx_bytes} : had->second;
    const double rx = per_second(s.row.rx_bytes, then.rx, seconds);
    const double tx = per_second(s.row.tx_bytes, then.tx, seconds);
    order.emplace_back(-(rx + tx), lines.size());
    lines.push_back({std::move(s), rx, tx});
  }
  if (!options.sort.empty() && options.sort != "rate") return lines;
  std::sort(order.begin(), order.end());
  std::vector<SocketLine> sorted;
  sorted.reserve(lines.size());
  for (const auto& [rate, at] : order) sorted.push_back(std::move(lines[at]));
  return sorted;
}

std::vector<Line> lines_of(const Sample& now, const Sample& before, const StatOptions& options) {
  const double seconds = std::chrono::duration<double>(now.at - before.at).count();
  std::vector<Line> lines;
  for (const ProcessStats& p : now.processes) {
    lines.push_back({process_line(p, now, before, seconds), true, {}});
    if (!p.mistake.empty()) lines.push_back({"  mistake: " + printable(p.mistake), false, {}});
    for (SocketLine& line : socket_lines(p, before, seconds, options))
      lines.push_back({{}, false, std::move(line)});
    for (const PlainChild& child : plain_children(p.pid))
      lines.push_back(
          {fmt::format("  child {} ({}): {}", child.pid, printable(child.program), child.why), false, {}});
  }
  return lines;
}

void draw(const std::vector<Line>& lines, size_t top_line, const StatOptions& options) {
  erase();
  const auto put = [](int row, const std::string& text) { mvaddnstr(row, 0, text.c_str(), COLS); };
  attron(A_BOLD);
  put(0, fmt::format("accel stat   q quit  s sort: {}  up/down scroll{}",
                     options.sort.empty() ? "rate" : options.sort,
                     options.filter.empty() ? "" : "  filter: " + options.filter));
  attroff(A_BOLD);
  attron(A_REVERSE);
  put(1, fmt::format("  {:<4} {:>5} {:<9} {:<11} {:<21} {:<21} {:>7} {:>7} {:>7} {:>5} {:>5} {:<11} {:<{}}",
                     "PROT", "FD", "PATH", "STATE", "LOCAL", "REMOTE", "RX/s", "TX/s", "RTT us", "CWND",
                     "RETR", "LIMIT", "REASON", std::max(6, COLS - 128)));
  attroff(A_REVERSE);
  if (lines.empty()) put(3, "no process of yours uses libaccel for a socket");
  for (int row = 2; row < LINES; ++row) {
    const size_t at = top_line + static_cast<size_t>(row - 2);
    if (at >= lines.size()) break;
    if (lines[at].heading) attron(A_BOLD);
    put(row, lines[at].socket ? text_of(*lines[at].socket) : lines[at].text);
    if (lines[at].heading) attroff(A_BOLD);
  }
  refresh();
}

constexpr const char* kSorts[] = {"rate", "rx", "tx", "rtt", "retransmits", "queue"};

void next_sort(std::string& sort) {
  size_t at = 0;
  while (at < std::size(kSorts) && sort != kSorts[at]) ++at;
  sort = kSorts[at >= std::size(kSorts) ? 1 : (at + 1) % std::size(kSorts)];
}

}  // namespace

int top(const StatOptions& given) {
  StatOptions options = given;
  Sample before = take(options);
  if (before.processes.empty() && !options.target.empty()) return say_nothing_found("stat", options.target);
  const auto interval = std::chrono::milliseconds(static_cast<int64_t>(options.interval * 1000));
  Screen screen;
  size_t top_line = 0;
  Sample now = before;
  auto due = Clock::now() + std::chrono::milliseconds(300);  // the first rates soon
  while (true) {
    const std::vector<Line> lines = lines_of(now, before, options);
    top_line = std::min(top_line, lines.empty() ? 0 : lines.size() - 1);
    draw(lines, top_line, options);
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(due - Clock::now()).count();
    timeout(static_cast<int>(std::max<int64_t>(left, 0)));
    const int key = getch();
    const size_t page = static_cast<size_t>(std::max(LINES - 3, 1));
    if (key == 'q' || key == 3) return 0;
    if (key == 's') next_sort(options.sort);
    if (key == KEY_DOWN || key == 'j') ++top_line;
    if (key == KEY_NPAGE || key == ' ') top_line += page;
    if (key == KEY_UP || key == 'k') top_line -= std::min<size_t>(top_line, 1);
    if (key == KEY_PPAGE) top_line -= std::min(top_line, page);
    if (key != ERR || Clock::now() < due) continue;
    before = std::move(now);
    now = take(options);
    due = Clock::now() + interval;
  }
}

}  // namespace accel::tools
