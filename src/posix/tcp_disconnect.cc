// connect() to AF_UNSPEC on a connection that was handed back. tcp_disconnect() takes off a name that the
// program has not bound: an accepted socket's, or one that connect() chose. TCP_REPAIR names sockets by
// bind(), and the kernel never takes SOCK_BINDADDR_LOCK and SOCK_BINDPORT_LOCK off a socket. So a new socket
// takes the numbers of the disconnected one.
#include <dirent.h>
#include <fcntl.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "base/private_fds.h"
#include "base/proc.h"
#include "base/real.h"
#include "base/socket_option.h"
#include "posix/calls.h"
#include "posix/epoll_set.h"
#include "posix/option_name.h"
#include "posix/tcp_option_table.h"
#include "posix/tcp_socket.h"
#include "posix/unix_rendezvous.h"

namespace accel::posix {
namespace {

/// Of a connection in the kernel.
struct AutomaticName {
  uint64_t cookie = 0;
  bool address_stays = false;  ///< the listener was bound to it
};
/// By the number that the connection had then. One that is closed leaves a cookie that no socket has. Under
/// the lock of posix/guard.h.
std::vector<AutomaticName>& automatic_names() {
  static auto* const names = new std::vector<AutomaticName>;
  return *names;
}

AutomaticName* automatic_name(uint64_t cookie) {
  auto& names = automatic_names();
  const auto found =
      std::find_if(names.begin(), names.end(), [&](const AutomaticName& n) { return n.cookie == cookie; });
  return cookie != 0 && found != names.end() ? &*found : nullptr;
}

/// Every number of the program's by which this process has the socket.
std::vector<int> numbers_of(int socket) {
  const uint64_t cookie = cookie_of(socket);
  std::vector<int> numbers{socket};
  const auto look_at = [&](int fd) {
    if (fd != socket && cookie_of(fd) == cookie && !is_private(fd)) numbers.push_back(fd);
  };
  if (DIR* const all = opendir("/proc/self/fd")) {
    while (const dirent* entry = readdir(all))
      if (entry->d_name[0] != '.') look_at(std::atoi(entry->d_name));
    closedir(all);
    return numbers;
  }
  rlimit most{};
  getrlimit(RLIMIT_NOFILE, &most);
  const auto end = static_cast<int>(std::min<rlim_t>(most.rlim_cur, 1 << 20));
  for (int fd = 0; fd < end; ++fd) look_at(fd);
  return numbers;
}

struct Membership {
  EpollSet* set;
  int fd;
  epoll_event event;
};

/// Takes the socket out of the sets of this process, and says how it was in them.
std::vector<Membership> take_out_of_sets(const std::vector<int>& numbers) {
  std::vector<Membership> found;
  struct stat socket {};
  if (fstat(numbers.front(), &socket) != 0) return found;
  fds.for_each(0, fds.limit(), [&](int fd, File* file) {
    if (file->kind() != FileKind::kEpoll || fds.first_of(file) != fd) return;
    const std::string members = read_proc("/proc/self/fdinfo/" + std::to_string(fd));
    for (size_t at = 0; (at = members.find("tfd:", at)) != std::string::npos; ++at) {
      int member = -1;
      unsigned events = 0;
      unsigned long long data = 0;
      unsigned long inode = 0;
      if (std::sscanf(&members[at], "tfd: %d events: %x data: %llx pos:%*d ino:%lx", &member, &events, &data,
                      &inode) != 4)
        continue;
      if (inode != socket.st_ino || std::find(numbers.begin(), numbers.end(), member) == numbers.end())
        continue;
      if (real.epoll_ctl(fd, EPOLL_CTL_DEL, member, nullptr) != 0) continue;
      epoll_event event{};
      event.events = events;
      event.data.u64 = data;
      found.push_back({static_cast<EpollSet*>(file), member, event});
    }
  });
  return found;
}

void copy_flags(int from, int to) {
  real.fcntl(to, F_SETFL, real.fcntl(from, F_GETFL));
  f_owner_ex owner{};
  if (real.fcntl(from, F_GETOWN_EX, &owner) == 0 && owner.pid != 0) real.fcntl(to, F_SETOWN_EX, &owner);
}

}  // namespace

std::atomic<bool> has_automatic_names{false};

void TcpSocket::note_automatic_name() const {
  if (renamed_ || !(accepted_ || bound_by_us_)) return;
  const auto index = static_cast<size_t>(shadow());
  auto& names = automatic_names();
  if (names.size() <= index) names.resize(index + 1);
  names[index] = {cookie_of(shadow()), !inherited_name_.is_any()};
  has_automatic_names.store(true, std::memory_order_relaxed);
}

/// The disconnected socket is unbound and has its options, flags and error. Where there is no memory or
/// descriptor for another it stays bound.
void TcpSocket::replace_disconnected(Guard& guard, int fd, Endpoint left, bool address_stays) {
  const int domain = int_option(fd, SOL_SOCKET, SO_DOMAIN, AF_INET);
  std::unique_ptr<TcpSocket> s(new (std::nothrow) TcpSocket(fd, domain));
  const int fresh = s != nullptr ? real.socket(domain, SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP) : -1;
  if (fresh < 0) return;
  s->refresh_from_shadow();
  for (const SavedOption& o : s->unusual_options(SavedFor::kSameSocket)) {
    real.setsockopt(fresh, o.level, o.name, o.value.data(), static_cast<socklen_t>(o.value.size()));
    if (find_option(tcp_options(), o.level, o.name)->effect == OptionEffect::kKernel)
      s->veto_for(OptionName(o.level, o.name).text);
  }
  copy_flags(fd, fresh);
  s->pending_error_ = int_option(fd, SOL_SOCKET, SO_ERROR);
  s->left_mss_ = static_cast<uint16_t>(int_option(fd, IPPROTO_TCP, TCP_MAXSEG));

  const std::vector<int> numbers = numbers_of(fd);
  const std::vector<Membership> memberships = take_out_of_sets(numbers);
  for (const int number : numbers)
    real.dup3(fresh, number, (real.fcntl(number, F_GETFD) & FD_CLOEXEC) != 0 ? O_CLOEXEC : 0);
  real.close(fresh);

  if (address_stays)
    s->inherited_name_ = left.address;
  else
    left.address = domain == AF_INET6 ? IpAddress::any_v6() : IpAddress::any_v4();
  s->release_port();
  s->left_name_ = left;
  if (sockets_stay()) {  // as socket() has it then
    for (Membership m : memberships) real.epoll_ctl(m.set->kernel_fd(), EPOLL_CTL_ADD, m.fd, &m.event);
    return;
  }
  File* file = s.release();
  file->retain();
  for (const int number : numbers) {
    fds.erase(number, guard.pass());
    fds.insert(number, file);
  }
  for (const Membership& m : memberships) (void)m.set->add(m.set->kernel_fd(), m.fd, file, m.event);
  file->release(guard.pass());
}

Result<int> disconnect_handed_back(int fd, const sockaddr* address, socklen_t length) {
  if (retired()) return kOnKernel;
  Guard guard(Pass::Polling::kNo);
  AutomaticName* found = guard.ok() ? automatic_name(cookie_of(fd)) : nullptr;
  if (found == nullptr) return kOnKernel;
  const Endpoint local = kernel_name(fd);
  if (real.connect(fd, address, length) != 0) return err(errno);
  const bool address_stays = std::exchange(*found, {}).address_stays;
  // A forked child may have none, and then the kernel would answer for the name and the error.
  Reason unused{};
  (void)guard.open_engine(&unused);
  TcpSocket::replace_disconnected(guard, fd, local, address_stays);
  return 0;
}

}  // namespace accel::posix
