// An event loop that has several sockets to serve: what it sends by one of them arrives whatever it does
// next. The far end runs the loop; run.py proves that its frames waited for one another (counter
// passes_kept).
#include <linux/sockios.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>

#include <array>

#include "posix/far.h"

using namespace posix_test;  // NOLINT: a test program

namespace {

constexpr char kAnswer[] = "answer";
constexpr size_t kAnswerSize = sizeof kAnswer - 1;

struct Loop {
  Fd listener = listen_at(here());
  Fd set{epoll_create1(EPOLL_CLOEXEC)};
  std::vector<Fd> sockets;

  void accept_all(size_t count) {
    while (sockets.size() < count) {
      sockets.push_back(accept_one(listener));
      epoll_event event{};
      event.events = EPOLLIN;
      event.data.fd = sockets.back();
      epoll_ctl(set, EPOLL_CTL_ADD, sockets.back(), &event);
    }
  }
  /// A turn in which all of them are to be read.
  void begin_turn() const {
    std::array<epoll_event, 16> events{};
    while (epoll_wait(set, events.data(), static_cast<int>(events.size()), -1) <
           static_cast<int>(sockets.size())) {
    }
  }
  void answer_first() const { write_all(sockets[0], kAnswer, kAnswerSize); }
};

/// What the program does in the turn in which it has answered the first of two sockets.
void end_first(Loop& loop, const std::string& how, Control& near) {
  if (how == "reset") {
    const linger none{1, 0};
    setsockopt(loop.sockets[0], SOL_SOCKET, SO_LINGER, &none, sizeof none);
  }
  if (how == "reset" || how == "unread" || how == "close") {
    if (how == "close") (void)read_exactly(loop.sockets[0], 1);
    loop.sockets[0].reset();
  }
  if (how == "shutdown") shutdown(loop.sockets[0], SHUT_WR);
  if (how == "queue") {
    int unsent = -1;
    ioctl(loop.sockets[0], SIOCOUTQNSD, &unsent);
    near.say(unsent);
  }
  if (how != "fork") return;
  EXPECT_EQ(status_of(in_child([&] { near.word(); })), 0);
}

// "first HOW": answers the first of two sockets of a turn, then HOW; nothing more until told.
FAR(first) {
  Loop loop;
  near.say(port_of(loop.listener));
  loop.accept_all(2);
  loop.begin_turn();
  loop.answer_first();
  end_first(loop, args[0], near);
  if (args[0] != "fork") near.word();
}

// Asks a loop of the near end, and tells what each socket got.
FAR(asks) {
  const auto port = static_cast<uint16_t>(near.number());
  const Fd first = connect_to(there(port)), second = connect_to(there(port));
  write_all(first, "?", 1);
  write_all(second, "?", 1);
  near.say(read_to_end(first) + "," + read_to_end(second));
}

// Sends back what comes, `args[0]` sockets, until each has ended.
FAR(echo) {
  Loop loop;
  near.say(port_of(loop.listener));
  loop.accept_all(std::stoul(args[0]));
  size_t open = loop.sockets.size();
  std::array<char, 4096> bytes;
  while (open > 0) {
    std::array<epoll_event, 16> events{};
    const int n = epoll_wait(loop.set, events.data(), static_cast<int>(events.size()), -1);
    for (int i = 0; i < n; ++i) {
      const int fd = events[static_cast<size_t>(i)].data.fd;
      const ssize_t got = recv(fd, bytes.data(), bytes.size(), 0);
      if (got > 0) write_all(fd, bytes.data(), static_cast<size_t>(got));
      if (got > 0) continue;
      epoll_ctl(loop.set, EPOLL_CTL_DEL, fd, nullptr);
      shutdown(fd, SHUT_WR);
      --open;
    }
  }
}

struct Asked {
  Fd first, second;
};

/// Connects two sockets and has both to be read.
Asked ask(Control& far) {
  const auto port = static_cast<uint16_t>(far.number());
  Asked asked{connect_to(there(port)), connect_to(there(port))};
  write_all(asked.first, "?", 1);
  write_all(asked.second, "?", 1);
  return asked;
}

// The loop computes, or waits for something else, as long as it likes.
TEST(Turns, AnswerOfALoopThatDoesSomethingElse) {
  for (const char* what : {"stop", "fork"}) {
    Far far("first", {what});
    const Asked asked = ask(far);
    EXPECT_EQ(read_exactly(asked.first, kAnswerSize), kAnswer) << what;
    far.say("end");
    far.finish();
  }
}

TEST(Turns, AnswerBeforeTheEnd) {
  for (const char* how : {"close", "shutdown"}) {
    Far far("first", {how});
    const Asked asked = ask(far);
    EXPECT_EQ(read_to_end(asked.first), kAnswer) << how;
    far.say("end");
    far.finish();
  }
}

TEST(Turns, AnswerOfAProgramThatExits) {
  Far far("asks");
  const pid_t child = in_child([&] {
    Loop loop;
    far.say(port_of(loop.listener));
    loop.accept_all(2);
    loop.begin_turn();
    for (const Fd& fd : loop.sockets) (void)read_exactly(fd, 1);
    loop.answer_first();
  });
  EXPECT_EQ(far.word(), std::string(kAnswer) + ",");
  EXPECT_EQ(status_of(child), 0);
  far.finish();
}

// Data goes before the reset that follows, as where it left at once.
TEST(Turns, AnswerBeforeAReset) {
  for (const char* how : {"reset", "unread"}) {
    Far far("first", {how});
    const Asked asked = ask(far);
    EXPECT_EQ(read_exactly(asked.first, kAnswerSize), kAnswer) << how;
    char byte = 0;
    EXPECT_EQ(recv(asked.first, &byte, 1, 0), -1) << how;
    EXPECT_EQ(errno, ECONNRESET) << how;
    far.say("end");
    far.finish();
  }
}

// What a program asks of the queue is what it is on the kernel.
TEST(Turns, NothingIsSaidToBeUnsent) {
  Far far("first", {"queue"});
  const Asked asked = ask(far);
  EXPECT_EQ(far.number(), 0);
  far.say("end");
  far.finish();
}

TEST(Turns, Echo) {
  constexpr size_t kSockets = 8, kRounds = 300;
  Far far("echo", {std::to_string(kSockets)});
  const auto port = static_cast<uint16_t>(far.number());
  std::vector<Fd> sockets;
  while (sockets.size() < kSockets) sockets.push_back(connect_to(there(port)));
  for (uint32_t round = 0; round < kRounds; ++round) {
    for (uint32_t i = 0; i < kSockets; ++i) write_all(sockets[i], pattern(100 + 37 * i, round));
    for (uint32_t i = 0; i < kSockets; ++i)
      ASSERT_EQ(read_exactly(sockets[i], 100 + 37 * i), pattern(100 + 37 * i, round)) << round << ' ' << i;
  }
  for (const Fd& fd : sockets) shutdown(fd, SHUT_WR);
  for (const Fd& fd : sockets) EXPECT_EQ(read_to_end(fd), "");
  far.finish();
}

}  // namespace
