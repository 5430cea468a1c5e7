// What the device holds for a driver: plain records, changed by the verbs of device.h.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace model {

// Planted in an arm record to see the next arm; never stored by a driver (reserved bits are set).
inline constexpr uint32_t kNoArm = 0xffffffff;

enum class QueueState : uint8_t { kReset, kReady, kError };

struct Pd {
  uint32_t users = 0;
};

/// A registered range. `key` is lkey and rkey; the address a descriptor gives is iova-based.
struct Mr {
  uint32_t key = 0, pd = 0;
  uint64_t start = 0, length = 0, iova = 0;
  uint32_t access = 0;  // ibv_access_flags
};

struct CompletionQueue {
  uint32_t number = 0;
  uint32_t uar = 0;
  uint8_t* ring = nullptr;
  uint32_t entries = 0;        // a power of two
  uint32_t stride = 64;        // or 128: the 64 bytes that count are its second half
  uint32_t* record = nullptr;  // [0] consumer index, [1] arm
  uint32_t produced = 0;
  uint32_t users = 0;  // queues that complete here

  // Events: an arm names the consumer index; an entry at or behind it fires it once.
  bool armed = false;
  bool fired_once = false;
  uint32_t arm_index = 0;
  uint8_t arm_serial = 0, fired_serial = 0;
  uint32_t arm_word = kNoArm;   // the last one in the record: what the register has to say, too
  uint64_t unproved_since = 0;  // it has not said so since then; 0: it has

  // Moderation: an event after `moderate_count` entries or `moderate_usec`, whichever is first. 0: at once.
  uint16_t moderate_count = 0, moderate_usec = 0;
  uint32_t since_event = 0;
  uint64_t hold_since = 0;

  // Compression of receive entries: those of one turn that differ only in what a mini entry says are gathered
  // into a session.
  bool compress = false;
  uint8_t mini_format = 0;  // mlx5dv_cqe_comp_res_format
  std::vector<std::array<uint8_t, 64>> gathered;

  uint64_t cookie = 0;  // the owner's: handed back with an event
};

/// A send queue: a ring of 64-byte blocks, or none (blocks == 0).
struct SendQueue {
  uint32_t number = 0;      // what descriptors must carry
  uint32_t user_index = 0;  // what completions carry
  uint32_t uar = 0;
  uint32_t cq = 0;
  uint8_t* ring = nullptr;
  uint32_t blocks = 0;
  const uint32_t* record = nullptr;
  uint16_t next = 0;          // first block not executed
  uint16_t allowed = 0;       // blocks before this were announced by a doorbell
  uint64_t unrung_since = 0;  // the record is ahead of the doorbells since then; 0: it is not
  QueueState state = QueueState::kReset;
  QueueState known = QueueState::kReset;  // what the kernel's driver remembers
};

/// A receive queue, cyclic or striding.
struct ReceiveQueue {
  uint32_t number = 0;
  uint32_t user_index = 0;
  uint32_t cq = 0;
  uint8_t* ring = nullptr;
  uint32_t count = 0;
  uint32_t stride = 16;  // bytes of a descriptor
  const uint32_t* record = nullptr;
  uint16_t next = 0;
  QueueState state = QueueState::kReset;
  QueueState known = QueueState::kReset;  // what the kernel's driver remembers

  // Striding: each descriptor's buffer is 1 << log_strides strides of 1 << log_stride bytes.
  bool striding = false;
  uint8_t log_stride = 0, log_strides = 0;
  bool pad_two = false;
  uint32_t used_strides = 0;

  uint32_t dropped = 0;  // frames that found no descriptor since the last completion, which tells it
};

struct QueuePair {
  uint32_t handle = 0, pd = 0;
  SendQueue send;
  ReceiveQueue receive;
  uint32_t rss_table = 0;   // indirection table, when receiving goes through one
  uint32_t rss_fields = 0;  // mlx5_rx_hash_fields
  std::vector<uint8_t> rss_key;
  uint8_t verbs_state = 0;  // ib_qp_state, for QUERY_QP
};

/// A receive queue of its own (ibv_create_wq).
struct WorkQueue {
  uint32_t handle = 0, pd = 0;
  ReceiveQueue receive;
  uint32_t users = 0;
};

struct IndirectionTable {
  uint32_t handle = 0;
  std::vector<uint32_t> queues;  // WorkQueue handles
  uint32_t users = 0;
};

}  // namespace model
