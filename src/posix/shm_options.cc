// Options of a connection in shared memory: the kernel's connection below it has them.
#include <asm/ioctls.h>
#include <errno.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/epoll.h>

#include <cstddef>
#include <cstring>

#include "base/real.h"
#include "base/user_memory.h"
#include "posix/option_name.h"
#include "posix/shm_socket.h"
#include "posix/tcp_option_table.h"

namespace accel::posix {

/// TCP_ZEROCOPY_RECEIVE: what is in the ring is for recv() (tcp_zerocopy_receive()); the kernel checks the
/// arguments.
Result<int> ShmSocket::map_received(void* value, socklen_t* length) {
  Result<int> r = from_libc(real.getsockopt(shadow(), IPPROTO_TCP, TCP_ZEROCOPY_RECEIVE, value, length));
  if (!r) return r;
  auto* zc = static_cast<tcp_zerocopy_receive*>(value);
  const auto queued = static_cast<uint32_t>(link_.rings->receiver->available());
  if (queued == 0 && (readiness() & (EPOLLRDHUP | EPOLLHUP)) != 0) return err(EIO);
  zc->recv_skip_hint = queued;
  if (*length >= offsetof(tcp_zerocopy_receive, err)) zc->inq = static_cast<int>(queued);
  return r;
}

namespace {

/// Adds to one of the counts, as far as the program has room for it.
void add_to(void* info, socklen_t size, size_t offset, uint64_t more) {
  auto* const at = static_cast<uint8_t*>(info) + offset;
  uint64_t count = 0;
  if (size < offset + sizeof count) return;
  std::memcpy(&count, at, sizeof count);
  count += more;
  std::memcpy(at, &count, sizeof count);
}

}  // namespace

/// TCP_INFO: of the bytes in the rings the kernel does not know. What is there has arrived, as over loopback.
Result<int> ShmSocket::connection_info(void* value, socklen_t* length) {
  Result<int> r = from_libc(real.getsockopt(shadow(), IPPROTO_TCP, TCP_INFO, value, length));
  if (!r) return r;
  const uint64_t sent = link_.rings->sender->bytes();
  const uint64_t came = link_.rings->receiver->bytes() + link_.rings->receiver->available();
  add_to(value, *length, offsetof(tcp_info, tcpi_bytes_acked), sent);
  add_to(value, *length, offsetof(tcp_info, tcpi_bytes_received), came);
  add_to(value, *length, offsetof(tcp_info, tcpi_bytes_sent), sent);
  return r;
}

Result<int> ShmSocket::getsockopt(Pass&, int level, int name, void* value, socklen_t* length) {
  if (level == IPPROTO_TCP && name == TCP_ZEROCOPY_RECEIVE && link_.rings) {
    look();
    if (link_.rings->receiver->way() == Receives::kRing) return map_received(value, length);
  }
  if (level == IPPROTO_TCP && name == TCP_INFO && link_.rings) {
    look();
    return connection_info(value, length);
  }
  if (stage_ != Stage::kOpen || level != SOL_SOCKET || name != SO_ERROR || own_error() == Errno{})
    return kOnKernel;
  const int answer = static_cast<int>(own_error());
  reset_told_ = true;
  return put_option(&answer, sizeof answer, value, length);
}

Result<int> ShmSocket::setsockopt(Pass& pass, int level, int name, const void* value, socklen_t length) {
  if (stage_ == Stage::kKernel || static_cast<int>(length) < 0 || !can_read(value, length)) return kOnKernel;
  // What concerns bytes as the program sees them, which the kernel would not see.
  const bool unknown = find_option(tcp_options(), level, name) == nullptr;
  if (unknown ? vetoes(tcp_options(), level, name, value, length)
              : concerns_bytes(level, name, value, length)) {
    if (Result<void> r = detach_for(pass, OptionName(level, name).text); !r) return err(ENOPROTOOPT);
    return kOnKernel;
  }
  Result<int> r = from_libc(real.setsockopt(shadow(), level, name, value, length));
  if (r) option_was_set(level, name, value, length);
  // As tcp_set_rcvlowat() and sk_setsockopt() wake who waits.
  if (r && level == SOL_SOCKET && name == SO_RCVLOWAT && readable() >= low_water_) notify(kReadable);
  if (r && level == SOL_SOCKET && name == SO_SNDBUF && (readiness() & EPOLLOUT) != 0) notify(kWritable);
  return r;
}

void ShmSocket::option_was_set(int level, int name, const void* value, socklen_t /*length*/) {
  if (level != SOL_SOCKET) return;
  if (name == SO_RCVTIMEO || name == SO_SNDTIMEO || name == SO_RCVTIMEO_NEW || name == SO_SNDTIMEO_NEW)
    timeout_was_set(name, value);
  low_water_ = static_cast<size_t>(std::max(shadow_option(SOL_SOCKET, SO_RCVLOWAT), 1));
  set_buffers();
}

Result<int> ShmSocket::ioctl(Pass&, unsigned long request, void* argument) {
  if (!link_.rings || request != SIOCINQ) return kOnKernel;
  look();
  const int answer = static_cast<int>(readable());
  return put_user(argument, answer) ? Result<int>(0) : err(EFAULT);
}

}  // namespace accel::posix
