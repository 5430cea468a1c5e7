// Making a striding receive queue: a work queue of its own, a table of it alone, and a queue pair without
// queues that steering rules lead to.
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

bool DirectPort::make_striding_queue() {
  ibv_wq_init_attr wanted{};
  wanted.wq_type = IBV_WQT_RQ;
  wanted.max_wr = striding_entries();
  wanted.max_sge = 1;
  wanted.pd = verbs_.pd.get();
  wanted.cq = verbs_.receive_cq.get();
  mlx5dv_wq_init_attr striding{};
  striding.comp_mask = MLX5DV_WQ_INIT_ATTR_MASK_STRIDING_RQ;
  striding.striding_rq_attrs = {static_cast<uint32_t>(std::countr_zero(strides_.stride)),
                                static_cast<uint32_t>(std::countr_zero(strides_.strides)), 0};
  verbs_.wq.reset(provider_.create_wq(verbs_.context.get(), &wanted, &striding));
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
  receiver.rx_hash_conf = {IBV_RX_HASH_FUNC_TOEPLITZ, static_cast<uint8_t>(key.size()), key.data(), 0};
  verbs_.receiver.reset(ibv_create_qp_ex(verbs_.context.get(), &receiver));
  return verbs_.receiver != nullptr;
}

bool DirectPort::take_striding_queue(const mlx5dv_cq& cq) {
  mlx5dv_rwq wq{};
  mlx5dv_obj object{};
  object.rwq = {verbs_.wq.get(), &wq};
  int error = provider_.init_obj(&object, MLX5DV_OBJ_RWQ);
  const bool usable = std::has_single_bit(wq.wqe_cnt) && wq.stride == sizeof(mlx5_mprq_wqe) &&
                      uint64_t{wq.wqe_cnt} * strides_.strides <= cq.cqe_cnt;
  if (error != 0 || !usable) {
    errno = error != 0 ? error : EPROTO;
    return false;
  }
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

}  // namespace accel::mlx5
