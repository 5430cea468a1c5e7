// Which flows the devices bring to us: the keys of listeners, bound and connected sockets on each interface,
// counted by their sockets, with what the port and the helper are told of them.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/counters.h"
#include "base/result.h"
#include "engine/helper_client.h"
#include "engine/lock.h"
#include "engine/notices.h"
#include "engine/port_slots.h"

namespace accel {

/// Peers choose the keys.
struct FlowKeyHash {
  size_t operator()(const FlowKey& k) const {
    static const uint64_t secret = random_secret();
    return static_cast<size_t>(hash_tuple(k.local, k.remote, secret ^ static_cast<uint64_t>(k.protocol)));
  }
  static uint64_t random_secret();
};

struct SteeredKey {
  InterfaceId interface;
  FlowKey key;
  bool operator==(const SteeredKey&) const = default;
};

class Steering {
 public:
  Steering(PortSlots& slots, HelperClient& helper, Counters& counters, Notices& notices)
      : slots_(slots), helper_(helper), counters_(counters), notices_(notices) {}

  // ---- one key ----
  /// `shared`: other processes may have a socket for the same local end. `shadow`: of the socket that is
  /// bound there, for a process without privilege; -1: there is none.
  Result<void> steer(InterfaceId id, const FlowKey& key, bool shared = false, int shadow = -1)
      ACCEL_REQUIRES(worker_lock);
  /// Once for each steer(). `paused`: by Port::pause(), until end_pause().
  void unsteer(InterfaceId id, const FlowKey& key, bool paused = false) ACCEL_REQUIRES(worker_lock);
  /// Of a key that may be steered again since.
  void end_pause(InterfaceId id, const FlowKey& key) ACCEL_REQUIRES(worker_lock);
  /// By unsteer_closed().
  void unsteer_later(InterfaceId id, const FlowKey& key) ACCEL_REQUIRES(worker_lock) {
    closed_.push_back({id, key});
  }
  void unsteer_closed() ACCEL_REQUIRES(worker_lock);
  /// libibverbs takes malloc() for each rule, and the calling thread is in a handler, which may have
  /// interrupted that: no connect() and no listen() there, and rules go later.
  bool barred() const ACCEL_REQUIRES(worker_lock);
  /// The connection is in TIME-WAIT (Port::enter_time_wait).
  void enter_time_wait(InterfaceId id, const FlowKey& key) ACCEL_REQUIRES(worker_lock);
  void take_acks(InterfaceId id, const FlowKey& key, bool on) ACCEL_REQUIRES(worker_lock);

  // ---- what the helper knows ----
  /// The peer has our FIN: of such a connection the kernel says nothing more when its process ends.
  void remove_from_helper(InterfaceId id, const FlowKey& key) ACCEL_REQUIRES(worker_lock);
  /// Where the stack is to keep the connection's sequence numbers; nullptr: the helper does not have it.
  TcpNumbers* numbers(InterfaceId id, const FlowKey& key) ACCEL_REQUIRES(worker_lock);
  /// What the process will open without privilege.
  void keep_ends(const std::vector<SteeredKey>& ends) ACCEL_REQUIRES(worker_lock) {
    kept_ends_.insert(kept_ends_.end(), ends.begin(), ends.end());
  }
  /// While this process has the privilege: for which local ends the helper helps when it has not.
  void tell_helper_of_local_ends() ACCEL_REQUIRES(worker_lock);

  // ---- an interface's keys ----
  bool any(InterfaceId id) const ACCEL_REQUIRES(worker_lock) { return !tables_[id].flows.empty(); }
  /// Since begin(): a port that never took a rule brings nothing.
  bool has_steered(InterfaceId id) const ACCEL_REQUIRES(worker_lock) { return tables_[id].has_steered; }
  /// It has another port.
  void begin(InterfaceId id) ACCEL_REQUIRES(worker_lock) { tables_[id].has_steered = false; }
  /// TCP connections but for those in TIME-WAIT.
  template <class F>
  void for_each_connection(InterfaceId id, F visit) const ACCEL_REQUIRES(worker_lock) {
    for (const auto& [key, flow] : tables_[id].flows)
      if (key.protocol == Protocol::kTcp && key.is_connected() && !flow.in_time_wait) visit(key);
  }
  /// All of them, whoever counts on them.
  void clear(InterfaceId id) ACCEL_REQUIRES(worker_lock);
  /// The kernel gets what comes for connections from here on, for those in TIME-WAIT too: a listener's rule
  /// stays while one of its connections does. The helper's table is not touched.
  void unsteer_connections_for_good() ACCEL_REQUIRES(worker_lock);

  /// Keys on all interfaces: above 0 the application has accelerated sockets.
  uint32_t count() const { return count_.load(std::memory_order_relaxed); }

 private:
  struct Flow {
    uint32_t users = 0;  ///< sockets: several listeners of the process may share a key
    bool in_time_wait = false;
    uint32_t helper_row = 0;  ///< its row in the helper's table
  };
  struct Table {
    std::unordered_map<FlowKey, Flow, FlowKeyHash> flows;
    bool has_steered = false;
  };

  void add_to_helper(InterfaceId id, const FlowKey& key, Flow& flow) ACCEL_REQUIRES(worker_lock);

  PortSlots& slots_;
  HelperClient& helper_;
  Counters& counters_;
  Notices& notices_;
  std::array<Table, kMaxInterfaces> tables_ ACCEL_GUARDED_BY(worker_lock);
  std::atomic<uint32_t> count_{0};
  std::vector<SteeredKey> closed_ ACCEL_GUARDED_BY(worker_lock);
  std::vector<SteeredKey> kept_ends_ ACCEL_GUARDED_BY(worker_lock);
};

}  // namespace accel
