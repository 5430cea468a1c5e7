// Faults by hand while a program runs: the control page, and the netdev's carrier.
#include <sys/ioctl.h>

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
  move(qp, IBV_QPS_RESET);
  make_ready(qp);
  ASSERT_EQ(post_send(frame_to(kProtoUdp, 7105, 100, true), IBV_SEND_SIGNALED), 0);
  EXPECT_FALSE(far.receive(7105).empty());
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
  EXPECT_EQ(ibv_destroy_flow(flow), 0);
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
