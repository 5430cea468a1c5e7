#include "posix/listener_handoff.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <utility>

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
  bool proved = peer_may_ask(sender, shadow);
  for (std::vector<int> more; proved && !(more = receive_descriptors(sender)).empty();) {
    proved = is_same_socket(more.front(), shadow);
    real.close(more.front());
    for (size_t i = 1; i < more.size(); ++i) proved ? got.push_back(more[i]) : (void)real.close(more[i]);
  }
  if (!proved) counters.add(Counter::peer_requests_refused);
  real.close(sender);
  return got;
}

void HandoffTargets::add(std::string name, pid_t server) {
  const auto known =
      std::find_if(targets_.begin(), targets_.end(), [&](const Target& t) { return t.name == name; });
  if (known != targets_.end()) return known->servers.push_back(server);
  targets_.push_back({std::move(name), {server}});
}

HandoffTargets::HandoffTargets(const std::string& own, int shadow, bool alone, bool may_wait)
    : own_(own), shadow_(shadow), own_is_served_(!own.empty() && !may_wait && !alone) {
  if (own.empty()) return;
  const std::string listener = own.substr(0, own.find('.') + 1);
  const std::string table = read_proc("/proc/net/unix");
  const std::string wanted = "@" + listener;
  std::vector<Target> unserved;
  for (size_t at = 0; (at = table.find(wanted, at)) != std::string::npos; ++at) {
    const std::string name = table.substr(at + 1, table.find('\n', at) - at - 1);
    const size_t marker = name.find('-', listener.size());
    if (marker == std::string::npos) {
      if (name != own) unserved.push_back({name, {}});
      continue;
    }
    std::string served = name.substr(0, marker);
    own_is_served_ |= served == own;
    if (served != own) add(std::move(served), std::atoi(name.c_str() + marker + 1));
  }
  if (targets_.empty() && may_wait && !own_is_served_) targets_ = std::move(unserved);
  elsewhere_ = !targets_.empty();
  if (targets_.empty() && own_is_served_) targets_.push_back({own, {}});
}

namespace {

/// The process that accepts there has the listener: the maker of the socket, or one that has this very socket
/// too.
bool leads_to_listener(int fd, const std::string& handoff_socket, int shadow,
                       std::span<const pid_t> servers) {
  const ino_t listener = inode_of(shadow);
  if (peer_is_root(fd) || process_has_socket(peer_process(fd), listener)) return true;
  const ino_t there = servers.empty() ? 0 : inode_listening_at(handoff_socket);
  return std::any_of(servers.begin(), servers.end(), [&](pid_t server) {
    return process_has_socket(server, there) && process_has_socket(server, listener);
  });
}

}  // namespace

bool hand_off(const std::string& handoff_socket, bool own, int shadow, int connection,
              std::span<const pid_t> servers) {
  const int fd = connect_by_name(handoff_socket);
  const int descriptors[] = {shadow, connection};
  const bool taken = fd >= 0 && peer_is_trusted(fd) &&
                     (own || leads_to_listener(fd, handoff_socket, shadow, servers)) &&
                     send_descriptors(fd, descriptors);
  if (fd >= 0) real.close(fd);
  if (taken) real.close(connection);
  return taken;
}

bool HandoffTargets::send(int connection) {
  while (!targets_.empty()) {
    next_ = (next_ + 1) % targets_.size();
    const Target& target = targets_[next_];
    if (hand_off(target.name, target.name == own_, shadow_, connection, target.servers)) return true;
    targets_.erase(targets_.begin() + static_cast<ptrdiff_t>(next_));
    if (targets_.empty() && std::exchange(own_is_served_, false)) targets_.push_back({own_, {}});
  }
  return false;
}

}  // namespace accel::posix
