// Programs that filter their own system calls (seccomp(2)): vsftpd, chronyd, sandboxed workers. The filter
// here kills for every call that the program does not make itself.
#include <arpa/inet.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <stddef.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <thread>

#include "posix/echo.h"

using namespace posix_test;  // NOLINT: a test program

namespace {

constexpr unsigned kAllowed[] = {SYS_read,
                                 SYS_write,
                                 SYS_sendto,
                                 SYS_recvfrom,
                                 SYS_sendmsg,
                                 SYS_recvmsg,
                                 SYS_close,
                                 SYS_poll,
                                 SYS_ppoll,
                                 SYS_epoll_wait,
                                 SYS_epoll_ctl,
                                 SYS_accept,
                                 SYS_accept4,
                                 SYS_epoll_pwait,
                                 SYS_exit,
                                 SYS_exit_group,
                                 SYS_shutdown,
                                 SYS_socket,
                                 SYS_connect,
                                 SYS_bind,
                                 SYS_listen,
                                 SYS_fork,
                                 SYS_clone,
                                 SYS_wait4,
                                 SYS_setsockopt,
                                 SYS_getsockopt,
                                 SYS_futex,
                                 SYS_getsockname,
                                 SYS_rt_sigreturn,
                                 SYS_brk,
                                 SYS_set_robust_list,
                                 SYS_rt_sigprocmask,
                                 SYS_madvise,
                                 SYS_munmap,
                                 SYS_mmap,
                                 SYS_mprotect};

struct Filter {
  Filter() {
    program.push_back(BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)));
    for (const unsigned number : kAllowed) {
      program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1));
      program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
    }
    program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS));
    whole = {static_cast<unsigned short>(program.size()), program.data()};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) throw std::runtime_error("PR_SET_NO_NEW_PRIVS");
  }
  void by_prctl() {
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &whole, 0, 0) != 0) throw std::runtime_error("prctl");
  }
  /// For all threads of the process.
  void by_seccomp() {
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &whole) != 0)
      throw std::runtime_error("seccomp");
  }
  std::vector<sock_filter> program;
  sock_fprog whole{};
};

/// As `exchange`, without what GoogleTest might call in between.
bool echoes(int fd, const char* text) {
  const size_t size = strlen(text);
  char back[64];
  size_t got = 0;
  if (send(fd, text, size, 0) != static_cast<ssize_t>(size)) return false;
  while (got < size) {
    const ssize_t n = recv(fd, back + got, size - got, 0);
    if (n <= 0) return false;
    got += static_cast<size_t>(n);
  }
  return memcmp(back, text, size) == 0;
}

TEST(Filter, AConnectionGoesOn) {
  ends_well_in_child([] {
    Echo far(kProof);
    Filter().by_prctl();
    if (!echoes(far.fd, "behind the filter")) _exit(1);
    far.fd.reset();
    _exit(far.seen() == "behind the filter" ? 0 : 2);
  });
}

TEST(Filter, ForAllThreads) {
  ends_well_in_child([] {
    Echo far(kProof), other(kProof);
    const int set = epoll_create1(0);
    epoll_event event{EPOLLIN, {.fd = other.fd}};
    if (epoll_ctl(set, EPOLL_CTL_ADD, other.fd, &event) != 0) _exit(3);
    std::atomic<pid_t> waiting{0};
    std::atomic<bool> ready{false};
    std::thread waits([&] {
      waiting = gettid();
      epoll_event found{};
      ready = epoll_wait(set, &found, 1, 20000) == 1 && found.data.fd == other.fd;
    });
    until_asleep(waiting);
    Filter().by_seccomp();
    if (!echoes(far.fd, "x")) _exit(1);
    if (send(other.fd, "y", 1, 0) != 1) _exit(4);
    while (!ready) poll(nullptr, 0, 1);
    char byte = 0;
    if (recv(other.fd, &byte, 1, 0) != 1 || byte != 'y') _exit(5);
    poll(nullptr, 0, 700);  // time for a thread of somebody else's to make its calls
    if (!echoes(far.fd, "later")) _exit(6);
    syscall(SYS_exit_group, 0);
  });
}

TEST(Filter, WhatIsUnsentIsSent) {
  constexpr size_t kSize = 3'000'000;
  ends_well_in_child([] {
    Echo far(kProof);
    set_nonblocking(far.fd);
    const std::string all = pattern(kSize);
    const ssize_t sent = send(far.fd, all.data(), all.size(), 0);
    if (sent <= 0) _exit(1);
    Filter().by_prctl();
    // The other end echoes all of it; nothing that was there before the filter is lost on the way.
    static char room[65536];
    size_t seen = 0;
    while (seen < static_cast<size_t>(sent)) {
      pollfd wanted{far.fd, POLLIN, 0};
      if (poll(&wanted, 1, 20000) != 1) _exit(2);
      const ssize_t n = recv(far.fd, room, sizeof room, 0);
      if (n <= 0) _exit(3);
      if (memcmp(room, all.data() + seen, static_cast<size_t>(n)) != 0) _exit(4);
      seen += static_cast<size_t>(n);
    }
    _exit(0);
  });
}

FAR(asks_a_port) {
  Fd udp = udp_at(here());
  const Address to = there(static_cast<uint16_t>(std::stoi(args.at(0))));
  char byte = 'q';
  for (int i = 0; i < kProof; ++i)
    if (sendto(udp, &byte, 1, 0, to.raw(), to.size) != 1 || recv(udp, &byte, 1, 0) != 1)
      throw std::runtime_error("no answer");
  near.word();
  if (sendto(udp, &byte, 1, 0, to.raw(), to.size) != 1 || recv(udp, &byte, 1, 0) != 1)
    throw std::runtime_error("no answer behind the filter");
}

bool answers(int udp) {
  sockaddr_in from{};
  socklen_t length = sizeof from;
  char byte = 0;
  return recvfrom(udp, &byte, 1, 0, reinterpret_cast<sockaddr*>(&from), &length) == 1 &&
         sendto(udp, &byte, 1, 0, reinterpret_cast<sockaddr*>(&from), length) == 1;
}

// As chronyd: its sockets are there before the filter.
TEST(Filter, ABoundSocketGoesOn) {
  ends_well_in_child([] {
    Fd udp = udp_at(here());
    Far far("asks_a_port", {std::to_string(port_of(udp))});
    for (int i = 0; i < kProof; ++i)
      if (!answers(udp)) _exit(1);
    Filter().by_prctl();
    far.say("go");
    if (!answers(udp)) _exit(2);
    far.finish();
    _exit(0);
  });
}

// As vsftpd: the child that a server forks for a connection filters its calls before it uses it.
TEST(Filter, AnInheritedConnectionGoesOn) {
  ends_well_in_child([] {
    Echo far(kProof);
    const pid_t child = fork();
    if (child == 0) {
      Filter().by_prctl();
      _exit(echoes(far.fd, "child") ? 0 : 1);
    }
    int status = 0;
    if (waitpid(child, &status, 0) != child || status != 0) _exit(2);
    exchange(far.fd, "parent");
    EXPECT_EQ(far.all(), "childparent");
  });
}

// A listener, with a connection that nobody has accepted.
FAR(calls_twice) {
  const Address to = there(static_cast<uint16_t>(std::stoi(args.at(0))));
  Fd first = connect_to(to);
  for (int i = 0; i < kProof; ++i) write_all(first, "."), read_exactly(first, 1);
  Fd second = connect_to(to);
  write_all(second, "unaccepted");
  near.say("connected");
  near.word();
  if (read_exactly(second, 10) != "unaccepted") throw std::runtime_error("lost");
  Fd third = connect_to(to);
  write_all(third, "new");
  if (read_exactly(third, 3) != "new") throw std::runtime_error("lost");
}

TEST(Filter, AListenerGoesOn) {
  ends_well_in_child([] {
    Fd listener = listen_at(here());
    Far far("calls_twice", {std::to_string(port_of(listener))});
    Fd first = accept_one(listener);
    for (int i = 0; i < kProof; ++i) write_all(first, read_exactly(first, 1));
    far.word();
    Fd second = accept_one(listener);
    Filter().by_prctl();
    far.say("go");
    char room[16];
    if (recv(second, room, 10, MSG_WAITALL) != 10 || send(second, room, 10, 0) != 10) _exit(1);
    const int third = accept(listener, nullptr, nullptr);
    if (third < 0 || recv(third, room, 3, MSG_WAITALL) != 3 || send(third, room, 3, 0) != 3) _exit(2);
    far.finish();
    _exit(0);
  });
}

/// As systemd's SystemCallFilter=: everything but one call, whose price is the end.
void forbid(unsigned number) {
  sock_filter program[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                           BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
                           BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
                           BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  sock_fprog whole{std::size(program), program};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &whole, 0, 0) != 0)
    throw std::runtime_error("PR_SET_SECCOMP");
}

// Is greeted, and answers.
FAR(greets) {
  Fd listener = listen_at(here());
  near.say(port_of(listener));
  Fd fd = accept_one(listener);
  if (read_exactly(fd, 6) != "hello\n") throw std::runtime_error("not greeted");
  write_all(fd, "welcome\n");
}

// bash is the program that is started under the filter, and connects.
TEST(Filter, AProgramIsStartedUnderOne) {
  const Address to = there(0);
  char text[INET_ADDRSTRLEN];
  inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(to.raw())->sin_addr, text, sizeof text);
  for (const unsigned forbidden : {unsigned{SYS_bpf}, unsigned{SYS_pidfd_open}, unsigned{SYS_memfd_create}}) {
    Echo proof(kProof);
    Far far("greets");
    const std::string script = "exec 3<>/dev/tcp/" + std::string(text) + "/" + far.word() +
                               "; echo hello >&3; read -r answer <&3; [ \"$answer\" = welcome ]";
    ends_well_in_child([&] {
      setenv("ACCEL_REQUIRE", "0", 1);
      setenv("ACCEL_LOG", "error", 1);
      forbid(forbidden);
      execlp("bash", "bash", "-c", script.c_str(), nullptr);
    });
    far.finish();
    proof.all();
  }
}

// libseccomp asks so what the kernel knows; nothing is filtered by it.
TEST(Filter, AskingForOneChangesNothing) {
  Echo far;
  exchange(far.fd, "before ");
  EXPECT_EQ(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, nullptr, 0, 0), -1);
  EXPECT_EQ(errno, EFAULT);
  EXPECT_EQ(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, nullptr), -1);
  EXPECT_EQ(errno, EFAULT);
  EXPECT_EQ(prctl(PR_GET_SECCOMP, 0, 0, 0, 0), 0);
  for (int i = 0; i < kProof; ++i) exchange(far.fd, ".");
  exchange(far.fd, "after");
  far.all();
}

TEST(Filter, OneThatIsRefusedChangesNothing) {
  Echo far;
  exchange(far.fd, "before ");
  Filter good;
  sock_filter endless = BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0);  // no return
  const sock_fprog bad{1, &endless}, none{0, &endless};
  for (const sock_fprog* program : {&bad, &none}) {
    EXPECT_EQ(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program, 0, 0), -1);
    EXPECT_EQ(errno, EINVAL);
    EXPECT_EQ(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, program), -1);
    EXPECT_EQ(errno, EINVAL);
  }
  EXPECT_EQ(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 1 << 30, &good.whole), -1);
  EXPECT_EQ(errno, EINVAL);
  EXPECT_EQ(waitpid(-1, nullptr, __WALL), -1);  // it has no children
  EXPECT_EQ(errno, ECHILD);
  EXPECT_EQ(prctl(PR_GET_SECCOMP, 0, 0, 0, 0), 0);
  for (int i = 0; i < kProof; ++i) exchange(far.fd, ".");
  exchange(far.fd, "after");
  far.all();
}

}  // namespace
