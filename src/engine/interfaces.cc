#include "engine/interfaces.h"

#include <string.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/config.h"
#include "base/log.h"
#include "engine/source_rules.h"

namespace accel {
namespace {

void log_failure(const Link& link, const OpenedPort& opened) {
  const Settings& settings = config().settings;
  const bool wanted = settings.path == Path::kStack || settings.require != Require::kOff;
  log(wanted ? LogLevel::kWarning : LogLevel::kInfo, "%s: no %s port, its traffic stays on the kernel: %s",
      link.name.c_str(), path_name(opened.kind), opened.detail.c_str());
}

}  // namespace

bool Interfaces::may_have_port(int ifindex) const {
  const Link* link = network_.link(ifindex);
  return barred_ == Reason::accelerated && link && !link->loopback && link->up && carries_frames(*link) &&
         config().device_allowed(link->name);
}

/// Whether there is a device that could have a port.
bool Interfaces::some_device_allowed() const {
  return std::any_of(network_.links.begin(), network_.links.end(), [](const auto& entry) {
    return carries_frames(entry.second) && config().device_allowed(entry.second.name);
  });
}

Result<InterfaceId> Interfaces::of(int ifindex, Reason* why, Instant now, PortOpening::Need need) {
  if (const InterfaceId id = slots_.find(ifindex); id != kAnyInterface) return id;
  auto refuse = [&](Reason reason, int number) -> Result<InterfaceId> {
    *why = reason;
    return err(number);
  };
  if (barred_ != Reason::accelerated) return refuse(barred_, EPERM);
  const Link* link = network_.link(ifindex);
  if (link && link->loopback) return refuse(Reason::loopback, EOPNOTSUPP);
  if (!link || !link->up || !carries_frames(*link)) return refuse(Reason::no_port, EOPNOTSUPP);
  if (!config().device_allowed(link->name))
    return refuse(some_device_allowed() ? Reason::device_setting : Reason::no_such_device, EOPNOTSUPP);
  if (const auto failed = opening_.failure(ifindex, now)) return refuse(*failed, EOPNOTSUPP);
  if (auto lower = port_below(*link, now))
    if (auto id = slots_.free_slot(ifindex)) return install_vlan(*id, *link, *lower);
  if (in_handler()) return refuse(Reason::handler, EOPNOTSUPP);
  if (!opening_.is_waited_for()) {
    opening_.request(ifindex, need, now);
    return refuse(Reason::port_opening, EAGAIN);
  }
  // The kernel takes no XDP program on a device below one that has one, so that one's port comes first.
  if (Reason ignored; link->lower != 0 && network_.has_address(link->lower))
    (void)of(link->lower, &ignored, now);
  const auto id = slots_.free_slot(ifindex);
  if (!id) return refuse(Reason::resources, ENFILE);

  OpenedPort opened = opening_.open(*link, *worker_.pool);
  if (!opened.port) {
    note_failure(*link, opened, now);
    return refuse(opened.reason, EOPNOTSUPP);
  }
  install(*id, std::move(opened), ifindex, now);
  return *id;
}

void Interfaces::note_failure(const Link& link, const OpenedPort& opened, Instant now) {
  opening_.note_failure(link.ifindex, opened.reason, now);
  log_failure(link, opened);
  give_up_memory();
}

void Interfaces::install(InterfaceId id, OpenedPort opened, int ifindex, Instant now) {
  slots_.set_port(id, std::move(opened), ifindex);
  steering_.begin(id);
  tell_stack_of(id);
  tell_routes();
  sleepers_.add_port(id, now);
}

InterfaceId Interfaces::install_vlan(InterfaceId id, const Link& link, InterfaceId lower) {
  slots_.set_vlan(id, link, lower);
  steering_.begin(id);
  tell_stack_of(id);
  tell_routes();
  return id;
}

std::optional<InterfaceId> Interfaces::port_below(const Link& vlan, Instant now) {
  const Link* lower = vlan.vlan != 0 ? network_.link(vlan.lower) : nullptr;
  // Frames to an address of its own are another host's to the lower port.
  if (!lower || !lower->up || !carries_frames(*lower) || !has_address_of_below(vlan)) return {};
  for (InterfaceId id = 0; id < slots_.count(); ++id)
    if (slots_[id].ifindex == vlan.lower && slots_[id].port())
      return slots_[id].port()->info().vlan_tags ? std::optional(id) : std::nullopt;
  const auto id = slots_.free_slot(vlan.lower);
  if (!id) return {};
  OpenedPort opened = open_tagging_port(*lower, *worker_.pool);
  if (!opened.port) return {};
  install(*id, std::move(opened), vlan.lower, now);
  return id;
}

void Interfaces::tell_stack_of(InterfaceId id) {
  if (!slots_.port_of(id)) return;
  const PortInfo& port = slots_.port_of(id)->info();
  const Link* link = network_.link(slots_[id].ifindex);
  Interface info;
  info.mac = link ? link->mac : port.mac;
  info.mtu = link ? std::min(link->mtu, slots_[id].mtu_most()) : port.mtu;
  info.tx_checksum = port.tx_checksum;
  info.tso = port.tso && config().settings.tso;
  info.tso_max = port.tso_max;
  info.kernel_sees_errors = port.kernel_sees_errors;
  info.up = link && link->up;
  if (const auto& vlan = slots_[id].vlan) {
    info.lower = vlan->lower;
    info.vlan = vlan->tag;
  }
  info.sources = read_source_rules(slots_.info_of(id)->name);
  worker_.stack->set_interface(id, info);
  for (const auto& [key, neighbour] : network_.neighbours)
    if (key.first == slots_[id].ifindex && neighbour.mac)
      worker_.stack->set_neighbour(id, key.second, neighbour.mac);
}

uint32_t Interfaces::mtu_by(InterfaceId id, uint32_t route) const {
  const uint32_t device = id != kAnyInterface ? worker_.stack->interface(id).mtu : 0;
  return route ? std::min(route, device) : device;
}

std::optional<MetricsId> Interfaces::metrics_by(const RouteMetrics& route) const {
  return worker_.stack->metrics_id(route);
}

void Interfaces::set_metrics(RouteEntry& row, const RouteMetrics& route) const {
  const auto metrics = metrics_by(route);
  row.metrics = metrics.value_or(0);
  if (!metrics && row.kind == RouteKind::kUnicast) row.kind = RouteKind::kOther;
}

void Interfaces::tell_routes() {
  std::vector<RouteEntry> table;
  table.reserve(network_.routes.size());
  for (const KernelRoute& r : network_.routes) {
    if (!network_.own_first) break;  // a rule may lead to another host with an address of this one
    RouteEntry entry{r.prefix, r.prefix_length, slots_.find(r.ifindex), r.gateway, 0, r.kind};
    entry.mtu = mtu_by(entry.interface, r.mtu);
    set_metrics(entry, r.metrics);
    table.push_back(entry);
  }
  worker_.stack->set_routes(std::move(table), network_.policy_routing);
}

void Interfaces::lose(InterfaceId id, const char* why, Instant now) {
  PortSlot& slot = slots_[id];
  log(LogLevel::kWarning, "%s: port lost: %s", slots_.info_of(id)->name.c_str(), why);
  counters_.add(Counter::port_errors);
  if (!slot.vlan) sleepers_.remove_port(id, now);
  for (InterfaceId above = 0; above < slots_.count(); ++above)
    if (slots_[above].vlan && slots_[above].vlan->lower == id && !slots_[above].lost) lose(above, why, now);
  // The port stays with its rules until the connections are the kernel's.
  slot.lost = true;
  any_lost_.store(true, std::memory_order_relaxed);
}

void Interfaces::close(InterfaceId id, Instant now) {
  if (slots_[id].opened.port) sleepers_.remove_port(id, now);
  worker_.stack->remove_interface(id);
  slots_.clear(id);
  tell_routes();
  give_up_memory();
}

/// Its queues would bring nothing, and cost memory and polls; it is tried again as one that could not be
/// opened.
void Interfaces::give_up_barren(InterfaceId id, Errno why, Instant now) {
  if (why == err(EEXIST) || !slots_[id].port() || steering_.has_steered(id)) return;
  log(LogLevel::kWarning, "%s: its only flow rule is refused (%s): its queues are given back",
      slots_[id].opened.port.frames()->info().name.c_str(), strerrordesc_np(static_cast<int>(why)));
  opening_.note_failure(slots_[id].ifindex, Reason::steering_failed, now);
  close(id, now);
}

bool Interfaces::has_address_of_below(const Link& vlan) const {
  const Link* lower = network_.link(vlan.lower);
  return lower != nullptr && lower->mac == vlan.mac;
}

void Interfaces::give_up_memory() {
  const bool any =
      std::any_of(slots_.begin(), slots_.end(), [](const PortSlot& s) { return bool(s.opened.port); });
  if (!any && !opening_.any_ready() && !worker_.pool->any_reserved() &&
      worker_.pool->available() == worker_.pool->size())
    worker_.region.empty();
}

}  // namespace accel
