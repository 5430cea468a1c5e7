// The floor under every AF_XDP number: a 64-byte datagram there and back between two processes that only spin
// on their rings, on libxdp's own functions ("raw"), then through our port ("port"), and by the kernel's TCP
// with blocking calls ("kernel_tcp").
//   tests/xdp/run.py -- build-release/bin/raw_xdp [round trips [raw|port|kernel_tcp]]   JSON on stdout,
//   nanoseconds
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <linux/if_link.h>
#include <linux/if_xdp.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <xdp/xsk.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <vector>

#include "tests/xdp/frames.h"
#include "xdp/xdp_port.h"

namespace accel::test {
namespace {

constexpr uint32_t kBuffers = 1024, kBufferSize = 4096, kRing = 512;
constexpr uint16_t kPort = 7000;

const LabEnd a = LabEnd::from_environment("A"), b = LabEnd::from_environment("B");

bool failed(const char* what) {
  std::fprintf(stderr, "raw_xdp: %s failed: %s\n", what, std::strerror(errno));
  return false;
}

uint8_t* map_region() {
  return static_cast<uint8_t*>(mmap(nullptr, size_t{kBuffers} * kBufferSize, PROT_READ | PROT_WRITE,
                                    MAP_SHARED | MAP_ANONYMOUS, -1, 0));
}

/// An end of the wire: sends a frame, and spins until one has come.
struct Wire {
  virtual ~Wire() = default;
  virtual bool open(const LabEnd& at) = 0;
  virtual void send(const std::vector<uint8_t>& frame) = 0;
  virtual void receive() = 0;
};

struct RawWire final : Wire {
  uint8_t* region = map_region();
  xsk_umem* umem = nullptr;
  xsk_socket* socket = nullptr;
  xsk_ring_prod fill{}, tx{};
  xsk_ring_cons completion{}, rx{};
  int fd = -1;

  bool open(const LabEnd& at) override {
    xsk_umem_config umem_config{kRing, kRing, kBufferSize, 0, 0};
    if (xsk_umem__create(&umem, region, size_t{kBuffers} * kBufferSize, &fill, &completion, &umem_config) !=
        0)
      return failed("xsk_umem__create");
    xsk_socket_config config{};
    config.rx_size = config.tx_size = kRing;
    config.libxdp_flags = XSK_LIBXDP_FLAGS__INHIBIT_PROG_LOAD;
    config.bind_flags = XDP_USE_NEED_WAKEUP;
    if (xsk_socket__create(&socket, at.dev.c_str(), 0, umem, &rx, &tx, &config) != 0)
      return failed("xsk_socket__create");
    fd = xsk_socket__fd(socket);
    uint32_t index = 0;
    xsk_ring_prod__reserve(&fill, kRing, &index);
    for (uint32_t i = 0; i < kRing; ++i)
      *xsk_ring_prod__fill_addr(&fill, index + i) = uint64_t{i} * kBufferSize;
    xsk_ring_prod__submit(&fill, kRing);
    return attach(at);
  }

  /// return bpf_redirect_map(&map, ctx->rx_queue_index, XDP_PASS)
  bool attach(const LabEnd& at) const {
    const int map = bpf_map_create(BPF_MAP_TYPE_XSKMAP, "floor", 4, 4, 1, nullptr);
    const uint32_t zero = 0, value = static_cast<uint32_t>(fd);
    if (map < 0 || bpf_map_update_elem(map, &zero, &value, 0) != 0) return failed("XSKMAP");
    const bpf_insn program[] = {
        {.code = BPF_LDX | BPF_MEM | BPF_W, .dst_reg = 2, .src_reg = 1, .off = 16, .imm = 0},
        {.code = BPF_LD | BPF_IMM | BPF_DW, .dst_reg = 1, .src_reg = BPF_PSEUDO_MAP_FD, .off = 0, .imm = map},
        {.code = 0, .dst_reg = 0, .src_reg = 0, .off = 0, .imm = 0},
        {.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = 3, .src_reg = 0, .off = 0, .imm = XDP_PASS},
        {.code = BPF_JMP | BPF_CALL, .dst_reg = 0, .src_reg = 0, .off = 0, .imm = BPF_FUNC_redirect_map},
        {.code = BPF_JMP | BPF_EXIT, .dst_reg = 0, .src_reg = 0, .off = 0, .imm = 0}};
    const int loaded = bpf_prog_load(BPF_PROG_TYPE_XDP, "floor", "GPL", program, std::size(program), nullptr);
    LIBBPF_OPTS(bpf_link_create_opts, options, .flags = XDP_FLAGS_DRV_MODE);
    // The link stays open until the process ends.
    return loaded >= 0 && bpf_link_create(loaded, static_cast<int>(if_nametoindex(at.dev.c_str())), BPF_XDP,
                                          &options) >= 0
               ? true
               : failed("attaching a program");
  }

  void send(const std::vector<uint8_t>& frame) override {
    uint32_t index = 0;
    if (const uint32_t done = xsk_ring_cons__peek(&completion, kRing, &index))
      xsk_ring_cons__release(&completion, done);
    if (xsk_ring_prod__reserve(&tx, 1, &index) != 1) return;
    const uint64_t address = uint64_t{kRing} * kBufferSize;  // one frame under way at a time
    std::memcpy(region + address, frame.data(), frame.size());
    *xsk_ring_prod__tx_desc(&tx, index) = {address, static_cast<uint32_t>(frame.size()), 0};
    xsk_ring_prod__submit(&tx, 1);
    sendto(fd, nullptr, 0, MSG_DONTWAIT, nullptr, 0);
  }

  /// Its program takes everything: neighbour discovery's frames must not pass for replies.
  void receive() override {
    while (!received_one()) {
    }
  }
  bool received_one() {
    uint32_t index = 0, at = 0;
    while (xsk_ring_cons__peek(&rx, 1, &index) == 0) {
    }
    const uint64_t address = xsk_ring_cons__rx_desc(&rx, index)->addr;
    const uint8_t* frame = region + address;
    const bool ours =
        frame[12] == 0x08 && frame[13] == 0 && frame[36] == kPort >> 8 && frame[37] == (kPort & 0xff);
    xsk_ring_cons__release(&rx, 1);
    xsk_ring_prod__reserve(&fill, 1, &at);
    *xsk_ring_prod__fill_addr(&fill, at) = address & ~uint64_t{kBufferSize - 1};
    xsk_ring_prod__submit(&fill, 1);
    return ours;
  }
};

struct PortWire final : Wire {
  FramePool pool{{map_region(), size_t{kBuffers} * kBufferSize}, kBufferSize};
  std::unique_ptr<XdpPort> port;

  bool open(const LabEnd& at) override {
    std::string why;
    XdpOptions options;
    options.netdev = at.dev;
    auto opened = XdpPort::open(options, pool, &why);
    if (!opened) {
      std::fprintf(stderr, "raw_xdp: %s\n", why.c_str());
      return false;
    }
    port = std::move(*opened);
    return port->steer({Protocol::kUdp, {at.address4(), kPort}, {}}).ok();
  }
  void send(const std::vector<uint8_t>& frame) override {
    Packet* p = pool.take();
    std::memcpy(p->data(), frame.data(), frame.size());
    p->length = static_cast<uint32_t>(frame.size());
    port->tx_burst({&p, 1});
  }
  void receive() override {
    Packet* p = nullptr;
    while (port->rx_burst({&p, 1}) == 0) {
    }
    FramePool::release(p);
  }
};

struct TcpWire final : Wire {
  int fd = -1;
  bool open(const LabEnd& at) override {
    const bool server = at.ns == b.ns;
    fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int one = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    const sockaddr_in address = b.at(kPort);
    const auto* raw = reinterpret_cast<const sockaddr*>(&address);
    if (!server) {
      while (connect(fd, raw, sizeof(address)) != 0 && errno == ECONNREFUSED) usleep(1000);
      return true;
    }
    if (bind(fd, raw, sizeof(address)) != 0 || listen(fd, 1) != 0) return failed("listen");
    fd = accept(fd, nullptr, nullptr);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    return true;
  }
  void send(const std::vector<uint8_t>&) override {
    char text[64] = {};
    if (write(fd, text, sizeof(text)) != sizeof(text)) _exit(0);
  }
  void receive() override {
    char text[64];
    if (recv(fd, text, sizeof(text), MSG_WAITALL) != sizeof(text)) _exit(0);
  }
};

/// B answers in a child until it is killed. Prints min, median, 99th percentile.
bool measure(const char* name, const std::function<std::unique_ptr<Wire>()>& make, int rounds, bool last) {
  const std::string payload(64, 'x');
  int ready[2];
  if (pipe(ready) != 0) return failed("pipe");
  const pid_t answering = fork();
  if (answering == 0) {
    close(ready[0]);
    b.enter();
    auto wire = make();
    // kernel_tcp's open waits for the caller, so it says so first.
    const bool early = dynamic_cast<TcpWire*>(wire.get()) != nullptr;
    if (early && write(ready[1], "x", 1) != 1) _exit(1);
    if (!wire->open(b)) _exit(1);
    if (!early && write(ready[1], "x", 1) != 1) _exit(1);
    const auto reply = FrameMaker(b, a).udp4(kPort, kPort, payload);
    for (;;) {
      wire->receive();
      wire->send(reply);
    }
  }
  close(ready[1]);
  char c;
  std::vector<int64_t> times;
  auto wire = make();
  bool good = read(ready[0], &c, 1) == 1 && wire->open(a);
  if (good) {
    const auto request = FrameMaker(a, b).udp4(kPort, kPort, payload);
    for (int i = -rounds / 10; i < rounds; ++i) {
      const auto start = std::chrono::steady_clock::now();
      wire->send(request);
      wire->receive();
      if (i >= 0) times.push_back((std::chrono::steady_clock::now() - start).count());
    }
    std::sort(times.begin(), times.end());
    auto at = [&](double q) {
      return static_cast<long>(times[static_cast<size_t>(q * static_cast<double>(times.size() - 1))]);
    };
    std::printf("  \"%s\": {\"min\": %ld, \"median\": %ld, \"p99\": %ld}%s\n", name, at(0), at(0.5), at(0.99),
                last ? "" : ",");
    std::fflush(stdout);
  }
  kill(answering, SIGKILL);
  waitpid(answering, nullptr, 0);
  close(ready[0]);
  return good;
}

/// In a process of its own, so that sockets and programs are gone before the next.
template <class W>
bool run(const char* name, int rounds, bool last) {
  const pid_t pid = fork();
  if (pid == 0) {
    a.enter();
    _exit(measure(
              name, [] { return std::make_unique<W>(); }, rounds, last)
              ? 0
              : 1);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  return status == 0;
}

}  // namespace
}  // namespace accel::test

int main(int argc, char** argv) {
  using namespace accel::test;
  const int rounds = argc > 1 ? atoi(argv[1]) : 100'000;
  if (a.ns.empty()) {
    std::fprintf(stderr, "run me by tests/xdp/run.py\n");
    return 2;
  }
  std::printf("{\"round_trips\": %d, \"payload\": 64,\n", rounds);
  std::fflush(stdout);
  const std::string only = argc > 2 ? argv[2] : "";
  auto wanted = [&](const char* name) { return only.empty() || only == name; };
  const bool good = (!wanted("raw") || run<RawWire>("raw", rounds, !only.empty())) &&
                    (!wanted("port") || run<PortWire>("port", rounds, !only.empty())) &&
                    (!wanted("kernel_tcp") || run<TcpWire>("kernel_tcp", rounds, true));
  std::printf("}\n");
  return good ? 0 : 1;
}
