// Objects of the device: creation, reference counts, states.
#include <infiniband/verbs.h>

#include <algorithm>
#include <bit>

#include "model/core/device.h"

namespace model {

using accel::err;

Device::Device(Checker& checker, Surroundings& around, DeviceLimits limits)
    : checker_(checker), around_(around), limits_(limits) {}

uint32_t Device::create_pd() {
  pds_[next_pd_];
  return next_pd_++;
}

accel::Result<void> Device::destroy_pd(uint32_t pd) {
  const auto it = pds_.find(pd);
  if (it == pds_.end()) return err(EINVAL);
  if (it->second.users != 0) return err(EBUSY);
  pds_.erase(it);
  return {};
}

accel::Result<uint32_t> Device::create_mr(const Mr& mr) {
  const auto pd = pds_.find(mr.pd);
  if (pd == pds_.end() || mr.length == 0 || mr.start + mr.length < mr.start) return err(EINVAL);
  // Keys look like the hardware's, an index and a variant byte, so that an index used as a key is found out.
  const uint32_t key = next_mr_ << 8 | (next_mr_ * 37 & 0xff);
  ++next_mr_;
  Mr& made = mrs_[key] = mr;
  made.key = key;
  ++pd->second.users;
  return key;
}

accel::Result<void> Device::destroy_mr(uint32_t key) {
  const auto it = mrs_.find(key);
  if (it == mrs_.end()) return err(EINVAL);
  --pds_[it->second.pd].users;
  mrs_.erase(it);
  return {};
}

accel::Result<uint32_t> Device::create_cq(const CompletionQueue& cq) {
  if (cq.ring == nullptr || cq.record == nullptr || !std::has_single_bit(cq.entries)) return err(EINVAL);
  if (cq.stride != 64 && cq.stride != 128) return err(EINVAL);
  CompletionQueue& made = cqs_[next_cq_] = cq;
  made.number = next_cq_;
  __atomic_store_n(&made.record[1], kNoArm, __ATOMIC_RELEASE);
  return next_cq_++;
}

accel::Result<void> Device::destroy_cq(uint32_t number) {
  const auto it = cqs_.find(number);
  if (it == cqs_.end()) return err(EINVAL);
  if (it->second.users != 0) return err(EBUSY);
  std::erase_if(held_, [&](const Completion& c) { return c.cq == number; });
  cqs_.erase(it);
  return {};
}

accel::Result<uint32_t> Device::create_qp(QueuePair qp) {
  const auto pd = pds_.find(qp.pd);
  if (pd == pds_.end()) return err(EINVAL);
  const auto table = tables_.find(qp.rss_table);
  if (qp.rss_table != 0 && table == tables_.end()) return err(EINVAL);
  if (qp.rss_table == 0 && qp.send.blocks == 0 && qp.receive.count == 0) return err(EINVAL);
  if (qp.send.blocks != 0 && (cq(qp.send.cq) == nullptr || !std::has_single_bit(qp.send.blocks)))
    return err(EINVAL);
  if (qp.receive.count != 0 && (cq(qp.receive.cq) == nullptr || !std::has_single_bit(qp.receive.count))) {
    return err(EINVAL);
  }
  qp.handle = next_handle_++;
  if (qp.send.blocks != 0) {
    qp.send.number = next_queue_++;
    ++cqs_[qp.send.cq].users;
  }
  if (qp.receive.count != 0) {
    qp.receive.number = next_queue_++;
    ++cqs_[qp.receive.cq].users;
  }
  if (qp.rss_table != 0) ++table->second.users;
  ++pd->second.users;
  ++counters_.qps;
  const uint32_t handle = qp.handle;
  qps_[handle] = std::make_unique<QueuePair>(std::move(qp));
  return handle;
}

accel::Result<void> Device::destroy_qp(uint32_t handle) {
  const QueuePair* q = qp(handle);
  if (q == nullptr) return err(EINVAL);
  if (flows_.uses(handle)) return err(EBUSY);
  if (q->send.blocks != 0) --cqs_[q->send.cq].users;
  if (q->receive.count != 0) --cqs_[q->receive.cq].users;
  if (q->rss_table != 0) --tables_[q->rss_table].users;
  --pds_[q->pd].users;
  qps_.erase(handle);
  send_errors_.erase(handle);
  receive_errors_.erase(handle);
  return {};
}

void Device::reset(QueuePair& q, QueueState send, QueueState receive) {
  if (send == QueueState::kReset) {
    q.send.next = q.send.allowed = 0;
    q.send.unrung_since = 0;
  }
  if (receive == QueueState::kReset) {
    q.receive.next = 0;
    q.receive.used_strides = 0;
  }
  q.send.state = send;
  q.receive.state = receive;
}

accel::Result<void> Device::set_state(uint32_t handle, QueueState send, QueueState receive) {
  QueuePair* q = qp(handle);
  if (q == nullptr) return err(EINVAL);
  reset(*q, send, receive);
  return {};
}

accel::Result<uint32_t> Device::create_wq(WorkQueue wq) {
  const auto pd = pds_.find(wq.pd);
  if (pd == pds_.end() || cq(wq.receive.cq) == nullptr || !std::has_single_bit(wq.receive.count))
    return err(EINVAL);
  wq.handle = next_handle_++;
  wq.receive.number = next_queue_++;
  ++cqs_[wq.receive.cq].users;
  ++pd->second.users;
  const uint32_t handle = wq.handle;
  wqs_[handle] = std::make_unique<WorkQueue>(wq);
  return handle;
}

accel::Result<void> Device::set_wq_state(uint32_t handle, QueueState state) {
  WorkQueue* q = wq(handle);
  if (q == nullptr) return err(EINVAL);
  if (state == QueueState::kReset) {
    q->receive.next = 0;
    q->receive.used_strides = 0;
  }
  q->receive.state = state;
  return {};
}

accel::Result<void> Device::destroy_wq(uint32_t handle) {
  const WorkQueue* q = wq(handle);
  if (q == nullptr) return err(EINVAL);
  if (q->users != 0) return err(EBUSY);
  --cqs_[q->receive.cq].users;
  --pds_[q->pd].users;
  wqs_.erase(handle);
  receive_errors_.erase(handle);
  return {};
}

accel::Result<uint32_t> Device::create_table(IndirectionTable table) {
  if (!std::has_single_bit(table.queues.size())) return err(EINVAL);
  for (const uint32_t q : table.queues) {
    if (wq(q) == nullptr) return err(EINVAL);
  }
  for (const uint32_t q : table.queues) ++wq(q)->users;
  table.handle = next_handle_++;
  const uint32_t handle = table.handle;
  tables_[handle] = std::move(table);
  return handle;
}

accel::Result<void> Device::destroy_table(uint32_t handle) {
  const auto it = tables_.find(handle);
  if (it == tables_.end()) return err(EINVAL);
  if (it->second.users != 0) return err(EBUSY);
  for (const uint32_t q : it->second.queues) --wq(q)->users;
  tables_.erase(it);
  return {};
}

accel::Result<uint32_t> Device::add_flow(const FlowRule& rule) {
  if (qp(rule.target) == nullptr) return err(EINVAL);
  const auto alike = [&](const FlowRule& other) { return other.priority == rule.priority; };
  const auto others = static_cast<size_t>(std::count_if(others_.begin(), others_.end(), alike));
  const size_t before = flows_.count(rule.priority) + others;
  if (before >= limits_.rules) return err(ENOSPC);
  auto added = flows_.add(rule);
  if (added && before == 0) ++counters_.flow_tables;
  if (added) ++counters_.flows;
  if (added && rule.tag != 0) ++counters_.flows_tagged;
  return added;
}

accel::Result<void> Device::remove_flow(uint32_t handle) {
  if (!flows_.remove(handle)) return err(EINVAL);
  return {};
}

void Device::close() {
  count_gauges();
  counters_.left += counters_.objects + counters_.rules;
  counters_.objects = counters_.rules = 0;
}

QueuePair* Device::qp(uint32_t handle) {
  const auto it = qps_.find(handle);
  return it == qps_.end() ? nullptr : it->second.get();
}

WorkQueue* Device::wq(uint32_t handle) {
  const auto it = wqs_.find(handle);
  return it == wqs_.end() ? nullptr : it->second.get();
}

CompletionQueue* Device::cq(uint32_t number) {
  const auto it = cqs_.find(number);
  return it == cqs_.end() ? nullptr : &it->second;
}

const Mr* Device::readable(uint32_t key, uint64_t address, uint64_t length, uint32_t pd, bool write) const {
  const auto it = mrs_.find(key);
  if (it == mrs_.end() || it->second.pd != pd) return nullptr;
  const Mr& mr = it->second;
  if (write && (mr.access & IBV_ACCESS_LOCAL_WRITE) == 0) return nullptr;
  if (address < mr.iova || length > mr.length || address - mr.iova > mr.length - length) return nullptr;
  return &mr;
}

}  // namespace model
