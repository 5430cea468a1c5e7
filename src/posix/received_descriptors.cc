#include "posix/received_descriptors.h"

#include <vector>

#include "base/private_fds.h"
#include "posix/guard.h"

namespace accel::posix {
namespace {

std::vector<int>& received() {
  static auto* const all = new std::vector<int>;
  return *all;
}

}  // namespace

void close_received(int fd) { received().push_back(keep_private(fd)); }

void close_all_received() {
  std::vector<int> all;
  {
    Guard guard(Pass::Polling::kNo);
    if (guard.ok()) all.swap(received());
  }
  for (const int fd : all) close_private(fd);
}

}  // namespace accel::posix
