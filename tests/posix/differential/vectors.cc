// Calls that move several buffers, or several messages, at once.
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
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

volatile sig_atomic_t broken = 0;  ///< SIGPIPE came

/// A few buffers with some of them empty; `text`: their sizes.
struct Buffers {
  std::array<std::array<char, 300>, 3> room{};
  std::array<iovec, 3> parts{};
  std::string text;
};

}  // namespace

/// A call that sends without MSG_NOSIGNAL.
template <class Call>
std::string Sequence::with_pipe(Call call) {
  static const bool handled = [] {
    struct sigaction action {};
    action.sa_handler = [](int) { broken = broken + 1; };
    return sigaction(SIGPIPE, &action, nullptr) == 0;
  }();
  broken = 0;
  const long done = call();
  if (done > 0) sent_ += static_cast<size_t>(done), held_ = false;
  return shown(done) + (handled && broken ? " SIGPIPE" : "");
}

void Sequence::read_vector() {
  Buffers into;
  const auto count = static_cast<int>(below(4));
  for (int i = 0; i < count; ++i) {
    into.parts[static_cast<size_t>(i)] = {into.room[static_cast<size_t>(i)].data(),
                                          any<size_t>({0, 1, 10, 300})};
    into.text += to_string(into.parts[static_cast<size_t>(i)].iov_len) + " ";
  }
  const off_t offset = any<off_t>({-1, -1, -1, 0});
  const int flags = any<int>({0, 0, RWF_NOWAIT, RWF_HIPRI, RWF_APPEND, 1 << 20});
  const bool plain = chance(50);
  const int given = chance(95) ? count : any<int>({-1, 1025});
  const long n = plain ? readv(sock_, into.parts.data(), given)
                       : preadv2(sock_, into.parts.data(), given, offset, flags);
  std::string result = shown(n);
  if (n > 0)
    for (const auto& one : into.room) result += " " + hash(one.data(), one.size());
  log({plain ? "readv" : "preadv2", into.text, plain ? "" : to_string(offset) + " " + to_string(flags)},
      result);
}

void Sequence::write_vector() {
  std::array<std::string, 3> data;
  std::array<iovec, 3> parts{};
  const size_t count = below(4);
  std::string sizes;
  for (size_t i = 0, at = sent_; i < count; ++i) {
    data[i] = pattern(any<size_t>({0, 1, 100, 1448}), at);
    at += data[i].size();
    parts[i] = {data[i].data(), data[i].size()};
    sizes += to_string(data[i].size()) + " ";
  }
  const int how = static_cast<int>(below(3));
  const off_t offset = any<off_t>({-1, -1, -1, 0});
  const int flags = any<int>({0, 0, RWF_NOWAIT, RWF_DSYNC, RWF_APPEND, 1 << 20});
  const int given = static_cast<int>(count);
  const std::string result = with_pipe([&]() -> long {
    if (how == 0) return ::write(sock_, data[0].data(), data[0].size());
    return how == 1 ? writev(sock_, parts.data(), given)
                    : pwritev2(sock_, parts.data(), given, offset, flags);
  });
  static const char* const kNames[] = {"write", "writev", "pwritev2"};
  log_sent({kNames[how], sizes, how == 2 ? to_string(offset) + " " + to_string(flags) : ""}, result);
}

void Sequence::receive_messages() {
  static std::array<std::array<char, 2000>, 4> rooms;
  std::array<mmsghdr, 4> messages{};
  std::array<iovec, 4> parts{};
  std::array<Name, 4> from;
  const size_t count = below(5);
  const bool named = chance(50);
  for (size_t i = 0; i < 4; ++i) {
    parts[i] = {rooms[i].data(), any<size_t>({1, 10, 200, 2000})};
    messages[i].msg_hdr.msg_iov = &parts[i];
    messages[i].msg_hdr.msg_iovlen = 1;
    if (named) messages[i].msg_hdr.msg_name = from[i].raw();
    if (named) messages[i].msg_hdr.msg_namelen = sizeof from[i].storage;
  }
  const int flags = any<int>({0, 0, MSG_WAITFORONE, MSG_PEEK, MSG_TRUNC, MSG_ERRQUEUE});
  timespec limit = any<timespec>({{1, 0}, {1, 0}, {0, 0}, {0, -1}});
  const bool limited = chance(40);
  const int n = recvmmsg(sock_, messages.data(), static_cast<unsigned>(count), flags | MSG_DONTWAIT,
                         limited ? &limit : nullptr);
  std::string result = shown(n);
  for (int i = 0; i < n; ++i) {
    const mmsghdr& m = messages[static_cast<size_t>(i)];
    const iovec& part = parts[static_cast<size_t>(i)];
    Name& name = from[static_cast<size_t>(i)];
    name.size = m.msg_hdr.msg_namelen;
    result += " [" + to_string(m.msg_len) + " flags " + to_string(m.msg_hdr.msg_flags);
    if (!(stream_ && flags & MSG_TRUNC))
      result += " " + hash(part.iov_base, std::min<size_t>(m.msg_len, part.iov_len));
    result += (named ? " from " + hidden(0, name) : "") + "]";
  }
  log({"recvmmsg", to_string(count), to_string(flags), limited ? to_string(limit.tv_nsec < 0) : ""}, result);
}

void Sequence::send_messages() {
  std::array<std::string, 4> data;
  std::array<mmsghdr, 4> messages{};
  std::array<iovec, 4> parts{};
  Name to = name(far_address(), far_port_);
  const bool named = !stream_ && chance(60);
  // Where nobody takes them, one: whether the answer to the first comes within the call is open.
  const size_t count = std::min<size_t>(below(5), far_.takes_data() ? 4 : 1);
  // No full segment with MSG_MORE, for the same reason: its ACK lets the rest go.
  const int flags = any<int>({0, 0, 0, MSG_MORE, MSG_OOB, MSG_OOB | MSG_MORE});
  if (const int off = 0; (flags & MSG_MORE) != 0 && held_bytes() > 0) {
    setsockopt(sock_, IPPROTO_TCP, TCP_CORK, &off, sizeof off);
    settle();
  }
  const size_t large = !stream_ ? 1400 : (flags & MSG_MORE) != 0 ? 300 : 1448;
  std::string sizes;
  for (size_t i = 0, at = sent_; i < count; ++i) {
    data[i] = pattern(any<size_t>({0, 1, 100, large}), at);
    at += data[i].size();
    parts[i] = {data[i].data(), data[i].size()};
    messages[i].msg_hdr.msg_iov = &parts[i];
    messages[i].msg_hdr.msg_iovlen = 1;
    if (named) messages[i].msg_hdr.msg_name = to.raw();
    if (named) messages[i].msg_hdr.msg_namelen = to.size;
    sizes += to_string(data[i].size()) + " ";
  }
  const int n =
      sendmmsg(sock_, messages.data(), static_cast<unsigned>(count), flags | MSG_DONTWAIT | MSG_NOSIGNAL);
  std::string result = shown(n);
  for (int i = 0; i < n; ++i) {
    const unsigned size = messages[static_cast<size_t>(i)].msg_len;
    result += " " + to_string(size);
    sent_ += size;
    if (size > 0) held_ = (flags & MSG_MORE) != 0;
  }
  log_sent({named ? "sendmmsg to" : "sendmmsg", sizes, to_string(flags)}, result);
}

/// Without O_NONBLOCK: what has come is there at once, and nothing comes until SO_RCVTIMEO is over.
void Sequence::wait_to_receive() {
  const timeval limit{0, 2000}, none{0, 0};
  if (setsockopt(sock_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) != 0) return;
  const int flags = fcntl(sock_, F_GETFL);
  fcntl(sock_, F_SETFL, flags & ~O_NONBLOCK);
  static char buffer[3000];
  const size_t size = any<size_t>({1, 50, 3000});
  const int how =
      any<int>({0, 0, MSG_WAITALL, MSG_PEEK, MSG_PEEK | MSG_WAITALL, MSG_TRUNC, MSG_OOB, MSG_DONTWAIT});
  const long n = recv(sock_, buffer, size, how);
  std::string result = shown(n);
  if (n > 0 && !(stream_ && how & MSG_TRUNC))
    result += " " + hash(buffer, std::min(static_cast<size_t>(n), size));
  fcntl(sock_, F_SETFL, flags);
  setsockopt(sock_, SOL_SOCKET, SO_RCVTIMEO, &none, sizeof none);
  log({"recv within 2 ms", to_string(size), to_string(how)}, result);
}

}  // namespace differential
