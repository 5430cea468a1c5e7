// Peers of a rendezvous (posix/unix_rendezvous.h) that have connected and have not sent their message yet.
// They are watched, not waited for, so one that never sends costs nobody's time.
#pragma once

#include <poll.h>

#include <boost/container/static_vector.hpp>
#include <optional>
#include <vector>

#include "base/instant.h"

namespace accel::posix {

/// Under the lock.
class SilentPeers {
 public:
  enum class Wants : uint8_t { kHandOff, kMembership };
  static constexpr size_t kMost = 32;
  /// So long a busy machine may keep who connects from its next system call.
  static constexpr Duration kSpeaks = 500ms;

  SilentPeers() = default;
  ~SilentPeers() { close_all(); }
  SilentPeers(const SilentPeers&) = delete;
  SilentPeers& operator=(const SilentPeers&) = delete;

  /// False: there are kMost already.
  bool keep(int fd, Wants what, Instant now);
  /// Closes those whose time is over. Returns how many.
  size_t end_late(Instant now);
  /// When the first one's time is over; kNever: there is none.
  Instant next_end() const;
  /// It is the caller's again. Nothing: it was not kept here.
  std::optional<Wants> take(int fd);
  void watch(std::vector<pollfd>& watched) const;
  bool any(Wants what) const;
  /// What is kept of the kind is closed.
  void close(Wants what);
  void close_all();

 private:
  struct Peer {
    int fd;
    Wants what;
    Instant leaves;
  };
  template <class Predicate>
  size_t close_if(Predicate over);
  boost::container::static_vector<Peer, kMost> peers_;
};

}  // namespace accel::posix
