// Descriptors in a message (SCM_RIGHTS, unix(7)).
#pragma once

#include <sys/socket.h>

#include <cstring>

namespace accel::posix {

/// Calls visit(fd) for each until it returns false.
template <class Visit>
void each_descriptor_in(msghdr message, Visit visit) {
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS || c->cmsg_len < CMSG_LEN(0)) continue;
    const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
      if (!visit(fd)) return;
    }
  }
}

}  // namespace accel::posix
