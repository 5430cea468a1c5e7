#include "posix/company.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <string>
#include <vector>

#include "base/private_fds.h"
#include "base/real.h"
#include "posix/meeting.h"
#include "posix/waiters.h"

namespace accel::posix {
namespace {

constexpr int kAnswersWithin = 200;  ///< ms; an attendant has nothing else to do
constexpr int kTries = 1000;

/// The page has numbers of processes, so all must be of one namespace.
std::string company_name(int shadow) {
  const std::string cookie = cookie_name(shadow);
  struct stat space {};
  if (cookie.empty() || stat("/proc/self/ns/pid", &space) != 0) return {};
  return "accel-company-" + std::to_string(space.st_ino) + "." + cookie;
}

Company ask(int fd, int shadow) {
  pollfd readable{fd, POLLIN, 0};
  int ready;
  if (!send_descriptors(fd, {&shadow, 1})) return {};
  while ((ready = real.poll(&readable, 1, kAnswersWithin)) < 0 && errno == EINTR) {
  }
  const std::vector<int> got = ready > 0 ? receive_descriptors(fd) : std::vector<int>{};
  if (got.size() == 4 && is_proof(got[3], shadow))
    if (const int page = join_waiters(got[2]); page >= 0) {
      for (int i : {0, 1}) note_private(got[i], true);
      real.close(got[3]);
      return {got[0], got[1], page};
    }
  for (int other : got) real.close(other);
  return {};
}

}  // namespace

Company join_company(int shadow, const Company& alone) {
  const std::string name = company_name(shadow);
  if (name.empty() || alone.door < 0 || alone.page < 0) return {};
  for (int i = 0; i < kTries; ++i) {
    if (const int asked = listen_by_name(name); asked >= 0) return {asked, alone.door, alone.page};
    const int fd = connect_by_name(name);
    if (fd >= 0) {
      const Company found = peer_is_trusted(fd) ? ask(fd, shadow) : Company{};
      real.close(fd);
      return found;
    }
    sched_yield();  // its first is about to listen, or its last has just gone
  }
  return {};
}

bool welcome_newcomer(const Company& company, int shadow, Counters& counters) {
  const int fd = real.accept4(company.asked, nullptr, nullptr, SOCK_CLOEXEC);
  if (fd < 0) return false;
  const std::vector<int> words =
      is_heard(fd, shadow) && words_came(fd) ? receive_descriptors(fd) : std::vector<int>{};
  const int shared[] = {company.asked, company.door, waiters_memfd(company.page), shadow};
  const bool in = words.size() == 1 && is_proof(words[0], shadow) && send_descriptors(fd, shared);
  if (!in) counters.add(Counter::visitors_refused);
  for (int word : words) real.close(word);
  real.close(fd);
  return in;
}

}  // namespace accel::posix
