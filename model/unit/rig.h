// A driver's side for tests: queues in plain memory, descriptors written through the public header
// (infiniband/mlx5dv.h).
#pragma once

#include <gtest/gtest.h>
#include <infiniband/mlx5dv.h>

#include <algorithm>
#include <deque>
#include <vector>

#include "model/core/device.h"

namespace model::testing {

using Bytes = std::vector<uint8_t>;

/// The in-memory cable: what one device sends is kept, or delivered to the peer at once.
class Cable : public Surroundings {
 public:
  void transmit(std::span<const uint8_t> frame) override {
    sent.emplace_back(frame.begin(), frame.end());
    if (peer != nullptr) peer->rx(frame, 1);
  }
  void completion_event(const CompletionQueue& cq) override { events.push_back(cq.number); }

  std::deque<Bytes> sent;
  std::vector<uint32_t> events;
  Device* peer = nullptr;
};

/// A device with one queue pair and one completion queue each way.
struct Rig {
  static constexpr uint32_t kBlocks = 16, kReceives = 8, kEntries = 32, kUar = 3;

  explicit Rig(DeviceLimits limits = {}) : device(checker, cable, limits) {
    pd = device.create_pd();
    mr = *device.create_mr({.pd = pd,
                            .start = reinterpret_cast<uint64_t>(memory.data()),
                            .length = memory.size(),
                            .iova = reinterpret_cast<uint64_t>(memory.data()),
                            .access = IBV_ACCESS_LOCAL_WRITE});
    send_cq = make_cq(send_ring, send_cq_record);
    receive_cq = make_cq(receive_ring, receive_cq_record);
    QueuePair q;
    q.pd = pd;
    q.send = {.user_index = 0x51,
              .uar = kUar,
              .cq = send_cq,
              .ring = sq.data(),
              .blocks = kBlocks,
              .record = &record[1]};
    q.receive = {.user_index = 0x52,
                 .cq = receive_cq,
                 .ring = rq.data(),
                 .count = kReceives,
                 .stride = 16,
                 .record = &record[0]};
    qp = *device.create_qp(q);
    EXPECT_TRUE(device.set_state(qp, QueueState::kReady, QueueState::kReady));
  }

  uint32_t make_cq(Bytes& ring, uint32_t* its_record) {
    for (size_t i = 63; i < ring.size(); i += 64) ring[i] = MLX5_CQE_INVALID << 4;
    CompletionQueue c;
    c.uar = kUar;
    c.ring = ring.data();
    c.entries = kEntries;
    c.record = its_record;
    return *device.create_cq(c);
  }

  uint32_t sq_number() { return device.qp(qp)->send.number; }

  /// A SEND of one pointer segment, at the producer index; flags as the eth segment's.
  uint8_t* send(std::span<const uint8_t> frame, uint8_t checksums = 0, uint8_t opcode = MLX5_OPCODE_SEND) {
    std::copy(frame.begin(), frame.end(), memory.begin());
    uint8_t* w = begin(opcode, 3);
    reinterpret_cast<mlx5_wqe_eth_seg*>(w + 16)->cs_flags = checksums;
    mlx5dv_set_data_seg(reinterpret_cast<mlx5_wqe_data_seg*>(w + 32), static_cast<uint32_t>(frame.size()), mr,
                        reinterpret_cast<uintptr_t>(memory.data()));
    end(1);
    return w;
  }

  uint8_t* begin(uint8_t opcode, uint8_t units) {
    uint8_t* w = sq.data() + (producer % kBlocks) * 64;
    memset(w, 0, 64);
    mlx5dv_set_ctrl_seg(reinterpret_cast<mlx5_wqe_ctrl_seg*>(w), producer, opcode, 0, sq_number(),
                        MLX5_WQE_CTRL_CQ_UPDATE, units, 0, 0);
    last = w;
    return w;
  }

  void end(uint16_t blocks) {
    producer = static_cast<uint16_t>(producer + blocks);
    record[1] = htobe32(producer);
  }

  void ring_doorbell(size_t bytes = 8) {
    device.doorbell({kUar, {last, bytes}});
    device.step(now += 1000);
  }

  void post_receive(uint32_t length = 2048) {
    auto* d = reinterpret_cast<mlx5_wqe_data_seg*>(rq.data() + (posted % kReceives) * 16);
    mlx5dv_set_data_seg(d, length, mr,
                        reinterpret_cast<uintptr_t>(memory.data() + 65536 + posted % kReceives * 4096));
    record[0] = htobe32(++posted & 0xffff);
  }

  /// The next entry of a ring by the ownership rule, or nullptr.
  static mlx5_cqe64* poll(Bytes& ring, uint32_t* its_record, uint32_t& consumer) {
    auto* e = reinterpret_cast<mlx5_cqe64*>(ring.data() + (consumer % kEntries) * 64);
    if (mlx5dv_get_cqe_opcode(e) == MLX5_CQE_INVALID) return nullptr;
    if (mlx5dv_get_cqe_owner(e) != ((consumer & kEntries) != 0)) return nullptr;
    its_record[0] = htobe32(++consumer & 0xffffff);
    return e;
  }
  mlx5_cqe64* poll_send() { return poll(send_ring, send_cq_record, send_consumed); }
  mlx5_cqe64* poll_receive() { return poll(receive_ring, receive_cq_record, receive_consumed); }
  mlx5_err_cqe* poll_send_error() { return reinterpret_cast<mlx5_err_cqe*>(poll_send()); }

  /// The only rule violated so far; "" for none.
  std::string violation() const {
    if (checker.count() == 0) return "";
    return checker.count() == 1 ? checker.violations()[0].rule : "several";
  }

  Checker checker;
  Cable cable;
  Device device;
  Bytes memory = Bytes(1 << 20), sq = Bytes(kBlocks * 64), rq = Bytes(kReceives * 16);
  Bytes send_ring = Bytes(kEntries * 64), receive_ring = Bytes(kEntries * 64);
  uint32_t record[2] = {}, send_cq_record[2] = {}, receive_cq_record[2] = {};
  uint32_t pd = 0, mr = 0, send_cq = 0, receive_cq = 0, qp = 0;
  uint32_t send_consumed = 0, receive_consumed = 0, posted = 0;
  uint16_t producer = 0;
  uint8_t* last = nullptr;
  uint64_t now = 1;
};

/// Ethernet + IPv4 + TCP or UDP with a payload that counts up; checksums left 0.
inline Bytes ipv4_frame(uint8_t proto, size_t payload, uint16_t source = 1000, uint16_t destination = 2000) {
  const size_t l4 = proto == kProtoTcp ? 20 : 8;
  Bytes f(kEthernetHeader + 20 + l4 + payload);
  const uint8_t ethernet[] = {2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0};
  const uint8_t addresses[] = {10, 0, 0, 2, 10, 0, 0, 1};
  std::copy(std::begin(ethernet), std::end(ethernet), f.begin());
  uint8_t* ip = f.data() + 14;
  ip[0] = 0x45;
  store16(ip + 2, static_cast<uint32_t>(f.size() - 14));
  ip[8] = 64;
  ip[9] = proto;
  memcpy(ip + 12, addresses, 8);
  store16(ip + 20, source);
  store16(ip + 22, destination);
  if (proto == kProtoTcp) ip[20 + 12] = 5 << 4;
  if (proto == kProtoUdp) store16(ip + 24, static_cast<uint32_t>(8 + payload));
  for (size_t i = 0; i < payload; ++i) f[f.size() - payload + i] = static_cast<uint8_t>(i);
  return f;
}

inline FlowRule rule_for(uint8_t proto, uint16_t port, uint32_t qp, uint32_t tag = 0) {
  FlowRule r;
  r.target = qp;
  r.tag = tag;
  store16(r.value.type.data(), kTypeIpv4);
  store16(r.mask.type.data(), 0xffff);
  r.value.proto = proto;
  r.mask.proto = 0xff;
  store16(r.value.dst_port.data(), port);
  store16(r.mask.dst_port.data(), 0xffff);
  return r;
}

}  // namespace model::testing
