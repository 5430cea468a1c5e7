// accel ss: what ss does not see, in its columns. What it sees is left to it: sockets of the kernel's path.
#include <fmt/format.h>
#include <netinet/in.h>

#include <cstring>

#include "tools/view.h"

namespace accel::tools {
namespace {

/// ss's words for the kernel's states.
const char* ss_state(const ShownSocket& s) {
  constexpr const char* kStates[] = {"UNCONN",     "ESTAB",      "SYN-SENT",  "SYN-RECV",
                                     "FIN-WAIT-1", "FIN-WAIT-2", "TIME-WAIT", "UNCONN",
                                     "CLOSE-WAIT", "LAST-ACK",   "LISTEN",    "CLOSING"};
  if (s.protocol == IPPROTO_TCP) return s.state < std::size(kStates) ? kStates[s.state] : "UNKNOWN";
  return s.remote.port != 0 ? "ESTAB" : "UNCONN";
}

std::string end_text(const stats::Address& a) {
  const std::string text = address_text(a);
  return text == "*" ? "*:*" : text;
}

bool wanted(const ShownSocket& s, const SsOptions& o) {
  const bool tcp = s.protocol == IPPROTO_TCP;
  if (s.kernel || (o.tcp != o.udp && tcp != o.tcp)) return false;
  const std::string_view state = ss_state(s);
  const bool waiting = state == "LISTEN" || state == "UNCONN";
  if (o.all) return true;
  return o.listening ? waiting : !waiting;
}

}  // namespace

int ss(const SsOptions& options) {
  const std::vector<ProcessStats> all = read_processes({});
  fmt::print("{:<5} {:<10} {:>6} {:>6} {:>24} {:>24} {}\n", "Netid", "State", "Recv-Q", "Send-Q",
             "Local Address:Port", "Peer Address:Port", options.processes ? "Process" : "");
  for (const ProcessStats& p : all)
    for (const ShownSocket& s : sockets_of(p)) {
      if (!wanted(s, options)) continue;
      std::string process;
      if (options.processes)
        process = fmt::format("users:((\"{}\",pid={},fd={}))", printable(p.program), p.pid, s.fd);
      fmt::print("{:<5} {:<10} {:>6} {:>6} {:>24} {:>24} {}\n", protocol_name(s.protocol), ss_state(s),
                 s.row.queue_in, s.row.queue_out, end_text(s.local), end_text(s.remote), process);
      if (options.info && s.protocol == IPPROTO_TCP && s.row.rtt_us > 0)
        fmt::print(
            "\t {} rtt:{:.3f}/{:.3f} mss:{} cwnd:{} bytes_sent:{} bytes_received:{} retrans:0/{} "
            "delivery_rate {}bps limited:{}\n",
            path_name(s.path), s.row.rtt_us / 1000.0, s.row.rttvar_us / 1000.0, s.row.mss, s.row.cwnd,
            s.row.tx_bytes, s.row.rx_bytes, s.row.retransmits, s.row.delivery_rate * 8, limit_name(s.limit));
    }
  return all.empty() ? say_nothing_found("ss", "") : 0;
}

}  // namespace accel::tools
