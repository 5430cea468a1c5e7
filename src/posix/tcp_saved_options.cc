// Options that outlive their socket: of a listener's connections, and of a socket that another takes the
// place of.
#include <linux/tcp.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>

#include "base/real.h"
#include "posix/tcp_option_table.h"
#include "posix/tcp_socket.h"

namespace accel::posix {

using enum OptionEffect;

/// What differs from a new socket: for a connection accepted from this listener what that inherits, else all
/// that setsockopt() has set. The connection itself has changed the three that are left out.
std::vector<SavedOption> TcpSocket::unusual_options(SavedFor purpose) const {
  auto left_out = [&](const Option& o) {
    if (purpose == SavedFor::kConnections) return !o.inherited || o.effect == kKernel;
    if (o.level == SOL_SOCKET) return o.name == SO_INCOMING_CPU;
    return o.level == IPPROTO_TCP && (o.name == TCP_MAXSEG || o.name == TCP_QUICKACK);
  };
  std::vector<SavedOption> saved;
  const int fresh = real.socket(domain(), SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP);
  if (fresh < 0) return saved;
  const int locked = shadow_option(SOL_SOCKET, SO_BUF_LOCK);
  for (const Option& o : tcp_options()) {
    if (left_out(o) || (o.level == IPPROTO_IPV6 && !v6())) continue;
    char mine[64] = {}, theirs[64] = {};
    socklen_t mine_size = sizeof mine, their_size = sizeof theirs;
    if (real.getsockopt(shadow(), o.level, o.name, mine, &mine_size) != 0) continue;
    if (real.getsockopt(fresh, o.level, o.name, theirs, &their_size) != 0) continue;
    if (mine_size == their_size && std::equal(mine, mine + mine_size, theirs)) continue;
    if (o.level == SOL_SOCKET && (o.name == SO_RCVBUF || o.name == SO_SNDBUF)) {
      // SO_RCVLOWAT, too, makes the buffer larger, but the kernel goes on tuning it.
      if ((locked & (o.name == SO_RCVBUF ? kReceiveLock : kSendLock)) == 0) continue;
      int bytes;
      std::memcpy(&bytes, mine, sizeof bytes);
      bytes /= 2;  // the kernel doubles what is set
      std::memcpy(mine, &bytes, sizeof bytes);
    }
    saved.push_back({o.level, o.name, {mine, mine + mine_size}});
  }
  real.close(fresh);
  return saved;
}

std::shared_ptr<const ListenerOptions> TcpSocket::options_now() {
  if (options_now_ == nullptr)
    options_now_ = std::make_shared<const ListenerOptions>(
        ListenerOptions{.options = unusual_options(SavedFor::kConnections),
                        .receive_timeout = receive_timeout,
                        .send_timeout = send_timeout,
                        .linger_time = linger_time_,
                        .peek_offset = peek_offset_,
                        .linger = linger_,
                        .inq = inq_});
  return options_now_;
}

void TcpSocket::begin_options() {
  past_options_.clear();
  options_now_ = nullptr;
  (void)options_now();
}

void TcpSocket::options_change(Pass& pass) {
  TcpLayer& tcp = pass.stack().tcp();
  TcpListener* listener = flow_ != nullptr ? pass.engine().listener(*flow_) : nullptr;
  if (listener == nullptr || tcp.accept_queue_length(*listener) == 0)
    past_options_.clear();
  else
    past_options_.push_back({tcp.end_options_generation(*listener), options_now()});
  options_now_ = nullptr;
}

std::shared_ptr<const ListenerOptions> TcpSocket::options_of(Pass& pass, const TcpConn& oldest) {
  const uint32_t generation = pass.stack().tcp().options_generation(oldest);
  std::erase_if(past_options_, [&](const PastOptions& past) {
    return static_cast<int32_t>(past.generation - generation) < 0;
  });
  const bool older = !past_options_.empty() && past_options_.front().generation == generation;
  return older ? past_options_.front().options : options_now();
}

/// Onto a new socket of the kernel's.
void TcpSocket::write_options(int fd, const ListenerOptions& options) {
  for (const SavedOption& o : options.options)
    real.setsockopt(fd, o.level, o.name, o.value.data(), static_cast<socklen_t>(o.value.size()));
  const int priority = 0;  // sk_clone_lock(); IP_TOS has just set another
  real.setsockopt(fd, SOL_SOCKET, SO_PRIORITY, &priority, sizeof priority);
  if (options.receive_timeout != Duration{0}) set_timeout_of(fd, SO_RCVTIMEO, options.receive_timeout);
  if (options.send_timeout == kNoWait)
    set_timeout_of(fd, SO_SNDTIMEO, kNoWait);  // which its listener's shadow shows as none
}

void TcpSocket::write_inherited_options() {
  if (inherited_ != nullptr) {
    write_options(shadow(), *inherited_);
    inherited_ = nullptr;
  }
  auto write_late = [this](std::optional<bool>& late, int name) {
    if (!late) return;
    const int value = *late;
    real.setsockopt(shadow(), IPPROTO_TCP, name, &value, sizeof value);
    late.reset();
  };
  write_late(late_nodelay_, TCP_NODELAY);
  write_late(late_cork_, TCP_CORK);
}

}  // namespace accel::posix
