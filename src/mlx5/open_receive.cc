// Making the receive queue: a work queue of its own, a table of it alone, and a queue pair without queues
// that steering rules lead to. A pair of both queues would have to be reset as one, and where one of its
// queues is in error and the other is not, the kernel's driver warns.
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>

#include "mlx5/direct_port.h"

namespace accel::mlx5 {
namespace {

// 256 bytes: a small frame wastes little, and the completion queue, which needs an entry for each stride,
// stays small.
constexpr uint32_t kLogStride = 8, kLogStrides = 9;
/// For each descriptor that a cyclic queue would have: half a frame of 1500 bytes.
constexpr uint32_t kStridesAFrame = 4;
constexpr uint32_t kFewestEntries = 4;
constexpr uint32_t kLargeRing = 8192;
/// Ethernet and one VLAN tag.
constexpr uint32_t kLinkHeader = 18;

}  // namespace

void Unmap::operator()(uint8_t* memory) const { munmap(memory, size); }

uint32_t DirectPort::striding_entries() const {
  return std::max(options_.rx_ring * kStridesAFrame / strides_.strides, kFewestEntries);
}

void DirectPort::choose_strides(const mlx5dv_context& abilities) {
  const mlx5dv_striding_rq_caps& can = abilities.striding_rq_caps;
  if ((can.supported_qpts & 1u << IBV_QPT_RAW_PACKET) == 0)
    return report(options_.netdev + ": the device has no striding receive queues, a cyclic one is used");
  strides_.stride = 1u << std::clamp(kLogStride, can.min_single_stride_log_num_of_bytes,
                                     can.max_single_stride_log_num_of_bytes);
  strides_.strides = 1u << std::clamp(kLogStrides, can.min_single_wqe_log_num_of_strides,
                                      can.max_single_wqe_log_num_of_strides);
}

/// Of an entry of the cyclic queue.
uint32_t DirectPort::receive_segments() const {
  const uint32_t frame = std::max(options_.mtu, 1500u) + kLinkHeader;
  return (frame + pool_.buffer_size() - 1) / pool_.buffer_size();
}

uint32_t DirectPort::mtu_most() const {
  return strides_.stride != 0 ? strides_.buffer_size()
                              : receive_segments() * pool_.buffer_size() - kLinkHeader;
}

/// A ring of the usual size or above has entries for bursts that nobody polls for a while. Buffers lie there
/// as far as they are needed (CyclicQueue), and never more than half of the pool.
uint32_t DirectPort::ring_entries() const {
  const uint32_t wanted = options_.rx_ring;
  if (wanted < Mlx5Options{}.rx_ring) return wanted;
  return std::max(wanted, std::min(kLargeRing, std::bit_floor(pool_.size() / 2 / receive_segments())));
}

bool DirectPort::make_receive_queue() {
  const bool strides = strides_.stride != 0;
  ibv_wq_init_attr wanted{};
  wanted.wq_type = IBV_WQT_RQ;
  wanted.max_wr = strides ? striding_entries() : ring_entries();
  wanted.max_sge = strides ? 1 : receive_segments();
  wanted.pd = verbs_.pd.get();
  wanted.cq = verbs_.receive_cq.get();
  if (strides) {
    mlx5dv_wq_init_attr striding{};
    striding.comp_mask = MLX5DV_WQ_INIT_ATTR_MASK_STRIDING_RQ;
    striding.striding_rq_attrs = {
        .single_stride_log_num_of_bytes = static_cast<uint32_t>(std::countr_zero(strides_.stride)),
        .single_wqe_log_num_of_strides = static_cast<uint32_t>(std::countr_zero(strides_.strides)),
        .two_byte_shift_en = 0};
    verbs_.wq.reset(provider_.create_wq(verbs_.context.get(), &wanted, &striding));
  } else {
    verbs_.wq.reset(ibv_create_wq(verbs_.context.get(), &wanted));
  }
  if (!verbs_.wq) return false;
  ibv_wq* alone = verbs_.wq.get();
  ibv_rwq_ind_table_init_attr table{};
  table.ind_tbl = &alone;
  verbs_.table.reset(ibv_create_rwq_ind_table(verbs_.context.get(), &table));
  if (!verbs_.table) return false;
  std::array<uint8_t, 40> key{};  // nothing is hashed, but the kernel wants one
  ibv_qp_init_attr_ex receiver{};
  receiver.qp_type = IBV_QPT_RAW_PACKET;
  receiver.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_IND_TABLE | IBV_QP_INIT_ATTR_RX_HASH;
  receiver.pd = verbs_.pd.get();
  receiver.rwq_ind_tbl = verbs_.table.get();
  receiver.rx_hash_conf = {.rx_hash_function = IBV_RX_HASH_FUNC_TOEPLITZ,
                           .rx_hash_key_len = static_cast<uint8_t>(key.size()),
                           .rx_hash_key = key.data(),
                           .rx_hash_fields_mask = 0};
  verbs_.receiver.reset(ibv_create_qp_ex(verbs_.context.get(), &receiver));
  return verbs_.receiver != nullptr;
}

bool DirectPort::take_receive_queue(const mlx5dv_cq& cq) {
  mlx5dv_rwq wq{};
  mlx5dv_obj object{};
  object.rwq = {.in = verbs_.wq.get(), .out = &wq};
  const int error = provider_.init_obj(&object, MLX5DV_OBJ_RWQ);
  const bool strides = strides_.stride != 0;
  const bool usable =
      std::has_single_bit(wq.wqe_cnt) &&
      (strides ? wq.stride == sizeof(mlx5_mprq_wqe) && uint64_t{wq.wqe_cnt} * strides_.strides <= cq.cqe_cnt
               : wq.stride % kOctoword == 0);
  if (error != 0 || !usable) {
    errno = error != 0 ? error : EPROTO;
    return false;
  }
  receive_cq_record_ = DoorbellRecord(cq.dbrec);
  cq_uar_ = cq.cq_uar;
  cqn_ = cq.cqn;
  if (strides) return take_striding_queue(wq, cq);
  take_cyclic_queue(wq, cq);
  return true;
}

void DirectPort::take_cyclic_queue(const mlx5dv_rwq& wq, const mlx5dv_cq& cq) {
  const uint32_t segments = receive_segments();
  const ReceiveRing ring{static_cast<uint8_t*>(wq.buf), wq.wqe_cnt, wq.stride, verbs_.mr->lkey};
  const uint32_t room = pool_.size() / 2 / segments;
  const uint32_t target = std::min({options_.rx_ring, ring.entries, room});
  refill_batch_ = std::clamp(target / 4, 1u, 64u);
  receive_ = std::make_unique<CyclicQueue>(
      ring, DoorbellRecord(wq.dbrec), CompletionReader(cq.buf, cq.cqe_cnt, cq.cqe_size), receive_cq_record_,
      pool_, segments, target, std::min(ring.entries, room), pool_.size() / 8);
}

bool DirectPort::take_striding_queue(const mlx5dv_rwq& wq, const mlx5dv_cq& cq) {
  const size_t size = size_t{wq.wqe_cnt} * strides_.buffer_size();
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return false;
  // As the pool's (FrameRegion): not in children.
  madvise(memory, size, MADV_DONTFORK);
  stride_memory_ = {static_cast<uint8_t*>(memory), Unmap{size}};
  const int access = IBV_ACCESS_LOCAL_WRITE;
  verbs_.strides_mr.reset(ibv_reg_mr(verbs_.pd.get(), memory, size, access));
  if (!verbs_.strides_mr) return false;
  strides_.start = stride_memory_.get();
  const ReceiveRing ring{static_cast<uint8_t*>(wq.buf), wq.wqe_cnt, wq.stride, verbs_.strides_mr->lkey};
  receive_ = std::make_unique<StridingQueue>(
      ring, DoorbellRecord(wq.dbrec),
      CompletionReader(cq.buf, cq.cqe_cnt, cq.cqe_size, CompletionReader::Queue::kStriding),
      receive_cq_record_, pool_, strides_, pool_.size() / 8);
  return true;
}

int DirectPort::move_receive_queue(ibv_wq_state to, ibv_wq_state from) {
  ibv_wq_attr attr{};
  attr.attr_mask = IBV_WQ_ATTR_STATE | IBV_WQ_ATTR_CURR_STATE;
  attr.wq_state = to;
  attr.curr_wq_state = from;
  return ibv_modify_wq(verbs_.wq.get(), &attr);
}

/// Without buffers: refill() announces them.
int DirectPort::start_receiving() {
  const int error = move_receive_queue(IBV_WQS_RDY, IBV_WQS_RESET);
  receive_->reset();  // libmlx5 has gone through the completions, and written its own consumer index
  return error;
}

/// The queue is empty then, as after making it. The firmware refuses to move a queue from another state than
/// it is in. The kernel does not hear that an error has stopped it, so it is said here: that of the
/// completion, or, where that is not what it seemed, the other one.
int DirectPort::stop_receiving() {
  const bool stopped = receive_->error() && stops_receiving(*receive_->error());
  int error = move_receive_queue(IBV_WQS_RESET, stopped ? IBV_WQS_ERR : IBV_WQS_RDY);
  if (error == EINVAL) error = move_receive_queue(IBV_WQS_RESET, stopped ? IBV_WQS_RDY : IBV_WQS_ERR);
  if (error == 0) receive_->reset();
  return error;
}

}  // namespace accel::mlx5
