// A program that knows only libibverbs and libmlx5, and a plain socket at the far end of its cable.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <infiniband/mlx5dv.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "model/core/bytes.h"
#include "model/core/frame.h"
#include "model/front/control.h"

namespace model::verbs {

using Bytes = std::vector<uint8_t>;
constexpr int kPatience = 20'000;  // ms, for what must come

/// An AF_PACKET socket in the far namespace ($MODEL_FAR_NETNS, $MODEL_FAR_DEVICE): sees and sends frames as
/// they are.
class Far {
 public:
  Far() {
    const int home = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    const int there = open(getenv("MODEL_FAR_NETNS"), O_RDONLY | O_CLOEXEC);
    EXPECT_EQ(setns(there, CLONE_NEWNET), 0);
    fd_ = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0);
    sockaddr_ll address{};
    address.sll_family = AF_PACKET;
    address.sll_protocol = htons(ETH_P_ALL);
    address.sll_ifindex = static_cast<int>(if_nametoindex(getenv("MODEL_FAR_DEVICE")));
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(setns(home, CLONE_NEWNET), 0);
    close(home);
    close(there);
  }
  ~Far() { close(fd_); }

  void send(const Bytes& frame) {
    EXPECT_EQ(::send(fd_, frame.data(), frame.size(), 0), ssize_t(frame.size()));
  }

  /// The next frame to UDP or TCP port `port`; empty when none comes.
  Bytes receive(uint16_t port) {
    pollfd p{fd_, POLLIN, 0};
    while (poll(&p, 1, kPatience) == 1) {
      Bytes frame(70000);
      const ssize_t n = recv(fd_, frame.data(), frame.size(), 0);
      if (n <= 0) break;
      frame.resize(static_cast<size_t>(n));
      const Parsed parsed = parse(frame);
      if (parsed.l4 != L4::kNone && load16(frame.data() + parsed.l4_at + 2) == port) return frame;
    }
    return {};
  }

 private:
  int fd_;
};

/// Sum of a counter over this process's contexts, as the model's report has it.
inline uint64_t counter(const std::string& name) {
  uint64_t sum = 0;
  for (const auto& e : std::filesystem::directory_iterator(getenv("MLX5_MODEL_REPORT"))) {
    const std::string file = e.path().filename();
    if (!file.starts_with("counters." + std::to_string(getpid()) + ".")) continue;
    std::ifstream in(e.path(), std::ios::binary);
    char record[32];
    while (in.read(record, sizeof record)) {
      uint64_t value;
      memcpy(&value, record + 24, 8);
      if (name == std::string(record, strnlen(record, 24))) sum += value;
    }
  }
  return sum;
}

/// The same once it is `least`, or when that takes longer than kPatience: the model writes its report at its
/// next turn.
inline uint64_t counter(const std::string& name, uint64_t least) {
  uint64_t value = counter(name);
  for (int ms = 0; value < least && ms < kPatience; ++ms) {
    usleep(1000);
    value = counter(name);
  }
  return value;
}

/// Rules violated by this process, oldest first.
inline std::vector<std::string> violations() {
  std::vector<std::string> rules;
  for (const auto& e : std::filesystem::directory_iterator(getenv("MLX5_MODEL_REPORT"))) {
    if (!e.path().filename().string().starts_with("violations." + std::to_string(getpid()) + ".")) continue;
    std::ifstream in(e.path());
    for (std::string line; std::getline(in, line);) rules.push_back(line.substr(0, line.find(':')));
  }
  return rules;
}

/// What a test broke on purpose is taken out of the report, so that the lab does not fail for it.
inline void forgive_violations() {
  for (const auto& e : std::filesystem::directory_iterator(getenv("MLX5_MODEL_REPORT"))) {
    if (!e.path().filename().string().starts_with("violations." + std::to_string(getpid()) + ".")) continue;
    EXPECT_EQ(truncate(e.path().c_str(), 0), 0);
  }
}

/// Ethernet (broadcast destination), IPv4 10.0.0.2 -> 10.0.0.1, UDP or TCP.
inline Bytes frame_to(uint8_t proto, uint16_t port, size_t payload, bool checksums) {
  const size_t l4 = proto == kProtoTcp ? 20 : 8;
  Bytes f(kEthernetHeader + 20 + l4 + payload);
  const uint8_t ethernet[] = {2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0},
                addresses[] = {10, 0, 0, 2, 10, 0, 0, 1};
  memcpy(f.data(), ethernet, sizeof ethernet);
  uint8_t* ip = f.data() + 14;
  ip[0] = 0x45;
  store16(ip + 2, static_cast<uint32_t>(f.size() - 14));
  ip[8] = 64;
  ip[9] = proto;
  memcpy(ip + 12, addresses, sizeof addresses);
  store16(ip + 20, 999);
  store16(ip + 22, port);
  if (proto == kProtoTcp) ip[32] = 5 << 4;
  if (proto == kProtoUdp) store16(ip + 24, static_cast<uint32_t>(8 + payload));
  for (size_t i = 0; i < payload; ++i) f[f.size() - payload + i] = static_cast<uint8_t>(i * 7);
  if (checksums) {
    fill_ip_checksum(f, parse(f));
    fill_transport_checksum(f, parse(f));
  }
  return f;
}

struct FlowSpecs {
  ibv_flow_attr attr;
  ibv_flow_spec_ipv4 ip;
  ibv_flow_spec_tcp_udp l4;
  ibv_flow_spec_action_tag tag;
};
static_assert(sizeof(FlowSpecs) == 20 + 24 + 16 + 12);  // the library reads them one behind the other

/// Faults while a program runs, by the control page.
class Hand {
 public:
  Hand() {
    const std::string path = std::string(getenv("MLX5_MODEL_REPORT")) + "/control";
    const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
    page_ = static_cast<ControlPage*>(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
    close(fd);
  }
  ~Hand() {
    page_->removed = page_->stalled = 0;
    munmap(page_, 4096);
  }
  volatile ControlPage* operator->() { return page_; }

 private:
  ControlPage* page_;
};

class Verbs : public ::testing::Test {
 protected:
  static constexpr uint32_t kSends = 64, kReceives = 64, kEntries = 128, kSlot = 2048;

  void SetUp() override {
    int count = 0;
    ibv_device** list = ibv_get_device_list(&count);
    ASSERT_EQ(count, 1);
    context = ibv_open_device(list[0]);
    ibv_free_device_list(list);
    ASSERT_NE(context, nullptr);
    pd = ibv_alloc_pd(context);
    ASSERT_NE(pd, nullptr);
    memory = static_cast<uint8_t*>(
        mmap(nullptr, kMemory, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mr = ibv_reg_mr(pd, memory, kMemory, IBV_ACCESS_LOCAL_WRITE);
    ASSERT_NE(mr, nullptr);
    channel = ibv_create_comp_channel(context);
    send_cq = ibv_create_cq(context, kEntries, nullptr, nullptr, 0);
    receive_cq = ibv_create_cq(context, kEntries, nullptr, channel, 0);
    ASSERT_TRUE(channel != nullptr && send_cq != nullptr && receive_cq != nullptr);
    qp = make_qp();
    ASSERT_NE(qp, nullptr);
    make_ready(qp);
  }

  ibv_qp* make_qp() {
    ibv_qp_init_attr_ex a{};
    a.qp_type = IBV_QPT_RAW_PACKET;
    a.send_cq = send_cq;
    a.recv_cq = receive_cq;
    a.cap = {kSends, kReceives, 4, 1, 200};
    a.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_MAX_TSO_HEADER;
    a.pd = pd;
    a.max_tso_header = 128;
    return ibv_create_qp_ex(context, &a);
  }

  static void move(ibv_qp* q, ibv_qp_state state, int more = 0) {
    ibv_qp_attr a{};
    a.qp_state = state;
    a.port_num = 1;
    ASSERT_EQ(ibv_modify_qp(q, &a, IBV_QP_STATE | more), 0) << state;
  }
  static void make_ready(ibv_qp* q) {
    move(q, IBV_QPS_INIT, IBV_QP_PORT);
    move(q, IBV_QPS_RTR);
    move(q, IBV_QPS_RTS);
  }

  ibv_flow* steer(ibv_qp* q, uint16_t port, ibv_flow_spec_type l4 = IBV_FLOW_SPEC_UDP, uint32_t tag = 0,
                  in_addr_t to = inet_addr("10.0.0.1")) {
    FlowSpecs s{};
    s.attr.type = IBV_FLOW_ATTR_NORMAL;
    s.attr.size = sizeof s;
    s.attr.num_of_specs = tag == 0 ? 2 : 3;
    s.attr.port = 1;
    s.ip.type = IBV_FLOW_SPEC_IPV4;
    s.ip.size = sizeof s.ip;
    s.ip.val.dst_ip = to;
    s.ip.mask.dst_ip = ~0u;
    s.l4.type = l4;
    s.l4.size = sizeof s.l4;
    s.l4.val.dst_port = htons(port);
    s.l4.mask.dst_port = 0xffff;
    s.tag = {IBV_FLOW_SPEC_ACTION_TAG, sizeof s.tag, tag};
    return ibv_create_flow(q, &s.attr);
  }

  void post_receive(ibv_qp* q, unsigned slot) {
    ibv_sge sge{reinterpret_cast<uint64_t>(memory + kReceiveAt + slot * kSlot), kSlot, mr->lkey};
    ibv_recv_wr wr{slot, nullptr, &sge, 1}, *bad;
    ASSERT_EQ(ibv_post_recv(q, &wr, &bad), 0);
  }

  /// Waits for one entry by polling; status 999 when none came.
  static ibv_wc wait(ibv_cq* cq) {
    ibv_wc wc{};
    for (int i = 0; i < kPatience; ++i) {
      if (ibv_poll_cq(cq, 1, &wc) == 1) return wc;
      usleep(1000);
    }
    wc.status = static_cast<ibv_wc_status>(999);
    return wc;
  }

  int post_send(const Bytes& frame, unsigned flags, uint64_t id = 1, uint32_t lkey = 0) {
    memcpy(memory, frame.data(), frame.size());
    ibv_sge sge{reinterpret_cast<uint64_t>(memory), static_cast<uint32_t>(frame.size()),
                lkey != 0 ? lkey : mr->lkey};
    ibv_send_wr wr{}, *bad;
    wr.wr_id = id;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    wr.opcode = IBV_WR_SEND;
    wr.send_flags = flags;
    return ibv_post_send(qp, &wr, &bad);
  }

  void TearDown() override {
    if (gone) {  // every command says EIO: only the file can be closed, and must be
      ibv_close_device(context);
      munmap(memory, kMemory);
      return;
    }
    if (qp != nullptr) {
      EXPECT_EQ(ibv_destroy_qp(qp), 0);
    }
    EXPECT_EQ(ibv_destroy_cq(send_cq), 0);
    EXPECT_EQ(ibv_destroy_cq(receive_cq), 0);
    EXPECT_EQ(ibv_destroy_comp_channel(channel), 0);
    EXPECT_EQ(ibv_dereg_mr(mr), 0);
    EXPECT_EQ(ibv_dealloc_pd(pd), 0);
    EXPECT_EQ(ibv_close_device(context), 0);
    munmap(memory, kMemory);
  }

  static constexpr size_t kMemory = 4 << 20, kReceiveAt = 1 << 20;
  Far far;
  ibv_context* context = nullptr;
  ibv_pd* pd = nullptr;
  ibv_mr* mr = nullptr;
  ibv_comp_channel* channel = nullptr;
  ibv_cq *send_cq = nullptr, *receive_cq = nullptr;
  ibv_qp* qp = nullptr;
  uint8_t* memory = nullptr;
  bool gone = false;  // the device was removed
};

}  // namespace model::verbs
