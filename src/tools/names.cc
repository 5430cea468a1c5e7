#include "tools/names.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>

#include <cstring>
#include <iterator>

namespace accel::tools {
namespace {

constexpr ReasonText kReasons[] = {
#define REASON(name, text) {#name, text},
#include "engine/reasons.def"
#undef REASON
};
constexpr ReasonText kNoReason{"unknown", "a reason that this version of accel does not know"};

template <size_t N>
const char* pick(const char* const (&names)[N], uint8_t number) {
  return number < N ? names[number] : "?";
}
/// In the order of PathKind, of the kernel's TCP states (stack.h) and of stats::Limit.
constexpr const char* kPaths[] = {"undecided", "kernel", "xdp", "mlx5", "iwarp", "shm"};
constexpr uint8_t kKernelPath = 1;
constexpr const char* kStates[] = {"-",          "established", "syn-sent",  "syn-received",
                                   "fin-wait-1", "fin-wait-2",  "time-wait", "closed",
                                   "close-wait", "last-ack",    "listen",    "closing"};
constexpr const char* kLimits[] = {"-", "application", "receiver", "congestion", "pacing", "ring"};

}  // namespace

const ReasonText& reason_text(uint8_t number) {
  return number < std::size(kReasons) ? kReasons[number] : kNoReason;
}
const char* path_name(uint8_t number) { return pick(kPaths, number); }
const char* state_name(uint8_t number) { return pick(kStates, number); }
const char* limit_name(uint8_t number) { return pick(kLimits, number); }

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

std::string printable(const std::string& text) {
  std::string out;
  for (unsigned char c : text) out += c >= 32 && c < 127 ? static_cast<char>(c) : '?';
  return out;
}

std::string port_name(const stats::PortRow& port) {
  return printable({port.name, strnlen(port.name, sizeof port.name)});
}

std::vector<ShownSocket> sockets_of(const ProcessStats& p) {
  std::vector<ShownSocket> all;
  all.reserve(p.sockets.size() + p.kernel_sockets.size());
  for (const stats::SocketRow& row : p.sockets) {
    ShownSocket s;
    s.fd = row.fd;
    s.protocol = row.protocol;
    s.path = row.path;
    s.reason = row.reason;
    s.state = row.protocol == IPPROTO_TCP ? row.state : 0;
    s.limit = row.limit;
    if (row.detail != 0) s.detail = p.details[row.detail];
    s.local = row.local;
    s.remote = row.remote;
    s.row = row;
    all.push_back(std::move(s));
  }
  for (const KernelSocket& k : p.kernel_sockets) {
    ShownSocket s;
    s.fd = k.fd;
    s.kernel = true;
    s.protocol = k.protocol;
    s.path = kKernelPath;
    s.reason = k.reason;
    s.state = k.protocol == IPPROTO_TCP ? k.state : 0;
    s.detail = k.detail;
    s.local = k.local;
    s.remote = k.remote;
    all.push_back(std::move(s));
  }
  return all;
}

std::string why(const ProcessStats& p, const ShownSocket& s) {
  const ReasonText& reason = reason_text(s.reason);
  if (!s.detail.empty()) return fmt::format("{}: {}", reason.name, printable(s.detail));
  if (std::strcmp(reason.name, "misread") == 0 && !p.mistake.empty())
    return "the configuration has errors: " + printable(p.mistake);
  return reason.text;
}

}  // namespace accel::tools
