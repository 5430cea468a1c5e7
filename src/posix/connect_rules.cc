#include "posix/connect_rules.h"

#include <errno.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>

#include "base/private_fds.h"
#include "base/real.h"

namespace accel::posix {
namespace {

std::atomic<uint32_t> changes{1};  ///< of rules, so far

struct Known {
  uint32_t changes = 0;  ///< when it was found out; 0: not yet
  bool restricted = false;
};
constinit thread_local Known known [[gnu::tls_model("initial-exec")]];

bool is_refused() {
  const int fd = keep_private(real.socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (fd < 0) return false;
  sockaddr_in nobody{};
  nobody.sin_family = AF_INET;
  nobody.sin_addr.s_addr = htonl(INADDR_BROADCAST);
  const bool refused = real.connect(fd, reinterpret_cast<const sockaddr*>(&nobody), sizeof nobody) != 0 &&
                       (errno == EACCES || errno == EPERM);
  close_private(fd);
  return refused;
}

}  // namespace

bool connect_is_restricted() {
  const uint32_t now = changes.load(std::memory_order_relaxed);
  if (known.changes != now) known = {now, is_refused()};
  return known.restricted;
}

void connect_rules_change() { changes.fetch_add(1, std::memory_order_relaxed); }

}  // namespace accel::posix
