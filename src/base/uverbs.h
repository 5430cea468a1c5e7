// A command to the kernel's RDMA interface without libibverbs, by the device file's ioctl (Linux 5.0;
// rdma/rdma_user_ioctl_cmds.h). Freestanding, for the helper; a port destroys by it what that has made.
#pragma once

#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/ib_user_ioctl_verbs.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/rdma_user_ioctl_cmds.h>

#include <cstdint>

namespace accel {

/// `command`: of enum ib_uverbs_write_cmds, an extended one. `ioctl(request)` makes the call and returns what
/// it returns.
template <class Ioctl>
auto uverbs_command(Ioctl&& ioctl, uint64_t command, const void* in, uint16_t in_size, void* out,
                    uint16_t out_size) {
  alignas(ib_uverbs_ioctl_hdr) uint8_t request[sizeof(ib_uverbs_ioctl_hdr) + 3 * sizeof(ib_uverbs_attr)]{};
  auto* header = reinterpret_cast<ib_uverbs_ioctl_hdr*>(request);
  auto add = [&](uint16_t id, uint16_t size, uint64_t data) {
    ib_uverbs_attr& a = header->attrs[header->num_attrs++];
    a.attr_id = id;
    a.len = size;
    a.flags = UVERBS_ATTR_F_MANDATORY;
    a.data = data;
  };
  uint64_t inlined = 0;  // up to eight bytes go in the place of their address
  if (in_size <= sizeof inlined) __builtin_memcpy(&inlined, in, in_size);
  add(UVERBS_ATTR_WRITE_CMD, sizeof command, command | IB_USER_VERBS_CMD_FLAG_EXTENDED);
  add(UVERBS_ATTR_CORE_IN, in_size, in_size <= sizeof inlined ? inlined : reinterpret_cast<uint64_t>(in));
  if (out_size != 0) add(UVERBS_ATTR_CORE_OUT, out_size, reinterpret_cast<uint64_t>(out));
  header->object_id = UVERBS_OBJECT_DEVICE;
  header->method_id = UVERBS_METHOD_INVOKE_WRITE;
  header->driver_id = RDMA_DRIVER_MLX5;
  header->length = static_cast<uint16_t>(sizeof *header + header->num_attrs * sizeof(ib_uverbs_attr));
  return ioctl(header);
}

}  // namespace accel
