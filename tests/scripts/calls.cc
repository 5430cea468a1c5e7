#include "calls.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>

namespace accel::scripts {
namespace {

using Kind = Operation::Kind;

/// One call's arguments, and which of them is what.
class Reader {
 public:
  Reader(const Call& call, Descriptors& fds) : call_(call), fds_(fds) {}

  Operation read() {
    static const std::map<std::string, void (Reader::*)()> calls = {
        {"socket", &Reader::socket},      {"bind", &Reader::bind},           {"listen", &Reader::listen},
        {"accept", &Reader::accept},      {"accept4", &Reader::accept},      {"connect", &Reader::connect},
        {"read", &Reader::reading},       {"recv", &Reader::reading},        {"recvfrom", &Reader::reading},
        {"recvmsg", &Reader::message_in}, {"write", &Reader::writing},       {"send", &Reader::writing},
        {"sendto", &Reader::writing},     {"sendmsg", &Reader::message_out}, {"writev", &Reader::vector_out},
        {"readv", &Reader::vector_in},    {"shutdown", &Reader::shutdown},   {"close", &Reader::close},
        {"setsockopt", &Reader::set},     {"getsockopt", &Reader::get},      {"fcntl", &Reader::fcntl},
        {"poll", &Reader::poll},          {"ioctl", &Reader::ioctl}};
    auto found = calls.find(call_.name);
    if (found == calls.end()) throw ScriptError(0, "a call that is not known: " + call_.name);
    (this->*found->second)();
    return std::move(op_);
  }

 private:
  const Value& argument(size_t i) const {
    if (i >= call_.arguments.size()) throw ScriptError(0, call_.name + "() wants more arguments");
    return call_.arguments[i];
  }
  int64_t number(const Value& v) const {
    if (v.kind == Value::Kind::kList && v.members.size() == 1) return number(v.members[0].value);
    if (v.kind != Value::Kind::kNumber)
      throw ScriptError(0, call_.name + "(): a number expected" + (v.text.empty() ? "" : ", not " + v.text));
    return v.number;
  }
  int64_t number(size_t i) const { return number(argument(i)); }
  void on(Kind kind) {
    op_.kind = kind;
    op_.fd = fd(number(0));
  }
  int fd(int64_t named) const {
    auto found = fds_.live.find(named);
    if (found == fds_.live.end()) throw ScriptError(0, "no descriptor " + std::to_string(named));
    return found->second;
  }

  void socket() {
    op_.kind = Kind::kSocket;
    op_.flags = argument(1).any() ? 0 : static_cast<uint32_t>(number(1)) & SOCK_NONBLOCK;
  }
  /// Its address is one of ours; the port may be named.
  int64_t port(size_t i, int64_t otherwise) const {
    if (i >= call_.arguments.size()) return otherwise;
    const Value* named = argument(i).member("sin_port");
    return named ? number(*named) : otherwise;
  }
  void bind() {
    on(Kind::kBind);
    op_.number = port(1, 8080);
  }
  void listen() {
    on(Kind::kListen);
    op_.number = number(1);
  }
  void accept() {
    on(Kind::kAccept);
    if (call_.name == "accept4") op_.flags = static_cast<uint32_t>(number(3)) & SOCK_NONBLOCK;
  }
  void connect() {
    on(Kind::kConnect);
    op_.number = port(1, 8080);
  }
  void take(size_t size, uint32_t flags) {
    on(Kind::kRead);
    op_.size = size;
    op_.flags = flags;
    if ((flags & MSG_OOB) != 0) fds_.reads_out_of_band[number(0)] = true;
  }
  void give(size_t size, uint32_t flags) {
    on(Kind::kWrite);
    op_.flags = flags;
    const uint64_t at = fds_.written[number(0)];
    for (size_t i = 0; i < size; ++i) op_.bytes.push_back(stream_byte(at + i));
  }
  void reading() {
    take(static_cast<size_t>(number(2)), call_.arguments.size() > 3 ? static_cast<uint32_t>(number(3)) : 0);
  }
  void writing() {
    give(static_cast<size_t>(number(2)), call_.arguments.size() > 3 ? static_cast<uint32_t>(number(3)) : 0);
    if (call_.name == "sendto" && (op_.flags & MSG_FASTOPEN) != 0) op_.number = port(4, 8080);
  }
  /// Bytes of [{..., 1000}, {..., 200}].
  size_t bytes_of(const Value& vector) const {
    size_t sum = 0;
    for (const auto& [name, part] : vector.members) {
      if (part.members.size() != 2) throw ScriptError(0, "{..., SIZE} expected");
      sum += static_cast<size_t>(number(part.members[1].value));
    }
    return sum;
  }
  size_t bytes_of_message() const {
    const Value* vector = argument(1).member("msg_iov");
    if (!vector) throw ScriptError(0, "msg_iov expected");
    return bytes_of(*vector);
  }
  void message_in() { take(bytes_of_message(), static_cast<uint32_t>(number(2))); }
  void message_out() { give(bytes_of_message(), static_cast<uint32_t>(number(2))); }
  void vector_in() { take(bytes_of(argument(1)), 0); }
  void vector_out() { give(bytes_of(argument(1)), 0); }
  void shutdown() {
    on(Kind::kShutdown);
    op_.number = number(1);
  }
  void close() { on(Kind::kClose); }
  void option(Kind kind) {
    on(kind);
    op_.level = static_cast<int>(number(1));
    op_.name = static_cast<int>(number(2));
  }
  void set() {
    option(Kind::kSetOption);
    const Value& v = argument(3);
    if (v.kind == Value::Kind::kText ||
        (v.members.size() == 1 && v.members[0].value.kind == Value::Kind::kText)) {
      op_.text = v.kind == Value::Kind::kText ? v.text : v.members[0].value.text;
    } else if (const Value* onoff = v.member("onoff")) {
      op_.number = number(*onoff);
      op_.second = number(*v.member("linger"));
    } else {
      op_.number = number(v);
    }
  }
  void get() { option(Kind::kGetOption); }
  void fcntl() {
    if (number(1) == F_GETFL) throw ScriptError(0, "fcntl(F_GETFL) tells nothing of the protocol");
    on(Kind::kNonblocking);
    op_.number = (number(2) & O_NONBLOCK) != 0;
  }
  void poll() {
    const Value& list = argument(0);
    if (list.members.size() != 1) throw ScriptError(0, "poll() of one descriptor expected");
    const Value& one = list.members[0].value;
    const Value *named = one.member("fd"), *events = one.member("events");
    if (!named || !events) throw ScriptError(0, "poll(): fd and events expected");
    op_.kind = Kind::kPoll;
    op_.fd = fd(number(*named));
    op_.number = number(*events);
    op_.second = number(2);
  }
  void ioctl() {
    on(Kind::kIoctl);
    op_.number = number(1);
  }

  const Call& call_;
  Descriptors& fds_;
  Operation op_;
};

std::string differs(const std::string& what, int64_t expected, int64_t got) {
  return what + " is " + std::to_string(got) + ", expected " + std::to_string(expected);
}

std::string text_of(const Answer& a) {
  std::string text = std::to_string(a.value);
  if (a.value < 0) text.append(" ").append(errno_name(a.error));
  return text;
}

/// What the call wrote into its arguments.
std::string out_difference(const Call& call, const Operation& op, const Answer& a) {
  if (op.kind == Kind::kGetOption || op.kind == Kind::kIoctl) {
    const Value& expected = call.arguments.at(op.kind == Kind::kIoctl ? 2 : 3);
    if (expected.any() || expected.members.empty() || expected.members[0].value.any()) return "";
    const int64_t wanted = expected.members[0].value.number;
    return wanted == a.out ? "" : differs("the value", wanted, a.out);
  }
  if (op.kind == Kind::kPoll) {
    const Value* revents = call.arguments.at(0).members[0].value.member("revents");
    if (revents && revents->number != a.out) return differs("revents", revents->number, a.out);
  }
  return "";
}

/// Reads the stream's bytes, as the peer sent them.
std::string read_difference(const Operation& op, const Answer& a, int64_t named, Descriptors& fds) {
  if ((op.flags & MSG_OOB) != 0 || fds.reads_out_of_band[named]) return "";
  uint64_t& at = fds.read[named];
  for (size_t i = 0; i < a.read.size(); ++i)
    if (a.read[i] != stream_byte(at + i))
      return "byte " + std::to_string(at + i) + " of the stream is another";
  if (!a.peeked && a.value > 0) at += static_cast<uint64_t>(a.value);
  return "";
}

}  // namespace

Operation operation_of(const Call& call, Descriptors& fds) { return Reader(call, fds).read(); }

std::string difference(const Call& call, const Operation& op, const Answer& a, Descriptors& fds) {
  const bool makes = op.kind == Kind::kSocket || op.kind == Kind::kAccept;
  const bool any = call.result.any();
  if (!call.error.empty() || (!any && call.result.number < 0)) {
    const std::string expected = "-1 " + call.error;
    if (a.value != -1 || (!call.error.empty() && constant(call.error) != a.error))
      return call.name + "() gave " + text_of(a) + ", expected " + expected;
  } else if (a.value < 0 || (!any && !makes && a.value != call.result.number)) {
    return call.name + "() gave " + text_of(a) + ", expected " +
           (any ? "success" : std::to_string(call.result.number));
  }
  if (a.value < 0) return "";
  if (makes) {
    fds.live[call.result.number] = static_cast<int>(a.value);
    fds.written[call.result.number] = fds.read[call.result.number] = 0;
  }
  const int64_t named = call.arguments.empty() ? -1 : call.arguments[0].number;
  if (op.kind == Kind::kWrite) fds.written[named] += static_cast<uint64_t>(a.value);
  if (op.kind == Kind::kClose) fds.live.erase(named);
  if (op.kind == Kind::kRead)
    if (std::string wrong = read_difference(op, a, named, fds); !wrong.empty()) return wrong;
  return out_difference(call, op, a);
}

}  // namespace accel::scripts
