#include "engine/source_rules.h"

#include <algorithm>

#include "base/own_table.h"
#include "base/proc.h"

namespace accel {

namespace {

// How "all" and the device's own go together: include/linux/inetdevice.h IN_DEV_RPFILTER and its neighbours.
SourceRules read_rules(const std::string& device) {
  const auto read = [](const std::string& of, const char* name) {
    return sysctl(("/proc/sys/net/ipv4/conf/" + of + "/" + name).c_str(), 0);
  };
  const auto either = [&](const char* name) { return read("all", name) != 0 || read(device, name) != 0; };
  SourceRules rules;
  const int filter = std::max(read("all", "rp_filter"), read(device, "rp_filter"));
  rules.rp_filter = static_cast<uint8_t>(std::clamp(filter, 0, 2));
  rules.accept_source_route =
      read("all", "accept_source_route") != 0 && read(device, "accept_source_route") != 0;
  rules.route_localnet = either("route_localnet");
  rules.accept_local = either("accept_local");
  return rules;
}

}  // namespace

SourceRules read_source_rules(const std::string& device) {
  SourceRules rules;
  in_own_table([&] { rules = read_rules(device); });
  return rules;
}

}  // namespace accel
