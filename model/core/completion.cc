// Completion queues: entries, their ownership bit, and events.
#include <infiniband/mlx5dv.h>

#include <utility>

#include "model/core/bytes.h"
#include "model/core/device.h"

namespace model {
namespace {

constexpr uint32_t kIndexMask = 0xffffff;
constexpr size_t kMaxSession = 64;  // cqe_comp_caps.max_num
constexpr uint8_t kCompressed = 3;  // the format in op_own
constexpr uint32_t kArmReserved = 0xce000000, kArmSolicitedOnly = 1u << 24;

/// a is at or behind b, of 24-bit indices.
bool reached(uint32_t a, uint32_t b) { return ((a - b) & kIndexMask) < 1u << 23; }

}  // namespace

bool Device::stalled() const {
  return stalled_ || (faults_.stall_every_ns != 0 && now_ % faults_.stall_every_ns < faults_.stall_ns);
}

void Device::complete(Completion c) {
  if (stalled() || !held_.empty()) {  // never one before an older one
    ++counters_.faults_stall;
    held_.push_back(std::move(c));
    return;
  }
  CompletionQueue* q = cq(c.cq);
  if (q == nullptr) return;
  if (!joins(*q, c) || q->gathered.size() == kMaxSession) write_session(*q);
  if (q->compress && c.compressible) {
    q->gathered.push_back(c.bytes);
  } else {
    write(*q, c.bytes);
  }
}

/// Everything that a mini entry does not say is as in the session's title.
bool Device::joins(const CompletionQueue& q, const Completion& c) {
  if (q.gathered.empty()) return true;
  if (!c.compressible) return false;
  const auto* title = reinterpret_cast<const mlx5_cqe64*>(q.gathered.front().data());
  const auto* e = reinterpret_cast<const mlx5_cqe64*>(c.bytes.data());
  const uint16_t next = static_cast<uint16_t>(be16toh(title->wqe_counter) + q.gathered.size());
  const bool counted = c.strided
                           ? q.mini_format == MLX5DV_CQE_RES_FORMAT_CSUM_STRIDX && e->wqe_id == title->wqe_id
                           : be16toh(e->wqe_counter) == next;
  return counted && e->hds_ip_ext == title->hds_ip_ext && e->l4_hdr_type_etc == title->l4_hdr_type_etc &&
         e->vlan_info == title->vlan_info && e->srqn_uidx == title->srqn_uidx &&
         e->sop_drop_qpn == title->sop_drop_qpn;
}

/// A title of format 3 that counts, and arrays of eight mini entries in the slots title + 1, title + 8, title
/// + 16 ... The other slots of the session are left as they were (mlx5 kernel driver, en_rx.c:
/// mlx5e_decompress_cqes_start and _cont).
void Device::write_session(CompletionQueue& q) {
  const std::vector<std::array<uint8_t, 64>> all = std::exchange(q.gathered, {});
  const uint32_t used = (q.produced - read_record(&q.record[0])) & kIndexMask;
  const auto n = static_cast<uint32_t>(all.size());
  if (n < 2 || used + n > q.entries) {
    for (const auto& one : all) write(q, one);
    return;
  }
  const auto slot = [&](uint32_t index) {
    return q.ring + static_cast<size_t>(index & (q.entries - 1)) * q.stride + (q.stride - 64);
  };
  for (uint32_t i = 0; i < n; ++i) {
    uint8_t* mini = slot(q.produced + (i < 8 ? 1 : i / 8 * 8)) + i % 8 * 8;
    const uint8_t* e = all[i].data();
    if (q.mini_format == MLX5DV_CQE_RES_FORMAT_HASH) {
      memcpy(mini, e + 12, 4);  // rss_hash_result
    } else {
      memcpy(mini, e + 20, 2);      // check_sum
      memcpy(mini + 2, e + 60, 2);  // wqe_counter, of striding queues the stride
    }
    memcpy(mini + 4, e + 44, 4);  // byte_cnt
  }
  std::array<uint8_t, 64> title = all.front();
  store32(title.data() + 44, n);
  uint8_t* first = slot(q.produced);
  memcpy(first, title.data(), 63);
  const uint8_t owner = (q.produced & q.entries) != 0;
  __atomic_store_n(first + 63, static_cast<uint8_t>((title[63] & ~1) | kCompressed << 2 | owner),
                   __ATOMIC_RELEASE);
  q.produced += n;
  q.since_event += n - 1;
  counters_.cqes += n;
  counters_.cqes_compressed += n;
  after_entry(q);
}

void Device::write(CompletionQueue& q, const std::array<uint8_t, 64>& bytes) {
  const uint32_t consumer = read_record(&q.record[0]) & kIndexMask;
  const uint32_t used = (q.produced - consumer) & kIndexMask;
  if (used >= q.entries) {
    checker_.report("cq-overrun",
                    "CQ " + std::to_string(q.number) + ": " + std::to_string(q.entries) +
                        " entries, produced " + std::to_string(q.produced & kIndexMask) +
                        ", consumer index " + std::to_string(consumer),
                    bytes);
    return;
  }
  uint8_t* entry = q.ring + static_cast<size_t>(q.produced & (q.entries - 1)) * q.stride + (q.stride - 64);
  const uint8_t owner = (q.produced & q.entries) != 0;
  memcpy(entry, bytes.data(), 63);
  // The ownership byte is last: what it covers is there when it changes.
  __atomic_store_n(entry + 63, static_cast<uint8_t>((bytes[63] & ~1) | owner), __ATOMIC_RELEASE);
  ++q.produced;
  ++counters_.cqes;
  after_entry(q);
}

void Device::after_entry(CompletionQueue& q) {
  ++q.since_event;
  if (!q.armed || !reached(q.produced - 1, q.arm_index)) return;
  if (q.moderate_count > 1 && q.since_event < q.moderate_count && q.moderate_usec != 0) {
    if (q.hold_since == 0) q.hold_since = now_;
    return;  // step() fires it when the time is over
  }
  fire(q);
}

void Device::fire(CompletionQueue& q) {
  q.armed = false;
  q.fired_once = true;
  q.fired_serial = q.arm_serial;
  q.since_event = 0;
  q.hold_since = 0;
  ++counters_.events;
  around_.completion_event(q);
}

/// The device goes by the register: queue, serial and index there must be those of the record.
void Device::check_arm_register(uint32_t uar, uint64_t value) {
  uint8_t bytes[8];
  store32(bytes, static_cast<uint32_t>(value >> 32));
  store32(bytes + 4, static_cast<uint32_t>(value));
  CompletionQueue* q = cq(static_cast<uint32_t>(value));
  if (q == nullptr || q->uar != uar) {
    checker_.report(
        "arm-queue",
        "arm of CQ " + std::to_string(static_cast<uint32_t>(value)) + " on UAR " + std::to_string(uar),
        bytes);
    return;
  }
  // Whatever another queue's register said before may have been overwritten unseen.
  for (auto& [number, other] : cqs_)
    if (other.uar == uar && number != q->number) other.unproved_since = 0;
  if (static_cast<uint32_t>(value >> 32) == q->arm_word)
    q->unproved_since = 0;
  else if (q->unproved_since == 0)
    q->unproved_since = now_;  // a newer record's comes behind it
}

void Device::look_for_missing_arm(CompletionQueue& q) {
  if (q.unproved_since == 0 || now_ - q.unproved_since <= limits_.doorbell_patience) return;
  uint8_t bytes[4];
  store32(bytes, q.arm_word);
  checker_.report("arm-register",
                  "CQ " + std::to_string(q.number) + ": the record's arm never came to the register", bytes);
  q.unproved_since = 0;
}

void Device::arm_written(uint32_t uar, uint64_t value) {
  for (auto& [number, q] : cqs_) {
    if (q.uar != uar) continue;
    // Several queues share the doorbell: each one's record says whether it was armed since the last look.
    const uint32_t word = be32toh(__atomic_exchange_n(&q.record[1], kNoArm, __ATOMIC_ACQ_REL));
    if (word == kNoArm) continue;
    q.arm_word = word;
    ++counters_.arms;
    if ((word & (kArmReserved | kArmSolicitedOnly)) != 0) {
      uint8_t bytes[4];
      store32(bytes, word);
      checker_.report("arm-command",
                      "CQ " + std::to_string(number) + ": reserved bits, or solicited only (not modelled)",
                      bytes);
    }
    const uint8_t serial = word >> 28 & 3;
    if (q.fired_once && serial == q.fired_serial) {
      ++counters_.arms_ignored;  // the hardware takes it for the arm that it has answered
      continue;
    }
    q.armed = true;
    q.arm_serial = serial;
    q.arm_index = word & kIndexMask;
    if (!reached(q.produced, q.arm_index)) {
      checker_.report("arm-ahead", "CQ " + std::to_string(number) + ": armed at an index not yet produced");
    }
    if (((q.produced - q.arm_index) & kIndexMask) != 0 && reached(q.produced, q.arm_index)) fire(q);
  }
  check_arm_register(uar, value);
}

void Device::error_entry(uint32_t cq_number, uint8_t opcode, uint8_t syndrome, uint32_t user_index,
                         uint32_t word, uint16_t index) {
  Completion c{cq_number, {}};
  auto* e = reinterpret_cast<mlx5_err_cqe*>(c.bytes.data());
  e->srqn = htobe32(user_index);
  e->syndrome = syndrome;
  e->vendor_err_synd = syndrome == MLX5_CQE_SYNDROME_WR_FLUSH_ERR ? 0xf9 : 0x52;
  e->s_wqe_opcode_qpn = htobe32(word);
  e->wqe_counter = htobe16(index);
  e->op_own = static_cast<uint8_t>(opcode << 4);
  ++counters_.error_cqes;
  complete(std::move(c));
}

}  // namespace model
