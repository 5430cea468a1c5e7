// The ioctl interface: what has no write() command, that is doorbell pages, and rules, for processes that
// have others make them; all else is refused so that the libraries use write().
#include <rdma/ib_user_ioctl_cmds.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/mlx5-abi.h>
#include <rdma/mlx5_user_ioctl_cmds.h>
#include <rdma/mlx5_user_ioctl_verbs.h>
#include <rdma/rdma_user_ioctl_cmds.h>
#include <sys/mman.h>

#include "model/front/commands.h"
#include "model/front/privileged.h"
#include "model/front/raw.h"

namespace model {
namespace {

ib_uverbs_attr* find(ib_uverbs_ioctl_hdr* header, uint16_t id) {
  for (unsigned i = 0; i < header->num_attrs; ++i) {
    if (header->attrs[i].attr_id == id) return &header->attrs[i];
  }
  return nullptr;
}

void answer(ib_uverbs_attr* to, uint64_t value) {
  if (to == nullptr) return;
  memcpy(reinterpret_cast<void*>(to->data), &value, std::min<size_t>(to->len, sizeof value));
  to->flags |= UVERBS_ATTR_F_VALID_OUTPUT;
}

}  // namespace

int Context::ioctl(unsigned long request, void* argument) {
  if (abandoned_) return EIO;
  if (request != RDMA_VERBS_IOCTL) return ENOTTY;
  auto* header = static_cast<ib_uverbs_ioctl_hdr*>(argument);
  if (header->object_id == UVERBS_OBJECT_DEVICE) return invoke(header, has_net_raw(0));
  if (header->object_id != MLX5_IB_OBJECT_UAR) return EPROTONOSUPPORT;
  const Call one(*this);
  if (!started_) return EINVAL;
  if (device_.removed()) return EIO;
  if (header->method_id == MLX5_IB_METHOD_UAR_OBJ_DESTROY) {
    const ib_uverbs_attr* handle = find(header, MLX5_IB_ATTR_UAR_OBJ_DESTROY_HANDLE);
    if (handle == nullptr || handle->data >= kUars) return EINVAL;
    const Quiet quiet(*this);
    if (!uars_[handle->data].used) return EINVAL;
    uars_[handle->data].used = false;
    return 0;
  }
  if (header->method_id != MLX5_IB_METHOD_UAR_OBJ_ALLOC) return EPROTONOSUPPORT;
  ib_uverbs_attr* handle = find(header, MLX5_IB_ATTR_UAR_OBJ_ALLOC_HANDLE);
  const ib_uverbs_attr* type = find(header, MLX5_IB_ATTR_UAR_OBJ_ALLOC_TYPE);
  if (handle == nullptr || type == nullptr || type->data > MLX5_IB_UAPI_UAR_ALLOC_TYPE_NC) return EINVAL;
  uint32_t index = 0;
  if (const int bad = allocate_uar(index); bad != 0) return bad;
  handle->data = index;
  handle->flags |= UVERBS_ATTR_F_VALID_OUTPUT;
  answer(find(header, MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_OFFSET), static_cast<uint64_t>(index) * kPage);
  answer(find(header, MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_LENGTH), kPage);
  answer(find(header, MLX5_IB_ATTR_UAR_OBJ_ALLOC_PAGE_ID), index);
  return 0;
}

int Context::invoke(ib_uverbs_ioctl_hdr* header, bool has_net_raw) {
  const ib_uverbs_attr* command = find(header, UVERBS_ATTR_WRITE_CMD);
  ib_uverbs_attr* in = find(header, UVERBS_ATTR_CORE_IN);
  ib_uverbs_attr* out = find(header, UVERBS_ATTR_CORE_OUT);
  if (abandoned_) return EIO;
  if (header->method_id != UVERBS_METHOD_INVOKE_WRITE || command == nullptr) return EPROTONOSUPPORT;
  if ((command->data & IB_USER_VERBS_CMD_FLAG_EXTENDED) == 0) return EPROTONOSUPPORT;
  const Commands::Entry* entry = Commands::find(command->data & IB_USER_VERBS_CMD_COMMAND_MASK, true);
  if (entry == nullptr || (entry->run != Commands::create_flow && entry->run != Commands::destroy_flow))
    return EPROTONOSUPPORT;
  if (header->driver_id != RDMA_DRIVER_MLX5 || in == nullptr) return EINVAL;
  Request request;
  request.extended = true;
  request.has_net_raw = has_net_raw;
  const bool in_place = in->len <= sizeof in->data;
  request.core = {
      in_place ? reinterpret_cast<const uint8_t*>(&in->data) : reinterpret_cast<const uint8_t*>(in->data),
      in->len};
  if (out != nullptr) request.core_answer = {reinterpret_cast<uint8_t*>(out->data), out->len};
  const Call one(*this);
  return started_ ? Commands::execute(*this, *entry, request) : EINVAL;
}

void* Context::map(size_t size, int protection, off_t offset) {
  // Legacy offsets: the command in bits 8 and up of the page number.
  constexpr size_t kCounter = MLX5_IB_MMAP_CORE_CLOCK << 8, kClockInfo = MLX5_IB_MMAP_CLOCK_INFO << 8;
  const auto page = static_cast<size_t>(offset) / kPage;
  const auto refused = reinterpret_cast<void*>(-EINVAL);
  if (abandoned_ || size != kPage || offset % static_cast<off_t>(kPage) != 0) return refused;
  if (page == kCounter || page == kClockInfo) {
    if ((protection & PROT_WRITE) != 0 || !started_) return refused;
    const size_t where = page == kCounter ? kCounterPage : kClockInfoPage;
    return raw::mmap(size, protection, MAP_SHARED, uar_memory_, static_cast<off_t>(where * kPage));
  }
  if (page >= kUars || !uars_[page].used) return refused;
  return raw::mmap(size, protection, MAP_SHARED, uar_memory_, offset);
}

}  // namespace model
