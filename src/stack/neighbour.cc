// Interfaces, routes and next hops, as the engine tells them.
#include <algorithm>

#include "stack/core.h"
#include "stack/tcp/siphash.h"
#include "stack/tcp/tcp.h"
#include "stack/udp.h"

namespace accel {
namespace {

bool covers(const RouteEntry& route, const IpAddress& address) {
  const unsigned whole = route.prefix_length / 8, rest = route.prefix_length % 8;
  if (std::memcmp(route.prefix.bytes.data(), address.bytes.data(), whole) != 0) return false;
  return rest == 0 || (route.prefix.bytes[whole] ^ address.bytes[whole]) >> (8 - rest) == 0;
}

/// RFC 1112 section 6.4, RFC 2464 section 7; nullopt: a unicast address.
std::optional<MacAddress> group_mac(const IpAddress& a) {
  if (a == IpAddress::v4(0xffffffff)) return MacAddress{0xff, 0xff, 0xff, 0xff, 0xff, 0xff};
  if (!a.is_multicast()) return {};
  const auto& b = a.bytes;
  if (a.is_v4()) return MacAddress{0x01, 0x00, 0x5e, static_cast<uint8_t>(b[13] & 0x7f), b[14], b[15]};
  return MacAddress{0x33, 0x33, b[12], b[13], b[14], b[15]};
}

/// The key of a hop that is known by its MAC alone; no frame is ever sent to this address.
IpAddress reflected_address(const MacAddress& mac) {
  IpAddress a;
  a.bytes[0] = 0xff;
  std::copy(mac.begin(), mac.end(), a.bytes.begin() + 10);
  return a;
}

}  // namespace

StackCore::StackCore(const StackConfig& config_in, FramePool& pool_in, Counters& counters_in)
    : config(config_in),
      flow_secret(siphash(config_in.secret, {})),
      pool(pool_in),
      counters(counters_in),
      hops(16, HopHash{config_in.secret[1]}),
      tcp_memory(config_in.tcp_memory),
      udp_memory(config_in.udp_memory) {}

StackCore::~StackCore() {
  tcp.reset();  // they hold hops and frames
  udp.reset();
  for (auto& state : interfaces)
    while (Packet* p = state.tx.pop_front()) FramePool::release(p);
  while (Packet* p = frames_for_kernel.pop_front()) FramePool::release(p);
  for (auto& [key, hop] : hops)
    while (Packet* p = hop->parked.pop_front()) FramePool::release(p);
}

void StackCore::set_interface(InterfaceId id, const Interface& info) {
  interfaces[id].info = info;
  interfaces[id].present = true;
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
// there are many.
void StackCore::sweep_hops() {
  std::erase_if(hops, [](const auto& entry) { return entry.second->users == 0 && !entry.second->waiting; });
  sweep_hops_at = std::max(kSweepHops, hops.size() * 2);
}

void StackCore::resolve(Hop& hop, const MacAddress& mac) {
  std::copy(mac.begin(), mac.end(), hop.ethernet.begin());
  hop.resolved = true;
  while (Packet* p = hop.parked.pop_front()) {
    --parked_total;
    transmit(p, hop);
  }
}

Hop* StackCore::hop(const Route& route) { return find_or_make_hop(route.interface, route.next_hop); }

const RouteEntry* StackCore::find_route(const IpAddress& remote, InterfaceId preferred) const {
  const RouteEntry* best = nullptr;
  for (const RouteEntry& r : routes) {
    if (best && r.prefix_length < best->prefix_length) break;
    if (!covers(r, remote)) continue;
    if (r.interface == preferred) return &r;
    if (!best) best = &r;
  }
  return best;
}

Way StackCore::route_back(InterfaceId arrived_by, const IpAddress& remote, const MacAddress& source_mac) {
  const uint32_t link_mtu = interfaces[arrived_by].info.mtu;
  const RouteEntry* route = find_route(remote, arrived_by);
  if (route && route->interface == arrived_by) {
    Hop* next = find_or_make_hop(arrived_by, route->gateway.is_any() ? remote : route->gateway);
    if (!next->resolved) resolve(*next, source_mac);
    return {next, std::min(route->mtu, link_mtu)};
  }
  Hop* back = find_or_make_hop(arrived_by, reflected_address(source_mac));
  resolve(*back, source_mac);
  return {back, link_mtu};
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
  hop.asked_ever = false;
  while (Packet* p = hop.parked.pop_front()) {
    --parked_total;
    report_unreachable(p, id);
    drop(p, Counter::drop_unresolved);
  }
}

std::vector<Stack::Unresolved> StackCore::take_unresolved() {
  std::vector<Stack::Unresolved> asked;
  std::erase_if(waiting_hops, [&](Hop* hop) {
    if (hop->parked.empty()) {
      hop->waiting = false;
      return true;
    }
    if (!hop->asked_ever || now - hop->asked >= 1s) {
      hop->asked_ever = true;
      hop->asked = now;
      asked.push_back({hop->interface, hop->address});
    }
    return false;
  });
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
