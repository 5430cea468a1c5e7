// Which flows are ours, and which rules of the device bring them.
//
// A device's rule matches addresses and ports, not TCP's flags: a listener's rule brings every segment to its
// port, also those of connections that the kernel has (it accepted them before, or they were handed back).
// What is ours of that is decided here; the rest goes back to the kernel. It also spares rules: a connection
// to a local end whose listener has a rule needs none of its own, so accepting costs no system call. Once a
// segment of such a connection has come, SYNs to that local end cost one: the kernel is asked whether it has
// the tuple, since a SYN that anybody can send must not begin a second connection of it.
//
// Where several processes listen or receive datagrams at one local end each has shares of it (shares.h), by a
// rule for each.
// Before a share is given up the connections under it get rules of their own.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/ip.h"
#include "base/result.h"
#include "mlx5/shares.h"
#include "stack/packet.h"

namespace accel::mlx5 {

constexpr uint16_t kVlanId = 0x0fff;     ///< of an 802.1Q tag
constexpr uint32_t kTagBits = 0xffffff;  ///< of a rule's tag

/// The device's side: tests have their own.
class RuleMaker {
 public:
  virtual ~RuleMaker() = default;
  /// Lower `priority` wins. `any_local_port`: one rule for many connections to a remote end. `remote_mask`:
  /// of a key without remote end, the bits of the remote port that must be those of `remote_bits`.
  struct Match {
    FlowKey key;
    bool any_local_port = false;
    uint16_t remote_bits = 0, remote_mask = 0;
    uint16_t priority = 0;
    uint32_t tag = 0;
  };
  /// EEXIST: another process has the rule (its tag differs). ENOSPC, ENOMEM: the device has no room.
  virtual Result<void*> create(const Match& match) = 0;
  virtual void destroy(void* rule) = 0;
};

class FlowTable final : private ListenerSharing::Holder {
 public:
  /// Whether the kernel has a connection of that tuple.
  using KernelHas = bool (*)(const Endpoint& local, const Endpoint& remote);
  /// `owner`: a random number of this port, so that two processes' rules differ: the device would send copies
  /// to both where two rules are alike. `sharing` outlives the table; nullptr: listeners are not shared.
  FlowTable(RuleMaker& device, uint32_t owner, ListenerSharing* sharing = nullptr,
            KernelHas kernel_has = nullptr);
  ~FlowTable() override { clear(); }
  FlowTable(const FlowTable&) = delete;
  FlowTable& operator=(const FlowTable&) = delete;

  /// `shared`: with other processes, as far as they are such too. Connected flows are not.
  Result<void> add(const FlowKey& key, bool shared = true);
  void remove(const FlowKey& key);
  void take_acks(const FlowKey& key, bool on);  ///< Port::take_acks()
  void clear();
  /// What the others who listen have said: rules for the shares that are ours.
  void serve();
  /// Forgets without touching the device: a forked child's.
  void abandon();

  /// A frame that came in by a rule with `tag` (0: the device has no tags). False: it is the kernel's.
  bool is_ours(const Packet& frame, uint32_t tag);

  size_t rules() const { return rules_; }
  size_t flows() const { return connected_.size() + bound_.size(); }
  uint64_t shares_taken() const { return shares_taken_; }
  uint64_t shares_given() const { return shares_given_; }

 private:
  struct Hash {
    size_t operator()(const FlowKey& k) const {
      return static_cast<size_t>(hash_tuple(k.local, k.remote, static_cast<uint64_t>(k.protocol)));
    }
  };
  /// A rule that many flows may lie under: a local end's, or a remote end's.
  struct Wide {
    void* rule = nullptr;
    bool open = false;  ///< steered itself: SYNs are ours
    bool takes_acks = false;
    bool kernel_connected = false;  ///< a segment has come of a connection that the kernel has
    bool shared = false;            ///< add(): others may have shares of it
    uint32_t covered = 0;           ///< connected flows that have no rule of their own
    /// Instead of `rule`, where others have shares: a rule for each share held.
    std::unique_ptr<std::array<void*, kShareCount>> shares{};
    Shares held() const;
    bool covers(const Endpoint& remote) const { return (held() >> share_of(remote.port) & 1) != 0; }
  };
  using WideRules = std::unordered_map<FlowKey, Wide, Hash>;
  enum class Cover : uint8_t { kOwnRule, kLocal, kRemote };
  struct Connected {
    void* rule = nullptr;
    Cover cover = Cover::kOwnRule;
  };
  struct Tags {
    uint32_t owner;
    uint32_t exact() const { return (owner << 1 & 0xfffffe) | 1; }  ///< all that comes is ours
    uint32_t wide() const {                                         ///< to be looked at; never 0
      const uint32_t tag = owner << 1 & 0xfffffe;
      return tag != 0 ? tag : 2;
    }
  };

  static FlowKey local_of(const FlowKey& key) { return {key.protocol, key.local, {}, key.vlan}; }
  static FlowKey remote_of(const FlowKey& key) {
    return {key.protocol, {key.local.address, 0}, key.remote, key.vlan};
  }
  ListenerSharing* sharing_of(const Wide& entry) const { return entry.shared ? sharing_ : nullptr; }
  Result<void> add_bound(const FlowKey& key, bool shared);
  Shares hold(const FlowKey& local, Shares wanted) override;
  Shares uncover_shares(const FlowKey& local, Wide& entry, Shares leaving);
  bool split(const FlowKey& local, Wide& entry, Shares kept);
  bool make_share(const FlowKey& local, Wide& entry, unsigned share);
  void destroy(void*& rule);
  void destroy_all(Wide& entry);
  Result<void> add_connected(const FlowKey& key);
  Result<void> add_under_remote(const FlowKey& key, Errno why);
  void uncover(WideRules& wide, const FlowKey& key);
  void drop_if_unused(WideRules& wide, WideRules::iterator at);
  void drop_uncovered();
  Result<void*> make(RuleMaker::Match match);

  RuleMaker& device_;
  Tags tags_;
  ListenerSharing* sharing_;
  KernelHas kernel_has_;
  std::unordered_map<FlowKey, Connected, Hash> connected_;
  WideRules bound_;                 ///< listeners and bound UDP sockets
  std::vector<FlowKey> uncovered_;  ///< closed ones that hold() may have taken the last connection of
  WideRules remotes_;               ///< remote ends, when the device has no room for a rule a connection
  size_t rules_ = 0;
  uint64_t shares_taken_ = 0, shares_given_ = 0;
};

}  // namespace accel::mlx5
