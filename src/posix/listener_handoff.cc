#include "posix/listener_handoff.h"

#include <sys/socket.h>
#include <unistd.h>

#include <atomic>

#include "base/proc.h"
#include "base/real.h"
#include "posix/unix_rendezvous.h"

namespace accel::posix {
namespace {

constexpr char kPrefix[] = "accel-listener-";

/// What the names of the listener's hand-off sockets begin with; empty: the kernel cannot tell listeners
/// apart.
std::string listener_name(int shadow) {
  const std::string cookie = cookie_name(shadow);
  return cookie.empty() ? cookie : kPrefix + cookie + ".";
}

}  // namespace

int open_handoff_socket(int shadow) {
  static std::atomic<uint32_t> serial{0};
  const std::string listener = listener_name(shadow);
  if (listener.empty()) return -1;
  return listen_by_name(listener + std::to_string(getpid()) + "." + std::to_string(serial++));
}

int open_acceptor_marker(int handoff_socket) {
  return named_socket(bound_name(handoff_socket) + "-" + std::to_string(getpid()));
}

int accept_sender(int handoff_socket) { return real.accept4(handoff_socket, nullptr, nullptr, SOCK_CLOEXEC); }

std::vector<int> receive_handoff(int sender, int shadow, Counters& counters) {
  std::vector<int> got;
  bool proved = peer_may_ask(sender, shadow) && message_arrived(sender);
  for (std::vector<int> more; proved && !(more = receive_descriptors(sender)).empty();) {
    proved = is_same_socket(more.front(), shadow);
    real.close(more.front());
    for (size_t i = 1; i < more.size(); ++i) proved ? got.push_back(more[i]) : (void)real.close(more[i]);
  }
  if (!proved) counters.add(Counter::peer_requests_refused);
  real.close(sender);
  return got;
}

HandoffTargets::HandoffTargets(const std::string& own, int shadow, bool alone, bool may_wait)
    : own_(own), shadow_(shadow) {
  if (own.empty()) return;
  const std::string listener = own.substr(0, own.find('.') + 1);
  const std::string table = read_proc("/proc/net/unix");
  const std::string wanted = "@" + listener;
  std::vector<std::string> unserved;
  bool own_is_served = !may_wait && !alone;
  for (size_t at = 0; (at = table.find(wanted, at)) != std::string::npos; ++at) {
    const std::string name = table.substr(at + 1, table.find('\n', at) - at - 1);
    const size_t marker = name.find('-', listener.size());
    if (marker == std::string::npos) {
      if (name != own) unserved.push_back(name);
      continue;
    }
    std::string served = name.substr(0, marker);
    own_is_served |= served == own;
    if (served != own) targets_.push_back(std::move(served));
  }
  if (targets_.empty() && may_wait && !own_is_served) targets_ = std::move(unserved);
  elsewhere_ = !targets_.empty();
  if (targets_.empty() && own_is_served) targets_.push_back(own);
}

bool hand_off(const std::string& handoff_socket, bool own, int shadow, int connection) {
  const int fd = connect_by_name(handoff_socket);
  const int descriptors[] = {shadow, connection};
  const bool taken = fd >= 0 && peer_is_trusted(fd) &&
                     (own || process_has_socket(peer_process(fd), shadow)) &&
                     send_descriptors(fd, descriptors);
  if (fd >= 0) real.close(fd);
  if (taken) real.close(connection);
  return taken;
}

bool HandoffTargets::send(int connection) {
  while (!targets_.empty()) {
    next_ = (next_ + 1) % targets_.size();
    if (hand_off(targets_[next_], targets_[next_] == own_, shadow_, connection)) return true;
    targets_.erase(targets_.begin() + static_cast<ptrdiff_t>(next_));
  }
  return false;
}

}  // namespace accel::posix
