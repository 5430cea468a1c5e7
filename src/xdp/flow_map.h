// The steering table of a netdev (accel_flows) as one port uses it.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "base/ip.h"
#include "base/result.h"
#include "stack/port.h"
#include "xdp/flow_abi.h"
#include "xdp/flow_writer.h"
#include "xdp/program.h"

namespace accel::xdp {

class FlowMap {
 public:
  /// `owner`: the port's random mark, not 0.
  FlowMap(std::shared_ptr<Program> program, int ifindex, uint32_t owner);

  /// Takes over a queue whose socket is bound: what a dead owner left there stops matching, our flows' frames
  /// come.
  Result<void> claim(uint32_t queue, int socket);
  /// Frames go to the kernel again from here on.
  void disclaim(uint32_t queue);
  /// Mark of the port that claimed the queue (and may be dead), 0: none.
  uint32_t holder(uint32_t queue) const;
  /// Whether a port's socket is entered for the queue. The kernel takes it out as soon as it is closed, also
  /// by its process's end; bound it is a moment longer.
  bool in_use(uint32_t queue) const;
  /// Removes entries of owners that are gone. After the claims.
  void purge();

  /// EEXIST: a living port has the key. ENOSPC: the table is full.
  Result<void> add(const FlowKey& key, std::span<const uint32_t> queues);
  /// In TIME-WAIT: another owner may have the tuple when a SYN comes in on its queue (flow_abi.h). Until
  /// add() or remove().
  void enter_time_wait(const FlowKey& key, std::span<const uint32_t> queues);
  /// Port::take_acks().
  void take_acks(const FlowKey& key, std::span<const uint32_t> queues, bool on);
  /// `how`: ACCEL_REMOVE_ENTRY keeps the local end of a process without privilege (Port::pause()).
  void remove(const FlowKey& key, std::span<const uint32_t> queues, accel_operation how = ACCEL_REMOVE);
  /// Removes all that is ours.
  void remove_all();

  /// What came last for our connection on a queue that we do not hold, since add().
  std::optional<MisdirectedSegment> misdirected(const FlowKey& key) const;

  /// Of all CPUs. Needs no memory: it is asked while memory is short as well.
  uint64_t counter(accel_xdp_counter which) const;

  /// For a process that is about to give up its privilege: what it will write by. Once.
  Result<void> make_writer(std::string* why);
  /// accel_ends of the writer; -1: there is none, or it is sealed.
  int ends() const { return writer_ ? writer_->ends() : -1; }
  /// From here on the writer alone writes: add() is for what the port has steered until now and what the
  /// helper enters into accel_ends, else EPERM. No queue can be claimed; nothing of others' is purged.
  void seal();
  bool sealed() const { return sealed_; }
  uint32_t owner() const { return owner_; }

 private:
  template <class F>
  void for_each_entry(F visit) const;
  Result<void> insert(const accel_flow_key& key, uint32_t home);
  bool lives(const accel_flow_value& value) const;
  void mark(const accel_flow_key& key, uint16_t how);
  template <class Stale>
  void remove_if(Stale stale);

  std::shared_ptr<Program> program_;
  int ifindex_;
  uint32_t owner_;
  std::set<FlowKey> time_wait_;
  std::optional<FlowWriter> writer_;
  bool sealed_ = false;
  mutable std::vector<uint64_t> of_cpus_;  ///< a counter's value of each possible CPU
};

}  // namespace accel::xdp
