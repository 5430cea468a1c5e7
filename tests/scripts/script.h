// A wire script as data: what packetdrill's language says of one conversation, line by line.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/instant.h"

namespace accel::scripts {

/// What stands in a script and is not of the language. `line` 0: not known.
struct ScriptError : std::runtime_error {
  ScriptError(int at, const std::string& what) : std::runtime_error(what), line(at) {}
  int line;
};

struct Member;

/// An argument or a result of a system call.
struct Value {
  enum class Kind : uint8_t { kAny, kNumber, kWord, kText, kList };
  Kind kind = Kind::kAny;
  int64_t number = 0;
  std::string text;             ///< kWord, kText
  std::vector<Member> members;  ///< kList: with names where it is a record

  bool any() const { return kind == Kind::kAny; }
  const Value* member(const std::string& name) const;
};

struct Member {
  std::string name;
  Value value;
};

inline const Value* Value::member(const std::string& name) const {
  for (const Member& m : members)
    if (m.name == name) return &m.value;
  return nullptr;
}

/// When a line happens. Relative times count from when the line before it happened.
struct Moment {
  bool relative = true;
  bool any = false;  ///< "*": whenever it comes
  Duration from{0};
  std::optional<Duration> to;  ///< of a range "+a~+b"
};

struct OptionSpec {
  uint8_t kind = 0;                  ///< of the wire
  std::optional<uint32_t> a{}, b{};  ///< MSS; shift; val and ecr, where a star leaves either open
  std::vector<std::pair<uint32_t, uint32_t>> sack{};  ///< in the script's numbers
  std::vector<uint8_t> cookie{};                      ///< of Fast Open
};

struct PortPair {
  uint16_t from = 0, to = 0;
  uint16_t more = 0;  ///< of "41000..41064": so many further ports of the peer, a segment each
};

/// A TCP segment in the script's numbers: sequence numbers count from the SYN's.
struct SegmentSpec {
  std::optional<PortPair> ports;
  uint8_t flags = 0;
  uint32_t seq = 0, length = 0;
  std::optional<uint32_t> ack;
  std::optional<uint16_t> window, urgent;
  std::optional<uint8_t> ecn;
  bool any_options = false;
  std::vector<OptionSpec> options;
};

struct Inject {
  SegmentSpec segment;
};
struct Expect {
  SegmentSpec segment;
};
/// "> nothing": since the last segment that a line has expected none has left.
struct ExpectNothing {};
/// An ICMP error that quotes a segment of ours.
struct InjectIcmp {
  uint8_t type = 3, code = 0;
  uint16_t mtu = 0;
  uint32_t seq = 0, length = 0;
};
struct Call {
  std::string name;
  std::vector<Value> arguments;
  Value result;
  std::string error;            ///< errno's name
  std::optional<Duration> end;  ///< it sleeps, and returns at this time
  bool end_relative = true;     ///< as Moment
};
/// Assertions of TCP_INFO's fields.
struct Check {
  std::string code;
};

struct Event {
  int line = 0;
  Moment moment;
  std::variant<Inject, Expect, ExpectNothing, InjectIcmp, Call, Check> action;
};

struct Script {
  std::string path;
  std::map<std::string, std::string> options;                ///< "--name=value" lines
  std::vector<std::pair<std::string, std::string>> sysctls;  ///< "net.ipv4.x", value; in order
  std::vector<Event> events;
  std::string option(const std::string& name) const {
    auto found = options.find(name);
    return found == options.end() ? "" : found->second;
  }
};

/// Throws ScriptError.
Script parse_script(const std::string& path, const std::string& text);

/// A constant of the system's headers, as scripts name them.
std::optional<int64_t> constant(const std::string& name);
std::string errno_name(int number);

}  // namespace accel::scripts
