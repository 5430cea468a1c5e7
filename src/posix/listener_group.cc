#include "posix/listener_group.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <string>
#include <vector>

#include "base/private_fds.h"
#include "base/real.h"
#include "posix/acceptor_hints.h"
#include "posix/unix_rendezvous.h"

namespace accel::posix {
namespace {

constexpr int kListenersAnswerWithin = 200;  ///< ms; a request thread has nothing else to do
constexpr int kTries = 1000;

/// The page has numbers of processes, so all must be of one namespace.
std::string group_name(int shadow) {
  const std::string cookie = cookie_name(shadow);
  struct stat space {};
  if (cookie.empty() || stat("/proc/self/ns/pid", &space) != 0) return {};
  return "accel-group-" + std::to_string(space.st_ino) + "." + cookie;
}

ListenerGroup ask(int fd, int shadow) {
  pollfd readable{fd, POLLIN, 0};
  int ready;
  if (!send_descriptors(fd, {&shadow, 1})) return {};
  while ((ready = real.poll(&readable, 1, kListenersAnswerWithin)) < 0 && errno == EINTR) {
  }
  const std::vector<int> got = ready > 0 ? receive_descriptors(fd) : std::vector<int>{};
  if (got.size() == 4 && is_same_socket(got[3], shadow))
    if (const int hints_page = join_acceptor_hints(got[2]); hints_page >= 0) {
      for (int i : {0, 1}) note_private(got[i], true);
      real.close(got[3]);
      return {got[0], got[1], hints_page};
    }
  for (int other : got) real.close(other);
  return {};
}

}  // namespace

ListenerGroup join_listener_group(int shadow, const ListenerGroup& alone) {
  const std::string name = group_name(shadow);
  if (name.empty() || alone.handoff_socket < 0 || alone.hints_page < 0) return {};
  for (int i = 0; i < kTries; ++i) {
    if (const int name_socket = listen_by_name(name); name_socket >= 0)
      return {name_socket, alone.handoff_socket, alone.hints_page};
    const int fd = connect_by_name(name);
    if (fd >= 0) {
      const ListenerGroup found = peer_is_trusted(fd) ? ask(fd, shadow) : ListenerGroup{};
      real.close(fd);
      return found;
    }
    sched_yield();  // its first is about to listen, or its last has just gone
  }
  return {};
}

int accept_candidate(const ListenerGroup& group) {
  return real.accept4(group.name_socket, nullptr, nullptr, SOCK_CLOEXEC);
}

bool admit_member(int candidate, const ListenerGroup& group, int shadow, Counters& counters) {
  const std::vector<int> received =
      peer_may_ask(candidate, shadow) ? receive_descriptors(candidate) : std::vector<int>{};
  const int shared[] = {group.name_socket, group.handoff_socket, acceptor_hints_memfd(group.hints_page),
                        shadow};
  const bool in =
      received.size() == 1 && is_same_socket(received[0], shadow) && send_descriptors(candidate, shared);
  if (!in) counters.add(Counter::peer_requests_refused);
  for (int one : received) real.close(one);
  real.close(candidate);
  return in;
}

}  // namespace accel::posix
