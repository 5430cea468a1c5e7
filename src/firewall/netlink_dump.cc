#include "firewall/netlink_dump.h"

#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <utility>

#include "base/private_fds.h"
#include "base/real.h"

namespace accel::firewall {
namespace {

constexpr size_t kDatagram = 65536;  ///< dumps come in smaller ones (NLMSG_GOODSIZE, 32 KB)
constexpr size_t kMostBytes = 64 << 20;

long receive(int fd, void* bytes, size_t size, int flags) {
  for (;;) {
    const long n = real.syscall(SYS_recvfrom, static_cast<long>(fd), bytes, size, static_cast<long>(flags),
                                nullptr, nullptr);
    if (n >= 0 || errno != EINTR) return n;
  }
}

}  // namespace

Result<void> NetlinkSocket::open(int protocol) {
  if (is_open()) return {};
  const int saved = errno;
  fd_ = keep_private(static_cast<int>(real.syscall(
      SYS_socket, long{AF_NETLINK}, long{SOCK_RAW | SOCK_CLOEXEC}, static_cast<long>(protocol))));
  const int error = errno;
  errno = saved;
  if (fd_ < 0) return err(error);
  return {};
}

void NetlinkSocket::close() {
  if (is_open()) close_private(std::exchange(fd_, -1));
  named_ = false;
}

Result<void> NetlinkSocket::dump(uint16_t type, View payload, Bytes& out) {
  return ask(type, NLM_F_REQUEST | NLM_F_DUMP, payload, out);
}

Result<void> NetlinkSocket::get(uint16_t type, View payload, Bytes& out) {
  return ask(type, NLM_F_REQUEST, payload, out);
}

Result<void> NetlinkSocket::ask(uint16_t type, uint16_t flags, View payload, Bytes& out) {
  const int saved = errno;
  Bytes request(NLMSG_HDRLEN + payload.size());
  nlmsghdr head{};
  head.nlmsg_len = static_cast<uint32_t>(request.size());
  head.nlmsg_type = type;
  head.nlmsg_flags = flags;
  head.nlmsg_seq = ++number_;
  std::memcpy(request.data(), &head, sizeof head);
  std::copy(payload.begin(), payload.end(), request.begin() + NLMSG_HDRLEN);
  Result<bool> done = false;
  if (real.syscall(SYS_sendto, static_cast<long>(fd_), request.data(), request.size(), 0L, nullptr, 0L) < 0)
    done = err(errno);
  const auto datagram = std::make_unique_for_overwrite<uint8_t[]>(kDatagram);  // few of its pages are used
  while (done && !*done) {
    const long n = receive(fd_, datagram.get(), kDatagram, 0);
    if (n <= 0)
      done = err(n == 0 ? EIO : errno);
    else
      done = take({datagram.get(), static_cast<size_t>(n)}, out, flags & NLM_F_DUMP);
  }
  errno = saved;
  return done ? Result<void>{} : Result<void>{done.error()};
}

/// True: the answer is complete.
Result<bool> NetlinkSocket::take(View datagram, Bytes& out, bool dumping) {
  while (datagram.size() >= sizeof(nlmsghdr)) {
    nlmsghdr head;
    std::memcpy(&head, datagram.data(), sizeof head);
    if (head.nlmsg_len < sizeof head || head.nlmsg_len > datagram.size()) return err(EIO);
    const size_t step = std::min(size_t{NLMSG_ALIGN(head.nlmsg_len)}, datagram.size());
    const View message = datagram.first(step);
    datagram = datagram.subspan(step);
    if (head.nlmsg_seq != number_) continue;  // of a question that failed half-way
    if (head.nlmsg_type == NLMSG_DONE) return true;
    if (head.nlmsg_flags & NLM_F_DUMP_INTR) return err(EAGAIN);
    if (head.nlmsg_type == NLMSG_ERROR) {
      int error = 0;
      if (message.size() >= NLMSG_HDRLEN + sizeof error)
        std::memcpy(&error, message.data() + NLMSG_HDRLEN, sizeof error);
      return error == 0 ? Result<bool>{true} : Result<bool>{err(-error)};
    }
    if (out.size() + message.size() > kMostBytes) return err(E2BIG);
    out.insert(out.end(), message.begin(), message.end());
    if (!dumping) return true;
  }
  return false;
}

Result<void> NetlinkSocket::join(unsigned group) {
  const int number = static_cast<int>(group);
  const int saved = errno;
  // Without a name the kernel takes it for the one that made the change, which is not told
  // (do_one_broadcast()).
  sockaddr_nl name{};
  name.nl_family = AF_NETLINK;
  named_ = named_ || real.syscall(SYS_bind, static_cast<long>(fd_), &name, long{sizeof name}) == 0;
  const bool joined =
      named_ && real.setsockopt(fd_, SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, &number, sizeof number) == 0;
  const int error = std::exchange(errno, saved);
  return joined ? Result<void>{} : Result<void>{err(error)};
}

bool NetlinkSocket::heard() {
  if (!is_open()) return false;
  const int saved = errno;
  bool any = false;
  uint8_t byte;  // the rest of a message is cut off
  for (;;) {
    const long n = receive(fd_, &byte, sizeof byte, MSG_DONTWAIT | MSG_TRUNC);
    if (n < 0 && errno != ENOBUFS) break;
    any = true;
  }
  errno = saved;
  return any;
}

void Payload::put_bytes(const void* data, size_t size) {
  const auto* bytes = static_cast<const uint8_t*>(data);
  bytes_.insert(bytes_.end(), bytes, bytes + size);
  bytes_.resize(NLMSG_ALIGN(bytes_.size()));
}

void Payload::put(uint16_t type, View value) {
  const nlattr head{static_cast<uint16_t>(NLA_HDRLEN + value.size()), type};
  put_bytes(&head, sizeof head);
  put_bytes(value.data(), value.size());
}

void Payload::put_text(uint16_t type, const std::string& text) {
  put(type, {reinterpret_cast<const uint8_t*>(text.c_str()), text.size() + 1});
}

}  // namespace accel::firewall
