// Spreading over receive queues, striding buffers, IPv6 and VLAN steering, copies to several queues, time
// stamps, the newer post interface.
#include <algorithm>

#include "model/core/toeplitz.h"
#include "model/front/clock.h"
#include "model/verbs/rig.h"

namespace model::verbs {
namespace {

constexpr uint8_t kKey[40] = {0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67,
                              0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0, 0xca, 0x2b, 0xcb,
                              0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30,
                              0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa};

Bytes ipv6_frame(uint16_t port, size_t payload) {
  Bytes f(kEthernetHeader + 40 + 8 + payload);
  const uint8_t ethernet[] = {2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x86, 0xdd};
  memcpy(f.data(), ethernet, sizeof ethernet);
  uint8_t* ip = f.data() + 14;
  ip[0] = 0x60;
  store16(ip + 4, static_cast<uint32_t>(8 + payload));
  ip[6] = kProtoUdp;
  ip[7] = 64;
  inet_pton(AF_INET6, "fd00::2", ip + 8);
  inet_pton(AF_INET6, "fd00::1", ip + 24);
  store16(ip + 40, 999);
  store16(ip + 42, port);
  store16(ip + 44, static_cast<uint32_t>(8 + payload));
  fill_transport_checksum(f, parse(f));
  return f;
}

Bytes tagged(Bytes frame, uint16_t vlan) {
  const uint8_t tag[] = {0x81, 0, static_cast<uint8_t>(vlan >> 8), static_cast<uint8_t>(vlan)};
  frame.insert(frame.begin() + 12, std::begin(tag), std::end(tag));
  return frame;
}

TEST_F(Verbs, Ipv6IsSteered) {
  struct {
    ibv_flow_attr attr;
    ibv_flow_spec_ipv6 ip;
    ibv_flow_spec_tcp_udp l4;
  } s{};
  s.attr.size = sizeof s;
  s.attr.num_of_specs = 2;
  s.attr.port = 1;
  s.ip.type = IBV_FLOW_SPEC_IPV6;
  s.ip.size = sizeof s.ip;
  inet_pton(AF_INET6, "fd00::1", s.ip.val.dst_ip);
  memset(s.ip.mask.dst_ip, 0xff, 16);
  s.l4.type = IBV_FLOW_SPEC_UDP;
  s.l4.size = sizeof s.l4;
  s.l4.val.dst_port = htons(7201);
  s.l4.mask.dst_port = 0xffff;
  ibv_flow* flow = ibv_create_flow(qp, &s.attr);
  ASSERT_NE(flow, nullptr);
  post_receive(qp, 0);
  far.send(ipv6_frame(7202, 100));  // another port: the kernel's
  far.send(ipv6_frame(7201, 120));
  const ibv_wc wc = wait(receive_cq);
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.byte_len, 14u + 40 + 8 + 120);
  EXPECT_EQ(ibv_destroy_flow(flow), 0);
}

/// A group is an address like others; what nobody asked for is the kernel's.
TEST_F(Verbs, AMulticastGroupIsSteered) {
  const auto to_group = [](uint8_t last) {
    Bytes f = frame_to(kProtoUdp, 7205, 100, false);
    const uint8_t mac[] = {1, 0, 0x5e, 1, 2, last}, ip[] = {239, 1, 2, last};
    memcpy(f.data(), mac, sizeof mac);
    memcpy(f.data() + 30, ip, sizeof ip);
    fill_ip_checksum(f, parse(f));
    fill_transport_checksum(f, parse(f));
    return f;
  };
  ibv_qp* other = make_qp();
  ASSERT_NE(other, nullptr);
  make_ready(other);
  const in_addr_t group = inet_addr("239.1.2.3");
  ibv_flow* a = steer(qp, 7205, IBV_FLOW_SPEC_UDP, 0, group);
  ibv_flow* b = steer(other, 7205, IBV_FLOW_SPEC_UDP, 0, group);
  ASSERT_TRUE(a != nullptr && b != nullptr);
  for (const unsigned slot : {0u, 1u}) {
    post_receive(qp, slot);
    post_receive(other, 2 + slot);
  }
  const uint64_t before = counter("rx_packets");
  const Bytes wanted = to_group(3);
  far.send(to_group(4));  // no rule
  far.send(wanted);
  for (int i = 0; i < 2; ++i) {
    const ibv_wc wc = wait(receive_cq);
    EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
    EXPECT_TRUE((wc.wc_flags & IBV_WC_IP_CSUM_OK) != 0);
  }
  for (const unsigned slot : {0u, 2u})
    EXPECT_EQ(memcmp(memory + kReceiveAt + slot * kSlot, wanted.data(), wanted.size()), 0);
  EXPECT_EQ(ibv_destroy_flow(a), 0);
  EXPECT_EQ(ibv_destroy_flow(b), 0);
  far.send(wanted);  // nobody asks any more
  far.send(frame_to(kProtoUdp, 7204, 100, true));
  EXPECT_EQ(ibv_destroy_qp(other), 0);
  EXPECT_EQ(counter("rx_packets", before + 2) - before, 2u);
}

TEST_F(Verbs, VlanIsSteeredAndTheTagIsThere) {
  struct {
    ibv_flow_attr attr;
    ibv_flow_spec_eth eth;
    ibv_flow_spec_ipv4 ip;
  } s{};
  s.attr.size = sizeof s;
  s.attr.num_of_specs = 2;
  s.attr.port = 1;
  s.eth.type = IBV_FLOW_SPEC_ETH;
  s.eth.size = sizeof s.eth;
  s.eth.val.vlan_tag = htons(5);
  s.eth.mask.vlan_tag = htons(0xfff);
  s.ip.type = IBV_FLOW_SPEC_IPV4;
  s.ip.size = sizeof s.ip;
  s.ip.val.dst_ip = inet_addr("10.0.0.1");
  s.ip.mask.dst_ip = ~0u;
  ibv_flow* flow = ibv_create_flow(qp, &s.attr);
  ASSERT_NE(flow, nullptr);
  post_receive(qp, 0);
  far.send(frame_to(kProtoUdp, 7203, 100, true));
  far.send(tagged(frame_to(kProtoUdp, 7203, 100, true), 6));
  const Bytes wanted = tagged(frame_to(kProtoUdp, 7203, 101, true), 5);
  far.send(wanted);
  const ibv_wc wc = wait(receive_cq);
  ASSERT_EQ(wc.byte_len, wanted.size());
  EXPECT_TRUE((wc.wc_flags & IBV_WC_IP_CSUM_OK) != 0);
  EXPECT_EQ(memcmp(memory + kReceiveAt, wanted.data(), wanted.size()), 0);
  EXPECT_EQ(ibv_destroy_flow(flow), 0);
}

TEST_F(Verbs, TheSameMatchOnTwoQueuesIsACopyToEach) {
  ibv_qp* other = make_qp();
  ASSERT_NE(other, nullptr);
  make_ready(other);
  ibv_flow *a = steer(qp, 7204), *b = steer(other, 7204);
  ASSERT_TRUE(a != nullptr && b != nullptr);
  EXPECT_EQ(steer(other, 7204, IBV_FLOW_SPEC_UDP, 9), nullptr);  // another tag
  EXPECT_EQ(errno, EEXIST);
  post_receive(qp, 0);
  post_receive(other, 1);
  const Bytes frame = frame_to(kProtoUdp, 7204, 100, true);
  far.send(frame);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(wait(receive_cq).status, IBV_WC_SUCCESS);
  for (const unsigned slot : {0u, 1u}) {
    EXPECT_EQ(memcmp(memory + kReceiveAt + slot * kSlot, frame.data(), frame.size()), 0);
  }
  EXPECT_EQ(ibv_destroy_flow(a), 0);
  EXPECT_EQ(ibv_destroy_flow(b), 0);
  EXPECT_EQ(ibv_destroy_qp(other), 0);
}

TEST_F(Verbs, TheNewerPostInterface) {
  ibv_qp_init_attr_ex a{};
  a.qp_type = IBV_QPT_RAW_PACKET;
  a.send_cq = send_cq;
  a.recv_cq = receive_cq;
  a.cap = {kSends, 0, 4, 0, 200};
  a.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
  a.pd = pd;
  a.send_ops_flags = IBV_QP_EX_WITH_SEND;
  ibv_qp* other = ibv_create_qp_ex(context, &a);
  ASSERT_NE(other, nullptr);
  make_ready(other);
  ibv_qp_ex* x = ibv_qp_to_qp_ex(other);
  const Bytes frame = frame_to(kProtoUdp, 7205, 200, false);
  memcpy(memory, frame.data(), frame.size());
  ibv_wr_start(x);
  x->wr_id = 77;
  x->wr_flags = IBV_SEND_SIGNALED | IBV_SEND_IP_CSUM;
  ibv_wr_send(x);
  ibv_wr_set_sge(x, mr->lkey, reinterpret_cast<uint64_t>(memory), static_cast<uint32_t>(frame.size()));
  ASSERT_EQ(ibv_wr_complete(x), 0);
  const ibv_wc wc = wait(send_cq);
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(wc.wr_id, 77u);
  EXPECT_EQ(far.receive(7205).size(), frame.size());
  EXPECT_EQ(ibv_destroy_qp(other), 0);
}

/// Receive queues of their own behind an indirection table.
class Spread : public Verbs {
 protected:
  static constexpr unsigned kQueues = 4;

  ibv_wq* make_queue() {
    ibv_wq_init_attr a{};
    a.wq_type = IBV_WQT_RQ;
    a.max_wr = kReceives;
    a.max_sge = 1;
    a.pd = pd;
    a.cq = receive_cq;
    return ibv_create_wq(context, &a);
  }
  static void make_queue_ready(ibv_wq* q) {
    ibv_wq_attr a{};
    a.attr_mask = IBV_WQ_ATTR_STATE;
    a.wq_state = IBV_WQS_RDY;
    ASSERT_EQ(ibv_modify_wq(q, &a), 0);
  }
  ibv_qp* spread_over(ibv_rwq_ind_table* table, uint64_t fields) {
    ibv_qp_init_attr_ex a{};
    a.qp_type = IBV_QPT_RAW_PACKET;
    a.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH;
    a.pd = pd;
    a.rwq_ind_tbl = table;
    a.rx_hash_conf = {IBV_RX_HASH_FUNC_TOEPLITZ, sizeof kKey, const_cast<uint8_t*>(kKey), fields};
    return ibv_create_qp_ex(context, &a);
  }
};

TEST(Toeplitz, TheSpecificationsExample) {
  // 66.9.149.187:2794 -> 161.142.100.80:1766 hashes to 0x51ccc178, by addresses alone to 0x323e8fc2.
  Bytes f = frame_to(kProtoTcp, 1766, 0, false);
  store16(f.data() + 34, 2794);
  const uint8_t addresses[] = {66, 9, 149, 187, 161, 142, 100, 80};
  memcpy(f.data() + 26, addresses, sizeof addresses);
  EXPECT_EQ(toeplitz(f, parse(f), 0x33, kKey), 0x51ccc178u);
  EXPECT_EQ(toeplitz(f, parse(f), 0x03, kKey), 0x323e8fc2u);
}

TEST_F(Spread, FlowsGoWhereTheHashSays) {
  std::vector<ibv_wq*> queues;
  for (unsigned i = 0; i < kQueues; ++i) {
    queues.push_back(make_queue());
    ASSERT_NE(queues.back(), nullptr);
    make_queue_ready(queues.back());
    for (unsigned slot = 0; slot < 16; ++slot) {
      ibv_sge sge{reinterpret_cast<uint64_t>(memory + kReceiveAt + (i * 16 + slot) * kSlot), kSlot, mr->lkey};
      ibv_recv_wr wr{i * 100 + slot, nullptr, &sge, 1}, *bad;
      ASSERT_EQ(ibv_post_wq_recv(queues[i], &wr, &bad), 0);
    }
  }
  ibv_rwq_ind_table_init_attr a{};
  a.log_ind_tbl_size = 2;
  a.ind_tbl = queues.data();
  ibv_rwq_ind_table* table = ibv_create_rwq_ind_table(context, &a);
  ASSERT_NE(table, nullptr);
  const uint64_t fields =
      IBV_RX_HASH_SRC_IPV4 | IBV_RX_HASH_DST_IPV4 | IBV_RX_HASH_SRC_PORT_UDP | IBV_RX_HASH_DST_PORT_UDP;
  ibv_qp* spread = spread_over(table, fields);
  ASSERT_NE(spread, nullptr);
  ibv_flow* flow = steer(spread, 7206);
  ASSERT_NE(flow, nullptr);
  unsigned used = 0;
  for (uint16_t source = 1; source <= 12; ++source) {
    Bytes frame = frame_to(kProtoUdp, 7206, 100, false);
    store16(frame.data() + 34, source);
    fill_ip_checksum(frame, parse(frame));
    fill_transport_checksum(frame, parse(frame));
    far.send(frame);
    const ibv_wc wc = wait(receive_cq);
    ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
    const uint32_t hash = toeplitz(frame, parse(frame), 0xc3, kKey);
    EXPECT_EQ(wc.wr_id / 100, hash % kQueues);
    used |= 1u << hash % kQueues;
  }
  EXPECT_GT(__builtin_popcount(used), 1);
  EXPECT_EQ(ibv_destroy_rwq_ind_table(table), EBUSY);
  EXPECT_EQ(ibv_destroy_flow(flow), 0);
  EXPECT_EQ(ibv_destroy_qp(spread), 0);
  EXPECT_EQ(ibv_destroy_wq(queues[0]), EBUSY);
  EXPECT_EQ(ibv_destroy_rwq_ind_table(table), 0);
  for (ibv_wq* q : queues) EXPECT_EQ(ibv_destroy_wq(q), 0);
}

TEST_F(Spread, BothFamiliesInOneHashAreRefused) {
  ibv_wq* q = make_queue();
  ibv_rwq_ind_table_init_attr a{};
  a.ind_tbl = &q;
  ibv_rwq_ind_table* table = ibv_create_rwq_ind_table(context, &a);
  ASSERT_NE(table, nullptr);
  EXPECT_EQ(spread_over(table, IBV_RX_HASH_SRC_IPV4 | IBV_RX_HASH_SRC_IPV6), nullptr);
  EXPECT_EQ(ibv_destroy_rwq_ind_table(table), 0);
  EXPECT_EQ(ibv_destroy_wq(q), 0);
}

TEST_F(Spread, StridingBuffers) {
  constexpr uint32_t kLogStride = 6, kLogStrides = 9, kBuffer = 1u << (kLogStride + kLogStrides);
  ibv_wq_init_attr a{};
  a.wq_type = IBV_WQT_RQ;
  a.max_wr = 4;
  a.max_sge = 1;
  a.pd = pd;
  a.cq = receive_cq;
  mlx5dv_wq_init_attr d{};
  d.comp_mask = MLX5DV_WQ_INIT_ATTR_MASK_STRIDING_RQ;
  d.striding_rq_attrs = {kLogStride, kLogStrides, 0};
  ibv_wq* q = mlx5dv_create_wq(context, &a, &d);
  ASSERT_NE(q, nullptr) << strerror(errno);
  make_queue_ready(q);
  mlx5dv_rwq ring{};
  mlx5dv_cq entries{};
  mlx5dv_obj object{};
  object.rwq = {q, &ring};
  object.cq = {receive_cq, &entries};
  ASSERT_EQ(mlx5dv_init_obj(&object, MLX5DV_OBJ_RWQ | MLX5DV_OBJ_CQ), 0);
  ASSERT_EQ(ring.stride, 32u);
  for (uint32_t i = 0; i < 4; ++i) {
    auto* w = reinterpret_cast<mlx5_mprq_wqe*>(static_cast<uint8_t*>(ring.buf) + i * ring.stride);
    memset(w, 0, sizeof *w);
    mlx5dv_set_data_seg(&w->dseg, kBuffer, mr->lkey,
                        reinterpret_cast<uintptr_t>(memory + kReceiveAt + i * kBuffer));
  }
  __atomic_store_n(ring.dbrec, htobe32(4), __ATOMIC_RELEASE);
  ibv_rwq_ind_table_init_attr t{};
  t.ind_tbl = &q;
  ibv_rwq_ind_table* table = ibv_create_rwq_ind_table(context, &t);
  ibv_qp* spread = spread_over(table, 0);
  ASSERT_NE(spread, nullptr);
  ibv_flow* flow = steer(spread, 7207);
  // 1000 bytes are 16 strides: 32 frames fill a buffer exactly.
  const Bytes frame = frame_to(kProtoUdp, 7207, 1000 - 42, true);
  for (uint32_t i = 0; i < 40; ++i) {
    far.send(frame);
    auto* e = reinterpret_cast<mlx5_cqe64*>(static_cast<uint8_t*>(entries.buf) + i * entries.cqe_size);
    for (int n = 0; n < kPatience && __atomic_load_n(&e->op_own, __ATOMIC_ACQUIRE) >> 4 == MLX5_CQE_INVALID;
         ++n) {
      usleep(1000);
    }
    ASSERT_EQ(mlx5dv_get_cqe_opcode(e), MLX5_CQE_RESP_SEND);
    EXPECT_EQ(be32toh(e->byte_cnt), 16u << 16 | 1000);
    EXPECT_EQ(be16toh(e->wqe_counter), i * 16 % 512);
    EXPECT_EQ(be16toh(e->wqe_id), i / 32);
    EXPECT_EQ(memcmp(memory + kReceiveAt + i * 1024, frame.data(), frame.size()), 0);
    __atomic_store_n(&entries.dbrec[0], htobe32(i + 1), __ATOMIC_RELEASE);
  }
  EXPECT_EQ(ibv_destroy_flow(flow), 0);
  EXPECT_EQ(ibv_destroy_qp(spread), 0);
  EXPECT_EQ(ibv_destroy_rwq_ind_table(table), 0);
  EXPECT_EQ(ibv_destroy_wq(q), 0);
}

/// The model's clock.
uint64_t device_time() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return model::kClockEpoch + static_cast<uint64_t>(t.tv_sec) * 1'000'000'000 +
         static_cast<uint64_t>(t.tv_nsec);
}

TEST_F(Verbs, TheCounterRuns) {
  ibv_values_ex v{};
  uint64_t before = 0;
  for (int i = 0; i < 3; ++i) {
    v.comp_mask = IBV_VALUES_MASK_RAW_CLOCK;
    ASSERT_EQ(ibv_query_rt_values_ex(context, &v), 0);
    const uint64_t ticks = static_cast<uint64_t>(v.raw_clock.tv_sec) * 1'000'000'000 +
                           static_cast<uint64_t>(v.raw_clock.tv_nsec);
    EXPECT_GE(ticks, before);
    EXPECT_NE(ticks, 0u);
    before = ticks;
    usleep(2000);
  }
}

TEST_F(Verbs, CompletionsCarryTheClock) {
  ibv_cq_init_attr_ex a{};
  a.cqe = 16;
  a.wc_flags = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP;
  ibv_cq_ex* cq = ibv_create_cq_ex(context, &a);
  ASSERT_NE(cq, nullptr);
  ibv_qp_init_attr init{};
  init.qp_type = IBV_QPT_RAW_PACKET;
  init.send_cq = init.recv_cq = ibv_cq_ex_to_cq(cq);
  init.cap = {16, 16, 1, 1, 0};
  ibv_qp* other = ibv_create_qp(pd, &init);
  ASSERT_NE(other, nullptr);
  make_ready(other);
  ibv_flow* flow = steer(other, 7208);
  uint64_t before = 0;
  for (unsigned i = 0; i < 3; ++i) {
    post_receive(other, i);
    const uint64_t sent = device_time();
    far.send(frame_to(kProtoUdp, 7208, 100, true));
    ibv_poll_cq_attr poll_attr{};
    int n = 0;
    for (; n < kPatience && ibv_start_poll(cq, &poll_attr) != 0; ++n) usleep(1000);
    ASSERT_LT(n, kPatience);
    const uint64_t at = ibv_wc_read_completion_ts(cq);
    EXPECT_GT(at, before);
    before = at;
    ibv_end_poll(cq);
    // As time it lies between the sending and now, but for the rounding to ticks of 6.4 ns.
    mlx5dv_clock_info clock;
    ASSERT_EQ(mlx5dv_get_clock_info(context, &clock), 0);
    const uint64_t when = mlx5dv_ts_to_ns(&clock, at);
    EXPECT_GT(when + 100, sent);
    EXPECT_LT(when, device_time() + 100);
  }
  EXPECT_EQ(ibv_destroy_flow(flow), 0);
  EXPECT_EQ(ibv_destroy_qp(other), 0);
  EXPECT_EQ(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), 0);
}

TEST_F(Verbs, CompressedCompletions) {
  mlx5dv_context can{};
  can.comp_mask = MLX5DV_CONTEXT_MASK_CQE_COMPRESION;
  ASSERT_EQ(mlx5dv_query_device(context, &can), 0);
  EXPECT_EQ(can.cqe_comp_caps.max_num, 64u);
  ibv_cq_init_attr_ex a{};
  a.cqe = 63;
  mlx5dv_cq_init_attr d{};
  d.comp_mask = MLX5DV_CQ_INIT_ATTR_MASK_COMPRESSED_CQE;
  d.cqe_comp_res_format = MLX5DV_CQE_RES_FORMAT_CSUM;
  ibv_cq_ex* cq = mlx5dv_create_cq(context, &a, &d);
  ASSERT_NE(cq, nullptr) << strerror(errno);
  ibv_qp_init_attr init{};
  init.qp_type = IBV_QPT_RAW_PACKET;
  init.send_cq = send_cq;
  init.recv_cq = ibv_cq_ex_to_cq(cq);
  init.cap = {16, kReceives, 1, 1, 0};
  ibv_qp* other = ibv_create_qp(pd, &init);
  ASSERT_NE(other, nullptr);
  make_ready(other);
  mlx5dv_cq entries{};
  mlx5dv_obj object{};
  object.cq = {init.recv_cq, &entries};
  ASSERT_EQ(mlx5dv_init_obj(&object, MLX5DV_OBJ_CQ), 0);
  ibv_flow* flow = steer(other, 7212);
  for (unsigned i = 0; i < kReceives; ++i) post_receive(other, i);
  // Entries of one turn of the hardware become a session: it holds them back until both frames are in memory.
  // Only the first pair may still meet it before it looks at the page.
  const Bytes frame = frame_to(kProtoUdp, 7212, 100, true);
  Hand hand;
  bool session = false;
  for (uint32_t at = 0; at < kReceives && !session; at += 2) {
    hand->stalled = 1;
    far.send(frame);
    far.send(frame);
    for (uint32_t slot : {at, at + 1})
      for (int n = 0;
           n < kPatience && memcmp(memory + kReceiveAt + slot * kSlot, frame.data(), frame.size()) != 0; ++n)
        usleep(1000);
    hand->stalled = 0;
    auto* first = reinterpret_cast<mlx5_cqe64*>(static_cast<uint8_t*>(entries.buf) + at * entries.cqe_size);
    for (int n = 0;
         n < kPatience && __atomic_load_n(&first->op_own, __ATOMIC_ACQUIRE) >> 4 == MLX5_CQE_INVALID; ++n) {
      usleep(1000);
    }
    ASSERT_EQ(mlx5dv_get_cqe_opcode(first), MLX5_CQE_RESP_SEND);
    session = mlx5dv_get_cqe_format(first) == 3;
    if (session) {
      EXPECT_EQ(be32toh(first->byte_cnt), 2u);
      const auto* mini = reinterpret_cast<const uint8_t*>(first) + entries.cqe_size;
      EXPECT_EQ(load32(mini + 4), frame.size());
      EXPECT_EQ(load32(mini + 12), frame.size());
    } else {
      EXPECT_EQ(be32toh(first->byte_cnt), frame.size());
      auto* second = reinterpret_cast<mlx5_cqe64*>(reinterpret_cast<uint8_t*>(first) + entries.cqe_size);
      for (int n = 0;
           n < kPatience && __atomic_load_n(&second->op_own, __ATOMIC_ACQUIRE) >> 4 == MLX5_CQE_INVALID;
           ++n) {
        usleep(1000);
      }
    }
    __atomic_store_n(&entries.dbrec[0], htobe32(at + 2), __ATOMIC_RELEASE);
  }
  EXPECT_TRUE(session);
  EXPECT_EQ(ibv_destroy_flow(flow), 0);
  EXPECT_EQ(ibv_destroy_qp(other), 0);
  EXPECT_EQ(ibv_destroy_cq(init.recv_cq), 0);
}

TEST_F(Verbs, AForkedChildLeavesTheParentsQueuesAlone) {
  ibv_flow* flow = steer(qp, 7209);
  post_receive(qp, 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    errno = 0;
    const bool refused = ibv_alloc_pd(context) == nullptr && errno == EIO;
    _exit(refused ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  far.send(frame_to(kProtoUdp, 7209, 100, true));
  EXPECT_EQ(wait(receive_cq).status, IBV_WC_SUCCESS);
  ASSERT_EQ(post_send(frame_to(kProtoUdp, 7210, 100, true), IBV_SEND_SIGNALED), 0);
  EXPECT_FALSE(far.receive(7210).empty());
  EXPECT_EQ(wait(send_cq).status, IBV_WC_SUCCESS);
  EXPECT_EQ(ibv_destroy_flow(flow), 0);
}

TEST_F(Verbs, ModerationGathersEvents) {
  ibv_modify_cq_attr m{};
  m.attr_mask = IBV_CQ_ATTR_MODERATE;
  m.moderate = {4, 4096};  // beyond what the device says of itself
  EXPECT_EQ(ibv_modify_cq(receive_cq, &m), EINVAL);
  m.moderate = {4, 4000};
  ASSERT_EQ(ibv_modify_cq(receive_cq, &m), 0);
  ibv_flow* flow = steer(qp, 7211);
  for (unsigned i = 0; i < 8; ++i) post_receive(qp, i);
  ASSERT_EQ(ibv_req_notify_cq(receive_cq, 0), 0);
  for (unsigned i = 0; i < 4; ++i) far.send(frame_to(kProtoUdp, 7211, 100, true));
  pollfd p{channel->fd, POLLIN, 0};
  ASSERT_EQ(poll(&p, 1, kPatience), 1);
  ibv_cq* cq;
  void* cookie;
  ASSERT_EQ(ibv_get_cq_event(channel, &cq, &cookie), 0);
  ibv_ack_cq_events(cq, 1);
  ASSERT_EQ(ibv_req_notify_cq(receive_cq, 0), 0);
  EXPECT_EQ(ibv_destroy_flow(flow), 0);
}

}  // namespace
}  // namespace model::verbs
