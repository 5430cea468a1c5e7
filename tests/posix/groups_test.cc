// Several sockets for one address: SO_REUSEPORT groups of processes, and multicast groups with their source
// filters.
#include <linux/filter.h>
#include <linux/in6.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/fsuid.h>
#include <sys/wait.h>

#include <array>
#include <filesystem>
#include <map>
#include <thread>

#include "posix/echo.h"

using namespace posix_test;  // NOLINT: a test program

namespace {

constexpr int kCalls = 40;  // all to one of two members: one chance in 2^39

/// The queue of a member that has ended comes free a moment after: until then a new one may find none.
Fd member(int type, const Address& at, int option = SO_REUSEPORT) {
  for (int tries = 0;; ++tries) {
    Fd fd(socket(at.family(), type, 0));
    set_option(fd, SOL_SOCKET, option, 1);
    const bool there = bind(fd, at.raw(), at.size) == 0 && (type != SOCK_STREAM || listen(fd, 64) == 0);
    if (!there && errno == EPROTONOSUPPORT && tries < 100) {
      usleep(20'000);
      continue;
    }
    EXPECT_TRUE(there) << strerror(errno);
    return fd;
  }
}

/// All threads of this process.
void pin_to(int cpu) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(cpu, &one);
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task"))
    EXPECT_EQ(sched_setaffinity(std::stoi(task.path().filename()), sizeof one, &one), 0);
}

// Asks who is there, `count` times, each time from another port, and on that CPU; says the answers.
FAR(caller) {
  const bool stream = args[0] == "tcp";
  const int family = std::stoi(args[2]);
  if (const int cpu = std::stoi(args[1]); cpu >= 0) pin_to(cpu);
  for (std::string order; (order = near.word()) != "end";) {
    const Address to = there(static_cast<uint16_t>(std::stoi(order)), family);
    std::string answers;
    for (int i = 0; i < kCalls; ++i) {
      Fd fd = stream ? connect_to(to) : udp_socket(family);
      if (!stream) {
        connect(fd, to.raw(), to.size);
        send(fd, "?", 1, 0);
      }
      char who = '!';
      if (wait_for(fd, POLLIN, 5000) != 0 && recv(fd, &who, 1, 0) != 1) who = '-';
      answers += who;
    }
    near.say(answers);
  }
}

/// Whatever comes, the member that joined second has it.
void attach_program(int fd) {
  sock_filter code[] = {{BPF_RET | BPF_K, 0, 0, 1}};
  const sock_fprog program{1, code};
  EXPECT_EQ(setsockopt(fd, SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, &program, sizeof program), 0);
}

/// To whoever has asked a member.
void answer(int fd, int type, char name) {
  if (type == SOCK_STREAM) {
    Fd caller(wait_for(fd, POLLIN, 0) != 0 ? accept4(fd, nullptr, nullptr, 0) : -1);
    if (caller >= 0) write_all(caller, &name, 1);
    return;
  }
  Address from;
  char byte;
  if (recvfrom(fd, &byte, 1, MSG_DONTWAIT, from.raw(), &from.size) == 1)
    sendto(fd, &name, 1, 0, from.raw(), from.size);
}

/// A process that is a member of the group and gives its name to whoever asks, until it is told to leave.
class Member {
 public:
  Member(char name, int type, const Address& at, int option = SO_REUSEPORT) {
    int ends[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    Fd theirs(ends[1]);
    ours_ = Fd(ends[0]);
    pid_ = in_child([&] {
      ours_.reset();
      Fd fd = member(type, at, option);
      write_all(theirs, "!", 1);
      for (pollfd p[] = {{fd, POLLIN, 0}, {theirs, POLLIN, 0}}; poll(p, 2, -1) > 0;) {
        if (p[1].revents != 0) {
          if (read_exactly(theirs, 1).empty()) return;
          attach_program(fd);
          write_all(theirs, "!", 1);
        }
        answer(fd, type, name);
      }
    });
    theirs.reset();
    EXPECT_EQ(read_exactly(ours_, 1), "!");
  }
  ~Member() {
    if (pid_ > 0) leave();
  }
  /// Ends as programs do.
  void leave() {
    shutdown(ours_, SHUT_RDWR);  // processes that came later have it too
    EXPECT_EQ(status_of(std::exchange(pid_, -1)), 0);
  }
  void give_program() {
    write_all(ours_, "p", 1);
    EXPECT_EQ(read_exactly(ours_, 1), "!");
  }
  void die() {
    kill(pid_, SIGKILL);
    status_of(std::exchange(pid_, -1));
  }

 private:
  pid_t pid_ = -1;
  Fd ours_;
};

/// A port that nobody has on this host. By TCP, whatever it is for: a datagram socket that is bound has a
/// queue.
uint16_t free_port() {
  Fd fd = tcp_socket();
  const Address at = here();
  EXPECT_EQ(bind(fd, at.raw(), at.size), 0);
  return port_of(fd);
}

void expect_refused(int type, const Address& at, bool with_option) {
  Fd fd(socket(at.family(), type, 0));
  if (with_option) set_option(fd, SOL_SOCKET, SO_REUSEPORT, 1);
  EXPECT_EQ(bind(fd, at.raw(), at.size), -1);
  EXPECT_EQ(errno, EADDRINUSE);
}

using Answers = std::map<char, int>;
class Caller {
 public:
  explicit Caller(int type, int family = AF_INET, int cpu = -1)
      : at(here(free_port(), family)),
        far_("caller", {type == SOCK_STREAM ? "tcp" : "udp", std::to_string(cpu), std::to_string(family)}) {}
  ~Caller() {
    far_.say("end");
    far_.finish();
  }
  Answers operator()() {
    far_.say(at.port());
    Answers answers;
    for (char who : far_.word()) ++answers[who];
    return answers;
  }
  const Address at;

 private:
  Far far_;
};

void group_of_processes(int type, int family = AF_INET) {
  Caller call(type, family);
  const Address& at = call.at;
  Member a('a', type, at);
  EXPECT_EQ(call(), (Answers{{'a', kCalls}}));
  {
    Member b('b', type, at);
    Answers both = call();
    EXPECT_GT(both['a'], 0);
    EXPECT_GT(both['b'], 0);
    EXPECT_EQ(both['a'] + both['b'], kCalls);
    expect_refused(type, at, false);
    EXPECT_EQ(status_of(in_child([&] {
                setfsuid(65534);  // whose the socket will be; no capability goes
                expect_refused(type, at, true);
              })),
              0);
  }
  EXPECT_EQ(call(), (Answers{{'a', kCalls}}));  // b has left
  Member c('c', type, at);
  a.die();
  EXPECT_EQ(call(), (Answers{{'c', kCalls}}));
}

TEST(Groups, OfProcessesThatListen) { group_of_processes(SOCK_STREAM); }
TEST(Groups, OfProcessesWithDatagrams) { group_of_processes(SOCK_DGRAM); }
TEST(Groups, OfProcessesThatListenOverIpv6) { group_of_processes(SOCK_STREAM, AF_INET6); }
TEST(Groups, OfProcessesWithDatagramsOverIpv6) { group_of_processes(SOCK_DGRAM, AF_INET6); }

// SO_INCOMING_CPU: of a group's members those that name the CPU which brings what comes (Linux 6.2), whether
// they were told before they had a name or after. Both ends are on that CPU: the sender's is the kernel's.
void group_by_cpu(int type) {
  const int cpu = sched_getcpu(), other = cpu + 1;
  pin_to(cpu);
  Caller call(type, AF_INET, cpu);
  std::array<Fd, 2> members;
  for (Fd& fd : members) {
    fd = Fd(socket(call.at.family(), type, 0));
    set_option(fd, SOL_SOCKET, SO_REUSEPORT, 1);
    if (&fd == &members[0]) set_option(fd, SOL_SOCKET, SO_INCOMING_CPU, cpu);
    ASSERT_EQ(bind(fd, call.at.raw(), call.at.size), 0);
    if (type == SOCK_STREAM) {
      ASSERT_EQ(listen(fd, 64), 0);
    }
  }
  int stop[2];
  ASSERT_EQ(pipe(stop), 0);
  std::thread server([&] {
    for (pollfd p[] = {{members[0], POLLIN, 0}, {members[1], POLLIN, 0}, {stop[0], POLLIN, 0}};
         poll(p, 3, -1) > 0 && p[2].revents == 0;) {
      if (p[0].revents != 0) answer(members[0], type, 'a');
      if (p[1].revents != 0) answer(members[1], type, 'b');
    }
  });
  EXPECT_EQ(call(), (Answers{{'a', kCalls}}));
  set_option(members[0], SOL_SOCKET, SO_INCOMING_CPU, other);
  set_option(members[1], SOL_SOCKET, SO_INCOMING_CPU, cpu);
  EXPECT_EQ(call(), (Answers{{'b', kCalls}}));
  set_option(members[0], SOL_SOCKET, SO_INCOMING_CPU, cpu);
  Answers both = call();
  EXPECT_GT(both['a'], 0);
  EXPECT_GT(both['b'], 0);
  EXPECT_EQ(both['a'] + both['b'], kCalls);
  close(stop[1]);
  server.join();
  close(stop[0]);
}

TEST(Groups, OfListenersThatNameCpus) { group_by_cpu(SOCK_STREAM); }
TEST(Groups, OfDatagramSocketsThatNameCpus) { group_by_cpu(SOCK_DGRAM); }

// A program of the kernel's rules members of other processes, those that come later as well.
void group_with_program(int type, int family = AF_INET) {
  Caller call(type, family);
  Member a('a', type, call.at);
  Answers all = call();
  EXPECT_EQ(all, (Answers{{'a', kCalls}}));
  Member b('b', type, call.at);
  all = call();
  EXPECT_GT(all['a'], 0);
  EXPECT_GT(all['b'], 0);
  a.give_program();
  EXPECT_EQ(call(), (Answers{{'b', kCalls}}));
  if (getenv("ACCEL_REQUIRE") == nullptr) {  // which would refuse it
    Member c('c', type, call.at);
    EXPECT_EQ(call(), (Answers{{'b', kCalls}}));
  }
}

TEST(Groups, OfProcessesThatListenWithAProgram) { group_with_program(SOCK_STREAM); }
TEST(Groups, OfProcessesWithDatagramsAndAProgram) { group_with_program(SOCK_DGRAM); }
TEST(Groups, OfProcessesThatListenOverIpv6WithAProgram) { group_with_program(SOCK_STREAM, AF_INET6); }
TEST(Groups, OfProcessesWithDatagramsOverIpv6AndAProgram) { group_with_program(SOCK_DGRAM, AF_INET6); }

// SO_REUSEADDR alone: the last that was bound has what comes, until it is closed.
void last_that_was_bound(int family) {
  Caller call(SOCK_DGRAM, family);
  Member a('a', SOCK_DGRAM, call.at, SO_REUSEADDR);
  EXPECT_EQ(call(), (Answers{{'a', kCalls}}));
  {
    Member b('b', SOCK_DGRAM, call.at, SO_REUSEADDR);
    EXPECT_EQ(call(), (Answers{{'b', kCalls}}));
  }
  EXPECT_EQ(call(), (Answers{{'a', kCalls}}));
  {
    Member c('c', SOCK_DGRAM, call.at, SO_REUSEADDR);
    EXPECT_EQ(call(), (Answers{{'c', kCalls}}));
    c.die();
  }
  EXPECT_EQ(call(), (Answers{{'a', kCalls}}));
  Member d('d', SOCK_DGRAM, any(call.at.port(), family), SO_REUSEADDR);  // a's address is named
  EXPECT_EQ(call(), (Answers{{'a', kCalls}}));
  a.leave();
  EXPECT_EQ(call(), (Answers{{'d', kCalls}}));
}

TEST(Sharing, TheLastProcessThatWasBoundHasTheDatagrams) { last_that_was_bound(AF_INET); }
TEST(Sharing, TheLastProcessThatWasBoundHasTheDatagramsOverIpv6) { last_that_was_bound(AF_INET6); }

// What has come for a process is its own, whoever binds then.
TEST(Sharing, WhatWasQueuedStays) {
  Far far("caller", {"udp", "-1", std::to_string(AF_INET)});
  const Address at = here(free_port());
  Fd first = member(SOCK_DGRAM, at, SO_REUSEADDR);
  EXPECT_EQ(wait_for(first, POLLIN, 0), 0);
  far.say(at.port());  // each waits for an answer
  char byte;
  Address from;
  for (int i = 0; i < kCalls / 2; ++i) {
    ASSERT_EQ(recvfrom(first, &byte, 1, 0, from.raw(), &from.size), 1);
    sendto(first, "a", 1, 0, from.raw(), from.size);
  }
  EXPECT_EQ(wait_for(first, POLLIN), POLLIN);  // one is queued
  Member b('b', SOCK_DGRAM, at, SO_REUSEADDR);
  ASSERT_EQ(recvfrom(first, &byte, 1, 0, from.raw(), &from.size), 1);
  sendto(first, "a", 1, 0, from.raw(), from.size);
  EXPECT_EQ(far.word(), std::string(kCalls / 2 + 1, 'a') + std::string(kCalls / 2 - 1, 'b'));
  EXPECT_EQ(wait_for(first, POLLIN, 0), 0);
  b.leave();
  far.say(at.port());
  for (int i = 0; i < kCalls; ++i) {
    ASSERT_EQ(recvfrom(first, &byte, 1, 0, from.raw(), &from.size), 1);
    sendto(first, "a", 1, 0, from.raw(), from.size);
  }
  EXPECT_EQ(far.word(), std::string(kCalls, 'a'));
  far.say("end");
  far.finish();
}

// ---- multicast ----

// Sends what it is told to the group, then a datagram to near itself, and again.
FAR(announcer) {
  const int family = std::stoi(args[0]);
  const Address group = address(args[1], static_cast<uint16_t>(std::stoi(args[2])));
  const Address to = there(group.port(), family);
  Fd fd = udp_at(here(0, family));
  near.say("ready");
  for (std::string text; (text = near.word()) != "end";) {
    sendto(fd, text.data(), text.size(), 0, group.raw(), group.size);
    for (int i = 0; i < 10; ++i) sendto(fd, ".", 1, 0, to.raw(), to.size);
    near.say("sent");
  }
}

class Listener {
 public:
  explicit Listener(int in)
      : family(in),
        level(family == AF_INET ? IPPROTO_IP : IPPROTO_IPV6),
        fd(udp_at(any(0, family))),
        group(address(family == AF_INET ? "239.1.2.3" : "ff12::77", port_of(fd))),
        far("announcer", {std::to_string(family), family == AF_INET ? "239.1.2.3" : "ff12::77",
                          std::to_string(group.port())}) {
    far.word();
  }
  ~Listener() {
    far.say("end");
    far.finish();
  }
  /// Whether the group's datagram came; those to this host alone always do.
  bool hears() {
    far.say("g");
    EXPECT_EQ(far.word(), "sent");
    bool heard = false;
    char byte = 0;
    for (int alone = 0; alone < 10;) {
      if (wait_for(fd, POLLIN, 5000) == 0) {
        ADD_FAILURE() << "only " << alone << " came";
        return heard;
      }
      EXPECT_EQ(recv(fd, &byte, 1, 0), 1);
      byte == 'g' ? void(heard = true) : void(++alone);
    }
    while (recv(fd, &byte, 1, MSG_DONTWAIT) == 1) heard |= byte == 'g';  // the kernel's may come last
    return heard;
  }
  int change(int name) {
    group_req request{};
    request.gr_interface = device();
    request.gr_group = group.storage;
    return setsockopt(fd, level, name, &request, sizeof(request)) == 0 ? 0 : errno;
  }
  int change(int name, const Address& source) {
    group_source_req request{};
    request.gsr_interface = device();
    request.gsr_group = group.storage;
    request.gsr_source = source.storage;
    return setsockopt(fd, level, name, &request, sizeof(request)) == 0 ? 0 : errno;
  }
  static unsigned device() {
    const unsigned first = if_nametoindex("veth1");
    return first != 0 ? first : if_nametoindex("veth2");
  }
  const int family, level;
  Fd fd;
  const Address group;
  Far far;
};

void filter_sources(int family) {
  Listener l(family);
  const Address far = there(0, family), own = here(0, family);
  set_option(l.fd, l.level, family == AF_INET ? IP_MULTICAST_ALL : 29,
             0);  // only what this socket has joined
  EXPECT_FALSE(l.hears());
  EXPECT_EQ(l.change(MCAST_JOIN_GROUP), 0);
  EXPECT_TRUE(l.hears());
  EXPECT_EQ(l.change(MCAST_JOIN_GROUP), EADDRINUSE);
  EXPECT_EQ(l.change(MCAST_BLOCK_SOURCE, far), 0);
  EXPECT_FALSE(l.hears());
  EXPECT_EQ(l.change(MCAST_UNBLOCK_SOURCE, far), 0);
  EXPECT_TRUE(l.hears());
  EXPECT_EQ(l.change(MCAST_UNBLOCK_SOURCE, own), EADDRNOTAVAIL);
  EXPECT_EQ(l.change(MCAST_JOIN_SOURCE_GROUP, far), EINVAL);  // it takes any source
  EXPECT_EQ(l.change(MCAST_LEAVE_GROUP), 0);
  EXPECT_FALSE(l.hears());
  EXPECT_EQ(l.change(MCAST_LEAVE_GROUP), EADDRNOTAVAIL);
  EXPECT_EQ(l.change(MCAST_JOIN_SOURCE_GROUP, own), 0);
  EXPECT_FALSE(l.hears());
  EXPECT_EQ(l.change(MCAST_JOIN_SOURCE_GROUP, far), 0);
  EXPECT_TRUE(l.hears());
  EXPECT_EQ(l.change(MCAST_LEAVE_SOURCE_GROUP, far), 0);
  EXPECT_FALSE(l.hears());
}

// Each process that has joined has its copy; what is sent to this host alone the last that was bound.
TEST(Multicast, EveryProcessHasItsCopy) {
  Caller call(SOCK_DGRAM);
  const Address group = address("239.1.2.3", call.at.port());
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  Fd ours(ends[0]), theirs(ends[1]);
  const auto joins = [&](char name) {
    const pid_t child = in_child([&] {
      Fd fd = member(SOCK_DGRAM, any(group.port()), SO_REUSEADDR);
      group_req request{};
      request.gr_interface = Listener::device();
      request.gr_group = group.storage;
      EXPECT_EQ(setsockopt(fd, IPPROTO_IP, MCAST_JOIN_GROUP, &request, sizeof request), 0);
      write_all(theirs, &name, 1);
      int copies = 0;
      Address from;
      for (char byte = 0; byte != 'e';) {
        if (recvfrom(fd, &byte, 1, 0, from.raw(), &from.size) != 1) break;
        copies += byte == 'g';
        if (byte == '?') sendto(fd, &name, 1, 0, from.raw(), from.size);
      }
      EXPECT_EQ(copies, 3);
    });
    EXPECT_EQ(read_exactly(ours, 1), std::string(1, name));
    return child;
  };
  const pid_t a = joins('a');
  EXPECT_EQ(call(), (Answers{{'a', kCalls}}));
  const pid_t b = joins('b');
  EXPECT_EQ(call(), (Answers{{'b', kCalls}}));
  Far far("announcer", {std::to_string(AF_INET), "239.1.2.3", std::to_string(group.port())});
  EXPECT_EQ(far.word(), "ready");
  for (const char* text : {"g", "g", "g", "e"}) {
    far.say(text);
    EXPECT_EQ(far.word(), "sent");
  }
  EXPECT_EQ(status_of(a), 0);
  EXPECT_EQ(status_of(b), 0);
  far.say("end");
  far.finish();
}

TEST(Multicast, SourcesAreFilteredOverIpv6) { filter_sources(AF_INET6); }  // IPv4: multicast_test.cc

}  // namespace
