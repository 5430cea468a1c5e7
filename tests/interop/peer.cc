// interop_peer: plays rping or rstream, as client or server, with the library's iWARP over a plain TCP
// connection of the kernel. Prints one line of JSON on stderr; status 0 when everything came back as it
// should.
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "rping.h"
#include "stream.h"

namespace accel::interop {
namespace {

const char* const kUsage =
    "usage: interop_peer "
    "rping-client|rping-server|stream-client|stream-server|send-client|send-server|receive-client|receive-"
    "server\n  [--address A] [--port N] "
    "[--size N] [--count N]\n"
    "  [--iterations N] [--crc on|off] [--rtr none|write|read|any] [--fpdu N] [--ring N] [--kick-after MS] "
    "[--keep "
    "FOLDER]\n";

bool set_rtr(siw::MpaOffer& offer, const char* value) {
  static constexpr struct {
    const char* name;
    uint8_t rtr;
  } kKinds[] = {{"none", siw::kRtrNone},
                {"write", siw::kRtrWrite},
                {"read", siw::kRtrRead},
                {"any", siw::kRtrWrite | siw::kRtrRead}};
  for (const auto& kind : kKinds) {
    if (strcmp(kind.name, value) != 0) continue;
    offer.rtr = kind.rtr;
    offer.peer_to_peer = kind.rtr != siw::kRtrNone;
    return true;
  }
  return false;
}

bool set(PeerOptions& o, const char* name, const char* value) {
  const auto number = [&] { return static_cast<size_t>(strtoull(value, nullptr, 10)); };
  const auto is = [&](const char* n) { return strcmp(name, n) == 0; };
  if (is("--address")) return o.address = value, true;
  if (is("--keep")) return o.keep = value, true;
  if (is("--port")) return o.port = static_cast<uint16_t>(number()), true;
  if (is("--size")) return o.size = number(), o.size >= 16;
  if (is("--count")) return o.count = number(), true;
  if (is("--iterations")) return o.iterations = number(), true;
  if (is("--kick-after")) return o.kick_after_ms = static_cast<int64_t>(number()), true;
  if (is("--ring")) return o.ring = number(), true;
  if (is("--fpdu")) return o.max_fpdu = number(), true;
  if (is("--crc")) return o.offer.crc = strcmp(value, "on") == 0, true;
  if (is("--rtr")) return set_rtr(o.offer, value);
  return false;
}

int report(const std::string& error, const siw::Endpoint& e, const Link& link) {
  if (!error.empty()) link.keep(e, error);
  static const char* const kRtr[] = {"none", "write", "read", "", "send"};
  fprintf(
      stderr,
      "{\"ok\": %s, \"error\": \"%s\", \"crc\": %s, \"rtr\": \"%s\", \"ird\": %u, \"ord\": %u, \"kicks\": "
      "%u}\n",
      error.empty() ? "true" : "false", error.c_str(), e.agreement().crc ? "true" : "false",
      kRtr[e.agreement().rtr], e.agreement().ird, e.agreement().ord, link.kicks());
  return error.empty() ? 0 : 1;
}

int main(int argc, char** argv) {
  PeerOptions o;
  o.offer = {.crc = false, .enhanced = true, .peer_to_peer = false, .rtr = siw::kRtrNone};
  if (argc < 2) return fputs(kUsage, stderr), 2;
  for (int i = 2; i < argc; i += 2) {
    if (i + 1 == argc || !set(o, argv[i], argv[i + 1])) return fputs(kUsage, stderr), 2;
  }
  const std::string what = argv[1];
  o.role = what.ends_with("-client") ? siw::Role::kInitiator : siw::Role::kResponder;
  if (what.starts_with("rping-")) {
    QueuePair qp(o);
    const std::string error = o.role == siw::Role::kInitiator ? rping_client(o, qp) : rping_server(o, qp);
    return report(error, qp.endpoint(), qp.link());
  }
  const bool sends_first = what.starts_with("send-"), receives_first = what.starts_with("receive-");
  if (!what.starts_with("stream-") && !sends_first && !receives_first) return fputs(kUsage, stderr), 2;
  Stream stream(o);
  const std::string error = sends_first || receives_first ? stream.pipe(sends_first) : stream.run();
  return report(error, stream.conn().endpoint(), stream.link());
}

}  // namespace
}  // namespace accel::interop

int main(int argc, char** argv) { return accel::interop::main(argc, argv); }
