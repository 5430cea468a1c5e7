// How the processes that listen or receive datagrams at one local end divide it: by the remote port, of which
// a rule can compare some bits only. nginx's workers, or servers with SO_REUSEPORT.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/ip.h"

namespace accel::mlx5 {

/// A set of shares, a bit each.
using Shares = uint32_t;
constexpr unsigned kShareCount = 32;
constexpr Shares kAllShares = ~Shares{0};

/// Linux's connect() takes ports of one parity (net/ipv4/inet_hashtables.c, __inet_hash_connect), so the
/// lowest bit does not divide.
constexpr unsigned kShareShift = 1;
constexpr uint16_t kShareMask = (kShareCount - 1) << kShareShift;
constexpr unsigned share_of(uint16_t remote_port) { return (remote_port & kShareMask) >> kShareShift; }
constexpr uint16_t port_of_share(unsigned share) { return static_cast<uint16_t>(share << kShareShift); }

/// One process of a group as the others know it.
struct ShareHolder {
  Shares held = 0;
  bool takes = true;  ///< false: it listens no more, or cannot be reached: it gets nothing
  bool keeps = true;  ///< false: what it has is for the others, as soon as there are any
};

/// What each should have: as equal as can be, with the fewest moves. A share that one has is never another's:
/// it is free only when its holder has said so.
std::vector<Shares> divide(std::span<const ShareHolder> group);

/// The processes of this host that listen at the same local end. FlowTable's view of ListenerGroups; tests
/// have their own.
class ListenerSharing {
 public:
  virtual ~ListenerSharing() = default;

  /// Who makes the rules.
  class Holder {
   public:
    virtual ~Holder() = default;
    /// Called by serve(): have rules for exactly `wanted`, as far as that can be; returns what there is.
    virtual Shares hold(const FlowKey& local, Shares wanted) = 0;
  };
  virtual void set_holder(Holder* holder) = 0;

  /// True: nobody else is there, all shares are ours. False: the others will leave us some.
  virtual bool join(const FlowKey& local) = 0;
  /// It listens no more, but may have connections under its shares; or listens again.
  virtual void set_listening(const FlowKey& local, bool listening) = 0;
  /// The rules are gone.
  virtual void leave(const FlowKey& local) = 0;
  /// What the others have said. Cheap when there are no others.
  virtual void serve() = 0;
  /// The process has become another user: those who would not share with it are asked again.
  virtual void user_changed() = 0;
  /// Turns readable when serve() has something to do; -1: it never has.
  virtual int event_fd() const = 0;
  /// In a child after fork(): closes descriptors, and the others notice nothing.
  virtual void abandon() = 0;
};

}  // namespace accel::mlx5
