// The search for a local port of connect(), where the kernel's bind() to port 0 has given one whose tuple
// this process's stack has: as __inet_hash_connect() does for its own tuples, over the whole range and for
// one destination.
#pragma once

#include <cstdint>
#include <functional>

namespace accel::posix {

class PortSearch {
 public:
  /// `shadow`: the kernel's socket that will be bound to port 0; it gets back what it had when this ends.
  /// `used`: whether a connection of this process, or what is left of one, has that port, to wherever it
  /// goes.
  PortSearch(int shadow, uint16_t first_conflict, std::function<bool(uint16_t)> used);
  ~PortSearch();
  PortSearch(const PortSearch&) = delete;
  PortSearch& operator=(const PortSearch&) = delete;

  /// Has the shadow's next bind() to port 0 choose among other ports than before: at first those that are not
  /// used, in a row, then each of the others, which may be free for this destination. False: all of them have
  /// been tried. Before Linux 6.3, which cannot be told, the same range for a number of times.
  bool next();

 private:
  bool set_range(uint32_t range) const;

  int shadow_;
  std::function<bool(uint16_t)> used_;
  uint32_t before_ = 0;              ///< IP_LOCAL_PORT_RANGE; 0: none
  uint32_t low_ = 0, count_ = 0;     ///< the range, and how many ports it has
  uint32_t start_ = 0, walked_ = 0;  ///< offsets
  bool among_used_ = false;
  uint32_t blind_tries_ = 0;
};

}  // namespace accel::posix
