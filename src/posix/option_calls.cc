// getsockopt() and setsockopt().
#include <sys/socket.h>

#include "base/real.h"
#include "posix/call.h"
#include "posix/calls.h"
#include "posix/option_name.h"
#include "posix/options.h"
#include "posix/reuseport_programs.h"
#include "posix/tcp_option_table.h"
#include "posix/udp_socket.h"

namespace accel::posix {

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
  if (s != nullptr && call.pass() != nullptr) {
    call.pass()->in_turn();
    Result<int> r = s->setsockopt(*call.pass(), level, name, value, length);
    if (r && is_timeout(level, name)) s->timeout_was_set(name, value);
    if (r.ok() || r.error() != kOnKernel) return r;
  }
  Result<int> r = from_libc(real.setsockopt(fd, level, name, value, length));
  if (s == nullptr || !r) return r;
  if (is_timeout(level, name)) s->timeout_was_set(name, value);
  s->option_was_set(level, name, value, length);
  if (s->kind() == FileKind::kUdp && call.pass() != nullptr && is_group_option(level, name))
    if (Result<void> set = static_cast<UdpSocket*>(s)->groups_were_set(*call.pass()); !set)
      return set.error();
  const auto table = s->kind() == FileKind::kUdp ? udp_options() : tcp_options();
  const Option* option = find_option(table, level, name);
  const bool unserved = option != nullptr && option->served != nullptr && !option->served(*s);
  if (unserved || vetoes(table, level, name, value, length)) s->veto_for(OptionName(level, name).text);
  return r;
}

}  // namespace

Result<int> setsockopt(int fd, int level, int name, const void* value, socklen_t length) {
  Result<int> r = set(fd, level, name, value, length);
  if (r && attaches_program(level, name)) attach_group_program(fd);
  return r;
}

}  // namespace accel::posix
