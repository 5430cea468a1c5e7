// What the operator wants of this process: the file /etc/libaccel.toml or $ACCEL_CONFIG, then the
// environment's ACCEL_*.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/ip.h"
#include "base/settings.h"

namespace accel {

/// What rules in the configuration speak of ("role").
enum class Role : uint8_t { kTcpServer, kTcpClient, kUdpReceiver, kUdpSender, kUdpConnect };
template <>
inline constexpr std::array<std::string_view, 5> kWords<Role>{"tcp_server", "tcp_client", "udp_receiver",
                                                              "udp_sender", "udp_connect"};

/// [[application.rule]]: what is left out matches everything.
struct Rule {
  std::optional<Role> role;
  std::optional<IpAddress> prefix;  ///< left out: any address; else addresses of its family only
  uint8_t prefix_length = 0;        ///< bits of the 128 (IPv4: 96 + its own)
  uint16_t first_port = 0;
  uint16_t last_port = 65535;
  std::optional<Path> path;
  std::optional<Iwarp> iwarp;
  bool matches(Role r, const Endpoint& e) const;
};

struct Config {
  Settings settings;
  std::vector<Rule> rules;   ///< of the application that matched; the first match wins
  bool wants_iwarp = false;  ///< some connection or listener may be iWARP
  bool disabled = false;     ///< ACCEL_DISABLE=1: nothing is accelerated in this process
  /// Something was not understood that decides which sockets are accelerated: settings.path is kKernel and
  /// there are no rules.
  bool misread = false;
  std::string first_problem;  ///< of those that were found, or ""
  std::string file;           ///< the file that was read, or ""
  std::string application;    ///< name of the application that matched, or ""
  /// A call that needs a port does not return before it is open.
  bool waits_for_ports() const {
    return settings.wait_for_ports || settings.require != Require::kOff || settings.path == Path::kStack ||
           wants_iwarp;
  }

  /// `endpoint` is the local end for servers and receivers, the remote end for the others. The wildcard
  /// address matches rules without an address only.
  Path path_for(Role role, const Endpoint& endpoint) const;
  Iwarp iwarp_for(Role role, const Endpoint& endpoint) const;
  /// Whether the setting `devices` lets us use this netdev.
  bool device_allowed(std::string_view netdev) const;
};

/// This process's configuration: loaded at the first call (no earlier than the first Internet socket needs
/// it), the same ever after, also in children made by fork. Thread-safe without a lock that a fork could
/// leave held. Not for signal handlers.
const Config& config();

// ---- the parts, for tests and tools ----

struct ConfigSource {
  std::vector<std::string> programs;  ///< names by which this program is known (argv[0], executable)
  std::string user_id;                ///< $ACCEL_APP_ID
  std::string file;                   ///< "" reads none
  bool file_must_exist = false;       ///< named by $ACCEL_CONFIG
  std::function<const char*(const char*)> env = [](const char*) { return nullptr; };
  std::vector<std::string> env_names;  ///< the ACCEL_* variables that are set, to find misspelt ones
};

/// Never fails: what is wrong is added to `problems`, one line each ("FILE:LINE:COLUMN: ... allowed: ...").
Config load_config(const ConfigSource& source, std::vector<std::string>& problems);

/// The sections of the file alone, as load_config reads them: [default] and the first application that
/// matches go into `config`. Everything in the file is checked.
void read_config_file(const ConfigSource& source, Config& config, std::vector<std::string>& problems);

/// `; meant is perhaps "X"`: the one of `allowed` ("a | b", "a, b") that `word` resembles; or "".
std::string meant_perhaps(std::string_view word, std::string_view allowed);

/// "10.0.0.0/8", "2001:db8::/32", "[2001:db8::1]", "192.0.2.1", "*".
bool parse_prefix(std::string_view text, std::optional<IpAddress>* prefix, uint8_t* length);
/// "6379", "6379-6380", "*".
bool parse_ports(std::string_view text, uint16_t* first, uint16_t* last);

/// The source that config() uses.
ConfigSource process_source();

/// An ACCEL_* variable as it was when the program began (programs overwrite their environment for
/// setproctitle); nullptr in a setuid process.
const char* environment(const char* name);

}  // namespace accel
