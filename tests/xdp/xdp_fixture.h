// A port at either end of the lab, and what tests do with them.
#pragma once

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <chrono>
#include <csignal>
#include <functional>

#include "tests/xdp/frames.h"
#include "xdp/xdp_port.h"

namespace accel::test {

/// Guards against a hang only; everything awaited comes at once.
constexpr std::chrono::seconds kGuard{20};

/// A region as the engine maps it, a pool on it, and a port.
struct PortAtEnd {
  explicit PortAtEnd(uint32_t buffers = 8192, uint32_t buffer_size = 4096)
      : size(size_t{buffers} * buffer_size),
        region(static_cast<uint8_t*>(
            mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))),
        pool({region, size}, buffer_size) {}
  ~PortAtEnd() {
    port.reset();
    munmap(region, size);
  }
  PortAtEnd(const PortAtEnd&) = delete;

  Result<void> open(const LabEnd& at, XdpOptions options = {}) {
    options.netdev = at.dev;
    end = &at;
    Result<void> done;
    at.inside([&] {
      auto opened = XdpPort::open(options, pool, &why);
      if (opened)
        port = std::move(*opened);
      else
        done = opened.error();
    });
    return done;
  }
  Result<void> steer(const FlowKey& key) {
    Result<void> done;
    end->inside([&] { done = port->steer(key); });
    return done;
  }

  bool send(std::span<const uint8_t> bytes) {
    Packet* frame = make(bytes);
    return frame && port->tx_burst({&frame, 1}) == 1;
  }
  Packet* make(std::span<const uint8_t> bytes) {
    Packet* frame = nullptr;
    Packet** next = &frame;
    while (!bytes.empty()) {
      Packet* p = pool.take();
      if (!p) return nullptr;
      p->length = static_cast<uint32_t>(std::min<size_t>(bytes.size(), p->capacity));
      std::memcpy(p->data(), bytes.data(), p->length);
      bytes = bytes.subspan(p->length);
      *next = p;
      next = &p->more;
    }
    return frame;
  }

  /// The next frame, sleeping as the engine does; empty after kGuard.
  std::vector<uint8_t> receive() {
    const auto until = std::chrono::steady_clock::now() + kGuard;
    for (;;) {
      if (auto bytes = receive_now(); !bytes.empty()) return bytes;
      if (std::chrono::steady_clock::now() > until) return {};
      if (!port->arm()) continue;
      std::vector<pollfd> fds;
      for (int fd : port->poll_fds()) fds.push_back({fd, POLLIN, 0});
      poll(fds.data(), fds.size(), 1000);
    }
  }
  std::vector<uint8_t> receive_now() {
    Packet* frame = nullptr;
    if (port->rx_burst({&frame, 1}) == 0) return {};
    std::vector<uint8_t> bytes;
    for (Packet* p = frame; p; p = p->more) bytes.insert(bytes.end(), p->data(), p->data() + p->length);
    FramePool::release(frame);
    return bytes;
  }

  size_t size;
  uint8_t* region;
  FramePool pool;
  std::string why;
  const LabEnd* end = nullptr;
  std::unique_ptr<XdpPort> port;
};

class XdpTest : public testing::Test {
 protected:
  void SetUp() override { ASSERT_FALSE(a.ns.empty()) << "run me by tests/xdp/run.py"; }
  void TearDown() override {
    EXPECT_TRUE(nothing_left(a));
    EXPECT_TRUE(nothing_left(b));
  }

  FlowKey udp(const LabEnd& at, uint16_t port) const { return {Protocol::kUdp, {at.address4(), port}, {}}; }
  FlowKey tcp(const LabEnd& at, uint16_t port) const { return {Protocol::kTcp, {at.address4(), port}, {}}; }
  FlowKey tcp(const LabEnd& at, uint16_t port, const LabEnd& to, uint16_t remote) const {
    return {Protocol::kTcp, {at.address4(), port}, {to.address4(), remote}};
  }

  static uint32_t program_id(const LabEnd& end) {
    LIBBPF_OPTS(bpf_xdp_query_opts, query);
    end.inside([&] { bpf_xdp_query(static_cast<int>(if_nametoindex(end.dev.c_str())), 0, &query); });
    return query.prog_id;
  }
  /// The kernel finishes a killed process's sockets a moment after its end.
  static bool nothing_left(const LabEnd& end) {
    const auto until = std::chrono::steady_clock::now() + kGuard;
    while (program_id(end) != 0 || end.xdp_sockets() > 0)
      if (std::chrono::steady_clock::now() > until) return false;
    return true;
  }

  /// A datagram by the kernels of both ends.
  void expect_kernel_delivers(const LabEnd& from, const LabEnd& to, uint16_t port, size_t size = 10) {
    const int receiver = to.kernel_socket(SOCK_DGRAM, port), sender = from.kernel_socket(SOCK_DGRAM, 0);
    const std::string payload(size, 'k');
    const sockaddr_in address = to.at(port);
    EXPECT_EQ(sendto(sender, payload.data(), payload.size(), 0, reinterpret_cast<const sockaddr*>(&address),
                     sizeof(address)),
              static_cast<ssize_t>(size));
    pollfd ready{receiver, POLLIN, 0};
    EXPECT_EQ(poll(&ready, 1, 20'000), 1) << "the kernel's datagram did not arrive";
    std::string got(size + 1, 0);
    EXPECT_EQ(recv(receiver, got.data(), got.size(), MSG_DONTWAIT), static_cast<ssize_t>(size));
    close(receiver);
    close(sender);
  }
  void kernel_sends(const LabEnd& from, uint16_t sport, const LabEnd& to, uint16_t dport,
                    const std::string& payload) {
    const int sender = from.kernel_socket(SOCK_DGRAM, sport);
    const sockaddr_in address = to.at(dport);
    EXPECT_EQ(sendto(sender, payload.data(), payload.size(), 0, reinterpret_cast<const sockaddr*>(&address),
                     sizeof(address)),
              static_cast<ssize_t>(payload.size()));
    close(sender);
  }

  /// Runs `work` in a forked process inside `end`; its result is the exit status. The parent may talk through
  /// a socket.
  pid_t fork_inside(const LabEnd& end, const std::function<int(int channel)>& work, int* channel) {
    int pair[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    const pid_t pid = fork();
    if (pid == 0) {
      close(pair[0]);
      if (!end.enter()) _exit(99);
      _exit(work(pair[1]));
    }
    close(pair[1]);
    *channel = pair[0];
    return pid;
  }
  static int wait_for(pid_t pid) {
    int status = 0;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 256 + WTERMSIG(status);
  }
  static bool say(int channel) { return write(channel, "x", 1) == 1; }
  static bool hear(int channel) {
    char c;
    return read(channel, &c, 1) == 1;
  }

  const LabEnd a = LabEnd::from_environment("A"), b = LabEnd::from_environment("B");
  const uint32_t lab_queues =
      static_cast<uint32_t>(atoi(getenv("ACCEL_LAB_QUEUES") ? getenv("ACCEL_LAB_QUEUES") : "1"));
  const uint32_t lab_mtu =
      static_cast<uint32_t>(atoi(getenv("ACCEL_LAB_MTU") ? getenv("ACCEL_LAB_MTU") : "1500"));
};

}  // namespace accel::test
