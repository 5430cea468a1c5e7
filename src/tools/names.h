// How the numbers of a statistics page are written.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "engine/stats_page.h"
#include "tools/page_reader.h"

namespace accel::tools {

struct ReasonText {
  const char* name;
  const char* text;
};
const ReasonText& reason_text(uint8_t number);
const char* path_name(uint8_t number);   ///< PathKind
const char* state_name(uint8_t number);  ///< TcpState
const char* limit_name(uint8_t number);  ///< stats::Limit
const char* protocol_name(uint8_t protocol);

/// "10.0.0.1:80", "[2001:db8::1]:80", "*".
std::string address_text(const stats::Address& a);

/// Names come from another process: only what is printable.
std::string printable(const std::string& text);
std::string port_name(const stats::PortRow& port);

/// A socket of either path, as one table has them.
struct ShownSocket {
  int fd = -1;
  bool kernel = false;  ///< the kernel's: of what follows it has protocol, state and addresses
  uint8_t protocol = 0, path = 0, reason = 0, state = 0, limit = 0;
  std::string detail;  ///< the rule of a packet filter, or the socket option, that the reason is about
  stats::Address local{}, remote{};
  stats::SocketRow row{};
};
std::vector<ShownSocket> sockets_of(const ProcessStats& p);

/// Why it is on its path, in words: with the rule of a packet filter, the socket option, or the mistake of
/// the configuration.
std::string why(const ProcessStats& p, const ShownSocket& s);

}  // namespace accel::tools
