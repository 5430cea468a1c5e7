// How streams end: what can be read and written behind shutdown() and close() of either side.
#include <poll.h>

#include "posix/echo.h"

using namespace posix_test;  // NOLINT: a test program

namespace {

std::string outcome(ssize_t n) { return n < 0 ? strerrorname_np(errno) : std::to_string(n); }

// Accepts, then does as near says; "read" tells how a read ended.
FAR(ending) {
  Fd listener = listen_at(here());
  near.say(port_of(listener));
  Fd fd = accept_one(listener);
  for (std::string order = near.word(); order != "over"; order = near.word()) {
    if (order.rfind("send ", 0) == 0) {
      near.say(outcome(send(fd, order.data() + 5, order.size() - 5, MSG_NOSIGNAL)));
    } else if (order == "read") {
      char bytes[100];
      const ssize_t n = recv(fd, bytes, sizeof bytes, 0);
      near.say(n > 0 ? std::string(bytes, static_cast<size_t>(n)) : outcome(n));
    } else {
      fd.reset();
      near.say("closed");
    }
  }
}

struct Ending : Far {
  Ending() : Far("ending"), fd(connect_to(there(static_cast<uint16_t>(number())))) {
    for (int i = 0; i < kProof; ++i) {  // for run.py's proof
      write_all(fd, ".");
      EXPECT_EQ(told("read"), ".");
    }
  }
  std::string told(const std::string& order) {
    say(order);
    return word();
  }
  std::string read(size_t most = 100) {
    std::string bytes(most, '\0');
    const ssize_t n = recv(fd, bytes.data(), most, 0);
    return n > 0 ? bytes.substr(0, static_cast<size_t>(n)) : outcome(n);
  }
  short ready() {
    pollfd p{fd, POLLIN | POLLOUT | POLLRDHUP, 0};
    poll(&p, 1, 0);
    return p.revents;
  }
  void over() {
    say("over");
    finish();
  }
  Fd fd;
};

TEST(Endings, ReadingGoesOnBehindShutdown) {
  Ending far;
  EXPECT_EQ(far.told("send queued"), "6");
  EXPECT_EQ(wait_for(far.fd, POLLIN), POLLIN);
  ASSERT_EQ(shutdown(far.fd, SHUT_RD), 0);
  EXPECT_EQ(far.read(3), "que");
  EXPECT_EQ(far.told("send more"), "4");
  std::string rest = far.read();
  while (rest != "uedmore" && rest.size() < 7) {
    const std::string part = far.read();
    if (part != "0") rest += part;
  }
  EXPECT_EQ(rest, "uedmore");
  EXPECT_EQ(far.read(), "0");
  write_all(far.fd, "answer");
  EXPECT_EQ(far.told("read"), "answer");
  EXPECT_EQ(far.told("send last"), "4");
  EXPECT_EQ(wait_for(far.fd, POLLIN | POLLRDHUP), POLLIN | POLLRDHUP);
  while ((rest = far.read(1)) == "0") {
  }
  ASSERT_EQ(shutdown(far.fd, SHUT_RDWR), 0);
  EXPECT_EQ(rest + far.read(), "last");
  EXPECT_EQ(far.read(), "0");
  EXPECT_EQ(far.told("read"), "0");
  far.over();
}

TEST(Endings, TheFirstWriteBehindThePeersCloseSucceeds) {
  Ending far;
  EXPECT_EQ(far.told("send farewell"), "8");
  EXPECT_EQ(far.told("close"), "closed");
  EXPECT_EQ(wait_for(far.fd, POLLRDHUP), POLLRDHUP);
  EXPECT_EQ(far.ready(), POLLIN | POLLOUT | POLLRDHUP);
  EXPECT_EQ(far.read(), "farewell");
  EXPECT_EQ(far.read(), "0");
  EXPECT_EQ(send(far.fd, "", 0, MSG_NOSIGNAL), 0);
  EXPECT_EQ(far.ready(), POLLIN | POLLOUT | POLLRDHUP);
  EXPECT_EQ(outcome(send(far.fd, "nobody", 6, MSG_NOSIGNAL)), "6");
  EXPECT_EQ(wait_for_end(far.fd, 0), POLLHUP | POLLERR);  // the answer is a reset
  EXPECT_EQ(outcome(send(far.fd, "nobody", 6, MSG_NOSIGNAL)), "EPIPE");
  EXPECT_EQ(far.read(), "0");
  EXPECT_EQ(outcome(send(far.fd, "nobody", 6, MSG_NOSIGNAL)), "EPIPE");
  far.over();
}

TEST(Endings, CloseWithUnreadBytesIsAReset) {
  Ending far;
  EXPECT_EQ(far.told("send unread"), "6");
  EXPECT_EQ(wait_for(far.fd, POLLIN), POLLIN);
  write_all(far.fd, "last words");
  EXPECT_EQ(far.told("read"), "last words");
  far.fd.reset();
  EXPECT_EQ(far.told("read"), "ECONNRESET");
  EXPECT_EQ(far.told("send x"), "EPIPE");
  far.over();
}

TEST(Endings, CallsOfNoBytes) {
  Ending far;
  char none;
  EXPECT_EQ(outcome(recv(far.fd, &none, 0, MSG_DONTWAIT)), "EAGAIN");
  EXPECT_EQ(outcome(send(far.fd, &none, 0, 0)), "0");
  ASSERT_EQ(shutdown(far.fd, SHUT_WR), 0);
  EXPECT_EQ(outcome(send(far.fd, &none, 0, MSG_NOSIGNAL)), "EPIPE");
  EXPECT_EQ(far.told("send bytes"), "5");
  EXPECT_EQ(wait_for(far.fd, POLLIN), POLLIN);
  EXPECT_EQ(outcome(recv(far.fd, &none, 0, MSG_DONTWAIT)), "0");
  EXPECT_EQ(far.read(), "bytes");
  EXPECT_EQ(far.told("close"), "closed");
  EXPECT_EQ(far.read(), "0");
  EXPECT_EQ(outcome(recv(far.fd, &none, 0, MSG_DONTWAIT)), "0");
  far.over();
}

}  // namespace
