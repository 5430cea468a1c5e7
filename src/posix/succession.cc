#include "posix/succession.h"

#include <sys/socket.h>
#include <unistd.h>

#include <atomic>

#include "base/private_fds.h"
#include "base/proc.h"
#include "base/real.h"
#include "posix/attendant.h"
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

std::vector<int> hear_visitor(int visitor) {
  std::vector<int> got;
  wait_for_words(visitor);
  if (peer_is_trusted(visitor))
    for (std::vector<int> more; !(more = receive_descriptors(visitor)).empty();)
      got.insert(got.end(), more.begin(), more.end());
  real.close(visitor);
  return got;
}

Successors::Successors(const std::string& own, bool alone, bool may_wait) {
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

bool give_by_door(const std::string& door, int connection) {
  const int fd = connect_by_name(door);
  const bool taken = fd >= 0 && peer_is_trusted(fd) && send_descriptors(fd, {&connection, 1});
  if (fd >= 0) real.close(fd);
  if (taken) real.close(connection);
  return taken;
}

bool Successors::give(int connection) {
  while (!doors_.empty()) {
    next_ = (next_ + 1) % doors_.size();
    if (give_by_door(doors_[next_], connection)) return true;
    doors_.erase(doors_.begin() + static_cast<ptrdiff_t>(next_));
  }
  return false;
}

}  // namespace accel::posix
