// Memory that the library asks for and may be refused is refused, one allocation after the other, while a
// connection is made, one is accepted, and a datagram goes out and back. A call fails with ENOMEM or ENOBUFS,
// or its socket is the kernel's; the program lives, no byte is wrong, and afterwards all works again.
// With libaccel-refusing.so; on the kernel and with libaccel.so the calls only have to work.
#include <poll.h>
#include <sys/epoll.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "posix/far.h"
#include "posix/refusal.h"

namespace posix_test {
namespace {

constexpr size_t kBytes = 20000;
constexpr uint64_t kForLong = 40, kStride = 3;
/// A datagram that was dropped does not come later.
constexpr int kDatagramWait = 500;
/// A SYN is sent again ever more seldom: by then there has to be memory again.
constexpr int kHandshakeWait = 1500;

/// Echoes streams, one after the other, and datagrams, until a stream says "end".
FAR(echo) {
  Fd l = listen_at(here());
  Fd u = udp_at(here());
  near.say(port_of(l));
  near.say(port_of(u));
  pollfd ready[2] = {{l, POLLIN, 0}, {u, POLLIN, 0}};
  while (poll(ready, 2, -1) > 0) {
    char text[4096];
    if (ready[1].revents != 0) {
      Address from;
      const ssize_t n = recvfrom(u, text, sizeof text, MSG_DONTWAIT, from.raw(), &from.size);
      if (n > 0) sendto(u, text, static_cast<size_t>(n), 0, from.raw(), from.size);
    }
    if (ready[0].revents == 0) continue;
    Fd c = accept_one(l);
    for (ssize_t n = 0; (n = recv(c, text, sizeof text, 0)) > 0;) {
      if (std::string_view(text, static_cast<size_t>(n)) == "end") return;
      if (send(c, text, static_cast<size_t>(n), MSG_NOSIGNAL) < 0) break;
    }
  }
}

/// Connects to each port that it is told, and says what became of its bytes there.
FAR(client) {
  for (std::string word; (word = near.word()) != "end";) {
    Fd c = tcp_socket();
    const std::string out = pattern(kBytes);
    const Address to = there(static_cast<uint16_t>(std::stoi(word)));
    std::string back;
    if (connect(c, to.raw(), to.size) == 0 && send(c, out.data(), out.size(), MSG_NOSIGNAL) > 0 &&
        shutdown(c, SHUT_WR) == 0) {
      char text[4096];
      for (ssize_t n = 0; (n = recv(c, text, sizeof text, 0)) > 0;) back.append(text, static_cast<size_t>(n));
    }
    near.say(back == out ? "whole" : out.starts_with(back) ? "cut" : "wrong");
  }
}

/// Whether a call may fail so where memory was refused: also what became of a connection.
bool is_expected(int error) {
  return error == ENOMEM || error == ENOBUFS || error == ECONNRESET || error == EPIPE || error == ENOTCONN;
}

class RefusedMemory : public testing::Test {
 protected:
  void SetUp() override {
    stream_port_ = static_cast<uint16_t>(echo_.number());
    datagram_port_ = static_cast<uint16_t>(echo_.number());
  }
  void TearDown() override {
    client_.say("end");
    client_.finish();
    Fd last = connect_to(there(stream_port_));
    write_all(last, "end");
    echo_.finish();
  }

  void refuse(uint64_t from, uint64_t count) {
    if (refusal_ == nullptr) return;
    refusal_->seen = 0;
    refusal_->from = from;
    refusal_->count = count;
    refusing_ = true;
  }
  uint64_t stop_refusing() {
    if (refusal_ == nullptr) return 0;
    refusal_->count = 0;
    refusing_ = false;
    return refusal_->seen;
  }

  /// A call's result, which is right or an error as expected. True: it is right.
  static bool done(ssize_t result, const char* call) {
    if (result >= 0) return true;
    EXPECT_TRUE(is_expected(errno)) << call << ": " << strerror(errno);
    return false;
  }

  /// Each of these returns whether all of it worked.
  bool connects() {
    Fd fd(socket(AF_INET, SOCK_STREAM, 0));
    const Address to = there(stream_port_);
    return done(fd, "socket") && done(connect(fd, to.raw(), to.size), "connect") && exchange(fd);
  }

  /// Writes and reads with the help of an epoll set.
  static bool exchange(int fd) {
    const std::string out = pattern(kBytes);
    std::string back;
    Fd set(epoll_create1(0));
    epoll_event event{EPOLLIN, {.fd = fd}};
    const bool by_epoll = done(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event), "epoll_ctl");
    if (!done(send(fd, out.data(), out.size(), MSG_NOSIGNAL), "send")) return false;
    done(shutdown(fd, SHUT_WR), "shutdown");
    for (;;) {
      if (by_epoll) {
        EXPECT_EQ(epoll_wait(set, &event, 1, 20000), 1);
      } else {
        EXPECT_NE(wait_for(fd, POLLIN), 0);
      }
      char text[4096];
      const ssize_t n = recv(fd, text, sizeof text, MSG_DONTWAIT);
      if (n < 0 && errno == EAGAIN) continue;
      if (!done(n, "recv") || n == 0) break;
      back.append(text, static_cast<size_t>(n));
    }
    EXPECT_TRUE(out.starts_with(back));
    return back == out;
  }

  bool accepts() {
    Fd l(socket(AF_INET, SOCK_STREAM, 0));
    const Address at = here();
    if (!done(l, "socket") || !done(bind(l, at.raw(), at.size), "bind") || !done(listen(l, 8), "listen"))
      return false;
    client_.say(port_of(l));
    Fd c;
    while (c < 0) {
      if (wait_for(l, POLLIN, refusing_ ? kHandshakeWait : 20000) == 0) {
        if (refusing_) {
          stop_refusing();
          continue;
        }
        ADD_FAILURE() << "no connection comes";
        return false;
      }
      c = Fd(accept(l, nullptr, nullptr));
      if (c < 0 && !done(c, "accept")) continue;  // it stays in the queue
    }
    char text[4096];
    bool whole = true;
    for (ssize_t n = 0; (n = recv(c, text, sizeof text, 0)) != 0;)
      if (!done(n, "recv") || !done(send(c, text, static_cast<size_t>(n), MSG_NOSIGNAL), "send")) {
        whole = false;
        break;
      }
    c.reset();
    const std::string seen = client_.word();
    EXPECT_NE(seen, "wrong");
    return whole && seen == "whole";
  }

  bool sends_datagram() {
    Fd u(socket(AF_INET, SOCK_DGRAM, 0));
    const Address at = here(), to = there(datagram_port_);
    char text[64] = "datagram";
    return done(u, "socket") && done(bind(u, at.raw(), at.size), "bind") &&
           done(sendto(u, text, sizeof text, 0, to.raw(), to.size), "sendto") &&
           wait_for(u, POLLIN, refusing_ ? kDatagramWait : 20000) != 0 &&
           recv(u, text, sizeof text, 0) == sizeof text;
  }

  bool all() {
    const bool c = connects(), a = accepts(), d = sends_datagram();
    return c && a && d;
  }

  /// Of one all() where none is refused; 0: none can be.
  uint64_t allocations() {
    refuse(0, 0);
    EXPECT_TRUE(all());
    return stop_refusing();
  }

  Far echo_{"echo"}, client_{"client"};
  uint16_t stream_port_ = 0, datagram_port_ = 0;
  Refusal* const refusal_ = map_refusal();
  bool refusing_ = false;
};

TEST_F(RefusedMemory, OneAllocationAlone) {
  ASSERT_TRUE(all());
  const uint64_t most = allocations();
  for (uint64_t n = 0; n < most && !HasFailure(); ++n) {
    SCOPED_TRACE(n);
    refuse(n, 1);
    all();
    stop_refusing();
    EXPECT_TRUE(all());
  }
  if (refusal_ != nullptr) {
    EXPECT_GT(most, 10u);
  }
}

TEST_F(RefusedMemory, FromTheFirstCall) {
  uint64_t most = 1;
  for (uint64_t n = 0; n < most && !HasFailure(); ++n) {
    SCOPED_TRACE(n);
    const pid_t child = in_child([&] {
      refuse(n, 1);
      all();
      stop_refusing();
      EXPECT_TRUE(all());
    });
    EXPECT_EQ(status_of(child), 0);
    if (refusal_ != nullptr) most = std::max(most, refusal_->seen.load());
  }
}

TEST_F(RefusedMemory, AllForAWhile) {
  ASSERT_TRUE(all());
  for (uint64_t n = 0, most = allocations(); n < most && !HasFailure(); n += kStride) {
    SCOPED_TRACE(n);
    refuse(n, kForLong);
    all();
    stop_refusing();
    EXPECT_TRUE(all());
  }
}

}  // namespace
}  // namespace posix_test
