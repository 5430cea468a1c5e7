// accel metrics: Prometheus's text format, of all processes that this user may see. libmicrohttpd serves it.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <signal.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <tuple>

#include "base/config.h"
#include "base/counters.h"
#include "tools/view.h"

namespace accel::tools {
namespace {

std::string label_text(const std::string& text) {
  std::string out;
  for (char c : printable(text)) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out;
}

std::string labels(const ProcessStats& p) {
  return fmt::format("pid=\"{}\",program=\"{}\"", p.pid, label_text(p.program));
}

void head(std::string& out, const std::string& name, const char* type, std::string_view help) {
  out += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, type);
}

/// What sums up over a process's sockets.
struct Sums {
  uint64_t sockets = 0, rx = 0, tx = 0, retransmits = 0, queue_in = 0, queue_out = 0;
};
using Group = std::tuple<const char*, const char*, const char*>;  ///< protocol, path, reason

std::string render() {
  const std::vector<ProcessStats> all = read_processes({});
  std::string out;
  head(out, "libaccel_up", "gauge", "1 where the process answered in time, 0 where the figures are old");
  for (const ProcessStats& p : all)
    out += fmt::format("libaccel_up{{{}}} {}\n", labels(p), p.answered ? 1 : 0);
  std::map<int, std::map<Group, Sums>> sums;
  for (const ProcessStats& p : all)
    for (const ShownSocket& s : sockets_of(p)) {
      Sums& sum = sums[p.pid][{protocol_name(s.protocol), path_name(s.path), reason_text(s.reason).name}];
      ++sum.sockets;
      sum.rx += s.row.rx_bytes;
      sum.tx += s.row.tx_bytes;
      sum.retransmits += s.row.retransmits;
      sum.queue_in += s.row.queue_in;
      sum.queue_out += s.row.queue_out;
    }
  const auto gauge = [&](const char* name, const char* help, auto member) {
    head(out, name, "gauge", help);
    for (const ProcessStats& p : all)
      for (const auto& [group, sum] : sums[p.pid])
        out += fmt::format("{}{{{},protocol=\"{}\",path=\"{}\",reason=\"{}\"}} {}\n", name, labels(p),
                           std::get<0>(group), std::get<1>(group), std::get<2>(group), sum.*member);
  };
  gauge("libaccel_sockets", "Sockets that are open, by protocol, path and reason", &Sums::sockets);
  gauge("libaccel_open_sockets_received_bytes", "Bytes received by the sockets that are open", &Sums::rx);
  gauge("libaccel_open_sockets_sent_bytes", "Bytes sent by the sockets that are open", &Sums::tx);
  gauge("libaccel_open_sockets_retransmits", "Segments sent again by the sockets that are open",
        &Sums::retransmits);
  gauge("libaccel_receive_queue_bytes", "Bytes that wait to be read; of listeners, connections to accept",
        &Sums::queue_in);
  gauge("libaccel_send_queue_bytes", "Bytes that wait to be acknowledged", &Sums::queue_out);
  head(out, "libaccel_port_queues", "gauge", "Device queues that the process holds");
  for (const ProcessStats& p : all)
    for (const stats::PortRow& port : p.ports)
      out += fmt::format("libaccel_port_queues{{{},device=\"{}\",kind=\"{}\"}} {}\n", labels(p),
                         label_text(port_name(port)), path_name(port.kind), port.queues_held);
  for (const CounterText& row : kCounterTexts) {
    const std::string name = fmt::format("libaccel_{}_total", row.name);
    head(out, name, "counter", row.help);
    for (const ProcessStats& p : all)
      if (auto found = p.counters.find(row.name); found != p.counters.end())
        out += fmt::format("{}{{{}}} {}\n", name, labels(p), found->second);
  }
  return out;
}

MHD_Result respond(MHD_Connection* connection, unsigned status, const std::string& text) {
  MHD_Response* response =
      MHD_create_response_from_buffer(text.size(), const_cast<char*>(text.data()), MHD_RESPMEM_MUST_COPY);
  if (response == nullptr) return MHD_NO;
  MHD_add_response_header(response, "Content-Type", "text/plain; version=0.0.4; charset=utf-8");
  const MHD_Result queued = MHD_queue_response(connection, status, response);
  MHD_destroy_response(response);
  return queued;
}

MHD_Result on_request(void*, MHD_Connection* connection, const char* url, const char* method, const char*,
                      const char*, size_t*, void**) {
  if (std::strcmp(method, "GET") != 0 && std::strcmp(method, "HEAD") != 0)
    return respond(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "only GET\n");
  if (std::strcmp(url, "/metrics") != 0) return respond(connection, MHD_HTTP_NOT_FOUND, "see /metrics\n");
  try {
    return respond(connection, MHD_HTTP_OK, render());
  } catch (const std::exception& e) {
    return respond(connection, MHD_HTTP_INTERNAL_SERVER_ERROR, std::string(e.what()) + "\n");
  }
}

/// "127.0.0.1:9477", "[::1]:9477".
bool parse_listen(const std::string& text, sockaddr_storage* out) {
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos) return false;
  std::string host = text.substr(0, colon);
  uint16_t port = 0, last = 0;
  if (!parse_ports(text.substr(colon + 1), &port, &last) || port != last) return false;
  *out = {};
  auto& four = *reinterpret_cast<sockaddr_in*>(out);
  auto& six = *reinterpret_cast<sockaddr_in6*>(out);
  if (inet_pton(AF_INET, host.c_str(), &four.sin_addr) == 1) {
    four.sin_family = AF_INET;
    four.sin_port = htons(port);
    return true;
  }
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  if (inet_pton(AF_INET6, host.c_str(), &six.sin6_addr) != 1) return false;
  six.sin6_family = AF_INET6;
  six.sin6_port = htons(port);
  return true;
}

}  // namespace

int metrics(const MetricsOptions& options) {
  if (options.listen.empty()) {
    fmt::print("{}", render());
    return 0;
  }
  sockaddr_storage address;
  if (!parse_listen(options.listen, &address)) {
    fmt::print(stderr, "accel metrics: --listen {}: not an ADDRESS:PORT (127.0.0.1:9477, [::1]:9477)\n",
               options.listen);
    return 2;
  }
  // Before the server's thread, which inherits it.
  sigset_t ends;
  sigemptyset(&ends);
  sigaddset(&ends, SIGINT);
  sigaddset(&ends, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &ends, nullptr);
  unsigned flags = MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_AUTO;
  if (address.ss_family == AF_INET6) flags |= MHD_USE_IPv6;
  MHD_Daemon* daemon =
      MHD_start_daemon(flags, 0, nullptr, nullptr, &on_request, nullptr, MHD_OPTION_SOCK_ADDR,
                       reinterpret_cast<sockaddr*>(&address), MHD_OPTION_CONNECTION_LIMIT, 16U,
                       MHD_OPTION_CONNECTION_TIMEOUT, 10U, MHD_OPTION_END);
  if (daemon == nullptr) {
    fmt::print(stderr, "accel metrics: cannot listen at {}: {}\n", options.listen, std::strerror(errno));
    return 1;
  }
  const MHD_DaemonInfo* bound = MHD_get_daemon_info(daemon, MHD_DAEMON_INFO_BIND_PORT);
  fmt::print("listening at {}, port {}, path /metrics\n", options.listen, bound != nullptr ? bound->port : 0);
  std::fflush(stdout);
  int signal = 0;
  sigwait(&ends, &signal);
  MHD_stop_daemon(daemon);
  return 0;
}

}  // namespace accel::tools
