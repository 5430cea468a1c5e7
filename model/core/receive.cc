// Receiving: steering, descriptors, scattering and the completion's verdicts.
#include <infiniband/mlx5dv.h>

#include <algorithm>
#include <utility>

#include "model/core/bytes.h"
#include "model/core/device.h"
#include "model/core/toeplitz.h"

namespace model {
namespace {

constexpr uint8_t kGood = 0;
constexpr uint8_t kNoRoom = 0xff;  // no syndrome of the hardware's: the frame is dropped

std::string name(const ReceiveQueue& q) {
  return "RQ " + std::to_string(q.number) + " descriptor " + std::to_string(q.next);
}

uint8_t* descriptor(const ReceiveQueue& q) {
  return q.ring + static_cast<size_t>(q.next & (q.count - 1)) * q.stride;
}

}  // namespace

void Device::rx(std::span<const uint8_t> frame, uint64_t now) {
  now_ = now;
  if (removed_) return;
  if (impairment_ == nullptr) {
    take(frame);
  } else {
    impairment_->pass(frame, now, [this](std::span<const uint8_t> f) { take(f); });
  }
}

bool Device::steers(std::span<const uint8_t> frame) {
  return !flows_.lookup(fields_of(frame, parse(frame))).empty();
}

void Device::report_ambiguous(const FlowRule& a, const FlowRule& b, const std::string& whose,
                              std::span<const uint8_t> frame) {
  checker_.report("flow-ambiguous",
                  "two different rules of priority " + std::to_string(a.priority) + " match, for " + whose +
                      ", tags " + std::to_string(a.tag) + " and " + std::to_string(b.tag),
                  frame.first(std::min<size_t>(frame.size(), 64)));
}

/// Which process's rule goes first is decided before the frame comes here; of equal ones none does.
void Device::compare_with_others(const FlowRule& ours, const FlowFields& fields,
                                 std::span<const uint8_t> frame) {
  for (const FlowRule& other : others_) {
    if (ours.before(other) || other.before(ours) || !matches(other, fields)) continue;
    if (!other.same_match(ours)) report_ambiguous(ours, other, "two processes", frame);
  }
}

void Device::take(std::span<const uint8_t> frame) {
  const Parsed p = parse(frame);
  const FlowFields fields = fields_of(frame, p);
  const auto rules = flows_.lookup(fields);
  if (rules.empty()) {
    ++counters_.rx_no_rule;
    return;
  }
  compare_with_others(*rules[0], fields, frame);
  if (const FlowRule* conflicting = flows_.conflicting();
      conflicting != nullptr &&
      (conflicting->target != rules[0]->target || conflicting->tag != rules[0]->tag)) {
    report_ambiguous(
        *rules[0], *conflicting,
        "QPs " + std::to_string(rules[0]->target) + " and " + std::to_string(conflicting->target), frame);
  }
  for (const FlowRule* rule : rules) {
    if (rule->drop) {
      ++counters_.rx_dropped_by_rule;
      continue;
    }
    QueuePair* target = qp(rule->target);
    if (target == nullptr) continue;
    uint32_t hash = 0;
    ReceiveQueue* q = target->rss_table != 0 ? spread(*target, frame, p, hash) : &target->receive;
    if (q != nullptr && q->count != 0) deliver(*q, frame, p, rule->tag, hash, target->pd);
  }
}

ReceiveQueue* Device::spread(const QueuePair& target, std::span<const uint8_t> frame, const Parsed& p,
                             uint32_t& hash) {
  const auto table = tables_.find(target.rss_table);
  if (table == tables_.end()) return nullptr;
  hash = toeplitz(frame, p, target.rss_fields, target.rss_key);
  const auto& queues = table->second.queues;
  WorkQueue* q = wq(queues[hash & (queues.size() - 1)]);
  return q == nullptr ? nullptr : &q->receive;
}

ReceiveQueue* Device::receive_queue(uint32_t handle) {
  if (QueuePair* pair = qp(handle)) return &pair->receive;
  WorkQueue* alone = wq(handle);
  return alone == nullptr ? nullptr : &alone->receive;
}

void Device::deliver(ReceiveQueue& q, std::span<const uint8_t> frame, const Parsed& p, uint32_t tag,
                     uint32_t hash, uint32_t pd) {
  const bool overrun = impairment_ != nullptr && impairment_->chance(faults_.overrun);
  counters_.faults_overrun += overrun;
  if (q.state != QueueState::kReady || overrun || !next_descriptor(q)) {
    no_descriptor(frame);
    ++q.dropped;
    return;
  }
  uint8_t syndrome = kGood;
  if (impairment_ != nullptr && impairment_->chance(faults_.receive_error)) {
    syndrome = MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR;
    ++counters_.faults_error_cqe;
  }
  for (auto it = receive_errors_.begin(); it != receive_errors_.end(); ++it) {
    if (receive_queue(it->first) != &q) continue;
    syndrome = it->second;
    ++counters_.faults_error_cqe;
    receive_errors_.erase(it);
    break;
  }
  Completion c{q.cq, {}};
  auto* e = reinterpret_cast<mlx5_cqe64*>(c.bytes.data());
  e->byte_cnt = htobe32(static_cast<uint32_t>(frame.size()));
  e->wqe_counter = htobe16(q.next);
  if (syndrome == kGood) {
    syndrome = q.striding ? scatter_strides(q, frame, pd, c) : scatter(q, frame, pd);
  }
  if (syndrome == kNoRoom) {
    no_descriptor(frame);
    ++q.dropped;
    return;
  }
  if (syndrome == MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR && !q.striding) {
    // The queue goes on: the kernel's driver does not reset it for that (cqe_syndrome_needs_recover).
    error_entry(q.cq, MLX5_CQE_RESP_ERR, syndrome, q.user_index, q.number, q.next++);
    ++counters_.rx_too_long;
    counters_.rx_bytes_lost += frame.size();
    return;
  }
  if (syndrome != kGood) {
    fail_receive(q, syndrome);
    return;
  }
  if (q.striding)
    ++counters_.rx_strided;
  else
    ++q.next;
  e->srqn_uidx = htobe32(q.user_index);
  describe(c, frame, p, tag, hash);
  constexpr uint32_t kMostTold = 255;
  const uint32_t told = std::min(std::exchange(q.dropped, 0), kMostTold);
  counters_.rx_drops_told += told;
  reinterpret_cast<mlx5_cqe64*>(c.bytes.data())->sop_drop_qpn |= htobe32(told << 24);
  ++counters_.rx_packets;
  counters_.rx_bytes += frame.size();
  c.compressible = true;
  c.strided = q.striding;
  complete(std::move(c));
}

void Device::no_descriptor(std::span<const uint8_t> frame) {
  ++counters_.rx_out_of_buffer;
  counters_.rx_bytes_lost += frame.size();
}

/// There is a descriptor, and the record makes sense.
bool Device::next_descriptor(ReceiveQueue& q) {
  const uint16_t producer = static_cast<uint16_t>(read_record(q.record));
  const uint16_t posted = static_cast<uint16_t>(producer - q.next);
  if (posted > q.count) {
    checker_.report("rq-overrun", name(q) + ": record " + std::to_string(producer) + " with only " +
                                      std::to_string(q.count) + " descriptors");
    return false;
  }
  return posted != 0;
}

uint8_t Device::scatter(ReceiveQueue& q, std::span<const uint8_t> frame, uint32_t pd) {
  const uint8_t* d = descriptor(q);
  for (size_t at = 0; at + 16 <= q.stride && !frame.empty(); at += 16) {
    const uint32_t length = load32(d + at), key = load32(d + at + 4);
    const uint64_t address = load64(d + at + 8);
    if (key == MLX5_INVALID_LKEY) break;
    const Mr* mr = readable(key, address, length, pd, true);
    if (mr == nullptr) {
      checker_.report("rq-lkey",
                      name(q) + ": lkey " + std::to_string(key) + " does not cover the range for writing",
                      {d, q.stride});
      return MLX5_CQE_SYNDROME_LOCAL_PROT_ERR;
    }
    const size_t n = std::min<size_t>(length, frame.size());
    memcpy(translate(*mr, address), frame.data(), n);
    frame = frame.subspan(n);
  }
  return frame.empty() ? kGood : uint8_t{MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR};
}

/// One frame takes whole strides; what it cannot use of a buffer's end is skipped and said as filler.
uint8_t Device::scatter_strides(ReceiveQueue& q, std::span<const uint8_t> frame, uint32_t pd, Completion& c) {
  const uint32_t stride = 1u << q.log_stride, strides = 1u << q.log_strides;
  const uint32_t bytes = static_cast<uint32_t>(frame.size()) + (q.pad_two ? 2 : 0);
  const uint32_t need = (bytes + stride - 1) / stride;
  auto* e = reinterpret_cast<mlx5_cqe64*>(c.bytes.data());
  if (need > strides) return MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR;
  if (q.used_strides + need > strides) {
    // The rest of this buffer is filler: an entry of its own closes it.
    Completion filler{q.cq, {}};
    auto* f = reinterpret_cast<mlx5_cqe64*>(filler.bytes.data());
    f->srqn_uidx = htobe32(q.user_index);
    f->byte_cnt = htobe32(1u << 31 | (strides - q.used_strides) << 16);
    f->wqe_counter = htobe16(static_cast<uint16_t>(q.used_strides));
    f->wqe_id = htobe16(q.next);
    f->timestamp = htobe64(ticks(now_));
    f->op_own = MLX5_CQE_RESP_SEND << 4;
    complete(std::move(filler));
    ++q.next;
    q.used_strides = 0;
    if (!next_descriptor(q)) return kNoRoom;
  }
  const uint8_t* d = descriptor(q) + 16;  // behind the next segment
  const uint32_t length = load32(d), key = load32(d + 4);
  const uint64_t address = load64(d + 8) + static_cast<uint64_t>(q.used_strides) * stride;
  const Mr* mr = readable(key, address, bytes, pd, true);
  if (mr == nullptr || length < static_cast<uint64_t>(stride) * strides) {
    checker_.report("rq-lkey", name(q) + ": striding buffer too short, or its lkey does not cover it",
                    {d - 16, 32});
    return MLX5_CQE_SYNDROME_LOCAL_PROT_ERR;
  }
  uint8_t* to = translate(*mr, address);
  if (q.pad_two) to[0] = to[1] = 0;
  memcpy(to + (q.pad_two ? 2 : 0), frame.data(), frame.size());
  e->byte_cnt = htobe32(need << 16 | static_cast<uint32_t>(frame.size()));
  e->wqe_counter = htobe16(static_cast<uint16_t>(q.used_strides));
  e->wqe_id = htobe16(q.next);
  q.used_strides += need;
  if (q.used_strides == strides) {
    ++q.next;
    q.used_strides = 0;
  }
  return kGood;
}

void Device::describe(Completion& c, std::span<const uint8_t> frame, const Parsed& p, uint32_t tag,
                      uint32_t hash) {
  auto* e = reinterpret_cast<mlx5_cqe64*>(c.bytes.data());
  Verdict v = verify(frame, p);
  if (!v.l3_ok || (!v.l4_ok && p.l4 != L4::kNone)) ++counters_.rx_bad_checksum;
  if (impairment_ != nullptr && impairment_->chance(faults_.vouch)) v.l3_ok = v.l4_ok = true;
  e->hds_ip_ext =
      static_cast<uint8_t>(MLX5_CQE_L2_OK | (v.l3_ok ? MLX5_CQE_L3_OK : 0) | (v.l4_ok ? MLX5_CQE_L4_OK : 0));
  e->l4_hdr_type_etc = static_cast<uint8_t>(static_cast<int>(p.l3) << 2 | static_cast<int>(p.l4) << 4);
  store32(c.bytes.data() + 12, hash);                                      // rss_hash_result
  store16(c.bytes.data() + 20, ones_sum(frame.subspan(kEthernetHeader)));  // check_sum
  e->vlan_info = htobe16(p.vlan ? p.vlan_tci : 0);
  e->timestamp = htobe64(limits_.real_time ? real_time(now_) : ticks(now_));
  e->sop_drop_qpn = htobe32(tag & 0xffffff);
  e->op_own = MLX5_CQE_RESP_SEND << 4;
}

void Device::fail_receive(ReceiveQueue& q, uint8_t syndrome) {
  q.state = QueueState::kError;
  error_entry(q.cq, MLX5_CQE_RESP_ERR, syndrome, q.user_index, q.number, q.next);
  ++q.next;
  flush(q);
}

void Device::flush(ReceiveQueue& q) {
  if (q.count == 0 || q.state != QueueState::kError) return;
  while (next_descriptor(q)) {
    error_entry(q.cq, MLX5_CQE_RESP_ERR, MLX5_CQE_SYNDROME_WR_FLUSH_ERR, q.user_index, q.number, q.next);
    ++q.next;
  }
}

void Device::set_faults(const FaultSpec& spec) {
  faults_ = spec;
  impairment_ = std::make_unique<Impairment>(spec, counters_);
}

void Device::count_gauges() {
  uint64_t posted = 0;
  const auto add = [&](const ReceiveQueue& q) {
    if (q.count == 0 || q.state != QueueState::kReady) return;
    posted += static_cast<uint16_t>(read_record(q.record) - q.next);
  };
  for (const auto& [handle, q] : qps_) add(q->receive);
  for (const auto& [handle, q] : wqs_) add(q->receive);
  counters_.rx_posted = posted;
  counters_.objects = pds_.size() + mrs_.size() + cqs_.size() + qps_.size() + wqs_.size() + tables_.size();
  counters_.rules = flows_.size();
}

void Device::inject_receive_error(uint32_t handle, uint8_t syndrome) { receive_errors_[handle] = syndrome; }

}  // namespace model
