// Faults by hand while a program runs: the control page, and the netdev's carrier.
#include <sys/ioctl.h>

#include <algorithm>
#include <array>

#include "model/verbs/rig.h"

namespace model::verbs {
namespace {

void set_up(bool up) {
  const int fd = socket(AF_INET, SOCK_DGRAM, 0);
  ifreq request{};
  strncpy(request.ifr_name, getenv("MLX5_MODEL_NETDEV"), IFNAMSIZ - 1);
  ASSERT_EQ(ioctl(fd, SIOCGIFFLAGS, &request), 0);
  request.ifr_flags = static_cast<short>(up ? request.ifr_flags | IFF_UP : request.ifr_flags & ~IFF_UP);
  ASSERT_EQ(ioctl(fd, SIOCSIFFLAGS, &request), 0);
  close(fd);
}

class Faults : public Verbs {
 protected:
  ibv_event_type next_event() {
    ibv_async_event e{};
    pollfd p{context->async_fd, POLLIN, 0};
    EXPECT_EQ(poll(&p, 1, kPatience), 1);
    EXPECT_EQ(ibv_get_async_event(context, &e), 0);
    ibv_ack_async_event(&e);
    return e.event_type;
  }
  static ibv_qp_state state_of(ibv_qp* q) {
    ibv_qp_attr attr{};
    ibv_qp_init_attr made{};
    EXPECT_EQ(ibv_query_qp(q, &attr, IBV_QP_STATE, &made), 0);
    return attr.qp_state;
  }
  Hand hand;
};

TEST_F(Faults, LinkDownAndUp) {
  ibv_port_attr port;
  set_up(false);
  EXPECT_EQ(next_event(), IBV_EVENT_PORT_ERR);
  ASSERT_EQ(ibv_query_port(context, 1, &port), 0);
  EXPECT_EQ(port.state, IBV_PORT_DOWN);
  // Descriptors complete all the same: the NIC drops what the wire does not take.
  ASSERT_EQ(post_send(frame_to(kProtoUdp, 7101, 100, true), IBV_SEND_SIGNALED), 0);
  EXPECT_EQ(wait(send_cq).status, IBV_WC_SUCCESS);
  set_up(true);
  EXPECT_EQ(next_event(), IBV_EVENT_PORT_ACTIVE);
  ASSERT_EQ(post_send(frame_to(kProtoUdp, 7102, 100, true), IBV_SEND_SIGNALED), 0);
  EXPECT_FALSE(far.receive(7102).empty());
  EXPECT_EQ(wait(send_cq).status, IBV_WC_SUCCESS);
}

TEST_F(Faults, CompletionsAreHeldBackAndCome) {
  hand->stalled = 1;
  usleep(5000);
  ASSERT_EQ(post_send(frame_to(kProtoUdp, 7103, 100, true), IBV_SEND_SIGNALED), 0);
  EXPECT_FALSE(far.receive(7103).empty());
  ibv_wc wc;
  EXPECT_EQ(ibv_poll_cq(send_cq, 1, &wc), 0);
  hand->stalled = 0;
  EXPECT_EQ(wait(send_cq).status, IBV_WC_SUCCESS);
}

TEST_F(Faults, AnErrorCompletionOnSending) {
  hand->send_errors = hand->send_errors + 1;
  // The request is followed at the hardware's next turn; until then descriptors pass.
  ibv_wc wc{};
  while (wc.status == IBV_WC_SUCCESS) {
    ASSERT_EQ(post_send(frame_to(kProtoUdp, 7104, 100, true), IBV_SEND_SIGNALED), 0);
    wc = wait(send_cq);
  }
  EXPECT_EQ(wc.status, IBV_WC_LOC_QP_OP_ERR);
  EXPECT_EQ(state_of(qp), IBV_QPS_SQE);  // the receive queue runs
  move(qp, IBV_QPS_RESET);
  make_ready(qp);
  ASSERT_EQ(post_send(frame_to(kProtoUdp, 7105, 100, true), IBV_SEND_SIGNALED), 0);
  EXPECT_FALSE(far.receive(7105).empty());
  EXPECT_EQ(wait(send_cq).status, IBV_WC_SUCCESS);
  // Where nobody has asked, the kernel takes the queue to be ready, and the firmware refuses to move it.
  ASSERT_EQ(post_send(frame_to(kProtoUdp, 7104, 100, true), IBV_SEND_SIGNALED, 1, 77), 0);
  EXPECT_EQ(wait(send_cq).status, IBV_WC_LOC_PROT_ERR);
  ibv_qp_attr attr{};
  attr.qp_state = IBV_QPS_RESET;
  EXPECT_EQ(ibv_modify_qp(qp, &attr, IBV_QP_STATE), EINVAL);
  EXPECT_EQ(counter("stale_moves", 1), 1u);
  EXPECT_EQ(violations(), std::vector<std::string>{"wqe-lkey"});
  forgive_violations();
}

TEST_F(Faults, DoorbellsRungBeforeAResetAreGood) {
  for (int i = 0; i < 200; ++i) {
    ASSERT_EQ(post_send(frame_to(kProtoUdp, 7109, 100, true), 0), 0);
    move(qp, IBV_QPS_RESET);
    make_ready(qp);
  }
  ASSERT_EQ(post_send(frame_to(kProtoUdp, 7110, 100, true), IBV_SEND_SIGNALED), 0);
  EXPECT_EQ(wait(send_cq).status, IBV_WC_SUCCESS);
  EXPECT_TRUE(violations().empty());
}

TEST_F(Faults, ADoorbellOfAQueueInResetIsAViolation) {
  move(qp, IBV_QPS_RESET);
  mlx5dv_qp direct{};
  mlx5dv_obj object{};
  object.qp = {qp, &direct};
  ASSERT_EQ(mlx5dv_init_obj(&object, MLX5DV_OBJ_QP), 0);
  uint8_t word[8];
  store32(word, MLX5_OPCODE_NOP);
  store32(word + 4, qp->qp_num << 8 | 1);
  uint64_t value;
  memcpy(&value, word, 8);
  *static_cast<volatile uint64_t*>(direct.bf.reg) = value;
  make_ready(qp);  // the hardware has had it by then
  const auto found = violations();
  forgive_violations();
  EXPECT_EQ(found, std::vector<std::string>{"doorbell-state"});
}

TEST_F(Faults, AnErrorCompletionOnReceiving) {
  ibv_flow* flow = steer(qp, 7106);
  for (unsigned i = 0; i < 4; ++i) post_receive(qp, i);
  hand->receive_errors = hand->receive_errors + 1;
  ibv_wc wc{};
  unsigned good = 0;
  for (; good < 4 && wc.status == IBV_WC_SUCCESS; ++good) {
    far.send(frame_to(kProtoUdp, 7106, 100, true));
    wc = wait(receive_cq);
  }
  EXPECT_EQ(wc.status, IBV_WC_LOC_QP_OP_ERR);
  for (unsigned i = good; i < 4; ++i) EXPECT_EQ(wait(receive_cq).status, IBV_WC_WR_FLUSH_ERR);
  // One queue of a pair in error and the other ready: the driver warns, and still remembers what it has
  // found.
  ibv_qp_attr attr{};
  ibv_qp_init_attr made{};
  attr.qp_state = IBV_QPS_RESET;
  EXPECT_EQ(ibv_modify_qp(qp, &attr, IBV_QP_STATE), EINVAL);
  EXPECT_EQ(ibv_query_qp(qp, &attr, IBV_QP_STATE, &made), EINVAL);
  move(qp, IBV_QPS_RESET);
  EXPECT_EQ(ibv_destroy_flow(flow), 0);
}

TEST_F(Faults, AnErrorOfAReceiveQueueOfItsOwn) {
  ibv_wq* wq = nullptr;
  ibv_wq_init_attr wanted{};
  wanted.wq_type = IBV_WQT_RQ;
  wanted.max_wr = 16;
  wanted.max_sge = 1;
  wanted.pd = pd;
  wanted.cq = receive_cq;
  ASSERT_NE(wq = ibv_create_wq(context, &wanted), nullptr);
  const auto modify = [&](ibv_wq_state to, int from) {
    ibv_wq_attr attr{};
    attr.attr_mask = IBV_WQ_ATTR_STATE | (from < 0 ? 0 : IBV_WQ_ATTR_CURR_STATE);
    attr.wq_state = to;
    attr.curr_wq_state = static_cast<ibv_wq_state>(std::max(from, 0));
    return ibv_modify_wq(wq, &attr);
  };
  ASSERT_EQ(modify(IBV_WQS_RDY, -1), 0);
  ibv_wq* queues[] = {wq};
  ibv_rwq_ind_table_init_attr table{0, queues, 0};
  ibv_rwq_ind_table* spread = ibv_create_rwq_ind_table(context, &table);
  ASSERT_NE(spread, nullptr);
  std::array<uint8_t, 40> key{};
  ibv_qp_init_attr_ex receiver{};
  receiver.qp_type = IBV_QPT_RAW_PACKET;
  receiver.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH;
  receiver.pd = pd;
  receiver.rwq_ind_tbl = spread;
  receiver.rx_hash_conf = {IBV_RX_HASH_FUNC_TOEPLITZ, static_cast<uint8_t>(key.size()), key.data(), 0};
  ibv_qp* target = ibv_create_qp_ex(context, &receiver);
  ASSERT_NE(target, nullptr);
  ibv_flow* flow = steer(target, 7111);
  ASSERT_NE(flow, nullptr);
  ibv_sge sge{reinterpret_cast<uint64_t>(memory + kReceiveAt), kSlot, mr->lkey};
  ibv_recv_wr wr{0, nullptr, &sge, 1}, *bad;
  ASSERT_EQ(ibv_post_wq_recv(wq, &wr, &bad), 0);
  hand->receive_errors = hand->receive_errors + 1;
  ibv_wc wc{};
  while (wc.status == IBV_WC_SUCCESS) {
    ASSERT_EQ(ibv_post_wq_recv(wq, &wr, &bad), 0);
    far.send(frame_to(kProtoUdp, 7111, 100, true));
    wc = wait(receive_cq);
  }
  EXPECT_EQ(wc.status, IBV_WC_LOC_QP_OP_ERR);
  EXPECT_EQ(modify(IBV_WQS_RESET, -1), EINVAL);
  EXPECT_EQ(modify(IBV_WQS_RESET, IBV_WQS_RDY), EINVAL);
  EXPECT_EQ(modify(IBV_WQS_RESET, IBV_WQS_ERR), 0);
  EXPECT_EQ(modify(IBV_WQS_RDY, -1), 0);
  EXPECT_EQ(ibv_destroy_flow(flow), 0);
  EXPECT_EQ(ibv_destroy_qp(target), 0);
  EXPECT_EQ(ibv_destroy_rwq_ind_table(spread), 0);
  EXPECT_EQ(ibv_destroy_wq(wq), 0);
}

TEST_F(Faults, TheDeviceGoes) {
  ibv_flow* flow = steer(qp, 7107);
  hand->removed = 1;
  EXPECT_EQ(next_event(), IBV_EVENT_DEVICE_FATAL);
  ASSERT_EQ(post_send(frame_to(kProtoUdp, 7108, 100, true), IBV_SEND_SIGNALED), 0);
  usleep(20000);
  ibv_wc wc;
  EXPECT_EQ(ibv_poll_cq(send_cq, 1, &wc), 0);
  EXPECT_EQ(ibv_alloc_pd(context), nullptr);
  EXPECT_EQ(errno, EIO);
  EXPECT_EQ(ibv_destroy_flow(flow), EIO);
  EXPECT_EQ(ibv_destroy_qp(qp), EIO);
  gone = true;
}

}  // namespace
}  // namespace model::verbs
