// setsockopt() and getsockopt() as they arrive, and what the tables of both kinds of socket share.
#include "posix/options.h"

#include <algorithm>

#include "base/real.h"
#include "base/user_memory.h"
#include "posix/call.h"
#include "posix/calls.h"
#include "posix/flow_label.h"
#include "posix/reuseport_programs.h"

namespace accel::posix {

const Option* find_option(std::span<const Option> table, int level, int name) {
  auto row = std::find_if(table.begin(), table.end(),
                          [&](const Option& o) { return o.level == level && o.name == name; });
  return row == table.end() ? nullptr : &*row;
}

bool vetoes(std::span<const Option> table, int level, int name, const void* value, socklen_t length) {
  const Option* option = find_option(table, level, name);
  if (option != nullptr && option->effect != OptionEffect::kKernel) return false;
  if (level == IPPROTO_IPV6 && name == kFlowLabelManager) return lease_changes_packets(value, length);
  auto* bytes = static_cast<const char*>(value);
  const char off = option != nullptr ? option->off : '\0';
  return !can_read(value, length) || !std::all_of(bytes, bytes + length, [off](char c) { return c == off; });
}

bool joins_group(int level, int name) {
  switch (name) {
    case MCAST_JOIN_GROUP:
    case MCAST_JOIN_SOURCE_GROUP:
      return level == IPPROTO_IP || level == IPPROTO_IPV6;
    case IP_ADD_MEMBERSHIP:
    case IP_ADD_SOURCE_MEMBERSHIP:
      return level == IPPROTO_IP;
    default:
      return level == IPPROTO_IPV6 && name == IPV6_ADD_MEMBERSHIP;
  }
}

Result<int> put_option(const void* answer, size_t size, void* value, socklen_t* length,
                       NegativeSize negative) {
  socklen_t room;
  if (!get_user(room, length)) return err(EFAULT);
  if (static_cast<int>(room) < 0 && negative == NegativeSize::kIsInvalid) return err(EINVAL);
  room = static_cast<socklen_t>(std::min<size_t>(room, size));
  if (!can_overwrite(value, room)) return err(EFAULT);
  std::memcpy(value, answer, room);
  return put_user(length, room) ? Result<int>(0) : err(EFAULT);
}

Result<int> getsockopt(int fd, int level, int name, void* value, socklen_t* length) {
  return serve<int>(
      fd, [&](Pass& pass, Socket& s) { return s.getsockopt(pass, level, name, value, length); },
      [&] { return real.getsockopt(fd, level, name, value, length); }, Use::kAside);
}

namespace {

bool is_timeout(int level, int name) {
  return level == SOL_SOCKET &&
         (name == SO_RCVTIMEO || name == SO_SNDTIMEO || name == SO_RCVTIMEO_NEW || name == SO_SNDTIMEO_NEW);
}

Result<int> set(int fd, int level, int name, const void* value, socklen_t length) {
  SocketCall call(fd, Pass::Polling::kSeldom, Use::kAside);
  if (call.error() != Errno{}) return call.error();
  Socket* s = call.socket();
  if (s != nullptr && s->kind() == FileKind::kUdp && joins_group(level, name))
    if (Result<void> r = Socket::may_use_kernel(Reason::multicast); !r) return r.error();
  if (s != nullptr && call.pass() != nullptr) {
    call.pass()->in_turn();
    Result<int> r = s->setsockopt(*call.pass(), level, name, value, length);
    if (r && is_timeout(level, name)) s->timeout_was_set(name, value);
    if (r.ok() || r.error() != kOnKernel) return r;
  }
  Result<int> r = from_libc(real.setsockopt(fd, level, name, value, length));
  if (s == nullptr || !r) return r;
  if (is_timeout(level, name)) s->timeout_was_set(name, value);
  s->option_was_set(level, name, value);
  const auto table = s->kind() == FileKind::kUdp ? udp_options() : tcp_options();
  const Option* option = find_option(table, level, name);
  const bool unserved = option != nullptr && option->served != nullptr && !option->served(*s);
  if (unserved || vetoes(table, level, name, value, length)) s->veto = Reason::option;
  return r;
}

}  // namespace

Result<int> setsockopt(int fd, int level, int name, const void* value, socklen_t length) {
  Result<int> r = set(fd, level, name, value, length);
  if (r && attaches_program(level, name)) attach_group_program(fd);
  return r;
}

}  // namespace accel::posix
