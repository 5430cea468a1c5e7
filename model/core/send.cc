// Send queues: doorbells, fetching descriptors in order, and what each opcode does.
#include <infiniband/mlx5dv.h>

#include <algorithm>

#include "model/core/bytes.h"
#include "model/core/device.h"
#include "model/core/tso.h"

namespace model {
namespace {

constexpr size_t kBlock = MLX5_SEND_WQE_BB, kUnit = 16;
constexpr uint8_t kOpcodeMultiPacket = 0x29;  // enhanced multi-packet send; not in the public header
constexpr uint8_t kFlagsKnown = MLX5_WQE_CTRL_CQ_UPDATE | MLX5_WQE_CTRL_SOLICITED | 1 << 2;
constexpr uint8_t kChecksumFlags = MLX5_ETH_WQE_L3_CSUM | MLX5_ETH_WQE_L4_CSUM;
constexpr size_t kEthSegment = 16;  // with two bytes of inline header in it
constexpr uint8_t kGood = 0;

const mlx5_wqe_eth_seg* eth_of(std::span<const uint8_t> wqe) {
  return reinterpret_cast<const mlx5_wqe_eth_seg*>(wqe.data() + kUnit);
}

/// Length of the eth segment: 14 bytes, then the inline header, to a multiple of 16.
size_t eth_size(size_t inline_header) {
  return inline_header <= 2 ? kEthSegment : (14 + inline_header + kUnit - 1) / kUnit * kUnit;
}

std::string name(const SendQueue& q, uint16_t index) {
  return "SQ " + std::to_string(q.number) + " block " + std::to_string(index);
}

/// A word of a sampled register that is not of the descriptor rung: not yet written, or an older copy's.
bool could_be_older(const SendQueue& q, const DoorbellWrite& write, size_t i) {
  static constexpr uint8_t kZero[8] = {};
  const uint8_t* word = write.bytes.data() + i;
  if (memcmp(word, kZero, 8) == 0) return true;
  if (i + 8 <= write.before.size() && memcmp(word, write.before.data() + i, 8) == 0) return true;
  for (size_t block = 0; block < q.blocks; ++block) {
    if (memcmp(q.ring + (block * kBlock + i) % (size_t{q.blocks} * kBlock), word, 8) == 0) return true;
  }
  return false;
}

}  // namespace

SendQueue* Device::send_queue(uint32_t number) {
  for (auto& [handle, q] : qps_) {
    if (q->send.blocks != 0 && q->send.number == number) return &q->send;
  }
  return nullptr;
}

void Device::doorbell(const DoorbellWrite& write) {
  if (removed_) return;
  const bool copied = write.bytes.size() > 8;
  ++(copied ? counters_.blueflame : counters_.doorbells);
  if (copied) counters_.blueflame_bytes += write.bytes.size();
  check_doorbell(write);
  // A register may have been written again between two looks, so every queue of this UAR is looked at.
  for (auto& [handle, q] : qps_) {
    if (q->send.blocks != 0 && q->send.uar == write.uar && q->send.state != QueueState::kReset)
      announce(q->send);
  }
}

/// The doorbell is the start of the last descriptor: it names queue and index.
void Device::check_doorbell(const DoorbellWrite& write) {
  const uint32_t first = load32(write.bytes.data());
  const uint32_t number = load32(write.bytes.data() + 4) >> 8;
  const uint16_t index = static_cast<uint16_t>(first >> 8);
  const SendQueue* q = send_queue(number);
  if (q == nullptr || q->uar != write.uar) {
    checker_.report("doorbell-queue",
                    "doorbell for SQ " + std::to_string(number) + " on UAR " + std::to_string(write.uar),
                    write.bytes);
    return;
  }
  if (q->state == QueueState::kReset) {
    checker_.report("doorbell-state", name(*q, index) + ": doorbell before the queue was made ready",
                    write.bytes);
    return;
  }
  const uint16_t producer = static_cast<uint16_t>(read_record(q->record));
  const uint16_t ahead = static_cast<uint16_t>(index - q->next);
  if (ahead >= 0x8000) return;  // executed already, announced by an earlier look
  if (ahead >= static_cast<uint16_t>(producer - q->next)) {
    checker_.report("doorbell-order",
                    name(*q, index) + ": doorbell, but the record says " + std::to_string(producer) +
                        ": it must be written before",
                    write.bytes);
    return;
  }
  check_copy(*q, write, index);
}

/// The bytes must be those of the ring: as BlueField the NIC executes the copy, and may execute the ring.
void Device::check_copy(const SendQueue& q, const DoorbellWrite& write, uint16_t index) {
  const size_t whole = static_cast<size_t>(q.blocks) * kBlock;
  const size_t at = static_cast<size_t>(index & (q.blocks - 1)) * kBlock;
  for (size_t i = 0; i < write.bytes.size(); i += 8) {
    const uint8_t* word = write.bytes.data() + i;
    if (memcmp(q.ring + (at + i) % whole, word, 8) == 0) continue;
    if (write.sampled && i >= 8 && could_be_older(q, write, i)) continue;
    std::vector<uint8_t> ring(write.bytes.size());
    for (size_t j = 0; j < ring.size(); ++j) ring[j] = q.ring[(at + j) % whole];
    checker_.report(write.bytes.size() > 8 ? "blueflame-bytes" : "doorbell-bytes",
                    name(q, index) + ": differs from the ring, which has " + hex(ring), write.bytes);
    return;
  }
}

void Device::announced_block(uint64_t doorbell, std::array<uint8_t, kBlueFieldBytes>& block) {
  std::array<uint8_t, 8> bytes;
  memcpy(bytes.data(), &doorbell, 8);
  const SendQueue* q = send_queue(load32(bytes.data() + 4) >> 8);
  if (q == nullptr) return;
  const size_t index = load32(bytes.data()) >> 8 & (q->blocks - 1);
  for (size_t i = 0; i < block.size(); i += kBlock)
    memcpy(block.data() + i, q->ring + ((index * kBlock + i) % (size_t{q->blocks} * kBlock)), kBlock);
}

bool Device::announce(SendQueue& q) {
  const uint16_t producer = static_cast<uint16_t>(read_record(q.record));
  q.unrung_since = 0;
  if (static_cast<uint16_t>(producer - q.next) > q.blocks) {
    checker_.report("sq-overrun", name(q, q.next) + ": record " + std::to_string(producer) + " with only " +
                                      std::to_string(q.blocks) + " blocks");
    return false;
  }
  q.allowed = producer;
  return true;
}

/// A record that stays ahead of the doorbells is a doorbell forgotten: the hardware would never look.
void Device::look_for_missing_doorbell(SendQueue& q) {
  if (q.state != QueueState::kReady) return;
  const uint16_t producer = static_cast<uint16_t>(read_record(q.record));
  if (producer == q.allowed) {
    q.unrung_since = 0;
  } else if (q.unrung_since == 0) {
    q.unrung_since = now_;
  } else if (now_ - q.unrung_since > limits_.doorbell_patience) {
    checker_.report("doorbell-missing", name(q, q.allowed) + ": the record says " + std::to_string(producer) +
                                            ", no doorbell came");
    q.unrung_since = now_;
  }
}

bool Device::step(uint64_t now, unsigned budget) {
  now_ = now;
  if (removed_) return false;
  bool more = false;
  if (impairment_ != nullptr) impairment_->due(now, [this](std::span<const uint8_t> f) { take(f); });
  for (auto& [handle, q] : qps_) {
    if (q->send.blocks == 0 || q->send.state == QueueState::kReset) continue;
    if (q->send.next != q->send.allowed) more |= drain(q->send, budget) == budget;
    look_for_missing_doorbell(q->send);
  }
  for (auto& [handle, q] : qps_) flush(q->receive);
  for (auto& [handle, q] : wqs_) flush(q->receive);
  if (!stalled() && !held_.empty()) {
    std::vector<Completion> due;
    due.swap(held_);
    for (Completion& c : due) complete(std::move(c));
  }
  for (auto& [number, q] : cqs_) {
    look_for_missing_arm(q);
    write_session(q);
    if (q.hold_since != 0 && now_ - q.hold_since >= q.moderate_usec * 1000u && q.armed) fire(q);
  }
  return more;
}

/// Executes up to `budget` descriptors; returns how many.
unsigned Device::drain(SendQueue& q, unsigned budget) {
  unsigned done = 0;
  for (; done < budget && q.next != q.allowed; ++done) {
    if (q.state == QueueState::kError) {
      flush(q);
      return done;
    }
    Wqe w{};
    if (!fetch(q, w)) {
      fail_send(q, w, MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR);
      continue;
    }
    uint8_t syndrome = kGood;
    for (auto it = send_errors_.begin(); it != send_errors_.end(); ++it) {
      if (&qps_[it->first]->send != &q) continue;
      syndrome = it->second;
      ++counters_.faults_error_cqe;
      send_errors_.erase(it);
      break;
    }
    if (syndrome == kGood && impairment_ != nullptr && impairment_->chance(faults_.send_error)) {
      syndrome = MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR;
      ++counters_.faults_error_cqe;
    }
    if (syndrome == kGood) syndrome = execute(q, w);
    if (syndrome != kGood) {
      fail_send(q, w, syndrome);
      continue;
    }
    q.next = static_cast<uint16_t>(q.next + w.blocks);
    ++counters_.tx_wqes;
    if ((w.flags & MLX5_WQE_CTRL_CQ_UPDATE) == 0) continue;
    Completion c{q.cq, {}};
    auto* e = reinterpret_cast<mlx5_cqe64*>(c.bytes.data());
    e->srqn_uidx = htobe32(q.user_index);
    e->timestamp = htobe64(ticks(now_));
    e->sop_drop_qpn = htobe32(static_cast<uint32_t>(w.opcode) << 24 | q.number);
    e->wqe_counter = htobe16(w.index);
    e->op_own = MLX5_CQE_REQ << 4;
    complete(std::move(c));
  }
  return done;
}

/// Reads the descriptor at q.next into one piece, and holds the control segment to the rules. w is usable for
/// an error entry even where it fails.
bool Device::fetch(SendQueue& q, Wqe& w) {
  const size_t at = static_cast<size_t>(q.next & (q.blocks - 1)) * kBlock;
  const uint8_t* ctrl = q.ring + at;
  const uint32_t first = load32(ctrl), second = load32(ctrl + 4);
  w.index = static_cast<uint16_t>(first >> 8);
  w.opcode = static_cast<uint8_t>(first);
  w.opmod = static_cast<uint8_t>(first >> 24);
  w.flags = ctrl[11];
  const size_t units = second & 0x3f;
  w.blocks = static_cast<uint16_t>(std::max<size_t>((units * kUnit + kBlock - 1) / kBlock, 1));
  const auto wrong = [&](const char* rule, const std::string& what) {
    checker_.report(rule, name(q, q.next) + ": " + what, {ctrl, kBlock});
    return false;
  };
  if (w.index != q.next) {
    const bool ok = wrong("wqe-index", "says index " + std::to_string(w.index));
    w.index = q.next;
    return ok;
  }
  if (second >> 8 != q.number) return wrong("wqe-queue", "says SQ " + std::to_string(second >> 8));
  if ((second & 0xc0) != 0) return wrong("wqe-reserved", "bits 6 and 7 of ds");
  if (units == 0) return wrong("wqe-size", "ds 0");
  if (units * kUnit > limits_.max_send_bytes)
    return wrong("wqe-size", "ds " + std::to_string(units) + " over the limit");
  if (w.blocks > static_cast<uint16_t>(q.allowed - q.next)) {
    w.blocks = static_cast<uint16_t>(q.allowed - q.next);
    return wrong("wqe-size", "longer than what the record announced");
  }
  if ((w.flags & ~kFlagsKnown) != 0) return wrong("wqe-flags", "fm_ce_se " + std::to_string(w.flags));
  // The ring wraps inside a descriptor.
  wqe_.resize(units * kUnit);
  const size_t whole = static_cast<size_t>(q.blocks) * kBlock, straight = std::min(wqe_.size(), whole - at);
  memcpy(wqe_.data(), ctrl, straight);
  memcpy(wqe_.data() + straight, q.ring, wqe_.size() - straight);
  w.bytes = wqe_;
  return true;
}

uint8_t Device::execute(const SendQueue& q, const Wqe& w) {
  if (w.opcode == MLX5_OPCODE_NOP) return kGood;
  const bool tso = w.opcode == MLX5_OPCODE_TSO && w.opmod == 0;
  const bool send = w.opcode == MLX5_OPCODE_SEND && w.opmod == 0;
  const bool multi = w.opcode == kOpcodeMultiPacket && w.opmod == 0;
  const auto wrong = [&](const char* rule, const std::string& what) {
    checker_.report(rule, name(q, w.index) + ": " + what, w.bytes);
    return static_cast<uint8_t>(MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR);
  };
  if (!tso && !send && !multi) {
    return wrong("wqe-opcode", "opcode " + std::to_string(w.opcode) + " opmod " + std::to_string(w.opmod));
  }
  if (w.bytes.size() < 2 * kUnit) return wrong("wqe-size", "no eth segment");
  const auto* eth = eth_of(w.bytes);
  const size_t header = be16toh(eth->inline_hdr_sz);
  if (eth->rsvd0 != 0 || eth->rsvd1 != 0 || eth->rsvd2 != 0) return wrong("wqe-reserved", "eth segment");
  if ((eth->cs_flags & ~kChecksumFlags) != 0)
    return wrong("wqe-checksum", "inner checksums are not modelled");
  if (kUnit + eth_size(header) > w.bytes.size())
    return wrong("wqe-inline-header", "longer than the descriptor");
  if (header < limits_.min_inline) return wrong("wqe-inline-header", "shorter than eth_min_inline");
  if (!tso && eth->mss != 0) return wrong("wqe-mss", "mss on what is not TSO");
  if (multi) return execute_multi(q, w);
  return tso ? execute_tso(q, w) : execute_send(q, w);
}

/// Appends the data segments from `at` on to frame_.
uint8_t Device::gather(const SendQueue& q, const Wqe& w, size_t at, uint32_t pd) {
  while (at + 4 <= w.bytes.size()) {
    const uint32_t count = load32(w.bytes.data() + at);
    if ((count & MLX5_INLINE_SEG) == 0) {
      if (const uint8_t bad = gather_pointer(w, at, pd); bad != kGood) return bad;
      at += kUnit;
      continue;
    }
    const size_t length = count & 0x3ff;
    if ((count & ~(MLX5_INLINE_SEG | 0x3ffu)) != 0 || at + 4 + length > w.bytes.size()) {
      checker_.report("wqe-inline", name(q, w.index) + ": inline segment beyond the descriptor", w.bytes);
      return MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR;
    }
    frame_.insert(frame_.end(), w.bytes.begin() + at + 4, w.bytes.begin() + at + 4 + length);
    at += (4 + length + kUnit - 1) / kUnit * kUnit;
  }
  return kGood;
}

uint8_t Device::gather_pointer(const Wqe& w, size_t at, uint32_t pd) {
  const uint8_t* seg = w.bytes.data() + at;
  const uint32_t length = load32(seg), key = load32(seg + 4);
  const uint64_t address = load64(seg + 8);
  if (length == 0) {
    checker_.report("wqe-data",
                    "block " + std::to_string(w.index) + ": a data segment of 0 bytes means 2 GiB", w.bytes);
    return MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR;
  }
  const Mr* mr = readable(key, address, length, pd, false);
  if (mr == nullptr) {
    checker_.report(
        "wqe-lkey",
        "block " + std::to_string(w.index) + ": lkey " + std::to_string(key) + " does not cover the range",
        w.bytes);
    return MLX5_CQE_SYNDROME_LOCAL_PROT_ERR;
  }
  const uint8_t* data = translate(*mr, address);
  frame_.insert(frame_.end(), data, data + length);
  return kGood;
}

uint8_t Device::execute_send(const SendQueue& q, const Wqe& w) {
  const auto* eth = eth_of(w.bytes);
  const size_t header = be16toh(eth->inline_hdr_sz);
  const uint8_t* inline_start = eth->inline_hdr_start;
  frame_.assign(inline_start, inline_start + header);
  if (const uint8_t bad = gather(q, w, kUnit + eth_size(header), pd_of(q.number)); bad != kGood) return bad;
  put_on_wire(frame_, eth->cs_flags, w);
  return kGood;
}

uint8_t Device::execute_tso(const SendQueue& q, const Wqe& w) {
  const auto* eth = eth_of(w.bytes);
  const size_t header = be16toh(eth->inline_hdr_sz);
  const uint16_t mss = be16toh(eth->mss);
  const auto wrong = [&](const std::string& what) {
    checker_.report("wqe-tso", name(q, w.index) + ": " + what, w.bytes);
    return static_cast<uint8_t>(MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR);
  };
  if (mss == 0) return wrong("mss 0");
  if ((eth->cs_flags & kChecksumFlags) != kChecksumFlags) return wrong("without both checksum flags");
  const uint8_t* inline_start = eth->inline_hdr_start;
  frame_.assign(inline_start, inline_start + header);
  if (const uint8_t bad = gather(q, w, kUnit + eth_size(header), pd_of(q.number)); bad != kGood) return bad;
  if (frame_.size() - header > limits_.max_tso) return wrong("longer than max_tso");
  TsoCutter cutter(frame_, header, mss);
  if (!cutter.good()) return wrong("the inline header is not exactly Ethernet, IP and TCP");
  ++counters_.tx_tso;
  while (cutter.next(segment_)) put_on_wire(segment_, eth->cs_flags, w);
  return kGood;
}

/// Enhanced multi-packet: after one eth segment each data segment, pointer or inline, is a frame.
uint8_t Device::execute_multi(const SendQueue& q, const Wqe& w) {
  const auto* eth = eth_of(w.bytes);
  if (eth->inline_hdr_sz != 0) {
    checker_.report("wqe-inline-header", name(q, w.index) + ": none in a multi-packet descriptor", w.bytes);
    return MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR;
  }
  ++counters_.tx_multi_packet;
  const uint32_t pd = pd_of(q.number);
  for (size_t at = kUnit + kEthSegment; at + 4 <= w.bytes.size();) {
    const uint32_t count = load32(w.bytes.data() + at);
    const size_t length = count & 0x3ff;
    frame_.clear();
    if ((count & MLX5_INLINE_SEG) == 0) {
      if (const uint8_t bad = gather_pointer(w, at, pd); bad != kGood) return bad;
      at += kUnit;
    } else if (at + 4 + length > w.bytes.size() || length == 0) {
      checker_.report("wqe-inline", name(q, w.index) + ": inline frame beyond the descriptor, or empty",
                      w.bytes);
      return MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR;
    } else {
      frame_.assign(w.bytes.begin() + at + 4, w.bytes.begin() + at + 4 + length);
      at += (4 + length + kUnit - 1) / kUnit * kUnit;
    }
    put_on_wire(frame_, eth->cs_flags, w);
  }
  return kGood;
}

/// Fills the checksums asked for, pads as the MAC does and sends.
void Device::put_on_wire(std::span<uint8_t> frame, uint8_t checksums, const Wqe& w) {
  const Parsed p = parse(frame);
  const size_t most = limits_.mtu + kEthernetHeader + (p.vlan ? kVlanTag : 0);
  if (frame.size() < kEthernetHeader || frame.size() > most) {
    checker_.report("frame-size", std::to_string(frame.size()) + " bytes, at most " + std::to_string(most),
                    w.bytes);
    return;
  }
  if ((checksums & MLX5_ETH_WQE_L3_CSUM) != 0) counters_.tx_checksums += fill_ip_checksum(frame, p);
  if ((checksums & MLX5_ETH_WQE_L4_CSUM) != 0) counters_.tx_checksums += fill_transport_checksum(frame, p);
  ++counters_.tx_packets;
  counters_.tx_bytes += frame.size();
  if (frame.size() >= kMinFrame) {
    around_.transmit(frame);
    return;
  }
  std::array<uint8_t, kMinFrame> padded{};
  std::copy(frame.begin(), frame.end(), padded.begin());
  around_.transmit(padded);
}

void Device::fail_send(SendQueue& q, const Wqe& w, uint8_t syndrome) {
  q.state = QueueState::kError;
  const uint16_t index = q.next;
  q.next = static_cast<uint16_t>(q.next + std::max<uint16_t>(w.blocks, 1));
  error_entry(q.cq, MLX5_CQE_REQ_ERR, syndrome, q.user_index,
              static_cast<uint32_t>(w.opcode) << 24 | q.number, index);
  flush(q);
}

/// In the error state every descriptor announced ends flushed, asked for or not.
void Device::flush(SendQueue& q) {
  while (q.next != q.allowed) {
    const uint8_t* ctrl = q.ring + static_cast<size_t>(q.next & (q.blocks - 1)) * kBlock;
    const size_t units = load32(ctrl + 4) & 0x3f;
    const uint16_t left = static_cast<uint16_t>(q.allowed - q.next);
    const size_t blocks = std::clamp<size_t>((units * kUnit + kBlock - 1) / kBlock, 1, left);
    error_entry(q.cq, MLX5_CQE_REQ_ERR, MLX5_CQE_SYNDROME_WR_FLUSH_ERR, q.user_index,
                load32(ctrl) << 24 | q.number, q.next);
    q.next = static_cast<uint16_t>(q.next + blocks);
  }
}

uint32_t Device::pd_of(uint32_t number) const {
  for (const auto& [handle, q] : qps_) {
    if (q->send.blocks != 0 && q->send.number == number) return q->pd;
  }
  return 0;
}

void Device::inject_send_error(uint32_t handle, uint8_t syndrome) { send_errors_[handle] = syndrome; }

void Device::inject_errors(uint8_t syndrome, bool send) {
  for (const auto& [handle, q] : qps_) {
    if (send && q->send.blocks != 0) send_errors_[handle] = syndrome;
    if (!send && q->receive.count != 0) receive_errors_[handle] = syndrome;
  }
  for (const auto& [handle, q] : wqs_)
    if (!send) receive_errors_[handle] = syndrome;
}

}  // namespace model
