// Calls that move bytes.
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>

#include "posix/differential/log.h"
#include "posix/differential/sequence.h"

namespace differential {

using std::to_string;

namespace {

struct Flag {
  int value;
  const char* name;
};

}  // namespace

void Sequence::receive() {
  static const std::vector<Flag> kStream = {{0, ""},
                                            {0, ""},
                                            {0, ""},
                                            {MSG_PEEK, "PEEK"},
                                            {MSG_TRUNC, "TRUNC"},
                                            {MSG_OOB, "OOB"},
                                            {MSG_OOB | MSG_PEEK, "OOB|PEEK"},
                                            {MSG_WAITALL, "WAITALL"},
                                            {MSG_PEEK | MSG_TRUNC, "PEEK|TRUNC"},
                                            {MSG_ERRQUEUE, "ERRQUEUE"}};
  static const std::vector<Flag> kDatagram = {{0, ""},
                                              {0, ""},
                                              {0, ""},
                                              {MSG_PEEK, "PEEK"},
                                              {MSG_TRUNC, "TRUNC"},
                                              {MSG_PEEK | MSG_TRUNC, "PEEK|TRUNC"},
                                              {MSG_ERRQUEUE, "ERRQUEUE"}};
  static char buffer[20000];
  const Flag& flag = any(stream_ ? kStream : kDatagram);
  size_t size = any<size_t>({1, 3, 50, 1000, 20000});
  bool with_name = chance(40);
  Name from;
  from.size = sizeof from.storage;
  long n = with_name ? recvfrom(sock_, buffer, size, flag.value | MSG_DONTWAIT, from.raw(), &from.size)
           : flag.value == 0 && chance(50) ? ::read(sock_, buffer, size)
                                           : recv(sock_, buffer, size, flag.value | MSG_DONTWAIT);
  std::string result = shown(n);
  if (n > 0 && !(stream_ && flag.value & MSG_TRUNC))
    result += " " + hash(buffer, std::min(static_cast<size_t>(n), size));
  if (with_name && n >= 0) result += " from " + hidden(0, from);
  log({with_name ? "recvfrom" : "recv", to_string(size), flag.name}, result);
}

void Sequence::receive_message() {
  static std::array<std::array<char, 300>, 3> buffers;
  std::array<iovec, 3> parts{};
  size_t count = below(4);
  std::string sizes;
  for (size_t i = 0; i < count; ++i) {
    parts[i] = {buffers[i].data(), any<size_t>({0, 1, 10, 300})};
    buffers[i].fill(0);
    sizes += to_string(parts[i].iov_len) + " ";
  }
  alignas(cmsghdr) char control[200];
  Name from;
  size_t room = any<size_t>({0, 10, 20, 200});
  msghdr m{.msg_name = from.raw(),
           .msg_namelen = sizeof from.storage,
           .msg_iov = parts.data(),
           .msg_iovlen = count,
           .msg_control = control,
           .msg_controllen = room,
           .msg_flags = 0};
  int flags = any<int>({0, 0, 0, MSG_PEEK, MSG_ERRQUEUE, MSG_TRUNC});
  long n = recvmsg(sock_, &m, flags | MSG_DONTWAIT);
  std::string result = shown(n);
  if (n >= 0) {
    from.size = m.msg_namelen;
    result += " flags " + to_string(m.msg_flags) + " from " + hidden(0, from);
    if (!(stream_ && flags & MSG_TRUNC))
      for (size_t i = 0; i < count; ++i) result += " " + hash(buffers[i].data(), parts[i].iov_len);
    for (cmsghdr* c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
      size_t size = c->cmsg_len - CMSG_LEN(0);
      result += " [" + to_string(c->cmsg_level) + " " + to_string(c->cmsg_type) + " " + to_string(size);
      if (size <= 4) result += " = " + bytes(CMSG_DATA(c), size);
      result += "]";
    }
  }
  log({"recvmsg", sizes, "control", to_string(room), "flags", to_string(flags)}, result);
}

void Sequence::send() {
  static const std::vector<Flag> kFlags = {{0, ""},
                                           {0, ""},
                                           {0, ""},
                                           {0, ""},
                                           {MSG_OOB, "OOB"},
                                           {MSG_MORE, "MORE"},
                                           {MSG_OOB | MSG_MORE, "OOB|MORE"}};
  const Flag& flag = any(kFlags);
  size_t n =
      stream_ ? any<size_t>({0, 1, 10, 1400, 5000}) : any<size_t>({0, 1, 10, 1400, 1473, 9000, 65507, 65508});
  std::string data = pattern(n, sent_);
  Name to = name(far_address(), far_port_);
  bool named = stream_ ? chance(5) : chance(60);
  int flags = flag.value | MSG_DONTWAIT | MSG_NOSIGNAL;
  long done =
      named ? sendto(sock_, data.data(), n, flags, to.raw(), to.size) : ::send(sock_, data.data(), n, flags);
  if (done > 0) sent_ += static_cast<size_t>(done);
  if (done > 0) held_ = (flag.value & MSG_MORE) != 0;
  log_sent({named ? "sendto" : "send", to_string(n), flag.name}, shown(done));
}

void Sequence::send_message() {
  std::array<iovec, 3> parts{};
  std::array<std::string, 3> data;
  size_t count = below(4), at = sent_;
  std::string sizes;
  for (size_t i = 0; i < count; ++i) {
    data[i] = pattern(any<size_t>({0, 1, 100, 1448}), at);
    at += data[i].size();
    parts[i] = {data[i].data(), data[i].size()};
    sizes += to_string(data[i].size()) + " ";
  }
  msghdr m{};
  m.msg_iov = parts.data();
  m.msg_iovlen = count;
  long done = sendmsg(sock_, &m, MSG_DONTWAIT | MSG_NOSIGNAL);
  if (done > 0) sent_ += static_cast<size_t>(done);
  if (done > 0) held_ = false;
  log_sent({"sendmsg", sizes}, shown(done));
}

}  // namespace differential
