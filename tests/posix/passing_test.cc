// Sockets and epoll sets that other processes get: by SCM_RIGHTS, by posix_spawn's actions, by fork.
#include <arpa/inet.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <functional>

#include "posix/callers.h"
#include "posix/echo.h"

using namespace posix_test;  // NOLINT: a test program

namespace {

/// A Python program that libaccel is not in; `way` is its descriptor 3.
pid_t without_libaccel(int way, const char* program) {
  return in_child([&] {
    dup2(way, 3);
    unsetenv("LD_PRELOAD");
    execlp("python3", "python3", "-c", program, nullptr);
    _exit(1);
  });
}

// ---- SCM_RIGHTS ----

TEST(Passing, AConnectionToAChild) {
  Echo far(kProof);
  exchange(far.fd, "sender ");
  Pair pair;
  const pid_t child = in_child([&] {
    far.fd.reset();
    Fd fd = receive_descriptor(pair.theirs);
    exchange(fd, "receiver ");
  });
  send_descriptor(pair.mine, far.fd);
  EXPECT_EQ(status_of(child), 0);
  exchange(far.fd, "sender");
  EXPECT_EQ(far.all(), "sender receiver sender");
}

TEST(Passing, AConnectionToAProgramWithoutLibaccel) {
  Echo far(kProof);
  write_all(far.fd, "sender ");
  EXPECT_EQ(wait_for(far.fd, POLLIN), POLLIN);  // what nobody has read goes with it
  Pair pair;
  const pid_t child = without_libaccel(pair.theirs,
                                       "import socket\n"
                                       "way = socket.socket(fileno=3)\n"
                                       "s = socket.socket(fileno=socket.recv_fds(way, 1, 1)[1][0])\n"

                                       "assert s.recv(7, socket.MSG_WAITALL) == b'sender '\n"
                                       "s.sendall(b'program ')\n"
                                       "assert s.recv(8, socket.MSG_WAITALL) == b'program '\n");
  send_descriptor(pair.mine, far.fd);
  EXPECT_EQ(status_of(child), 0);
  exchange(far.fd, "sender");
  EXPECT_EQ(far.all(), "sender program sender");
}

TEST(Passing, AConnectionFromAChildThatEnds) {
  Far far("echo_stream");
  const auto port = static_cast<uint16_t>(far.number());
  Pair pair;
  const pid_t child = in_child([&] {
    Fd fd = connect_to(there(port));
    for (int i = 0; i < kProof; ++i) exchange(fd, ".");
    send_descriptor(pair.theirs, fd);
  });
  Fd fd = receive_descriptor(pair.mine);
  EXPECT_EQ(status_of(child), 0);
  exchange(fd, "parent");
  fd.reset();
  EXPECT_EQ(far.word(), std::string(kProof, '.') + "parent");
  far.finish();
}

TEST(Passing, AConnectionFromAProgramWithoutLibaccel) {
  Echo proof(kProof);
  Far far("echo_stream");
  const Address to = there(static_cast<uint16_t>(far.number()));
  Pair pair;
  setenv("TO", std::to_string(to.port()).c_str(), 1);
  const pid_t child = without_libaccel(pair.theirs,
                                       "import os, socket\n"
                                       "way = socket.socket(fileno=3)\n"
                                       "to = (os.environ['POSIX_TEST_THERE'], int(os.environ['TO']))\n"
                                       "s = socket.create_connection(to)\n"
                                       "s.sendall(b'program ')\n"
                                       "socket.send_fds(way, [b'x'], [s.fileno()])\n");
  Fd fd = receive_descriptor(pair.mine);
  EXPECT_EQ(status_of(child), 0);
  EXPECT_EQ(read_exactly(fd, 8), "program ");
  exchange(fd, "here");
  fd.reset();
  EXPECT_EQ(far.word(), "program here");
  far.finish();
  proof.all();
}

/// This host's address fe80::... on the cable, with the device as its scope.
Address link_local() {
  Address found;
  ifaddrs* all = nullptr;
  getifaddrs(&all);
  for (const ifaddrs* a = all; a; a = a->ifa_next) {
    const auto* in6 = reinterpret_cast<const sockaddr_in6*>(a->ifa_addr);
    if (!in6 || in6->sin6_family != AF_INET6 || !IN6_IS_ADDR_LINKLOCAL(&in6->sin6_addr)) continue;
    memcpy(&found.storage, in6, found.size = sizeof *in6);
  }
  freeifaddrs(all);
  if (found.family() != AF_INET6) throw std::runtime_error("no link-local address");
  return found;
}

// Calls by link-local addresses, which libaccel leaves to the kernel where it is the one that connects. Ends
// its side first where it is told to, and says what it got.
FAR(link_local_caller) {
  int ends[2];
  socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends);
  Fd mine(ends[0]), theirs(ends[1]);
  const Address own = link_local();
  for (const std::string& word :
       {args[0], args[1], args[2],
        std::to_string(reinterpret_cast<const sockaddr_in6*>(own.raw())->sin6_scope_id)})
    write_all(mine, word + "\n");
  const pid_t child = without_libaccel(theirs,
                                       "import socket\n"
                                       "way = socket.socket(fileno=3).makefile('rwb', 0)\n"
                                       "to, port, ends, scope = [way.readline().strip() for i in range(4)]\n"
                                       "s = socket.socket(socket.AF_INET6)\n"
                                       "s.settimeout(20)\n"
                                       "s.connect((to.decode(), int(port), 0, int(scope)))\n"
                                       "for i in range(100):\n"
                                       "  s.sendall(b'.')\n"
                                       "  assert s.recv(1) == b'.'\n"
                                       "s.sendall(b'!')\n"
                                       "if ends == b'1': s.shutdown(socket.SHUT_WR)\n"
                                       "way.write(s.recv(5, socket.MSG_WAITALL))\n");
  theirs.reset();
  near.say(read_to_end(mine));
  waitpid(child, nullptr, 0);
}

// Its addresses say nothing without a scope, which is the device.
TEST(Passing, ALinkLocalConnectionToAChild) {
  Echo proof(kProof);
  for (const bool ended : {false, true}) {
    const Address at = link_local();
    Fd listener = listen_at(any(0, AF_INET6));  // bound to `at` it would be bound to the device as well
    char text[INET6_ADDRSTRLEN];
    inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(at.raw())->sin6_addr, text, sizeof text);
    Far far("link_local_caller", {text, std::to_string(port_of(listener)), ended ? "1" : "0"});
    Address caller, remote, local;
    Fd connection(accept4(listener, caller.raw(), &caller.size, 0));
    for (int i = 0; i < kProof; ++i) write_all(connection, read_exactly(connection, 1));
    EXPECT_EQ(wait_for(connection, ended ? POLLRDHUP : POLLIN), ended ? POLLRDHUP : POLLIN);
    EXPECT_EQ(getpeername(connection, remote.raw(), &remote.size), 0);
    EXPECT_EQ(getsockname(connection, local.raw(), &local.size), 0);
    const uint32_t scope = reinterpret_cast<const sockaddr_in6*>(at.raw())->sin6_scope_id;
    for (const Address* name : {&caller, &remote, &local})
      EXPECT_EQ(reinterpret_cast<const sockaddr_in6*>(name->raw())->sin6_scope_id, scope);
    Pair pair;
    const pid_t child = in_child([&] {
      connection.reset();
      Fd fd = receive_descriptor(pair.theirs);
      Address peer;
      EXPECT_EQ(getpeername(fd, peer.raw(), &peer.size), 0);
      EXPECT_EQ(memcmp(&peer.storage, &remote.storage, remote.size), 0);
      EXPECT_EQ(read_exactly(fd, 1), "!");
      write_all(fd, "child");
      EXPECT_EQ(read_to_end(fd), "");
    });
    send_descriptor(pair.mine, connection);
    connection.reset();
    EXPECT_EQ(far.word(), "child");
    EXPECT_EQ(status_of(child), 0);
    far.finish();
  }
  proof.all();
}

TEST(Passing, AListenerToAChild) {
  Echo proof(kProof);
  Fd listener = listen_at(here());
  Pair pair;
  const pid_t child = in_child([&] {
    listener.reset();
    Fd inherited = receive_descriptor(pair.theirs);
    for (int i = 0; i < 5; ++i) serve(inherited, "child");
  });
  Callers far(listener);
  far.call();
  serve(listener, "parent");
  EXPECT_EQ(far.word(), "parent");
  send_descriptor(pair.mine, listener);
  listener.reset();
  for (int i = 0; i < 5; ++i) {
    far.call();
    EXPECT_EQ(far.word(), "child");
  }
  EXPECT_EQ(status_of(child), 0);
  proof.all();
}

TEST(Passing, AListenerToAProgramWithoutLibaccel) {
  Echo proof(kProof);
  Fd listener = listen_at(here());
  Pair pair;
  const pid_t child = without_libaccel(pair.theirs,
                                       "import socket\n"
                                       "way = socket.socket(fileno=3)\n"
                                       "l = socket.socket(fileno=socket.recv_fds(way, 1, 1)[1][0])\n"
                                       "for i in range(5):\n"
                                       "  c = l.accept()[0]\n"
                                       "  assert c.recv(1) == b'?'\n"
                                       "  c.sendall(b'program')\n"
                                       "  c.close()\n");
  Callers far(listener);
  far.call();
  serve(listener, "parent");
  EXPECT_EQ(far.word(), "parent");
  send_descriptor(pair.mine, listener);
  for (int i = 0; i < 5; ++i) {
    far.call();
    EXPECT_EQ(far.word(), "program");
  }
  EXPECT_EQ(status_of(child), 0);
  far.call();  // it is still the parent's as well
  serve(listener, "parent");
  EXPECT_EQ(far.word(), "parent");
  proof.all();
}

// A connection that nobody has accepted yet stays with the listener.
TEST(Passing, AListenerWithACallerWaiting) {
  Echo proof(kProof);
  Fd listener = listen_at(here());
  Callers far(listener);
  far.call();
  EXPECT_EQ(wait_for(listener, POLLIN), POLLIN);
  Pair pair;
  send_descriptor(pair.mine, listener);
  EXPECT_EQ(wait_for(listener, POLLIN), POLLIN);
  serve(listener, "parent");
  EXPECT_EQ(far.word(), "parent");
  Fd other = receive_descriptor(pair.theirs);
  far.call();
  serve(other, "other");
  EXPECT_EQ(far.word(), "other");
  proof.all();
}

TEST(Passing, AListenerFromAChildThatEnds) {
  Pair pair;
  const pid_t child = in_child([&] {
    Echo proof(kProof);
    proof.all();
    Fd listener = listen_at(here());
    send_descriptor(pair.theirs, listener);
  });
  Fd listener = receive_descriptor(pair.mine);
  EXPECT_EQ(status_of(child), 0);
  Callers far(listener);
  for (int i = 0; i < 3; ++i) {
    far.call();
    serve(listener, "parent");
    EXPECT_EQ(far.word(), "parent");
  }
}

// Returns every datagram to its sender until an empty one comes.
FAR(datagram_echo) {
  Fd fd = udp_at(args.empty() ? here() : here(0, std::stoi(args[0])));
  near.say(port_of(fd));
  char buffer[2048];
  for (;;) {
    Address from;
    const ssize_t n = recvfrom(fd, buffer, sizeof(buffer), 0, from.raw(), &from.size);
    if (n <= 0) break;
    sendto(fd, buffer, static_cast<size_t>(n), 0, from.raw(), from.size);
  }
}

struct Datagrams : Far {
  explicit Datagrams(int family = AF_INET)
      : Far("datagram_echo", {std::to_string(family)}),
        to(there(static_cast<uint16_t>(number()), family)),
        fd(udp_socket(family)) {
    EXPECT_EQ(connect(fd, to.raw(), to.size), 0);
    for (int i = 0; i < kProof; ++i) {
      put(".");
      EXPECT_EQ(get(fd), ".");
    }
  }
  ~Datagrams() {
    put("");
    finish();
  }
  void put(const std::string& text) {
    EXPECT_EQ(send(fd, text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
  }
  static std::string get(int fd) {
    char buffer[2048];
    const ssize_t n = wait_for(fd, POLLIN) == 0 ? -1 : recv(fd, buffer, sizeof(buffer), MSG_DONTWAIT);
    return n < 0 ? strerror(errno) : std::string(buffer, static_cast<size_t>(n));
  }
  Address to;
  Fd fd;
};

TEST(Passing, ADatagramSocketToAChild) {
  Datagrams far;
  far.put("queued");
  EXPECT_EQ(wait_for(far.fd, POLLIN), POLLIN);
  Pair pair;
  const pid_t child = in_child([&] {
    far.fd.reset();
    Fd fd = receive_descriptor(pair.theirs);
    EXPECT_EQ(Datagrams::get(fd), "queued");
    EXPECT_EQ(send(fd, "child", 5, 0), 5);
    EXPECT_EQ(Datagrams::get(fd), "child");
  });
  send_descriptor(pair.mine, far.fd);
  EXPECT_EQ(status_of(child), 0);
  far.put("parent");
  EXPECT_EQ(Datagrams::get(far.fd), "parent");
}

// SO_PEEK_OFF on datagrams is the kernel's alone: the socket moves there, with what has come.
TEST(Options, ADatagramSocketMovesWithItsQueue) {
  for (int family : {AF_INET, AF_INET6}) {
    Datagrams far(family);
    far.put("first");
    EXPECT_EQ(wait_for(far.fd, POLLIN), POLLIN);
    set_option(far.fd, SOL_SOCKET, SO_PEEK_OFF, 0);
    EXPECT_EQ(Datagrams::get(far.fd), "first");
    far.put("second");
    char half[3];
    EXPECT_EQ(wait_for(far.fd, POLLIN), POLLIN);
    EXPECT_EQ(recv(far.fd, half, 3, MSG_PEEK), 3);
    EXPECT_EQ(std::string(half, 3), "sec");
    EXPECT_EQ(recv(far.fd, half, 3, MSG_PEEK), 3);
    EXPECT_EQ(std::string(half, 3), "ond");
    EXPECT_EQ(Datagrams::get(far.fd), "second");
  }
}

TEST(Passing, ADatagramSocketToAProgramWithoutLibaccel) {
  Datagrams far;
  far.put("first");
  far.put("second");
  EXPECT_EQ(wait_for(far.fd, POLLIN), POLLIN);
  Pair pair;
  const pid_t child = without_libaccel(pair.theirs,
                                       "import socket\n"
                                       "way = socket.socket(fileno=3)\n"
                                       "s = socket.socket(fileno=socket.recv_fds(way, 1, 1)[1][0])\n"
                                       "assert s.recv(10) == b'first'\n"
                                       "assert s.recv(10) == b'second'\n"
                                       "s.send(b'third')\n"
                                       "assert s.recv(10) == b'third'\n");
  send_descriptor(pair.mine, far.fd);
  EXPECT_EQ(status_of(child), 0);
}

// ---- epoll sets ----

TEST(Passing, ASetToAChild) {
  Echo far(kProof);
  Fd set(epoll_create1(EPOLL_CLOEXEC));
  epoll_event event{EPOLLIN, {.u64 = 77}};
  ASSERT_EQ(epoll_ctl(set, EPOLL_CTL_ADD, far.fd, &event), 0);
  Pair pair;
  const pid_t child = in_child([&] {
    far.fd.reset();
    set.reset();
    Fd got = receive_descriptor(pair.theirs);
    epoll_event e{};
    EXPECT_EQ(epoll_wait(got, &e, 1, 20000), 1);
    EXPECT_EQ(e.data.u64, 77u);
    EXPECT_EQ(e.events, static_cast<uint32_t>(EPOLLIN));
    EXPECT_EQ(wait_for(got, POLLIN), POLLIN);
  });
  send_descriptor(pair.mine, set);
  write_all(far.fd, "x");
  EXPECT_EQ(status_of(child), 0);
  EXPECT_EQ(epoll_wait(set, &event, 1, 20000), 1);
  EXPECT_EQ(read_exactly(far.fd, 1), "x");
  EXPECT_EQ(epoll_wait(set, &event, 1, 0), 0);
  EXPECT_EQ(far.all(), "x");
}

TEST(Passing, ASetOfASetToAProgramWithoutLibaccel) {
  Echo far(kProof);
  Fd inner(epoll_create1(EPOLL_CLOEXEC)), outer(epoll_create1(EPOLL_CLOEXEC));
  epoll_event event{EPOLLIN, {.u64 = 77}};
  ASSERT_EQ(epoll_ctl(inner, EPOLL_CTL_ADD, far.fd, &event), 0);
  ASSERT_EQ(epoll_ctl(outer, EPOLL_CTL_ADD, inner, &event), 0);
  Pair pair;
  const pid_t child = without_libaccel(pair.theirs,
                                       "import select, socket\n"
                                       "way = socket.socket(fileno=3)\n"
                                       "s = select.epoll.fromfd(socket.recv_fds(way, 1, 1)[1][0])\n"
                                       "assert s.poll(20) == [(77, select.EPOLLIN)]\n");
  send_descriptor(pair.mine, outer);
  write_all(far.fd, "x");
  EXPECT_EQ(status_of(child), 0);
  EXPECT_EQ(read_exactly(far.fd, 1), "x");
  EXPECT_EQ(far.all(), "x");
}

TEST(Inherited, ASetWithAConnectionIsPolledInAChild) {
  Echo far(kProof);
  Fd set(epoll_create1(EPOLL_CLOEXEC));
  epoll_event event{EPOLLIN, {.u64 = 77}};
  ASSERT_EQ(epoll_ctl(set, EPOLL_CTL_ADD, far.fd, &event), 0);
  const pid_t child = in_child([&] {
    epoll_event e{};
    EXPECT_EQ(epoll_wait(set, &e, 1, 20000), 1);
    EXPECT_EQ(e.data.u64, 77u);
    EXPECT_EQ(read_exactly(far.fd, 5), "child");
    EXPECT_EQ(epoll_wait(set, &e, 1, 0), 0);
    write_all(far.fd, "parent");
  });
  write_all(far.fd, "child");
  EXPECT_EQ(status_of(child), 0);
  EXPECT_EQ(epoll_wait(set, &event, 1, 20000), 1);
  EXPECT_EQ(event.data.u64, 77u);
  EXPECT_EQ(read_exactly(far.fd, 6), "parent");
  EXPECT_EQ(far.all(), "childparent");
}

TEST(Inherited, ASetIsPolledInAChildByPollAndSelect) {
  Echo far(kProof);
  Fd inner(epoll_create1(EPOLL_CLOEXEC)), outer(epoll_create1(EPOLL_CLOEXEC));
  epoll_event event{EPOLLIN, {.u64 = 77}};
  ASSERT_EQ(epoll_ctl(inner, EPOLL_CTL_ADD, far.fd, &event), 0);
  ASSERT_EQ(epoll_ctl(outer, EPOLL_CTL_ADD, inner, &event), 0);
  for (int how = 0; how < 2; ++how) {
    const pid_t child = in_child([&] {
      fd_set read;
      FD_ZERO(&read);
      FD_SET(outer, &read);
      timeval limit{20, 0};
      if (how == 0) {
        EXPECT_EQ(wait_for(outer, POLLIN), POLLIN);
      } else {
        EXPECT_EQ(select(outer + 1, &read, nullptr, nullptr, &limit), 1);
      }
      epoll_event e{};
      EXPECT_EQ(epoll_wait(outer, &e, 1, 20000), 1);
      EXPECT_EQ(epoll_wait(inner, &e, 1, 20000), 1);
      EXPECT_EQ(read_exactly(far.fd, 1), "x");
    });
    write_all(far.fd, "x");
    EXPECT_EQ(status_of(child), 0);
  }
  EXPECT_EQ(far.all(), "xx");
}

// As a daemon that makes its set before it goes to the background.
TEST(Inherited, ASetWithAListenerServesInAChild) {
  Fd listener = listen_at(here());
  Fd set(epoll_create1(EPOLL_CLOEXEC));
  epoll_event event{EPOLLIN, {.u64 = 77}};
  ASSERT_EQ(epoll_ctl(set, EPOLL_CTL_ADD, listener, &event), 0);
  Callers far(listener);
  const pid_t child = in_child([&] {
    for (int i = 0; i < 20; ++i) {
      epoll_event e{};
      EXPECT_EQ(epoll_wait(set, &e, 1, 20000), 1);
      EXPECT_EQ(e.data.u64, 77u);
      serve(listener, "child");
    }
  });
  listener.reset();
  for (int i = 0; i < 20; ++i) {
    far.call();
    EXPECT_EQ(far.word(), "child");
  }
  EXPECT_EQ(status_of(child), 0);
}

// ---- posix_spawn and vfork ----

/// Runs `sh -c script` with actions.
int spawn_shell(const char* script, const std::function<void(posix_spawn_file_actions_t*)>& add) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  add(&actions);
  std::string sh = "sh", c = "-c", text = script;
  char* const arguments[] = {sh.data(), c.data(), text.data(), nullptr};
  pid_t child = -1;
  const int result = posix_spawn(&child, "/bin/sh", &actions, nullptr, arguments, environ);
  posix_spawn_file_actions_destroy(&actions);
  EXPECT_EQ(result, 0);
  return result == 0 ? status_of(child) : -1;
}

TEST(Spawn, AConnectionBecomesStandardOutput) {
  Echo far(kProof);
  const auto give = [&](posix_spawn_file_actions_t* a) { posix_spawn_file_actions_adddup2(a, far.fd, 1); };
  EXPECT_EQ(spawn_shell("printf child", give), 0);
  EXPECT_EQ(read_exactly(far.fd, 5), "child");
  exchange(far.fd, " parent");
  EXPECT_EQ(far.all(), "child parent");
}

TEST(Spawn, AConnectionByAnyNumber) {
  Echo far(kProof);
  const auto give = [&](posix_spawn_file_actions_t* a) {
    posix_spawn_file_actions_adddup2(a, far.fd, 120);
    posix_spawn_file_actions_addclose(a, far.fd);
    posix_spawn_file_actions_adddup2(a, 120, 9);
  };
  EXPECT_EQ(spawn_shell("printf child >&9; test $(head -c 5 <&9) = child", give), 0);
  exchange(far.fd, " parent");
  EXPECT_EQ(far.all(), "child parent");
}

TEST(Spawn, WhatIsClosedAndOpenedInTheChildStaysTheParents) {
  Echo far(kProof);
  Fd listener = listen_at(here());
  Callers callers(listener);
  const auto take = [&](posix_spawn_file_actions_t* a) {
    posix_spawn_file_actions_addclose(a, listener);
    posix_spawn_file_actions_addopen(a, far.fd, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_adddup2(a, far.fd, 1);
  };
  EXPECT_EQ(spawn_shell("echo to nobody", take), 0);
  exchange(far.fd, "parent");
  callers.call();
  serve(listener, "parent");
  EXPECT_EQ(callers.word(), "parent");
  EXPECT_EQ(far.all(), "parent");
}

TEST(Spawn, AListenerForTheChild) {
  Echo proof(kProof);
  Fd listener = listen_at(here());
  Callers far(listener);
  far.call();
  EXPECT_EQ(wait_for(listener, POLLIN), POLLIN);  // as inetd does
  serve(listener, "parent");
  EXPECT_EQ(far.word(), "parent");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, listener, 3);
  std::string program =
      "import socket\n"
      "s = socket.socket(fileno=3)\n"
      "for i in range(5):\n"
      "  c = s.accept()[0]\n"
      "  assert c.recv(1) == b'?'\n"
      "  c.sendall(b'child')\n"
      "  c.close()\n";
  std::string python = "python3", c = "-c";
  char* const arguments[] = {python.data(), c.data(), program.data(), nullptr};
  pid_t child = -1;
  ASSERT_EQ(posix_spawnp(&child, "python3", &actions, nullptr, arguments, environ), 0);
  posix_spawn_file_actions_destroy(&actions);
  for (int i = 0; i < 5; ++i) {
    far.call();
    EXPECT_EQ(far.word(), "child");
  }
  EXPECT_EQ(status_of(child), 0);
  proof.all();
}

TEST(Spawn, AChildOfVforkGetsTheConnection) {
  Echo far(kProof);
  const int fd = far.fd;
  const pid_t child = vfork();
  if (child == 0) {
    dup2(fd, 1);
    close(fd);
    execl("/bin/sh", "sh", "-c", "printf child", nullptr);
    _exit(1);
  }
  EXPECT_EQ(status_of(child), 0);
  EXPECT_EQ(read_exactly(far.fd, 5), "child");
  exchange(far.fd, " parent");
  EXPECT_EQ(far.all(), "child parent");
}

// ---- pidfd_getfd ----

/// What `fd` of the process `owner` is, here.
Fd taken(pid_t owner, int fd) {
  Fd process(static_cast<int>(syscall(SYS_pidfd_open, owner, 0)));
  Fd got(static_cast<int>(syscall(SYS_pidfd_getfd, static_cast<int>(process), fd, 0)));
  EXPECT_GE(static_cast<int>(got), 0) << strerror(errno);
  return got;
}

TEST(PidFd, AConnection) {
  Echo far(kProof);
  exchange(far.fd, "owner ");
  const pid_t owner = getpid();
  const int number = far.fd;
  const pid_t child = in_child([&] {
    far.fd.reset();
    exchange(taken(owner, number), "taker ");
  });
  EXPECT_EQ(status_of(child), 0);
  exchange(far.fd, "owner");
  EXPECT_EQ(far.all(), "owner taker owner");
}

// The child has not used it, so it is in its parent's stack.
TEST(PidFd, AConnectionThatAChildInherited) {
  Echo far(kProof);
  exchange(far.fd, "owner ");
  const int number = fcntl(far.fd, F_DUPFD, 100);
  Pair pair;
  const pid_t child = in_child([&] {
    pair.mine.reset();
    EXPECT_EQ(read_to_end(pair.theirs), "");
  });
  close(number);  // the child has it by another number, too
  const pid_t taker = in_child([&] {
    far.fd.reset();
    exchange(taken(child, number), "taker ");
  });
  EXPECT_EQ(status_of(taker), 0);
  exchange(far.fd, "owner");
  pair.mine.reset();
  EXPECT_EQ(status_of(child), 0);
  EXPECT_EQ(far.all(), "owner taker owner");
}

TEST(PidFd, AConnectionThatHasSomethingToRead) {
  Echo far(kProof);
  write_all(far.fd, "waiting");
  EXPECT_EQ(wait_for(far.fd, POLLIN), POLLIN);
  const pid_t owner = getpid();
  const int number = far.fd;
  const pid_t child = in_child([&] {
    far.fd.reset();
    EXPECT_EQ(read_exactly(taken(owner, number), 7), "waiting");
  });
  EXPECT_EQ(status_of(child), 0);
  EXPECT_EQ(far.all(), "waiting");
}

TEST(PidFd, AListener) {
  Echo proof(kProof);
  Fd listener = listen_at(here());
  Callers far(listener);
  far.call();
  serve(listener, "owner");
  EXPECT_EQ(far.word(), "owner");
  const pid_t owner = getpid();
  const int number = listener;
  Pair pair;
  const pid_t child = in_child([&] {
    listener.reset();
    Fd mine = taken(owner, number);
    write_all(pair.theirs, "!");
    serve(mine, "taker");
  });
  EXPECT_EQ(read_exactly(pair.mine, 1), "!");
  far.call();
  EXPECT_EQ(far.word(), "taker");
  EXPECT_EQ(status_of(child), 0);
  far.call();
  serve(listener, "owner");
  EXPECT_EQ(far.word(), "owner");
  proof.all();
}

TEST(PidFd, ADatagramSocketWithItsQueue) {
  Datagrams far;
  far.put("queued");
  EXPECT_EQ(wait_for(far.fd, POLLIN), POLLIN);
  const pid_t owner = getpid();
  const int number = far.fd;
  const pid_t child = in_child([&] {
    far.fd.reset();
    Fd fd = taken(owner, number);
    EXPECT_EQ(Datagrams::get(fd), "queued");
    EXPECT_EQ(send(fd, "taker", 5, 0), 5);
    EXPECT_EQ(Datagrams::get(fd), "taker");
  });
  EXPECT_EQ(status_of(child), 0);
  far.put("owner");
  EXPECT_EQ(Datagrams::get(far.fd), "owner");
}

TEST(PidFd, OnesOwnConnection) {
  Echo far(kProof);
  Fd again = taken(getpid(), far.fd);
  exchange(again, "one ");
  exchange(far.fd, "other ");
  again.reset();
  exchange(far.fd, "one");
  EXPECT_EQ(far.all(), "one other one");
}

TEST(PidFd, WhatIsNoSocket) {
  Echo proof(kProof);
  proof.all();
  Pair pair;
  const pid_t owner = getpid();
  const int number = pair.mine;
  const pid_t child = in_child([&] { write_all(taken(owner, number), "taker"); });
  EXPECT_EQ(status_of(child), 0);
  EXPECT_EQ(read_exactly(pair.theirs, 5), "taker");
  EXPECT_EQ(syscall(SYS_pidfd_getfd, static_cast<int>(pair.mine), number, 0), -1);
  EXPECT_EQ(errno, EBADF);
  Fd process(static_cast<int>(syscall(SYS_pidfd_open, owner, 0)));
  EXPECT_EQ(syscall(SYS_pidfd_getfd, static_cast<int>(process), 9999, 0), -1);
  EXPECT_EQ(errno, EBADF);
  EXPECT_EQ(syscall(SYS_pidfd_getfd, static_cast<int>(process), number, 1), -1);
  EXPECT_EQ(errno, EINVAL);
}

}  // namespace
