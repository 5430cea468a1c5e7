// Listeners and bound UDP sockets that come by SCM_RIGHTS, to a process that finds a queue of its own: what
// is accelerated here is by it, for whoever passes such a socket leaves it to the kernel.
#include <poll.h>
#include <signal.h>

#include "posix/callers.h"

using namespace posix_test;  // NOLINT: a test program

namespace {

constexpr int kCalls = 20;  // with one process on one of two queues half of them are the kernel's

/// The message's control is as long as they take.
void put_descriptors(msghdr& message, const int* fds, size_t count) {
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(count * sizeof *fds);
  memcpy(CMSG_DATA(header), fds, count * sizeof *fds);
}

int descriptor_in(msghdr& message, size_t index) {
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header == nullptr || header->cmsg_len < CMSG_LEN((index + 1) * sizeof(int))) return -1;
  int fd;
  memcpy(&fd, CMSG_DATA(header) + index * sizeof fd, sizeof fd);
  return fd;
}

// A peek brings descriptors, too; what there is no room for is not brought.
TEST(Received, ListenersPeekedAtAndCutOff) {
  Fd first = listen_at(here()), second = listen_at(here());
  Pair pair;
  Message<1, CMSG_SPACE(2 * sizeof(int))> out;
  const int both[] = {first, second};
  put_descriptors(out, both, 2);
  ASSERT_EQ(sendmsg(pair.mine, &out, 0), 1);
  const pid_t child = in_child([&] {
    first.reset();
    second.reset();
    Message<1, CMSG_SPACE(2 * sizeof(int))> peeked;
    ASSERT_EQ(recvmsg(pair.theirs, &peeked, MSG_PEEK), 1);
    Message<1, CMSG_LEN(sizeof(int))> cut;
    ASSERT_EQ(recvmsg(pair.theirs, &cut, 0), 1);
    EXPECT_EQ(cut.msg_flags & MSG_CTRUNC, MSG_CTRUNC);
    Fd a(descriptor_in(peeked, 0)), b(descriptor_in(peeked, 1)), again(descriptor_in(cut, 0));
    EXPECT_EQ(port_of(a), port_of(again));
    set_nonblocking(a);
    EXPECT_EQ(accept(again, nullptr, nullptr), -1);
    EXPECT_EQ(errno, EAGAIN);
    set_nonblocking(a, false);
    write_all(pair.theirs, "empty");
    for (int from : {static_cast<int>(a), static_cast<int>(again), static_cast<int>(b)}) serve(from, "child");
    a.reset();
    for (int i = 0; i < kCalls; ++i) serve(again, "child");
  });
  Callers to_first(first), to_second(second);
  first.reset();
  second.reset();
  EXPECT_EQ(read_exactly(pair.mine, 5), "empty");
  for (int i = 0; i < kCalls + 3; ++i) {
    Callers& far = i == 2 ? to_second : to_first;
    far.call();
    EXPECT_EQ(far.word(), "child");
  }
  EXPECT_EQ(status_of(child), 0);
}

// It has the number of one that was closed a moment ago, and is received by a handler.
Pair* handlers_pair = nullptr;
int handlers_listener = -1;

TEST(Received, AListenerReceivedInAHandler) {
  Fd listener = listen_at(here());
  Pair pair;
  const pid_t child = in_child([&] {
    Fd own = tcp_socket();
    const int number = own;
    listener.reset();
    own.reset();
    handlers_pair = &pair;
    signal(SIGUSR1, [](int) { handlers_listener = receive_descriptor(handlers_pair->theirs).release(); });
    raise(SIGUSR1);
    EXPECT_LE(handlers_listener, number);
    Fd got(handlers_listener);
    for (int i = 0; i < kCalls; ++i) serve(got, "child");
  });
  send_descriptor(pair.mine, listener);
  Callers far(listener);
  listener.reset();
  for (int i = 0; i < kCalls; ++i) {
    far.call();
    EXPECT_EQ(far.word(), "child");
  }
  EXPECT_EQ(status_of(child), 0);
}

// Tells a port of the other end something as often as told, each time from another port, and says what is
// answered; or just listens.
FAR(tells) {
  Fd ear = udp_at(here());
  near.say(port_of(ear));
  for (std::string order; (order = near.word()) != "end";) {
    Fd fd = order == "listen" ? std::move(ear) : udp_at(here());
    if (order != "listen") {
      const Address to = there(static_cast<uint16_t>(std::stoi(order)));
      sendto(fd, "?", 1, 0, to.raw(), to.size);
    }
    char text[16];
    const ssize_t n = wait_for(fd, POLLIN) == 0 ? -1 : recv(fd, text, sizeof(text), MSG_DONTWAIT);
    near.say(n < 0 ? strerror(errno) : std::string(text, static_cast<size_t>(n)));
  }
}

/// Serves one datagram.
void answer(int fd, const std::string& text) {
  char byte;
  Address from;
  EXPECT_EQ(wait_for(fd, POLLIN), POLLIN);
  EXPECT_EQ(recvfrom(fd, &byte, 1, 0, from.raw(), &from.size), 1);
  EXPECT_EQ(sendto(fd, text.data(), text.size(), 0, from.raw(), from.size),
            static_cast<ssize_t>(text.size()));
}

TEST(Received, ABoundDatagramSocketToAChild) {
  Fd bound = udp_at(here());
  const std::string port = std::to_string(port_of(bound));
  Pair pair;
  const pid_t child = in_child([&] {
    bound.reset();
    Fd fd = receive_descriptor(pair.theirs);
    for (int i = 0; i < kCalls; ++i) answer(fd, "child");
  });
  Far far("tells");
  far.number();
  far.say(port);
  EXPECT_EQ(wait_for(bound, POLLIN), POLLIN);  // what nobody has read goes with it
  send_descriptor(pair.mine, bound);
  bound.reset();
  EXPECT_EQ(far.word(), "child");
  for (int i = 1; i < kCalls; ++i) {
    far.say(port);
    EXPECT_EQ(far.word(), "child");
  }
  EXPECT_EQ(status_of(child), 0);
  far.say("end");
  far.finish();
}

// A helper that only sends takes nothing of what comes.
TEST(Received, ABoundDatagramSocketToAChildThatSends) {
  Fd bound = udp_at(here());
  const std::string port = std::to_string(port_of(bound));
  Far far("tells");
  Address to = there(static_cast<uint16_t>(far.number()));
  Pair pair;
  const pid_t child = in_child([&] {
    bound.reset();
    pair.mine.reset();
    Fd fd = receive_descriptor(pair.theirs);
    EXPECT_EQ(std::to_string(port_of(fd)), port);
    set_option(fd, SOL_SOCKET, SO_RCVBUF, 100000);
    EXPECT_EQ(sendto(fd, "child", 5, 0, to.raw(), to.size), 5);
    EXPECT_EQ(read_to_end(pair.theirs), "");
  });
  send_descriptor(pair.mine, bound);
  far.say("listen");
  EXPECT_EQ(far.word(), "child");
  for (int i = 0; i < kCalls; ++i) {
    far.say(port);
    answer(bound, "parent");
    EXPECT_EQ(far.word(), "parent");
  }
  pair.mine.reset();
  EXPECT_EQ(status_of(child), 0);
  far.say("end");
  far.finish();
}

}  // namespace
