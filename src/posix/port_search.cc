#include "posix/port_search.h"

#include <netinet/in.h>

#include <algorithm>
#include <utility>

#include "base/proc.h"
#include "base/real.h"

#ifndef IP_LOCAL_PORT_RANGE
#define IP_LOCAL_PORT_RANGE 51  // Linux 6.3
#endif

namespace accel::posix {
namespace {

constexpr uint32_t kBlindTries = 16;

}  // namespace

PortSearch::PortSearch(int shadow, uint16_t first_conflict, std::function<bool(uint16_t)> used)
    : shadow_(shadow), used_(std::move(used)) {
  socklen_t size = sizeof before_;
  if (real.getsockopt(shadow_, IPPROTO_IP, IP_LOCAL_PORT_RANGE, &before_, &size) != 0) before_ = 0;
  auto [low, high] = local_port_range().value_or(std::pair(32768u, 60999u));  // the kernel's own
  if ((before_ & 0xffff) != 0) low = std::max(low, before_ & 0xffff);
  if (before_ >> 16 != 0) high = std::min(high, before_ >> 16);
  low_ = low;
  count_ = high >= low ? high - low + 1 : 0;
  if (first_conflict >= low_ && first_conflict - low_ < count_) start_ = first_conflict - low_ + 1;
}

PortSearch::~PortSearch() { set_range(before_); }

bool PortSearch::set_range(uint32_t range) const {
  return real.setsockopt(shadow_, IPPROTO_IP, IP_LOCAL_PORT_RANGE, &range, sizeof range) == 0;
}

bool PortSearch::next() {
  const auto port = [this](uint32_t walked) {
    return static_cast<uint16_t>(low_ + (start_ + walked) % count_);
  };
  while (walked_ < count_ && used_(port(walked_)) != among_used_) ++walked_;
  if (walked_ == count_) {
    if (std::exchange(among_used_, true)) return false;
    walked_ = 0;
    return next();
  }
  const uint32_t first = port(walked_);
  uint32_t last = first;
  ++walked_;
  while (!among_used_ && walked_ < count_ && port(walked_) == last + 1 && !used_(port(walked_))) {
    ++walked_;
    ++last;
  }
  if (set_range(first | last << 16)) return true;
  walked_ = 0;
  return ++blind_tries_ < kBlindTries;
}

}  // namespace accel::posix
