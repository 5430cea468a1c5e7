// A process that dies without closing its connections: every peer hears of it, also one that only waits. The
// kernel sends FIN, or a reset where bytes were unread; libaccel, whose connections die with the process, has
// its helper (engine/helper_client.h) see to a reset. What lives on in another process is left alone, and no
// helper outlives its purpose.
#include <dirent.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <cstdlib>
#include <fstream>
#include <iterator>

#include "posix/echo.h"

using namespace posix_test;  // NOLINT: a test program

namespace {

constexpr int kFinWait2 = 5;  // tcpi_state
constexpr int kTrips = 30;    // so that what the kernel carries afterwards is little

bool accelerated() { return getenv("ACCEL_REQUIRE") != nullptr; }

/// A descriptor of a living process, readable once it ends.
Fd watch(pid_t pid) { return Fd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0))); }

/// The helpers of a process: it is their argument.
std::vector<pid_t> helpers_of(pid_t process) {
  const std::string wanted = "accel-guard" + std::string(1, '\0') + std::to_string(process) + '\0';
  std::vector<pid_t> found;
  DIR* all = opendir("/proc");
  while (const dirent* entry = readdir(all)) {
    std::ifstream file(std::string("/proc/") + entry->d_name + "/cmdline", std::ios::binary);
    std::string command(wanted.size() + 1,
                        '\0');  // by read(): an iterator would throw when the process ends meanwhile
    file.read(command.data(), static_cast<std::streamsize>(command.size()));
    command.resize(static_cast<size_t>(file.gcount()));
    if (command == wanted) found.push_back(atoi(entry->d_name));
  }
  closedir(all);
  return found;
}

/// Its helper while it lives: one when accelerated, else none. -1 in its place. Who starts it goes on
/// (vfork) while execve() has its arguments still to set: begin_new_exec(), create_elf_tables().
Fd helper_of(pid_t process) {
  std::vector<pid_t> found = helpers_of(process);
  for (int n = 0; accelerated() && found.empty() && n < 20000; ++n) {
    usleep(1000);
    found = helpers_of(process);
  }
  EXPECT_EQ(found.size(), accelerated() ? 1u : 0u);
  return found.empty() ? Fd() : watch(found.front());
}

void expect_gone(const Fd& helper) {
  if (helper >= 0) {
    EXPECT_EQ(wait_for(helper, POLLIN), POLLIN);
  }
}

// Accepts `count` connections that bring kTrips bytes each to be echoed, and says what ends them: the first
// word of the one's end, or of many how many ended.
FAR(silent) {
  const int family = std::stoi(args.at(0)), count = std::stoi(args.at(1));
  Fd listener = listen_at(here(0, family), count);
  near.say(port_of(listener));
  std::vector<Fd> connections;
  for (int i = 0; i < count; ++i) {
    connections.push_back(accept_one(listener));
    for (int k = 0; k < kTrips; ++k) write_all(connections.back(), read_exactly(connections.back(), 1));
  }
  near.say("ready");
  char byte;
  if (count == 1) {
    const ssize_t n = recv(connections[0], &byte, 1, 0);
    near.say(n < 0 ? strerror(errno) : n == 0 ? "end" : "data");
    return;
  }
  Fd set(epoll_create1(0));
  for (size_t i = 0; i < connections.size(); ++i) {
    epoll_event event{EPOLLIN, {.u64 = i}};
    EXPECT_EQ(epoll_ctl(set, EPOLL_CTL_ADD, connections[i], &event), 0);
  }
  int ended = 0;
  for (epoll_event event; ended < count && epoll_wait(set, &event, 1, 20000) == 1; ++ended) {
    Fd& fd = connections[event.data.u64];
    const ssize_t n = recv(fd, &byte, 1, 0);
    if (n > 0 || (n < 0 && errno != ECONNRESET)) break;
    fd.reset();
  }
  near.say(ended);
}

// Accepts, reads to the end, and says how its half of the connection stands once near says so.
FAR(half_open) {
  Fd listener = listen_at(here());
  near.say(port_of(listener));
  Fd fd = accept_one(listener);
  for (char bytes[4096]; read(fd, bytes, sizeof bytes) > 0;) {
  }
  near.say("end");
  (void)near.word();
  sockaddr_storage peer{};
  socklen_t length = sizeof peer;
  const bool has_peer = getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) == 0;
  const bool broken = (wait_for(fd, POLLIN) & (POLLERR | POLLHUP)) != 0;
  near.say(has_peer && !broken && get_option(fd, SOL_SOCKET, SO_ERROR) == 0 ? "open" : "broken");
}

// Connects to near, and waits there in recv().
FAR(silent_client) {
  Fd fd = connect_to(there(static_cast<uint16_t>(std::stoi(args.at(0)))));
  for (int k = 0; k < kTrips; ++k) write_all(fd, read_exactly(fd, 1));
  near.say("ready");
  char byte;
  const ssize_t n = recv(fd, &byte, 1, 0);
  near.say(n < 0 ? strerror(errno) : n == 0 ? "end" : "data");
}

void trips(int fd) {
  for (int k = 0; k < kTrips; ++k) exchange(fd, ".");
}

struct Silent : Far {
  explicit Silent(int count = 1, int family_ = AF_INET)
      : Far("silent", {std::to_string(family_), std::to_string(count)}),
        family(family_),
        port(static_cast<uint16_t>(number())) {}
  Fd connection() const {
    Fd fd = connect_to(there(port, family));
    trips(fd);
    return fd;
  }
  const int family;
  const uint16_t port;
};

/// What a peer may find; the kernel's is the first, unless bytes were unread.
void expect_told(Far& far) {
  const std::string end = far.word();
  EXPECT_TRUE(end == "end" || end == strerror(ECONNRESET)) << end;
}

void die(pid_t child, int number = SIGKILL) {
  kill(child, number);
  const int status = status_of(child);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == number) << status;
}

void end_of_a_client(int number, int family = AF_INET) {
  Silent far(1, family);
  const pid_t child = in_child([&] {
    const rlimit none{0, 0};
    setrlimit(RLIMIT_CORE, &none);
    Fd fd = far.connection();
    pause();
  });
  EXPECT_EQ(far.word(), "ready");
  const Fd helper = helper_of(child);
  die(child, number);
  expect_told(far);
  expect_gone(helper);
  far.finish();
}

TEST(Helper, TellsASilentPeerOfKill9) { end_of_a_client(SIGKILL); }
TEST(Helper, TellsASilentPeerOfACrash) { end_of_a_client(SIGSEGV); }
TEST(Helper, TellsASilentPeerOverIpv6) { end_of_a_client(SIGKILL, AF_INET6); }

TEST(Helper, TellsThePeersOfAServer) {
  int port_pipe[2];
  ASSERT_EQ(pipe(port_pipe), 0);
  const pid_t child = in_child([&] {
    Fd listener = listen_at(here());
    const uint16_t port = port_of(listener);
    (void)!write(port_pipe[1], &port, sizeof port);
    Fd fd = accept_one(listener);
    trips(fd);
    pause();
  });
  close(port_pipe[1]);  // so that a child that fails is heard of
  uint16_t port = 0;
  ASSERT_EQ(read(port_pipe[0], &port, sizeof port), static_cast<ssize_t>(sizeof port));
  Far far("silent_client", {std::to_string(port)});
  EXPECT_EQ(far.word(), "ready");
  const Fd helper = helper_of(child);
  die(child);
  expect_told(far);
  // Neither the process's end nor its helper keeps a descriptor of the program's open: a shell waits for
  // `$(server)` no longer than the server lives.
  char byte;
  EXPECT_EQ(read(port_pipe[0], &byte, 1), 0);
  close(port_pipe[0]);
  expect_gone(helper);
  far.finish();
}

TEST(Helper, TellsFiftyPeers) {
  constexpr int kMany = 50;
  Silent far(kMany);
  const pid_t child = in_child([&] {
    std::vector<Fd> connections;
    for (int i = 0; i < kMany; ++i) connections.push_back(far.connection());
    pause();
  });
  EXPECT_EQ(far.word(), "ready");
  die(child);
  EXPECT_EQ(far.number(), kMany);
  far.finish();
}

// Closed connections' rows are used again; the table names who is alive.
TEST(Helper, TellsThoseWhoCameLater) {
  Silent gone(20), far(20);
  const pid_t child = in_child([&] {
    std::vector<Fd> connections;
    for (int i = 0; i < 20; ++i) connections.push_back(gone.connection());
    for (int i = 0; i < 20; ++i) {
      connections[static_cast<size_t>(i)].reset();
      connections.push_back(far.connection());
    }
    pause();
  });
  EXPECT_EQ(gone.word(), "ready");
  EXPECT_EQ(gone.number(), 20);
  EXPECT_EQ(far.word(), "ready");
  die(child);
  EXPECT_EQ(far.number(), 20);
  gone.finish();
  far.finish();
}

TEST(Helper, LetsExitBeAnEnd) {
  Silent far;
  const pid_t child = in_child([&] {
    Fd fd = far.connection();
    fd.release();
    _exit(3);
  });
  EXPECT_EQ(far.word(), "ready");
  EXPECT_EQ(far.word(), "end");
  const int status = status_of(child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 3) << status;
  far.finish();
}

/// The kernel has the other half of a connection wait for the peer's FIN, whatever becomes of the process.
void end_after_fin(bool killed) {
  Far far("half_open");
  const auto port = static_cast<uint16_t>(far.number());
  int channel[2];  // the child's is the second
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, channel), 0);
  const pid_t child = in_child([&] {
    Fd fd = connect_to(there(port));
    write_all(fd, std::string(60000, 'x'));
    shutdown(fd, SHUT_WR);
    tcp_info info{};
    for (socklen_t size = sizeof info; info.tcpi_state != kFinWait2; poll(nullptr, 0, 1))
      getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size);
    fd.reset();
    char byte = 'x';
    (void)!write(channel[1], &byte, 1);
    (void)!read(channel[1], &byte, 1);
  });
  close(channel[1]);  // so that a child that fails is heard of
  const Fd helper = helper_of(child);
  EXPECT_EQ(far.word(), "end");
  char byte;
  EXPECT_EQ(read(channel[0], &byte, 1), 1);
  if (killed) {
    die(child);
  } else {
    EXPECT_EQ(write(channel[0], &byte, 1), 1);
    EXPECT_EQ(status_of(child), 0);
  }
  expect_gone(helper);
  far.say("now");
  EXPECT_EQ(far.word(), "open");
  far.finish();
  close(channel[0]);
}

TEST(Helper, LeavesAPeerThatHasTheFinAloneAtExit) { end_after_fin(false); }
TEST(Helper, LeavesAPeerThatHasTheFinAloneAtKill9) { end_after_fin(true); }

TEST(Helper, LeavesPassedConnectionsAlone) {
  Far far("echo_stream");
  const auto port = static_cast<uint16_t>(far.number());
  int channel[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, channel), 0);
  const pid_t child = in_child([&] {
    Fd fd = connect_to(there(port));
    trips(fd);
    send_descriptor(channel[1], fd);
    pause();
  });
  close(channel[1]);
  Fd fd = receive_descriptor(channel[0]);
  const Fd helper = helper_of(child);
  die(child);
  expect_gone(helper);
  exchange(fd, "alive");
  fd.reset();
  EXPECT_EQ(far.word(), std::string(kTrips, '.') + "alive");
  far.finish();
  close(channel[0]);
}

TEST(Helper, LeavesAChildsConnectionsAlone) {
  Far far("echo_stream");
  const auto port = static_cast<uint16_t>(far.number());
  int said[2], go[2];
  ASSERT_EQ(pipe(said), 0);
  ASSERT_EQ(pipe(go), 0);
  const pid_t parent = in_child([&] {
    Fd fd = connect_to(there(port));
    trips(fd);
    in_child([&] {
      exchange(fd, "child");
      (void)!write(said[1], "x", 1);
      char byte;
      (void)!read(go[0], &byte, 1);
      exchange(fd, "alive");
    });
    pause();
  });
  close(said[1]);
  char byte;
  ASSERT_EQ(read(said[0], &byte, 1), 1);
  const Fd helper = helper_of(parent);
  die(parent);
  expect_gone(helper);
  (void)!write(go[1], "x", 1);
  EXPECT_EQ(far.word(), std::string(kTrips, '.') + "childalive");
  far.finish();
  for (int fd : {said[0], go[0], go[1]}) close(fd);
}

volatile sig_atomic_t children_ended = 0;

TEST(Helper, IsNobodysChild) {
  Silent far;
  const pid_t child = in_child([&] {
    signal(SIGCHLD, [](int) { children_ended = children_ended + 1; });
    Fd fd = far.connection();
    EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1);
    EXPECT_EQ(errno, ECHILD);
    EXPECT_EQ(waitpid(-1, nullptr, WNOHANG | __WALL), -1);
    EXPECT_EQ(errno, ECHILD);
    const Fd helper = helper_of(getpid());
    for (pid_t pid : helpers_of(getpid())) {
      EXPECT_NE(getpgid(pid), getpgid(0));
      EXPECT_NE(getsid(pid), getsid(0));
      kill(pid, SIGTERM);  // a supervisor that ends everything in a group
    }
    EXPECT_EQ(children_ended, 0);
    (void)helper;
  });
  EXPECT_EQ(far.word(), "ready");
  EXPECT_EQ(status_of(child), 0);
  EXPECT_EQ(far.word(), "end");
  far.finish();
}

TEST(Helper, IsForTcpOnly) {
  const pid_t child = in_child([] {
    Fd fd = udp_at(here());
    EXPECT_TRUE(helpers_of(getpid()).empty());
  });
  EXPECT_EQ(status_of(child), 0);
}

// It would be the program's child.
TEST(Helper, IsNoSubreapers) {
  Silent far;
  const pid_t child = in_child([&] {
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    Fd fd = far.connection();
    EXPECT_TRUE(helpers_of(getpid()).empty());
    EXPECT_EQ(waitpid(-1, nullptr, __WALL), -1);
    EXPECT_EQ(errno, ECHILD);
  });
  EXPECT_EQ(far.word(), "ready");
  EXPECT_EQ(status_of(child), 0);
  EXPECT_EQ(far.word(), "end");
  far.finish();
}

/// Runs `then` in a child that has an accelerated connection; the child's helper must end though what
/// `then` leads to lives on, until `release` is closed.
template <class F>
void ends_with(F then) {
  Silent far;
  int hold[2], ready[2];
  ASSERT_EQ(pipe(hold), 0);
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = in_child([&] {
    close(hold[1]);
    Fd fd = far.connection();
    char byte;
    (void)!read(ready[0], &byte, 1);
    fd.reset();
    then(hold[0]);
  });
  EXPECT_EQ(far.word(), "ready");
  const Fd helper = helper_of(child);
  EXPECT_EQ(write(ready[1], "x", 1), 1);
  expect_gone(helper);
  close(hold[1]);
  EXPECT_EQ(status_of(child), 0);
  EXPECT_EQ(far.word(), "end");
  far.finish();
  for (int fd : {hold[0], ready[0], ready[1]}) close(fd);
}

TEST(Helper, EndsWithExec) {
  ends_with([](int hold) {
    dup2(hold, 0);
    execl("/bin/sh", "sh", "-c", "read x; exit 0", nullptr);
  });
}

TEST(Helper, EndsWithTheParentOfADaemon) {
  ends_with([](int hold) {
    const pid_t daemon = fork();
    if (daemon == 0) {
      char byte;
      (void)!read(hold, &byte, 1);
    }
    _exit(0);
  });
}

}  // namespace
