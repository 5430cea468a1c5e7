// What the other contexts on this NIC steer: one steering table is the NIC's, so two processes' rules may
// contradict each other. FOLDER/steering, a file that every context of a host maps; without a folder each
// context is alone.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "model/core/flow.h"

namespace model {

class SharedRules {
 public:
  SharedRules() = default;
  ~SharedRules() { close(); }
  SharedRules(const SharedRules&) = delete;
  SharedRules& operator=(const SharedRules&) = delete;

  void open();
  void close();
  void add(const FlowRule& rule, uint32_t handle);
  void remove(uint32_t handle);
  /// Something was added or removed since the last call of others().
  bool changed() const;
  /// The rules of the others that live: who has ended, by whatever means, has none.
  std::vector<FlowRule> others();
  /// How many contexts those are of.
  unsigned sharing_contexts() const { return sharing_contexts_; }

 private:
  struct Slot {
    uint32_t owner = 0;  // 0: free
    FlowRule rule;
  };
  static constexpr size_t kSlots = 8192;
  struct File {
    uint64_t generation;
    uint64_t used;  // slots beyond it were never used
    Slot slots[kSlots];
  };
  class Locked;
  bool lives(uint32_t owner) const;

  int fd_ = -1;
  File* file_ = nullptr;
  uint32_t owner_ = 0;  // has a lock on that byte of the file as long as it lives
  uint64_t seen_ = 0;
  unsigned sharing_contexts_ = 0;
  std::map<uint32_t, size_t> mine_;
};

}  // namespace model
