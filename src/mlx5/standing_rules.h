// Rules that stay. The kernel's driver has a flow table for each priority, and in it a group for each set of
// fields that rules compare: it makes them with the first rule and takes them away with the last one, by
// commands of the firmware that cost more than a rule. So with the first rule of a kind another one is made,
// which brings nothing and stays as long as the port: a connection then costs a rule and no more.
#pragma once

#include <vector>

#include "mlx5/flow_table.h"

namespace accel::mlx5 {

class StandingRules final : public RuleMaker {
 public:
  /// `owner`: as FlowTable's; equal rules of two processes would be refused.
  StandingRules(RuleMaker& device, uint32_t owner) : device_(device), owner_(owner) {}
  ~StandingRules() override { clear(); }
  StandingRules(const StandingRules&) = delete;
  StandingRules& operator=(const StandingRules&) = delete;

  /// The first one: what refuses it refuses all. A table without room and another process's equal rule do
  /// not.
  Result<void> begin();
  /// Where there is no room, that of the priority's standing rules is used.
  Result<void*> create(const Match& match) override;
  void destroy(void* rule) override { device_.destroy(rule); }
  void clear();
  /// Forgets without touching the device: a forked child's.
  void abandon() { kinds_.clear(); }

  size_t rules() const;

 private:
  /// What of a match makes the table and the group.
  struct Kind {
    uint16_t priority = 0, remote_mask = 0;
    Protocol protocol{};
    bool v4 = false, tagged = false, connected = false, any_local_port = false;
    bool operator==(const Kind&) const = default;
  };
  struct Standing {
    Kind kind;
    void* rule = nullptr;  ///< nullptr: refused, or its room was needed
  };
  static Kind kind_of(const Match& match);
  Match nobodys(const Match& like) const;
  Result<void> stand(const Match& like);
  bool give_room(uint16_t priority);

  RuleMaker& device_;
  uint32_t owner_;
  std::vector<Standing> kinds_;
};

}  // namespace accel::mlx5
