#include <setjmp.h>
#include <sys/ioctl.h>
#include <sys/time.h>
#include <unistd.h>

#include <csignal>
#include <sstream>

#include "model/verbs/rig.h"

namespace model::verbs {
namespace {

bool good(const Bytes& frame) {
  const Verdict v = verify(frame, parse(frame));
  return v.l3_ok && v.l4_ok;
}

sigjmp_buf after_signal;

/// As with the kernel's calls: nothing of them stays behind.
TEST_F(Verbs, AHandlerMayLeaveByLongjmp) {
  struct sigaction leave {};
  leave.sa_handler = [](int) { siglongjmp(after_signal, 1); };
  sigaction(SIGALRM, &leave, nullptr);
  const itimerval often{{0, 300}, {0, 300}}, never{};
  volatile int left = 0;
  if (sigsetjmp(after_signal, 1) != 0) left = left + 1;
  if (left == 0) setitimer(ITIMER_REAL, &often, nullptr);
  while (left < 200) close(dup(0));
  setitimer(ITIMER_REAL, &never, nullptr);
  const Bytes frame = frame_to(kProtoUdp, 7000, 300, false);
  ASSERT_EQ(post_send(frame, IBV_SEND_SIGNALED, 1), 0);
  EXPECT_EQ(wait(send_cq).status, IBV_WC_SUCCESS);
}

TEST_F(Verbs, SendWithChecksums) {
  const Bytes frame = frame_to(kProtoUdp, 7001, 300, false);
  ASSERT_EQ(post_send(frame, IBV_SEND_SIGNALED | IBV_SEND_IP_CSUM, 42), 0);
  const ibv_wc wc = wait(send_cq);
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.wr_id, 42u);
  EXPECT_EQ(wc.qp_num, qp->qp_num);
  Bytes got = far.receive(7001);
  ASSERT_EQ(got.size(), frame.size());
  EXPECT_TRUE(good(got));
  EXPECT_TRUE(std::equal(frame.begin() + 42, frame.end(), got.begin() + 42));
}

TEST_F(Verbs, InlineSendGoesByBlueField) {
  uint64_t before = counter("blueflame_bytes");
  for (const size_t payload : {40, 100}) {  // whole: a descriptor of 2 blocks, and of 3
    const Bytes frame = frame_to(kProtoUdp, 7002, payload, true);
    ASSERT_EQ(post_send(frame, IBV_SEND_SIGNALED | IBV_SEND_INLINE), 0);
    EXPECT_EQ(wait(send_cq).status, IBV_WC_SUCCESS);
    EXPECT_EQ(far.receive(7002), frame);
    before += (2 + (4 + frame.size() + 15) / 16 + 3) / 4 * 64;
    EXPECT_EQ(counter("blueflame_bytes", before), before);
  }
}

TEST_F(Verbs, AListIsOneDoorbell) {
  const Bytes frame = frame_to(kProtoUdp, 7003, 400, true);
  memcpy(memory, frame.data(), frame.size());
  ibv_sge sge{reinterpret_cast<uint64_t>(memory), static_cast<uint32_t>(frame.size()), mr->lkey};
  std::vector<ibv_send_wr> list(32);
  for (size_t i = 0; i < list.size(); ++i) {
    list[i].wr_id = i;
    list[i].next = i + 1 < list.size() ? &list[i + 1] : nullptr;
    list[i].sg_list = &sge;
    list[i].num_sge = 1;
    list[i].opcode = IBV_WR_SEND;
    list[i].send_flags = i + 1 == list.size() ? IBV_SEND_SIGNALED : 0;
  }
  ibv_send_wr* bad;
  ASSERT_EQ(ibv_post_send(qp, list.data(), &bad), 0);
  const ibv_wc wc = wait(send_cq);
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.wr_id, 31u);
  for (size_t i = 0; i < list.size(); ++i) EXPECT_EQ(far.receive(7003), frame) << i;
  ibv_wc none;
  EXPECT_EQ(ibv_poll_cq(send_cq, 1, &none), 0);
}

TEST_F(Verbs, Tso) {
  constexpr size_t kPayload = 20000, kMss = 1400, kHeader = 54;
  Bytes whole = frame_to(kProtoTcp, 7004, kPayload, false);
  whole[kHeader - 7] = 0x18;  // PSH, ACK
  memcpy(memory, whole.data() + kHeader, kPayload);
  ibv_sge sge{reinterpret_cast<uint64_t>(memory), kPayload, mr->lkey};
  ibv_send_wr wr{}, *bad;
  wr.sg_list = &sge;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_TSO;
  wr.send_flags = IBV_SEND_SIGNALED | IBV_SEND_IP_CSUM;
  wr.tso = {whole.data(), kHeader, kMss};
  ASSERT_EQ(ibv_post_send(qp, &wr, &bad), 0);
  const ibv_wc wc = wait(send_cq);
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.opcode, IBV_WC_TSO);
  Bytes joined;
  while (joined.size() < kPayload) {
    const Bytes got = far.receive(7004);
    ASSERT_FALSE(got.empty());
    EXPECT_TRUE(good(got));
    const Parsed p = parse(got);
    EXPECT_EQ(load32(got.data() + p.l4_at + 4), joined.size());
    EXPECT_EQ((got[p.l4_at + 13] & 0x08) != 0, joined.size() + kMss >= kPayload);
    joined.insert(joined.end(), got.begin() + kHeader, got.begin() + p.end);
  }
  EXPECT_TRUE(std::equal(joined.begin(), joined.end(), whole.begin() + kHeader, whole.end()));
}

TEST_F(Verbs, ReceiveWithEvents) {
  ibv_flow* flow = steer(qp, 7005, IBV_FLOW_SPEC_UDP, 0xabcde);
  ASSERT_NE(flow, nullptr);
  for (unsigned i = 0; i < 4; ++i) post_receive(qp, i);
  for (unsigned round = 0; round < 4; ++round) {
    ASSERT_EQ(ibv_req_notify_cq(receive_cq, 0), 0);
    const Bytes frame = frame_to(kProtoUdp, 7005, 100 + round, true);
    far.send(frame);
    pollfd p{channel->fd, POLLIN, 0};
    ASSERT_EQ(poll(&p, 1, kPatience), 1);
    ibv_cq* cq;
    void* cookie;
    ASSERT_EQ(ibv_get_cq_event(channel, &cq, &cookie), 0);
    EXPECT_EQ(cq, receive_cq);
    ibv_ack_cq_events(cq, 1);
    const ibv_wc wc = wait(receive_cq);
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
    EXPECT_EQ(wc.wr_id, round);
    EXPECT_EQ(wc.byte_len, frame.size());
    EXPECT_TRUE((wc.wc_flags & IBV_WC_IP_CSUM_OK) != 0);
    EXPECT_EQ(wc.qp_num, 0xabcdeu);  // the flow tag, as the hardware puts it
    EXPECT_EQ(memcmp(memory + kReceiveAt + round * kSlot, frame.data(), frame.size()), 0);
  }
  EXPECT_EQ(ibv_destroy_flow(flow), 0);
}

TEST_F(Verbs, AnEventUnreadDoesNotBlockTheTearDown) {
  ibv_flow* flow = steer(qp, 7006);
  post_receive(qp, 0);
  ASSERT_EQ(ibv_req_notify_cq(receive_cq, 0), 0);
  far.send(frame_to(kProtoUdp, 7006, 100, true));
  pollfd p{channel->fd, POLLIN, 0};
  ASSERT_EQ(poll(&p, 1, kPatience), 1);
  EXPECT_EQ(ibv_destroy_flow(flow), 0);
}

TEST_F(Verbs, AWrongChecksumIsSaid) {
  ibv_flow* flow = steer(qp, 7007, IBV_FLOW_SPEC_TCP);
  post_receive(qp, 0);
  Bytes frame = frame_to(kProtoTcp, 7007, 100, true);
  frame.back() ^= 1;
  far.send(frame);
  const ibv_wc wc = wait(receive_cq);
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.wc_flags & IBV_WC_IP_CSUM_OK, 0u);
  EXPECT_EQ(ibv_destroy_flow(flow), 0);
}

TEST_F(Verbs, BadKeyFlushesAndTheQueueRecovers) {
  const Bytes frame = frame_to(kProtoUdp, 7008, 100, true);
  ASSERT_EQ(post_send(frame, 0, 1, mr->lkey ^ 0x5500), 0);
  ibv_wc wc = wait(send_cq);
  EXPECT_EQ(wc.status, IBV_WC_LOC_PROT_ERR);
  EXPECT_EQ(wc.wr_id, 1u);
  ASSERT_EQ(post_send(frame, IBV_SEND_SIGNALED, 2), 0);
  wc = wait(send_cq);
  EXPECT_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
  EXPECT_EQ(wc.wr_id, 2u);
  ibv_qp_attr attr;
  ibv_qp_init_attr init;
  ASSERT_EQ(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init), 0);
  EXPECT_EQ(attr.qp_state, IBV_QPS_SQE);  // the receive queue runs
  move(qp, IBV_QPS_RESET);
  make_ready(qp);
  ASSERT_EQ(post_send(frame, IBV_SEND_SIGNALED, 3), 0);
  wc = wait(send_cq);
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.wr_id, 3u);
  EXPECT_EQ(far.receive(7008), frame);
  EXPECT_EQ(violations(), std::vector<std::string>{"wqe-lkey"});
  forgive_violations();
}

TEST_F(Verbs, ErrorStateFlushesReceives) {
  for (unsigned i = 0; i < 3; ++i) post_receive(qp, i);
  move(qp, IBV_QPS_ERR);
  for (unsigned i = 0; i < 3; ++i) {
    const ibv_wc wc = wait(receive_cq);
    EXPECT_EQ(wc.status, IBV_WC_WR_FLUSH_ERR);
    EXPECT_EQ(wc.wr_id, i);
  }
}

/// UDP datagrams that the kernel of this namespace took in for ports nobody has open.
uint64_t kernel_saw() {
  std::ifstream in("/proc/self/net/snmp");
  std::string line, names, values;
  while (std::getline(in, line)) {
    if (line.starts_with("Udp: ")) (names.empty() ? names : values) = line;
  }
  std::istringstream n(names), v(values);
  for (std::string name, value; n >> name && v >> value;) {
    if (name == "NoPorts") return std::stoull(value);
  }
  ADD_FAILURE() << names;
  return 0;
}

/// libvma takes the ring's size from here.
TEST_F(Verbs, AQueryTellsTheQueuesSizes) {
  ibv_qp_attr attr{};
  ibv_qp_init_attr made{};
  ASSERT_EQ(ibv_query_qp(qp, &attr, IBV_QP_STATE | IBV_QP_CAP, &made), 0);
  EXPECT_EQ(attr.qp_state, IBV_QPS_RTS);
  EXPECT_EQ(attr.cap.max_recv_wr, kReceives);
  EXPECT_GE(attr.cap.max_recv_sge, 1u);
  EXPECT_GE(attr.cap.max_send_wr, kSends);
  EXPECT_GE(attr.cap.max_send_sge, 4u);
  EXPECT_GE(attr.cap.max_inline_data, 200u);
  EXPECT_EQ(made.cap.max_recv_wr, kReceives);
}

TEST_F(Verbs, TheKernelDoesNotSeeWhatIsSteered) {
  const char* device = getenv("MLX5_MODEL_NETDEV");
  Bytes frame = frame_to(kProtoUdp, 7009, 100, false);
  const int fd = socket(AF_INET, SOCK_DGRAM, 0);
  ifreq request{};
  strncpy(request.ifr_name, device, IFNAMSIZ - 1);
  ASSERT_EQ(ioctl(fd, SIOCGIFHWADDR, &request), 0);
  memcpy(frame.data(), request.ifr_hwaddr.sa_data, 6);
  ASSERT_EQ(ioctl(fd, SIOCGIFADDR, &request), 0);
  close(fd);
  const in_addr_t own = reinterpret_cast<sockaddr_in*>(&request.ifr_addr)->sin_addr.s_addr;
  memcpy(frame.data() + 14 + 16, &own, 4);
  store32(frame.data() + 14 + 12, ntohl(own) + 1);
  fill_ip_checksum(frame, parse(frame));
  fill_transport_checksum(frame, parse(frame));

  ibv_flow* flow = steer(qp, 7009, IBV_FLOW_SPEC_UDP, 0, own);
  ASSERT_NE(flow, nullptr);
  const uint64_t before = kernel_saw();
  post_receive(qp, 0);
  far.send(frame);
  EXPECT_EQ(wait(receive_cq).status, IBV_WC_SUCCESS);
  EXPECT_EQ(ibv_destroy_flow(flow), 0);
  EXPECT_EQ(kernel_saw(), before);
  far.send(frame);
  for (int i = 0; i < kPatience && kernel_saw() == before; ++i) usleep(1000);
  EXPECT_EQ(kernel_saw(), before + 1);
}

TEST_F(Verbs, WhatIsUsedIsBusy) {
  ibv_flow* flow = steer(qp, 7010);
  EXPECT_EQ(ibv_destroy_qp(qp), EBUSY);
  EXPECT_EQ(ibv_destroy_flow(flow), 0);
  EXPECT_EQ(ibv_destroy_cq(send_cq), EBUSY);
  EXPECT_EQ(ibv_dealloc_pd(pd), EBUSY);
}

TEST_F(Verbs, WhatIsNotModelledIsRefused) {
  ibv_qp_init_attr rc{};
  rc.qp_type = IBV_QPT_RC;
  rc.send_cq = rc.recv_cq = send_cq;
  rc.cap = {16, 16, 1, 1, 0};
  EXPECT_EQ(ibv_create_qp(pd, &rc), nullptr);
  ibv_srq_init_attr srq{};
  srq.attr = {16, 1, 0};
  EXPECT_EQ(ibv_create_srq(pd, &srq), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
  EXPECT_EQ(ibv_alloc_mw(pd, IBV_MW_TYPE_1), nullptr);
  ibv_flow_attr sniffer{};
  sniffer.type = IBV_FLOW_ATTR_SNIFFER;
  sniffer.size = sizeof sniffer;
  sniffer.port = 1;
  EXPECT_EQ(ibv_create_flow(qp, &sniffer), nullptr);
  EXPECT_EQ(errno, EOPNOTSUPP);
  EXPECT_EQ(ibv_reg_mr(pd, memory, kSlot, IBV_ACCESS_ON_DEMAND), nullptr);
  EXPECT_EQ(ibv_reg_mr(pd, reinterpret_cast<void*>(4096), kSlot, 0), nullptr);
  EXPECT_EQ(errno, EFAULT);
}

}  // namespace
}  // namespace model::verbs
