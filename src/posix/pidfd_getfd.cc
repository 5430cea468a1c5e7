#include "posix/pidfd_getfd.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "base/log.h"
#include "base/proc.h"
#include "base/real.h"
#include "posix/calls.h"
#include "posix/guard.h"
#include "posix/process.h"
#include "posix/same_host.h"
#include "posix/unix_rendezvous.h"

namespace accel::posix {
namespace {

constexpr int kAnswersWithin = 2000;  ///< ms; its request thread hands a connection back in far less

struct Target {
  pid_t here = -1;   ///< its number in this process's namespace; not positive: it has none, or has ended
  pid_t there = -1;  ///< its number in its own
};

/// The last number of a line of `text`, which is the innermost namespace's; -1: there is no such line.
int number_of(const std::string& text, const char* field) {
  const size_t at = ("\n" + text).find(std::string("\n") + field);
  if (at == std::string::npos) return -1;
  return std::atoi(text.c_str() + text.rfind('\t', text.find('\n', at)));
}

/// As /proc/self/fdinfo tells.
Target target_of(int pidfd) {
  const std::string text = read_proc("/proc/self/fdinfo/" + std::to_string(pidfd));
  return {number_of(text, "Pid:"), number_of(text, "NSpid:")};
}

Target parent_of(const Target& target) {
  const std::string proc = "/proc/";
  const int parent = number_of(read_proc(proc + std::to_string(target.here) + "/status"), "PPid:");
  return {parent, number_of(read_proc(proc + std::to_string(parent) + "/status"), "NSpid:")};
}

/// What the process says; 0, too, where it says nothing. ENXIO: it has no engine.
int ask_one(const Target& target, const PeerRequest& wanted, int taken) {
  const std::string name = request_socket_name("/proc/" + std::to_string(target.here), target.there);
  const int request_socket = name.empty() ? -1 : connect_by_name(name);
  if (request_socket < 0) return ENXIO;
  int answer = 0;
  pollfd readable{request_socket, POLLIN, 0};
  if (peer_process(request_socket) == target.here && send_request(request_socket, wanted, taken) &&
      (real.poll(&readable, 1, kAnswersWithin) <= 0 ||
       real.recv(request_socket, &answer, sizeof answer, 0) != sizeof answer))
    log(LogLevel::kError, "a descriptor taken from process %d is of no use here: it does not hand it over",
        static_cast<int>(target.here));
  real.close(request_socket);
  return answer;
}

/// A forked child that has no engine yet has what it inherited by one before it, by another number perhaps.
/// EOPNOTSUPP: it is an iWARP connection, which cannot be in another process.
Result<void> ask_for(Target target, int fd, int taken) {
  const uint64_t cookie = cookie_of(taken);
  int answer = ask_one(target, {PeerRequest::About::kDescriptor, fd, cookie, {}, {}}, taken);
  while (cookie != 0 && (answer == ENXIO || answer == ENOENT)) {
    target = parent_of(target);
    if (target.here <= 1 || target.here == getpid()) return {};
    answer = ask_one(target, {PeerRequest::About::kDescriptor, -1, cookie, {}, {}}, taken);
  }
  return answer == 0 || answer == ENXIO ? Result<void>() : err(answer);
}

/// The descriptor of this process that is wanted; -1: it has none.
int find_wanted(const PeerRequest& wanted) {
  if (wanted.fd >= 0) return wanted.fd;
  Guard guard(Pass::Polling::kNo);
  for (int fd = 0; guard.ok() && fd < fds.limit(); ++fd)
    if (fds.owns(fd) && cookie_of(fd) == wanted.cookie) return fd;
  return -1;
}

/// Of a socket of this process: another descriptor of it, as by dup().
void enter_own(int fd, int of) {
  Guard guard(Pass::Polling::kNo);
  if (!guard.ok()) return;
  fds.erase(fd, guard.pass());  // one that was closed past us
  if (File* file = fds.find(of)) fds.insert(fd, file);
}

}  // namespace

Result<int> pidfd_getfd(int pidfd, int target, unsigned flags) {
  const int fd = static_cast<int>(real.syscall(SYS_pidfd_getfd, pidfd, target, flags, 0L, 0L, 0L));
  if (fd < 0) return err(errno);
  const Target process = target_of(pidfd);
  if (process.here == getpid()) {
    enter_own(fd, target);
  } else if (process.here > 0) {
    if (Result<void> r = ask_for(process, target, fd); !r) {
      real.close(fd);
      return r.error();
    }
    adopt_received(fd);
  }
  return fd;
}

int detach_taken(const PeerRequest& wanted, int proof, bool trusted) {
  const int fd = find_wanted(wanted);
  const bool shown = cookie_of(fd) != 0 ? is_same_socket(proof, fd) : trusted && proof >= 0;
  if (fd >= 0 && fds.owns(fd) && !shown) return EPERM;
  if (fd >= 0 && shown) candidates.forget(fd);
  const Result<void> given = fd >= 0 ? pass_on(fd) : Result<void>(err(ENOENT));
  return given ? 0 : static_cast<int>(given.error());
}

}  // namespace accel::posix
