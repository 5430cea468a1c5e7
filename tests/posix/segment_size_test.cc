// The size of segments: as TCP_MAXSEG says, and as it was where a connection goes on in the kernel.
#include <netinet/tcp.h>

#include "posix/echo.h"

using namespace posix_test;  // NOLINT: a test program

namespace {

int sent_size(int fd) {
  tcp_info info{};
  socklen_t length = sizeof info;
  EXPECT_EQ(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length), 0);
  return static_cast<int>(info.tcpi_snd_mss);
}

// Accepts, says the size of its segments, and again in a child that has the connection and sends on it.
FAR(child_sends) {
  Fd listener = listen_at(here(0, args[0] == "6" ? AF_INET6 : AF_INET));
  near.say(port_of(listener));
  Fd fd = accept_one(listener);
  for (int i = 0; i < kProof; ++i) write_all(fd, read_exactly(fd, 1));
  near.say(sent_size(fd));
  int told[2];
  ASSERT_EQ(pipe(told), 0);
  const pid_t child = in_child([&] {
    write_all(fd, std::string(100'000, 'x'));
    read_exactly(fd, 1);  // all has come
    const int size = sent_size(fd);
    EXPECT_EQ(write(told[1], &size, sizeof size), ssize_t{sizeof size});
  });
  int size = 0;
  ASSERT_EQ(read(told[0], &size, sizeof size), ssize_t{sizeof size});
  close(told[0]);
  close(told[1]);
  near.say(size);
  EXPECT_EQ(status_of(child), 0);
}

class HandedBack : public testing::TestWithParam<int> {};

TEST_P(HandedBack, AtBothEndsItsSegmentsAreAsLong) {
  const int family = GetParam();
  Far far("child_sends", {family == AF_INET6 ? "6" : "4"});
  Fd fd = connect_to(there(static_cast<uint16_t>(far.number()), family));
  for (int i = 0; i < kProof; ++i) exchange(fd, ".");
  const int full = family == AF_INET6 ? 1428 : 1448;  // with timestamps
  EXPECT_EQ(sent_size(fd), full);
  EXPECT_EQ(far.number(), full);
  const pid_t child = in_child([&] {
    EXPECT_EQ(read_exactly(fd, 100'000).size(), 100'000u);
    write_all(fd, "!");
    EXPECT_EQ(sent_size(fd), full);
  });
  EXPECT_EQ(far.number(), full);
  EXPECT_EQ(status_of(child), 0);
  far.finish();
}

INSTANTIATE_TEST_SUITE_P(Families, HandedBack, testing::Values(AF_INET, AF_INET6));

// Accepts once, says the size of its segments, echoes to the end.
FAR(says_size) {
  Fd listener = listen_at(here());
  near.say(port_of(listener));
  Fd fd = accept_one(listener);
  for (int i = 0; i < kProof; ++i) write_all(fd, read_exactly(fd, 1));
  near.say(sent_size(fd));
  near.say(get_option(fd, IPPROTO_TCP, TCP_MAXSEG));
  read_to_end(fd);
}

// 536 is what a socket shows on which nothing was set (TCP_MSS_DEFAULT).
TEST(MaximumSegment, TheInternetsSmallestIsAChoiceAsAnother) {
  for (const int size : {536, 537, 700}) {
    Far far("says_size");
    Fd fd = tcp_socket();
    set_option(fd, IPPROTO_TCP, TCP_MAXSEG, size);
    const Address to = there(static_cast<uint16_t>(far.number()));
    ASSERT_EQ(connect(fd, to.raw(), to.size), 0);
    for (int i = 0; i < kProof; ++i) exchange(fd, ".");
    EXPECT_EQ(sent_size(fd), size - 12);
    EXPECT_EQ(far.number(), size - 12);
    EXPECT_EQ(far.number(), size - 12);
    fd.reset();
    far.finish();
  }
}

// Connects when told to, says the size of its segments.
FAR(connects) {
  Fd fd = connect_to(there(static_cast<uint16_t>(near.number())));
  for (int i = 0; i < kProof; ++i) exchange(fd, ".");
  near.say(sent_size(fd));
  read_to_end(fd);
}

TEST(MaximumSegment, OfAListenerIsItsConnections) {
  for (const int size : {536, 700}) {
    Fd listener = tcp_socket();
    set_option(listener, IPPROTO_TCP, TCP_MAXSEG, size);
    const Address name = here();
    ASSERT_EQ(bind(listener, name.raw(), name.size), 0);
    ASSERT_EQ(listen(listener, 4), 0);
    EXPECT_EQ(get_option(listener, IPPROTO_TCP, TCP_MAXSEG), size);
    Far far("connects");
    far.say(port_of(listener));
    Fd fd = accept_one(listener);
    for (int i = 0; i < kProof; ++i) write_all(fd, read_exactly(fd, 1));
    EXPECT_EQ(far.number(), size - 12);
    EXPECT_EQ(sent_size(fd), size - 12);
    fd.reset();
    far.finish();
  }
}

}  // namespace
