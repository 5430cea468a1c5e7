#include "posix/succession.h"

#include <sys/socket.h>
#include <unistd.h>

#include <atomic>

#include "base/proc.h"
#include "base/real.h"
#include "posix/meeting.h"

namespace accel::posix {
namespace {

constexpr char kPrefix[] = "accel-listener-";

/// What the names of the listener's doors begin with; empty: the kernel cannot tell listeners apart.
std::string listener_name(int shadow) {
  const std::string cookie = cookie_name(shadow);
  return cookie.empty() ? cookie : kPrefix + cookie + ".";
}

}  // namespace

int open_door(int shadow) {
  static std::atomic<uint32_t> serial{0};
  const std::string listener = listener_name(shadow);
  if (listener.empty()) return -1;
  return listen_by_name(listener + std::to_string(getpid()) + "." + std::to_string(serial++));
}

int open_marker(int door) { return named_socket(bound_name(door) + "-" + std::to_string(getpid())); }

int admit_visitor(int door) { return real.accept4(door, nullptr, nullptr, SOCK_CLOEXEC); }

std::vector<int> hear_visitor(int visitor, int shadow, Counters& counters) {
  std::vector<int> got;
  bool proved = is_heard(visitor, shadow) && words_came(visitor);
  for (std::vector<int> more; proved && !(more = receive_descriptors(visitor)).empty();) {
    proved = is_proof(more.front(), shadow);
    real.close(more.front());
    for (size_t i = 1; i < more.size(); ++i) proved ? got.push_back(more[i]) : (void)real.close(more[i]);
  }
  if (!proved) counters.add(Counter::visitors_refused);
  real.close(visitor);
  return got;
}

Successors::Successors(const std::string& own, int shadow, bool alone, bool may_wait)
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
    if (served != own) doors_.push_back(std::move(served));
  }
  if (doors_.empty() && may_wait && !own_is_served) doors_ = std::move(unserved);
  elsewhere_ = !doors_.empty();
  if (doors_.empty() && own_is_served) doors_.push_back(own);
}

bool give_by_door(const std::string& door, bool own, int shadow, int connection) {
  const int fd = connect_by_name(door);
  const int words[] = {shadow, connection};
  const bool taken = fd >= 0 && peer_is_trusted(fd) &&
                     (own || process_has_socket(peer_process(fd), shadow)) && send_descriptors(fd, words);
  if (fd >= 0) real.close(fd);
  if (taken) real.close(connection);
  return taken;
}

bool Successors::give(int connection) {
  while (!doors_.empty()) {
    next_ = (next_ + 1) % doors_.size();
    if (give_by_door(doors_[next_], doors_[next_] == own_, shadow_, connection)) return true;
    doors_.erase(doors_.begin() + static_cast<ptrdiff_t>(next_));
  }
  return false;
}

}  // namespace accel::posix
