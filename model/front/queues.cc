// Queue pairs, receive queues of their own, indirection tables and steering rules.
#include <infiniband/verbs.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/mlx5-abi.h>

#include "model/front/commands.h"
#include "model/front/environment.h"
#include "model/front/steal.h"

namespace model {
namespace {

constexpr size_t kAnswerAddress = 8;
// Without effect on a raw packet queue, or the only way that there is.
constexpr uint32_t kQpFlagsKnown =
    MLX5_QP_FLAG_SCATTER_CQE | MLX5_QP_FLAG_ALLOW_SCATTER_CQE | MLX5_QP_FLAG_UAR_PAGE_INDEX;
constexpr uint32_t kCreateBlockSelfMulticast = 1u << 1;  // there is no loopback within the NIC at all
constexpr uint32_t kMaxUserIndex = 0xffffff;

bool legal(uint8_t from, uint8_t to) {
  if (to == IBV_QPS_RESET || to == IBV_QPS_ERR) return true;
  if (from == to) return to == IBV_QPS_INIT || to == IBV_QPS_RTS;
  return (from == IBV_QPS_RESET && to == IBV_QPS_INIT) || (from == IBV_QPS_INIT && to == IBV_QPS_RTR) ||
         (from == IBV_QPS_RTR && to == IBV_QPS_RTS);
}

/// What mlx5_ib tells of a pair by its queues' states; -1: they do not go together, which it warns of.
int pair_state(const QueuePair& q) {
  using enum QueueState;
  const QueueState send = q.send.state;
  const int as_asked = q.verbs_state;
  if (q.receive.count == 0) return as_asked;
  const bool alone = q.send.blocks == 0;
  switch (q.receive.state) {
    case kReset:
      return alone || send == kReset ? int{IBV_QPS_RESET} : -1;
    case kReady:
      return !alone && send == kError ? int{IBV_QPS_SQE} : as_asked;
    case kError:
      return alone || send == kError ? int{IBV_QPS_ERR} : -1;
  }
  return -1;
}

constexpr uint32_t kSegment = 16;

QueueState state_of(uint32_t wq_state) {
  return wq_state == IBV_WQS_RDY   ? QueueState::kReady
         : wq_state == IBV_WQS_ERR ? QueueState::kError
                                   : QueueState::kReset;
}

}  // namespace

/// The firmware refuses to move a queue from a state that it is not in. Who moves it names the state that the
/// kernel remembers: an error of the hardware is not known there until somebody asks.
template <class Queue>
bool Commands::move(Context& c, Queue& q, QueueState& now, QueueState to) {
  if (q.known != q.state) {
    ++c.device_.counters().stale_moves;
    return false;
  }
  now = q.known = to;
  return true;
}

int Commands::create_qp(Context& c, Request& r) {
  const auto in = r.get<ib_uverbs_ex_create_qp>(r.extended ? 0 : kAnswerAddress);
  if (in.qp_type != IBV_QPT_RAW_PACKET || in.is_srq != 0) return EOPNOTSUPP;
  if (r.extended && (in.create_flags & ~kCreateBlockSelfMulticast) != 0) return EOPNOTSUPP;
  if (r.extended && (in.comp_mask & IB_UVERBS_CREATE_QP_MASK_IND_TABLE) != 0) return create_rss_qp(c, r);
  const auto driver = r.get_driver<mlx5_ib_create_qp>();
  if ((driver.flags & ~kQpFlagsKnown) != 0) return EOPNOTSUPP;
  if ((driver.flags & MLX5_QP_FLAG_UAR_PAGE_INDEX) == 0 || driver.bfreg_index >= Context::kUars)
    return EINVAL;
  if (driver.uidx > kMaxUserIndex) return EINVAL;
  const Context::Quiet quiet(c);
  if (!c.uars_[driver.bfreg_index].used) return EINVAL;
  auto* record = reinterpret_cast<uint32_t*>(driver.db_addr);
  QueuePair q;
  q.pd = in.pd_handle;
  if (in.max_send_wr != 0) {
    q.send.user_index = driver.uidx;
    q.send.uar = driver.bfreg_index;
    q.send.cq = in.send_cq_handle;
    q.send.ring = reinterpret_cast<uint8_t*>(driver.sq_buf_addr);
    q.send.blocks = driver.sq_wqe_count;
    q.send.record = record + 1;
  }
  if (in.max_recv_wr != 0) {
    q.receive.user_index = driver.uidx;
    q.receive.cq = in.recv_cq_handle;
    q.receive.ring = reinterpret_cast<uint8_t*>(driver.buf_addr);
    q.receive.count = driver.rq_wqe_count;
    q.receive.stride = 1u << driver.rq_wqe_shift;
    q.receive.record = record;
  }
  const auto handle = c.device_.create_qp(q);
  if (!handle) return static_cast<int>(handle.error());
  const QueuePair& made = *c.device_.qp(*handle);
  ib_uverbs_ex_create_qp_resp out{};
  out.base.qp_handle = *handle;
  out.base.qpn = made.send.blocks != 0 ? made.send.number : made.receive.number;
  out.base.max_send_wr = in.max_send_wr;
  out.base.max_recv_wr = in.max_recv_wr;
  out.base.max_send_sge = in.max_send_sge;
  out.base.max_recv_sge = in.max_recv_sge;
  out.base.max_inline_data = in.max_inline_data;
  out.response_length = sizeof out;
  r.put(out);
  mlx5_ib_create_qp_resp d{};
  d.bfreg_index = driver.bfreg_index;
  d.comp_mask = MLX5_IB_CREATE_QP_RESP_MASK_SQN | MLX5_IB_CREATE_QP_RESP_MASK_RQN;
  d.rqn = made.receive.number;
  d.sqn = made.send.number;
  r.put_driver(d);
  return 0;
}

/// A queue pair without queues that spreads over an indirection table.
int Commands::create_rss_qp(Context& c, Request& r) {
  const auto in = r.get<ib_uverbs_ex_create_qp>();
  const auto driver = r.get_driver<mlx5_ib_create_qp_rss>();
  if (driver.rx_hash_function != MLX5_RX_HASH_FUNC_TOEPLITZ || driver.rx_key_len != 40) return EOPNOTSUPP;
  if (driver.comp_mask != 0 || driver.flags != 0 || (driver.rx_hash_fields_mask & ~0xffull) != 0)
    return EOPNOTSUPP;
  const auto both = [&](uint64_t a, uint64_t b) {
    return (driver.rx_hash_fields_mask & a) != 0 && (driver.rx_hash_fields_mask & b) != 0;
  };
  // As the header says: not both families, not both transports.
  if (both(MLX5_RX_HASH_SRC_IPV4 | MLX5_RX_HASH_DST_IPV4, MLX5_RX_HASH_SRC_IPV6 | MLX5_RX_HASH_DST_IPV6))
    return EINVAL;
  if (both(MLX5_RX_HASH_SRC_PORT_TCP | MLX5_RX_HASH_DST_PORT_TCP,
           MLX5_RX_HASH_SRC_PORT_UDP | MLX5_RX_HASH_DST_PORT_UDP)) {
    return EINVAL;
  }
  const Context::Quiet quiet(c);
  QueuePair q;
  q.pd = in.pd_handle;
  q.rss_table = in.rwq_ind_tbl_handle;
  if (q.rss_table == 0) return EINVAL;
  q.rss_fields = static_cast<uint32_t>(driver.rx_hash_fields_mask);
  q.rss_key.assign(driver.rx_hash_key, driver.rx_hash_key + driver.rx_key_len);
  const auto handle = c.device_.create_qp(q);
  if (!handle) return static_cast<int>(handle.error());
  ib_uverbs_ex_create_qp_resp out{};
  out.base.qp_handle = *handle;
  out.base.qpn = *handle;
  out.response_length = sizeof out;
  r.put(out);
  r.put_driver(mlx5_ib_create_qp_resp{});
  return 0;
}

/// As mlx5_ib has it: the queues' states are asked of the firmware, remembered, and told as one. What libmlx5
/// knows of the send queue it fills in itself.
int Commands::query_qp(Context& c, Request& r) {
  const auto in = r.get<ib_uverbs_query_qp>();
  const Context::Quiet quiet(c);
  QueuePair* q = c.device_.qp(in.qp_handle);
  if (q == nullptr) return EINVAL;
  if (q->rss_table != 0) return ENOSYS;
  c.take_writes();
  q->send.known = q->send.state;
  q->receive.known = q->receive.state;
  const int state = pair_state(*q);
  if (state < 0) {
    ++c.device_.counters().kernel_warnings;
    return EINVAL;
  }
  q->verbs_state = static_cast<uint8_t>(state);
  ib_uverbs_query_qp_resp out{};
  out.qp_state = out.cur_qp_state = q->verbs_state;
  out.port_num = 1;
  out.max_recv_wr = q->receive.count;
  out.max_recv_sge = q->receive.count != 0 ? q->receive.stride / kSegment : 0;
  memcpy(r.core_answer.data(), &out, r.core_answer.size());
  return 0;
}

int Commands::modify_qp(Context& c, Request& r) {
  ib_uverbs_modify_qp in{};
  memcpy(&in, r.core.data(), std::min(sizeof in, r.core.size()));
  const Context::Quiet quiet(c);
  QueuePair* q = c.device_.qp(in.qp_handle);
  if (q == nullptr) return EINVAL;
  if (q->rss_table != 0) return ENOSYS;
  if ((in.attr_mask & ~(IBV_QP_STATE | IBV_QP_PORT | IBV_QP_CUR_STATE)) != 0)
    return EINVAL;  // a raw packet queue's
  if ((in.attr_mask & IBV_QP_PORT) != 0 && in.port_num != 1) return EINVAL;
  if ((in.attr_mask & IBV_QP_STATE) == 0) return 0;
  const uint8_t from = (in.attr_mask & IBV_QP_CUR_STATE) != 0 ? in.cur_qp_state : q->verbs_state;
  if (in.qp_state > IBV_QPS_ERR || !legal(from, in.qp_state)) return EINVAL;
  if (from == IBV_QPS_RESET && in.qp_state == IBV_QPS_RESET) return 0;
  c.take_writes();
  // The receive side runs from INIT on, the send side from RTS (as the kernel drives the two queues).
  const bool starts = in.qp_state == IBV_QPS_INIT && from == IBV_QPS_RESET,
             ends = in.qp_state == IBV_QPS_RESET;
  const bool fails = in.qp_state == IBV_QPS_ERR, sends = in.qp_state == IBV_QPS_RTS;
  const QueueState end = fails ? QueueState::kError : QueueState::kReset;
  const bool receive_moves = q->receive.count != 0 && (starts || ends || fails);
  const bool send_moves = q->send.blocks != 0 && (starts || ends || fails || sends);
  QueueState send = q->send.state, receive = q->receive.state;
  bool moved = !receive_moves || move(c, q->receive, receive, starts ? QueueState::kReady : end);
  moved = moved && (!send_moves || move(c, q->send, send, sends ? QueueState::kReady : end));
  if (moved) q->verbs_state = in.qp_state;
  const int bad = error(c.device_.set_state(in.qp_handle, send, receive));
  return moved ? bad : EINVAL;
}

int Commands::destroy_qp(Context& c, Request& r) {
  const auto in = r.get<ib_uverbs_destroy_qp>();
  const Context::Quiet quiet(c);
  if (const int bad = error(c.device_.destroy_qp(in.qp_handle)); bad != 0) return bad;
  r.put(ib_uverbs_destroy_qp_resp{});
  return 0;
}

int Commands::create_wq(Context& c, Request& r) {
  const auto in = r.get<ib_uverbs_ex_create_wq>();
  const auto driver = r.get_driver<mlx5_ib_create_wq>();
  if (in.comp_mask != 0 || in.create_flags != 0 || driver.flags != 0) return EOPNOTSUPP;
  if (in.wq_type != IBV_WQT_RQ || driver.user_index > kMaxUserIndex) return EINVAL;
  if ((driver.comp_mask & ~MLX5_IB_CREATE_WQ_STRIDING_RQ) != 0) return EOPNOTSUPP;
  WorkQueue q;
  q.pd = in.pd_handle;
  q.receive.user_index = driver.user_index;
  q.receive.cq = in.cq_handle;
  q.receive.ring = reinterpret_cast<uint8_t*>(driver.buf_addr);
  q.receive.count = driver.rq_wqe_count;
  q.receive.stride = 1u << driver.rq_wqe_shift;
  q.receive.record = reinterpret_cast<uint32_t*>(driver.db_addr);
  if ((driver.comp_mask & MLX5_IB_CREATE_WQ_STRIDING_RQ) != 0) {
    const uint32_t stride = driver.single_stride_log_num_of_bytes,
                   strides = driver.single_wqe_log_num_of_strides;
    if (stride < 6 || stride > 13 || strides < 9 || strides > 16 || q.receive.stride != 32) return EINVAL;
    q.receive.striding = true;
    q.receive.log_stride = static_cast<uint8_t>(stride);
    q.receive.log_strides = static_cast<uint8_t>(strides);
    q.receive.pad_two = driver.two_byte_shift_en != 0;
  }
  const Context::Quiet quiet(c);
  const auto handle = c.device_.create_wq(q);
  if (!handle) return static_cast<int>(handle.error());
  ib_uverbs_ex_create_wq_resp out{};
  out.response_length = sizeof out;
  out.wq_handle = *handle;
  out.max_wr = in.max_wr;
  out.max_sge = in.max_sge;
  out.wqn = c.device_.wq(*handle)->receive.number;
  r.put(out);
  r.put_driver(mlx5_ib_create_wq_resp{sizeof(mlx5_ib_create_wq_resp), 0});
  return 0;
}

int Commands::modify_wq(Context& c, Request& r) {
  const auto in = r.get<ib_uverbs_ex_modify_wq>();
  if ((in.attr_mask & ~(IBV_WQ_ATTR_STATE | IBV_WQ_ATTR_CURR_STATE)) != 0) return EOPNOTSUPP;
  if (in.wq_state > IBV_WQS_ERR || in.curr_wq_state > IBV_WQS_ERR) return EINVAL;
  const Context::Quiet quiet(c);
  WorkQueue* q = c.device_.wq(in.wq_handle);
  if (q == nullptr) return EINVAL;
  c.take_writes();
  // Who says nothing of it means the state that the kernel remembers.
  const bool told = (in.attr_mask & IBV_WQ_ATTR_CURR_STATE) != 0;
  const QueueState from = told ? state_of(in.curr_wq_state) : q->receive.known;
  const QueueState to = (in.attr_mask & IBV_WQ_ATTR_STATE) != 0 ? state_of(in.wq_state) : from;
  if (from != q->receive.state || (from == QueueState::kError && to == QueueState::kReady)) {
    ++c.device_.counters().stale_moves;
    return EINVAL;
  }
  q->receive.known = to;
  return error(c.device_.set_wq_state(in.wq_handle, to));
}

int Commands::destroy_wq(Context& c, Request& r) {
  const Context::Quiet quiet(c);
  if (const int bad = error(c.device_.destroy_wq(r.get<ib_uverbs_ex_destroy_wq>().wq_handle)); bad != 0)
    return bad;
  ib_uverbs_ex_destroy_wq_resp out{};
  out.response_length = sizeof out;
  r.put(out);
  return 0;
}

int Commands::create_table(Context& c, Request& r) {
  ib_uverbs_ex_create_rwq_ind_table in{};
  if (r.core.size() < 8) return EINVAL;
  memcpy(&in, r.core.data(), 8);
  if (in.comp_mask != 0) return EOPNOTSUPP;
  if (in.log_ind_tbl_size > 9 || r.core.size() < 8 + (4u << in.log_ind_tbl_size)) return EINVAL;
  IndirectionTable table;
  table.queues.resize(size_t{1} << in.log_ind_tbl_size);
  memcpy(table.queues.data(), r.core.data() + 8, table.queues.size() * 4);
  const Context::Quiet quiet(c);
  const auto handle = c.device_.create_table(table);
  if (!handle) return static_cast<int>(handle.error());
  ib_uverbs_ex_create_rwq_ind_table_resp out{};
  out.response_length = sizeof out;
  out.ind_tbl_handle = out.ind_tbl_num = *handle;
  r.put(out);
  r.put_driver(mlx5_ib_create_rwq_ind_tbl_resp{sizeof(mlx5_ib_create_rwq_ind_tbl_resp), 0});
  return 0;
}

int Commands::destroy_table(Context& c, Request& r) {
  const Context::Quiet quiet(c);
  return error(c.device_.destroy_table(r.get<ib_uverbs_ex_destroy_rwq_ind_table>().ind_tbl_handle));
}

int Commands::create_flow(Context& c, Request& r) {
  constexpr size_t kFixed = 8 + sizeof(ib_uverbs_flow_attr);
  struct {
    uint32_t comp_mask, qp_handle;
    uint32_t type;
    uint16_t size, priority;
    uint8_t specs, reserved[2], port;
    uint32_t flags;
  } in;
  static_assert(sizeof in == kFixed);
  if (r.core.size() < kFixed) return EINVAL;
  if (!r.has_net_raw) return EPERM;
  memcpy(&in, r.core.data(), kFixed);
  if (in.comp_mask != 0 || in.port != 1) return EINVAL;
  if (in.flags != 0) return EOPNOTSUPP;  // loopback, don't trap, egress
  if (r.driver.size() >= 4 && r.get_driver<mlx5_ib_create_flow>().ncounters_data != 0) return EOPNOTSUPP;
  auto rule = parse_flow(in.type, in.priority, in.specs, r.core.subspan(kFixed));
  if (!rule) return static_cast<int>(rule.error());
  rule->target = in.qp_handle;
  const auto stolen = to_steal(*rule);
  if (!stolen) return static_cast<int>(stolen.error());
  Context::Taken taken{.steal_rule = 0, .order = stolen->order, .claim = c.next_claim_++};
  if (const auto ours = c.claims_.add(environment().netdev, *rule, taken.claim); !ours)
    return static_cast<int>(ours.error());
  accel::Result<uint32_t> handle = accel::err(EINVAL);
  {
    const Context::Quiet quiet(c);
    c.follow_others();  // which use up the room too
    handle = c.device_.add_flow(*rule);
  }
  if (!handle) {
    c.claims_.remove(taken.claim);
    return static_cast<int>(handle.error());
  }
  const auto made = c.steal(*stolen);
  const Context::Quiet quiet(c);
  if (!made) {
    (void)c.device_.remove_flow(*handle);
    c.claims_.remove(taken.claim);
    return static_cast<int>(made.error());
  }
  taken.steal_rule = *made;
  c.stolen_[*handle] = taken;
  c.shared_.add(*rule, *handle);
  c.publish();
  r.put(ib_uverbs_create_flow_resp{0, *handle});
  return 0;
}

int Commands::destroy_flow(Context& c, Request& r) {
  const auto in = r.get<ib_uverbs_destroy_flow>();
  const Context::Quiet quiet(c);
  const auto taken = c.stolen_.find(in.flow_handle);
  if (taken == c.stolen_.end()) return EINVAL;
  // What the rule took while it stood is the queue's.
  c.give_back(taken->second);
  c.receive(Context::kFramesHeld);
  c.shared_.remove(in.flow_handle);
  c.claims_.remove(taken->second.claim);
  c.stolen_.erase(taken);
  const auto removed = c.device_.remove_flow(in.flow_handle);
  c.publish();  // the program may end before the next turn
  return error(removed);
}

}  // namespace model
