// Reads other processes' statistics pages (engine/stats_page.h). The process may be hostile: nothing it wrote
// is trusted.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/stats_page.h"

namespace accel::tools {

/// A descriptor of the process that was left to the kernel, with what the kernel says of the socket.
struct KernelSocket {
  int fd = -1;
  uint8_t reason = 0;
  uint8_t protocol = 0;  ///< 0: the kernel lists no such socket (not bound yet)
  uint8_t state = 0;     ///< TcpState
  stats::Address local{}, remote{};
  std::string detail;  ///< what the reason is about; "": nothing with a name
};

struct ProcessStats {
  int pid = 0;
  std::string program;
  std::string application, config_file, profile;
  std::string mistake;    ///< the first of the configuration, or ""
  int helper = 0;         ///< its pid; 0: none
  std::string no_helper;  ///< why there is none though it is wanted
  bool engine = false;    ///< something is or was accelerated
  bool answered =
      true;  ///< false: the process did not answer in time (stopped, or busy); what is shown is old
  uint32_t socket_count = 0;
  std::vector<stats::SocketRow> sockets;
  std::vector<std::string> details;  ///< what reasons are about, by SocketRow::detail
  std::vector<stats::PortRow> ports;
  std::vector<KernelSocket> kernel_sockets;
  std::map<std::string, uint64_t> counters;
};

/// Processes with a page, or only `pid`; each is asked for fresh figures.
std::vector<ProcessStats> read_processes(std::optional<int> pid);

/// What there is to see of a process.
enum class Sight {
  kPage,        ///< it has a page
  kNoProcess,   ///< there is none of that number
  kForeign,     ///< another user's, and we may not look
  kNoSocket,    ///< libaccel is in it, but it has made no Internet socket yet (or the setting stats is off)
  kNoLibaccel,  ///< it runs without libaccel
};
Sight look_for(int pid);
/// "process 7 does not exist" and so on.
std::string text_of(Sight sight, int pid);

/// Children of the process that have no page, but for the helper, and why: "statically linked" and so on.
struct PlainChild {
  int pid = 0;
  std::string program, why;
};
std::vector<PlainChild> plain_children(int pid);

/// Descriptors of the process that are memory of this name.
std::vector<int> descriptors_named(int pid, const std::string& name);

/// Wants a setting changed, "key=value". "": it is done; else why not.
std::string send_wish(int pid, const std::string& text);

}  // namespace accel::tools
