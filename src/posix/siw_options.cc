// Options of an iWARP socket: the shadow carries the connection, so nearly all of them are the kernel's.
#include <asm/ioctls.h>
#include <errno.h>
#include <linux/sockios.h>
#include <netinet/tcp.h>

#include <cstddef>
#include <cstring>

#include "base/real.h"
#include "base/user_memory.h"
#include "posix/option_name.h"
#include "posix/siw_socket.h"
#include "posix/tcp_option_table.h"

namespace accel::posix {

Result<int> SiwSocket::getsockopt(Pass& pass, int level, int name, void* value, socklen_t* length) {
  int answer = 0;
  if (!live()) {
    if (level != SOL_SOCKET || name != SO_ERROR || left_error_ == Errno{}) return kOnKernel;
    answer = static_cast<int>(take_left_error());
  } else if (level == SOL_SOCKET && name == SO_ERROR) {
    if (holder_ != nullptr && !take_over()) return kOnKernel;
    if (channel_->stage() == Stage::kPlain) return settle(pass) ? Result<int>(kOnKernel) : kOnKernel;
    answer = static_cast<int>(take_error());
    if (channel_->stage() == Stage::kFailed && state_ == State::kConnecting) disconnect();
  } else if (level == IPPROTO_TCP && name == TCP_NODELAY) {
    answer = nodelay_;
  } else if (level == IPPROTO_TCP && name == TCP_INFO) {
    if (holder_ == nullptr) channel_->progress(pass.now());  // the peer's end may wait in the socket
    Result<int> r = from_libc(real.getsockopt(shadow(), level, name, value, length));
    if (r && *length > offsetof(tcp_info, tcpi_state))
      static_cast<tcp_info*>(value)->tcpi_state = tcp_state();
    return r;
  } else {
    return kOnKernel;
  }
  return put_option(&answer, sizeof answer, value, length);
}

Result<int> SiwSocket::setsockopt(Pass& pass, int level, int name, const void* value, socklen_t length) {
  if (!live()) return kOnKernel;
  if (static_cast<int>(length) < 0) return err(EINVAL);
  if (!can_read(value, length)) return kOnKernel;  // which says EFAULT, or what comes first
  if (concerns_bytes(level, name, value, length)) {
    // While the peer has not said what it speaks, plain TCP is a way out.
    if (detach_for(pass, OptionName(level, name).text)) return kOnKernel;
    return err(ENOPROTOOPT);
  }
  if (level == IPPROTO_TCP && name == TCP_NODELAY && length >= sizeof(int) && can_read(value, sizeof(int))) {
    nodelay_ = *static_cast<const int*>(value) != 0;
    return 0;
  }
  Result<int> r = from_libc(real.setsockopt(shadow(), level, name, value, length));
  if (!r || level != SOL_SOCKET) return r;
  receive_timeout = shadow_timeout(SO_RCVTIMEO);
  send_timeout = shadow_timeout(SO_SNDTIMEO);
  const bool nodelay = nodelay_;
  read_options();
  nodelay_ = nodelay;
  if ((name == SO_SNDBUF || name == SO_SNDBUFFORCE) && (readiness() & EPOLLOUT) != 0)
    notify(kWritable);  // sk_setsockopt()
  return r;
}

Result<int> SiwSocket::ioctl(Pass& pass, unsigned long request, void* argument) {
  if (!live() ||
      (request != SIOCINQ && request != SIOCOUTQ && request != SIOCOUTQNSD && request != SIOCATMARK))
    return kOnKernel;
  Result<bool> open = settle(pass);
  if (!open && open.error() == kOnKernel) return kOnKernel;
  int answer = 0;
  if (open && *open && request == SIOCINQ) {
    channel_->progress(pass.now());
    answer = static_cast<int>(channel_->conn()->available());
  } else if (open && *open && request != SIOCATMARK) {
    if (real.ioctl(shadow(), request, &answer) != 0) answer = 0;
    answer += static_cast<int>(channel_->conn()->pending().size());
  }
  return put_user(argument, answer) ? Result<int>(0) : err(EFAULT);
}

}  // namespace accel::posix
