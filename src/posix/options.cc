// setsockopt() and getsockopt() as they arrive, and what the tables of both kinds of socket share.
#include "posix/options.h"

#include <algorithm>

#include "base/user_memory.h"
#include "posix/flow_label.h"

namespace accel::posix {

const Option* find_option(std::span<const Option> table, int level, int name) {
  auto row = std::find_if(table.begin(), table.end(),
                          [&](const Option& o) { return o.level == level && o.name == name; });
  return row == table.end() ? nullptr : &*row;
}

bool vetoes(std::span<const Option> table, int level, int name, const void* value, socklen_t length) {
  const Option* option = find_option(table, level, name);
  if (option != nullptr && option->effect != OptionEffect::kKernel) return false;
  if (level == IPPROTO_IPV6 && name == kFlowLabelManager) return lease_changes_packets(value, length);
  auto* bytes = static_cast<const char*>(value);
  const char off = option != nullptr ? option->off : '\0';
  return !can_read(value, length) || !std::all_of(bytes, bytes + length, [off](char c) { return c == off; });
}

Result<int> put_option(const void* answer, size_t size, void* value, socklen_t* length,
                       NegativeSize negative) {
  socklen_t room;
  if (!get_user(room, length)) return err(EFAULT);
  if (static_cast<int>(room) < 0 && negative == NegativeSize::kIsInvalid) return err(EINVAL);
  room = static_cast<socklen_t>(std::min<size_t>(room, size));
  if (!can_overwrite(value, room)) return err(EFAULT);
  std::memcpy(value, answer, room);
  return put_user(length, room) ? Result<int>(0) : err(EFAULT);
}

}  // namespace accel::posix
