#include "model/front/claims.h"

#include <sys/un.h>

#include <cstddef>
#include <cstring>

#include "model/front/raw.h"

namespace model {
namespace {

/// Abstract, so of the network namespace, as the netdev is.
std::string name_of(const std::string& netdev, const FlowRule& rule) {
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  const auto mix = [&hash](const void* data, size_t size) {
    for (size_t i = 0; i < size; ++i) hash = (hash ^ static_cast<const uint8_t*>(data)[i]) * 0x100000001b3;
  };
  mix(&rule.kind, sizeof rule.kind);
  mix(&rule.priority, sizeof rule.priority);
  mix(&rule.value, sizeof rule.value);
  mix(&rule.mask, sizeof rule.mask);
  return std::string(1, '\0') + "mlx5-model/" + netdev + "/" + std::to_string(hash);
}

}  // namespace

accel::Result<void> Claims::add(const std::string& netdev, const FlowRule& rule, uint32_t handle) {
  const std::string name = name_of(netdev, rule);
  Claim& claim = claims_[name];
  if (claim.rules == 0) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    memcpy(address.sun_path, name.data(), name.size());
    const int fd = raw::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    const auto size = static_cast<long>(offsetof(sockaddr_un, sun_path) + name.size());
    const long bad = fd < 0 ? fd : raw::call(SYS_bind, fd, raw::word(&address), size);
    if (bad < 0) {
      if (fd >= 0) raw::close(fd);
      claims_.erase(name);
      return accel::err(bad == -EADDRINUSE ? EEXIST : static_cast<int>(-bad));
    }
    claim.socket = fd;
  }
  ++claim.rules;
  names_[handle] = name;
  return {};
}

void Claims::remove(uint32_t handle) {
  const auto name = names_.find(handle);
  if (name == names_.end()) return;
  const auto claim = claims_.find(name->second);
  if (--claim->second.rules == 0) {
    raw::close(claim->second.socket);
    claims_.erase(claim);
  }
  names_.erase(name);
}

void Claims::abandon() {
  for (auto& [name, claim] : claims_) raw::close(claim.socket);
  claims_.clear();
  names_.clear();
}

}  // namespace model
