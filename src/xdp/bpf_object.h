// libbpf's objects, as long as they are needed: what a process keeps are duplicates of their descriptors.
#pragma once

#include <bpf/libbpf.h>
#include <fcntl.h>

#include <memory>

#include "base/module_fd.h"

namespace accel::xdp {

struct ObjectCloser {
  void operator()(bpf_object* o) const { bpf_object__close(o); }
};
using ObjectPtr = std::unique_ptr<bpf_object, ObjectCloser>;

/// Of a program or a map of an object, which closes its own. Empty: no descriptors left.
inline Fd duplicate(int fd) {
  const int high = copy_high(fd);
  return Fd(high >= 0 ? high : fcntl(fd, F_DUPFD_CLOEXEC, 3));
}

}  // namespace accel::xdp
