#include "posix/lease.h"

#include <algorithm>

#include "base/user_memory.h"
#include "posix/address.h"
#include "stack/lent.h"

namespace accel::posix {

bool LeaseCall::can_tell() const {
  if (!can_overwrite(into, room * sizeof *into)) return false;
  if (from == nullptr) return true;
  socklen_t length = 0;
  return get_user(length, from_length) && put_user(from_length, length) &&
         can_overwrite(from, std::min<size_t>(length, sizeof(sockaddr_storage)));
}

void LeaseCall::tell(const Lent& lent) {
  buffers = 0;
  lent.for_each([&](uint8_t* bytes, uint32_t length) { into[buffers++] = {bytes, length}; });
}

void LeaseCall::tell(const Endpoint& sender, int domain, int ifindex) const {
  if (from != nullptr) (void)to_sockaddr(sender, domain, from, from_length, static_cast<uint32_t>(ifindex));
}

}  // namespace accel::posix
