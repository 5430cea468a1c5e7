// Calls that move several buffers, or several messages, at once.
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <cstddef>

#include "posix/echo.h"

using namespace posix_test;  // NOLINT: a test program

namespace {

std::string result(long value) { return value >= 0 ? std::to_string(value) : strerrorname_np(errno); }

/// Some messages of one buffer each.
template <size_t kCount>
struct Messages {
  explicit Messages(std::array<std::string, kCount> of) : texts(std::move(of)) {
    for (size_t i = 0; i < kCount; ++i) {
      parts[i] = {texts[i].data(), texts[i].size()};
      all[i].msg_hdr.msg_iov = &parts[i];
      all[i].msg_hdr.msg_iovlen = 1;
    }
  }
  std::array<std::string, kCount> texts;
  std::array<iovec, kCount> parts{};
  std::array<mmsghdr, kCount> all{};
};

// Sends one datagram for each that comes, and says how many came; an "end" ends it.
FAR(answers_datagrams) {
  Fd fd = udp_at(here());
  near.say(port_of(fd));
  char buffer[100];
  for (int count = 1;; ++count) {
    Address from;
    const ssize_t n = recvfrom(fd, buffer, sizeof buffer, 0, from.raw(), &from.size);
    sendto(fd, "answer", 6, 0, from.raw(), from.size);
    if (n == 3) return near.say(count);
  }
}

struct Datagrams {
  Datagrams() : far("answers_datagrams"), fd(udp_socket()) {
    const Address to = there(static_cast<uint16_t>(far.number()));
    EXPECT_EQ(connect(fd, to.raw(), to.size), 0);
  }
  /// One is sent, and its answer is there.
  void answer() {
    ++sent;
    EXPECT_EQ(send(fd, "x", 1, 0), 1);
    EXPECT_EQ(wait_for(fd, POLLIN) & POLLIN, POLLIN);
  }
  ~Datagrams() {
    EXPECT_EQ(send(fd, "end", 3, 0), 3);
    EXPECT_EQ(far.number(), sent + 1);
    far.finish();
  }
  Far far;
  Fd fd;
  int sent = 0;
};

TEST(Vectors, OfNothingMoveNoDatagram) {
  Datagrams d;
  for (int i = 0; i < kProof; ++i) {
    d.answer();
    char byte;
    EXPECT_EQ(recv(d.fd, &byte, 1, 0), 1);
  }
  d.answer();
  char room[10];
  const iovec none[2] = {{room, 0}, {room, 0}};
  EXPECT_EQ(result(readv(d.fd, none, 2)), "0");
  EXPECT_EQ(result(readv(d.fd, none, 0)), "0");
  EXPECT_EQ(result(preadv2(d.fd, none, 2, -1, 1 << 20)), "0");
  EXPECT_EQ(result(writev(d.fd, none, 2)), "0");
  EXPECT_EQ(result(pwritev2(d.fd, none, 2, -1, 0)), "0");
  volatile int negative = -1;  // no compiler looks through it
  EXPECT_EQ(result(readv(d.fd, none, negative)), "EINVAL");
  const iovec one{room, 1};
  EXPECT_EQ(result(preadv2(d.fd, &one, 1, -1, 1 << 20)), "EOPNOTSUPP");
  EXPECT_EQ(recv(d.fd, room, sizeof room, MSG_DONTWAIT), 6);
}

TEST(Vectors, OfNothingHeedNoEnd) {
  Echo echo(kProof);
  const iovec none{nullptr, 0};
  EXPECT_EQ(result(readv(echo.fd, &none, 1)), "0");
  shutdown(echo.fd, SHUT_WR);
  EXPECT_EQ(result(writev(echo.fd, &none, 1)), "0");
  EXPECT_EQ(read_to_end(echo.fd), "");
  echo.all();
}

// Sends some bytes and ends the connection by a reset.
FAR(sends_and_resets) {
  Fd listener = listen_at(here());
  near.say(port_of(listener));
  Fd fd = accept_one(listener);
  write_all(fd, "bytes");
  near.number();
  const linger now{1, 0};
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
  fd.reset();
  near.say("done");
}

TEST(Messages, ReceivedComeAfterAPendingError) {
  Echo proof(kProof);
  Far far("sends_and_resets");
  Fd fd = connect_to(there(static_cast<uint16_t>(far.number())));
  EXPECT_EQ(wait_for(fd, POLLIN), POLLIN);
  far.say(1);
  far.word();
  EXPECT_NE(wait_for_end(fd, POLLHUP) & POLLHUP, 0);
  Messages<2> m({"12", "345"});
  EXPECT_EQ(result(recvmmsg(fd, m.all.data(), 2, MSG_DONTWAIT, nullptr)), "ECONNRESET");
  far.finish();
  proof.all();
}

TEST(Messages, ReceivedBeforeAnErrorKeepIt) {
  Datagrams d;
  for (int i = 0; i < kProof; ++i) {
    d.answer();
    char byte;
    EXPECT_EQ(recv(d.fd, &byte, 1, 0), 1);
  }
  d.answer();
  EXPECT_EQ(send(d.fd, "y", 1, 0), 1);
  ++d.sent;
  char all[2][6];
  timespec tick{0, 1000000};
  for (int i = 0; i < 5000 && recv(d.fd, all, 1, MSG_PEEK | MSG_DONTWAIT) < 0; ++i) nanosleep(&tick, nullptr);
  nanosleep(&(tick = {0, 200000000}), nullptr);  // for the second
  Messages<2> m({"123456", "123456"});
  m.parts[1].iov_base = reinterpret_cast<void*>(8);
  EXPECT_EQ(result(recvmmsg(d.fd, m.all.data(), 2, MSG_DONTWAIT, nullptr)), "1");
  EXPECT_EQ(m.all[0].msg_len, 6u);
  EXPECT_EQ(get_option(d.fd, SOL_SOCKET, SO_ERROR), EFAULT);
}

// The timeout is told behind each message, also where fewer came than were asked for.
TEST(Messages, ReceivedTellWhatIsLeftOfTheTimeout) {
  Datagrams d;
  for (int i = 0; i < kProof; ++i) {
    d.answer();
    char byte;
    EXPECT_EQ(recv(d.fd, &byte, 1, 0), 1);
  }
  d.answer();
  EXPECT_EQ(wait_for(d.fd, POLLIN), POLLIN);
  Messages<2> m({"123456", "123456"});
  timespec left{5, 0};
  EXPECT_EQ(result(recvmmsg(d.fd, m.all.data(), 2, MSG_DONTWAIT, &left)), "1");
  EXPECT_EQ(left.tv_sec, 4);
  EXPECT_EQ(result(recvmmsg(d.fd, m.all.data(), 2, MSG_DONTWAIT, &(left = {5, 0}))), "EAGAIN");
  EXPECT_EQ(left.tv_sec, 5);
  d.answer();
  EXPECT_EQ(wait_for(d.fd, POLLIN), POLLIN);
  static const timespec fixed{5, 0};
  EXPECT_EQ(result(recvmmsg(d.fd, m.all.data(), 2, MSG_DONTWAIT, const_cast<timespec*>(&fixed))), "EFAULT");
}

// The second's length cannot be told, and is in the program's way (do_recvmmsg(): put_user()).
TEST(Messages, ReceivedBeforeOneWhoseLengthCannotBeTold) {
  Datagrams d;
  for (int i = 0; i < kProof; ++i) {
    d.answer();
    char byte;
    EXPECT_EQ(recv(d.fd, &byte, 1, 0), 1);
  }
  const long page = sysconf(_SC_PAGESIZE);
  auto* memory = static_cast<char*>(mmap(nullptr, static_cast<size_t>(2 * page), PROT_READ | PROT_WRITE,
                                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  // The second's length is where the second page begins.
  auto* const all = reinterpret_cast<mmsghdr*>(memory + page - offsetof(mmsghdr, msg_len)) - 1;
  Messages<2> m({"123456", "123456"});
  memcpy(all, m.all.data(), 2 * sizeof(mmsghdr));
  ASSERT_EQ(mprotect(memory + page, static_cast<size_t>(page), PROT_READ), 0);
  d.answer();
  d.answer();
  EXPECT_EQ(wait_for(d.fd, POLLIN), POLLIN);
  EXPECT_EQ(result(recvmmsg(d.fd, all, 2, 0, nullptr)), "1");
  EXPECT_EQ(get_option(d.fd, SOL_SOCKET, SO_ERROR), EFAULT);
  munmap(memory, static_cast<size_t>(2 * page));
}

// Reads when it is told to.
FAR(reads_late) {
  Fd listener = listen_at(here());
  near.say(port_of(listener));
  Fd fd = accept_one(listener);
  near.number();
  near.say(static_cast<long>(read_to_end(fd).size()));
}

TEST(Messages, StopBehindOneThatWentInPart) {
  Echo proof(kProof);
  Far far("reads_late");
  Fd fd = connect_to(there(static_cast<uint16_t>(far.number())));
  set_option(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, 1);
  EXPECT_EQ(send(fd, std::string(1400, 'x').data(), 1400, MSG_MORE), 1400);
  const std::string large(1448, 'y');
  Messages<3> m({large, large, large});
  EXPECT_EQ(result(sendmmsg(fd, m.all.data(), 3, MSG_OOB | MSG_DONTWAIT)), "1");
  EXPECT_EQ(m.all[0].msg_len, 48u);
  fd.reset();
  far.say(1);
  EXPECT_EQ(far.number(), 1400 + 48 - 1);  // less the urgent byte
  far.finish();
  proof.all();
}

TEST(Messages, PeekedForBeyondTheQueueAreNotThere) {
  Echo echo(kProof);
  const int beyond = 1000;
  if (setsockopt(echo.fd, SOL_SOCKET, SO_PEEK_OFF, &beyond, sizeof beyond) != 0) GTEST_SKIP();  // Linux 6.9
  write_all(echo.fd, "abc");
  EXPECT_EQ(wait_for(echo.fd, POLLIN), POLLIN);
  EXPECT_EQ(result(recv(echo.fd, nullptr, 0, MSG_PEEK | MSG_DONTWAIT)), "EAGAIN");
  EXPECT_EQ(read_exactly(echo.fd, 3), "abc");
  echo.all();
}

}  // namespace
