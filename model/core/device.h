// The NIC: objects, queues, steering and completions over plain memory. Single-threaded and without a clock,
// so that unit tests run it step by step: a driver's doorbell comes in by doorbell(), a frame by rx(), and
// step() does what is due. Addresses in descriptors are addresses of this process. The owner serializes
// calls.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/result.h"
#include "model/core/checker.h"
#include "model/core/counters.h"
#include "model/core/faults.h"
#include "model/core/flow.h"
#include "model/core/objects.h"

namespace model {

/// What the device reaches: the wire, and the kernel's side of events.
class Surroundings {
 public:
  virtual ~Surroundings() = default;
  virtual void transmit(std::span<const uint8_t> frame) = 0;
  virtual void completion_event(const CompletionQueue& cq) = 0;
};

struct DeviceLimits {
  uint32_t mtu = 1500;
  uint32_t min_inline = 0;                   // bytes of headers that every send must carry inline
  uint32_t max_send_bytes = 1024;            // of one descriptor
  uint32_t max_tso = 262144;                 // payload of one TSO descriptor
  uint64_t doorbell_patience = 200'000'000;  // ns a record may be ahead of the doorbells
  size_t rules = SIZE_MAX;                   // of one priority, over all processes
  bool real_time = false;                    // time stamps are seconds << 32 | nanoseconds, not ticks
};

inline constexpr size_t kBlueFieldBytes = 256;  // of a copy

struct DoorbellWrite {
  uint32_t uar = 0;
  std::span<const uint8_t> bytes;  // 8, or a BlueField copy of whole blocks
  // Seen by looking from another thread: a copy may be half done, and what lies behind a newer doorbell's
  // eight bytes may be an older copy's. `before` is what the register's earlier doorbell announced.
  bool sampled = false;
  std::span<const uint8_t> before{};
};

/// The device's time is CLOCK_MONOTONIC's and this: as nobody has set it.
inline constexpr uint64_t kClockEpoch = 1'000'000'000'000'000'000;

class Device {
 public:
  Device(Checker& checker, Surroundings& around, DeviceLimits limits = {});

  // ---- objects; errors are the kernel's (EBUSY while used, EINVAL for what is not there) ----
  uint32_t create_pd();
  accel::Result<void> destroy_pd(uint32_t pd);
  accel::Result<uint32_t> create_mr(const Mr& mr);  // the key
  accel::Result<void> destroy_mr(uint32_t key);
  accel::Result<uint32_t> create_cq(const CompletionQueue& cq);
  accel::Result<void> destroy_cq(uint32_t number);
  accel::Result<uint32_t> create_qp(QueuePair qp);  // fills the numbers in
  accel::Result<void> destroy_qp(uint32_t handle);
  accel::Result<void> set_state(uint32_t qp, QueueState send, QueueState receive);
  accel::Result<uint32_t> create_wq(WorkQueue wq);
  accel::Result<void> set_wq_state(uint32_t handle, QueueState state);
  accel::Result<void> destroy_wq(uint32_t handle);
  accel::Result<uint32_t> create_table(IndirectionTable table);
  accel::Result<void> destroy_table(uint32_t handle);
  accel::Result<uint32_t> add_flow(const FlowRule& rule);
  accel::Result<void> remove_flow(uint32_t handle);
  /// What other processes steer on this NIC: to find rules that contradict ours.
  void set_others(std::vector<FlowRule> rules) { others_ = std::move(rules); }

  QueuePair* qp(uint32_t handle);
  WorkQueue* wq(uint32_t handle);
  CompletionQueue* cq(uint32_t number);
  const FlowRule* flow(uint32_t handle) const { return flows_.find(handle); }

  // ---- data path ----
  void doorbell(const DoorbellWrite& write);
  /// The ring's block that a doorbell (its first eight bytes, as in memory) names.
  void announced_block(uint64_t doorbell, std::array<uint8_t, kBlueFieldBytes>& block);
  /// An arm was written on this UAR: its register's last value (CPU's byte order). Looks at the arm record of
  /// each of its queues, since a register may have been written several times between two looks.
  void arm_written(uint32_t uar, uint64_t value);
  void rx(std::span<const uint8_t> frame, uint64_t now);
  /// A rule takes the frame.
  bool steers(std::span<const uint8_t> frame);
  /// Executes announced descriptors, at most `budget` of them a queue, and what has become due. True: there
  /// is more.
  bool step(uint64_t now, unsigned budget = 64);

  // ---- faults, from tests and the front end ----
  /// The next descriptor of this send queue ends in an error completion with this syndrome.
  void inject_send_error(uint32_t qp, uint8_t syndrome);
  void inject_receive_error(uint32_t qp, uint8_t syndrome);
  void inject_errors(uint8_t syndrome, bool send);  // of every queue pair
  void stall_completions(bool on) { stalled_ = on; }
  void set_faults(const FaultSpec& spec);

  /// A device that is gone answers nothing; everything not completed stays so.
  void remove() { removed_ = true; }
  bool removed() const { return removed_; }

  /// Its file is closed: what there still is goes, and is counted.
  void close();

  void set_mtu(uint32_t mtu) { limits_.mtu = mtu; }
  Counters& counters() { return counters_; }
  void count_gauges();
  const DeviceLimits& limits() const { return limits_; }
  static uint64_t real_time(uint64_t ns) {
    constexpr uint64_t kSecond = 1'000'000'000;
    return (kClockEpoch + ns) / kSecond << 32 | (kClockEpoch + ns) % kSecond;
  }
  static uint64_t ticks(uint64_t ns) { return ns * 5 / 32; }  // a free-running clock of 156.25 MHz
  static uint64_t time_of_tick(uint64_t tick) { return tick * 32 / 5; }

 private:
  struct Wqe {
    std::span<const uint8_t> bytes;  // ds * 16, unwrapped
    uint16_t index;
    uint16_t blocks;
    uint8_t opcode, opmod, flags;
  };
  struct Completion {
    uint32_t cq;
    alignas(8) std::array<uint8_t, 64> bytes;
    bool compressible = false;  // a frame received
    bool strided = false;
  };

  // send.cc
  void check_doorbell(const DoorbellWrite& write);
  void check_copy(const SendQueue& q, const DoorbellWrite& write, uint16_t index);
  SendQueue* send_queue(uint32_t number);
  bool announce(SendQueue& q);
  unsigned drain(SendQueue& q, unsigned budget);
  bool fetch(SendQueue& q, Wqe& w);
  uint8_t execute(const SendQueue& q, const Wqe& w);
  uint8_t execute_send(const SendQueue& q, const Wqe& w);
  uint8_t execute_tso(const SendQueue& q, const Wqe& w);
  uint8_t execute_multi(const SendQueue& q, const Wqe& w);
  uint8_t gather(const SendQueue& q, const Wqe& w, size_t at, uint32_t pd);
  uint8_t gather_pointer(const Wqe& w, size_t at, uint32_t pd);
  void put_on_wire(std::span<uint8_t> frame, uint8_t checksums, const Wqe& w);
  void fail_send(SendQueue& q, const Wqe& w, uint8_t syndrome);
  void flush(SendQueue& q);
  void look_for_missing_doorbell(SendQueue& q);
  uint32_t pd_of(uint32_t qp_number) const;

  // receive.cc
  void take(std::span<const uint8_t> frame);
  void compare_with_others(const FlowRule& ours, const FlowFields& fields, std::span<const uint8_t> frame);
  void report_ambiguous(const FlowRule& a, const FlowRule& b, const std::string& whose,
                        std::span<const uint8_t> frame);
  ReceiveQueue* receive_queue(uint32_t handle);  // of a queue pair or a work queue
  void deliver(ReceiveQueue& q, std::span<const uint8_t> frame, const Parsed& p, uint32_t tag, uint32_t hash,
               uint32_t pd);
  bool next_descriptor(ReceiveQueue& q);
  void no_descriptor(std::span<const uint8_t> frame);
  uint8_t scatter(ReceiveQueue& q, std::span<const uint8_t> frame, uint32_t pd);
  uint8_t scatter_strides(ReceiveQueue& q, std::span<const uint8_t> frame, uint32_t pd, Completion& c);
  void fail_receive(ReceiveQueue& q, uint8_t syndrome);
  void flush(ReceiveQueue& q);
  ReceiveQueue* spread(const QueuePair& qp, std::span<const uint8_t> frame, const Parsed& p, uint32_t& hash);
  void describe(Completion& c, std::span<const uint8_t> frame, const Parsed& p, uint32_t tag, uint32_t hash);

  // completion.cc
  bool stalled() const;
  void complete(Completion c);
  void write(CompletionQueue& cq, const std::array<uint8_t, 64>& bytes);
  void after_entry(CompletionQueue& cq);
  static bool joins(const CompletionQueue& cq, const Completion& c);
  void write_session(CompletionQueue& cq);
  void fire(CompletionQueue& cq);
  void check_arm_register(uint32_t uar, uint64_t value);
  void look_for_missing_arm(CompletionQueue& cq);
  void error_entry(uint32_t cq, uint8_t opcode, uint8_t syndrome, uint32_t user_index, uint32_t word,
                   uint16_t index);

  const Mr* readable(uint32_t key, uint64_t address, uint64_t length, uint32_t pd, bool write) const;
  uint8_t* translate(const Mr& mr, uint64_t address) const {
    return reinterpret_cast<uint8_t*>(mr.start + (address - mr.iova));
  }
  void reset(QueuePair& qp, QueueState send, QueueState receive);

  Checker& checker_;
  Surroundings& around_;
  DeviceLimits limits_;
  Counters counters_;
  FlowTable flows_;
  std::vector<FlowRule> others_;
  uint64_t now_ = 1;
  bool stalled_ = false, removed_ = false;

  std::unordered_map<uint32_t, Pd> pds_;
  std::unordered_map<uint32_t, Mr> mrs_;
  std::unordered_map<uint32_t, CompletionQueue> cqs_;
  std::unordered_map<uint32_t, std::unique_ptr<QueuePair>> qps_;
  std::unordered_map<uint32_t, std::unique_ptr<WorkQueue>> wqs_;
  std::unordered_map<uint32_t, IndirectionTable> tables_;
  uint32_t next_pd_ = 1, next_mr_ = 0x101, next_cq_ = 0x400, next_queue_ = 0x1000, next_handle_ = 1;

  FaultSpec faults_;
  std::unique_ptr<Impairment> impairment_;                              // none: the wire is perfect
  std::vector<Completion> held_;                                        // while completions are stalled
  std::unordered_map<uint32_t, uint8_t> send_errors_, receive_errors_;  // by QP handle
  std::vector<uint8_t> wqe_, frame_, segment_;
};

}  // namespace model
