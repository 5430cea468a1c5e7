#include "base/sock_diag.h"

#include <errno.h>
#include <linux/sock_diag.h>
#include <sys/socket.h>

#include <array>
#include <cstring>

#include "base/private_fds.h"
#include "base/real.h"

namespace accel {
namespace {

/// One write, as netlink wants it.
bool ask(int netlink, uint16_t flags, const void* request, size_t size) {
  std::array<char, 256> message{};
  if (sizeof(nlmsghdr) + size > message.size()) return errno = EMSGSIZE, false;
  nlmsghdr header{};
  header.nlmsg_len = static_cast<uint32_t>(NLMSG_LENGTH(size));
  header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  header.nlmsg_flags = flags;
  std::memcpy(message.data(), &header, sizeof header);
  std::memcpy(message.data() + NLMSG_HDRLEN, request, size);
  return real.send(netlink, message.data(), header.nlmsg_len, 0) == static_cast<ssize_t>(header.nlmsg_len);
}

int error_of(const nlmsghdr& message) {
  nlmsgerr told{};
  if (message.nlmsg_len >= NLMSG_LENGTH(sizeof told)) std::memcpy(&told, NLMSG_DATA(&message), sizeof told);
  return told.error < 0 ? -told.error : EIO;
}

Result<void> read_answer(int netlink, size_t least, void (*visit)(const nlmsghdr&, void*), void* context) {
  alignas(nlmsghdr) std::array<char, 8192> buffer;  // on the stack of any thread of the program
  for (;;) {
    ssize_t left = real.recv(netlink, buffer.data(), buffer.size(), 0);
    if (left <= 0) return err(left < 0 ? errno : EIO);
    auto* message = reinterpret_cast<nlmsghdr*>(buffer.data());
    for (; NLMSG_OK(message, static_cast<size_t>(left)); message = NLMSG_NEXT(message, left)) {
      if (message->nlmsg_type == NLMSG_DONE) return {};
      if (message->nlmsg_type == NLMSG_ERROR) return err(error_of(*message));
      if (message->nlmsg_len >= NLMSG_LENGTH(least)) visit(*message, context);
      if ((message->nlmsg_flags & NLM_F_MULTI) == 0) return {};
    }
  }
}

Result<void> talk(uint16_t flags, const void* request, size_t size, size_t least,
                  void (*visit)(const nlmsghdr& message, void* context), void* context) {
  const int netlink = keep_private(real.socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG));
  if (netlink < 0) return err(errno);
  Result<void> done = ask(netlink, flags, request, size) ? Result<void>() : err(errno);
  if (done) done = read_answer(netlink, least, visit, context);
  close_private(netlink);
  return done;
}

}  // namespace

Result<void> dump_sockets(const void* request, size_t size, size_t least,
                          void (*visit)(const nlmsghdr& message, void* context), void* context) {
  return talk(NLM_F_REQUEST | NLM_F_DUMP, request, size, least, visit, context);
}

Result<void> find_socket(const void* request, size_t size, size_t least,
                         void (*visit)(const nlmsghdr& message, void* context), void* context) {
  return talk(NLM_F_REQUEST, request, size, least, visit, context);
}

}  // namespace accel
