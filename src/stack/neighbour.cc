// Interfaces, routes and next hops, as the engine tells them.
#include <algorithm>
#include <limits>

#include "stack/core.h"
#include "stack/tcp/siphash.h"
#include "stack/tcp/tcp.h"
#include "stack/udp.h"

namespace accel {
namespace {

/// RFC 1112 section 6.4, RFC 2464 section 7; nullopt: a unicast address.
std::optional<MacAddress> group_mac(const IpAddress& a) {
  if (a == IpAddress::v4(0xffffffff)) return MacAddress{0xff, 0xff, 0xff, 0xff, 0xff, 0xff};
  if (!a.is_multicast()) return {};
  const auto& b = a.bytes;
  if (a.is_v4()) return MacAddress{0x01, 0x00, 0x5e, static_cast<uint8_t>(b[13] & 0x7f), b[14], b[15]};
  return MacAddress{0x33, 0x33, b[12], b[13], b[14], b[15]};
}

}  // namespace

StackCore::StackCore(const StackConfig& config_in, FramePool& pool_in, Counters& counters_in)
    : config(config_in),
      flow_secret(siphash(config_in.secret, {})),
      pool(pool_in),
      counters(counters_in),
      routes(config_in.secret[1]),
      hops(16, HopHash{config_in.secret[1]}),
      tcp_memory(config_in.tcp_memory),
      udp_memory(config_in.udp_memory) {}

StackCore::~StackCore() {
  tcp.reset();  // they hold hops and frames
  udp.reset();
  for (auto& state : interfaces)
    while (Packet* p = state.tx.pop_front()) FramePool::release(p);
  while (Packet* p = frames_for_kernel.pop_front()) FramePool::release(p);
  while (Packet* p = awaiting_route.pop_front()) FramePool::release(p);
  for (auto& [key, hop] : hops)
    while (Packet* p = hop->parked.pop_front()) FramePool::release(p);
}

void StackCore::set_interface(InterfaceId id, const Interface& info) {
  interfaces[id].info = info;
  interfaces[id].present = true;
  good_sources_ = {};
  std::erase_if(tagged, [id](const Tagged& t) { return t.id == id; });
  if (info.lower && info.vlan) tagged.push_back({*info.lower, id, *info.vlan});
  for (auto& [key, hop] : hops)
    if (key.interface == id) std::copy(info.mac.begin(), info.mac.end(), hop->ethernet.begin() + 6);
}

void StackCore::remove_interface(InterfaceId id) {
  interfaces[id].present = false;
  std::erase_if(tagged, [id](const Tagged& t) { return t.id == id; });
  while (Packet* p = interfaces[id].tx.pop_front()) drop(p, Counter::drop_no_interface);
  for (auto& [key, hop] : hops) {
    if (key.interface != id) continue;
    while (Packet* p = hop->parked.pop_front()) {
      --parked_total;
      drop(p, Counter::drop_no_interface);
    }
  }
}

Hop* StackCore::find_or_make_hop(InterfaceId id, const IpAddress& address) {
  auto it = hops.find({id, address});
  if (it != hops.end()) return it->second.get();
  if (hops.size() >= sweep_hops_at) sweep_hops();
  auto hop = std::make_unique<Hop>();
  hop->interface = id;
  hop->address = address;
  const MacAddress& own = interfaces[id].info.mac;
  std::copy(own.begin(), own.end(), hop->ethernet.begin() + 6);
  Hop* made = hop.get();
  hops.emplace(HopKey{id, address}, std::move(hop));
  if (auto mac = group_mac(address)) resolve(*made, *mac);
  return made;
}

// Peers choose how many hops there are (one for each address on link), so those that nobody holds go when
// there are many: of neighbours that the kernel knows only where it knows so many.
void StackCore::sweep_hops() {
  const auto unused = [](const Hop& hop) { return hop.users == 0 && !hop.waiting; };
  std::erase_if(hops, [&](const auto& entry) { return unused(*entry.second) && !entry.second->resolved; });
  if (hops.size() >= kSweepHops)
    std::erase_if(hops, [&](const auto& entry) { return unused(*entry.second); });
  sweep_hops_at = std::max(kSweepHops, hops.size() * 2);
}

void StackCore::resolve(Hop& hop, const MacAddress& mac) {
  std::copy(mac.begin(), mac.end(), hop.ethernet.begin());
  hop.resolved = true;
  hop.times_asked = 0;
  while (Packet* p = hop.parked.pop_front()) {
    --parked_total;
    transmit(p, hop);
  }
}

Hop* StackCore::hop(const Route& route) { return find_or_make_hop(route.interface, route.next_hop); }

void StackCore::set_routes(std::vector<RouteEntry> rows, bool ask) {
  routes.set(std::move(rows), ask);
  good_sources_ = {};
}

/// They stay, whichever routes go: connections name them.
std::optional<MetricsId> StackCore::metrics_id(const RouteMetrics& m) {
  const auto known = std::find(metrics.begin(), metrics.end(), m);
  const auto id = known - metrics.begin();
  if (id > std::numeric_limits<MetricsId>::max()) return std::nullopt;
  if (known == metrics.end()) metrics.push_back(m);
  return static_cast<MetricsId>(id);
}

static IpAddress next_hop(const RouteEntry& row, const Passage& from) {
  return row.gateway.is_any() ? from.source : row.gateway;
}

Way StackCore::way_by(const RouteEntry& row, const Passage& from) {
  if (row.kind == RouteKind::kOther) return {.by_kernel = true};
  if (row.kind != RouteKind::kUnicast) return {};
  if (row.interface == kAnyInterface) return {.by_kernel = true};
  return {find_or_make_hop(row.interface, next_hop(row, from)),
          std::min(row.mtu, interfaces[row.interface].info.mtu), row.metrics};
}

Way StackCore::way_back(const Passage& from) {
  const auto rows = routes.find(from.source, from.destination);
  if (rows.empty()) return {};
  const auto row = std::find_if(rows.begin(), rows.end(),
                                [&](const RouteEntry& r) { return r.interface == from.interface; });
  return way_by(row == rows.end() ? rows.front() : *row, from);
}

Way StackCore::way_on(const Passage& from, const Hop& hop) {
  for (const RouteEntry& row : routes.find(from.source, from.destination))
    if (row.kind == RouteKind::kUnicast && row.interface == hop.interface &&
        next_hop(row, from) == hop.address)
      return way_by(row, from);
  return way_back(from);
}

void StackCore::set_neighbour(InterfaceId id, const IpAddress& address, std::optional<MacAddress> mac) {
  if (mac) {
    resolve(*find_or_make_hop(id, address), *mac);
    return;
  }
  auto it = hops.find({id, address});
  if (it == hops.end() || group_mac(address)) return;
  Hop& hop = *it->second;
  hop.resolved = false;
  hop.times_asked = 0;
  while (Packet* p = hop.parked.pop_front()) {
    --parked_total;
    report_unreachable(p, id);
    drop(p, Counter::drop_unresolved);
  }
}

std::vector<UnresolvedNeighbour> StackCore::take_unresolved() {
  std::vector<UnresolvedNeighbour> asked, given_up;
  std::erase_if(waiting_hops, [&](Hop* hop) {
    if (hop->parked.empty()) {
      hop->waiting = false;
      return true;
    }
    if (hop->times_asked > 0 && now - hop->asked < 1s) return false;
    const bool again = hop->times_asked++ < Hop::kMostAsked;
    hop->asked = now;
    (again ? asked : given_up).push_back({hop->interface, hop->address});
    return false;
  });
  for (const auto& silent : given_up) set_neighbour(silent.interface, silent.address, std::nullopt);
  return asked;
}

void StackCore::unlist(StackSocket& socket) {
  socket.edges = 0;
  if (!socket.listed) return;
  socket.listed = false;
  StackSocket* before = nullptr;
  for (StackSocket* s = ready_head; s; before = s, s = s->next_ready) {
    if (s != &socket) continue;
    (before ? before->next_ready : ready_head) = s->next_ready;
    if (ready_tail == s) ready_tail = before;
    s->next_ready = nullptr;
    return;
  }
}

}  // namespace accel
