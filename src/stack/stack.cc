// A pass of the stack, and what it is told of the network.
#include "stack/stack.h"

#include <algorithm>
#include <utility>

#include "stack/core.h"
#include "stack/tcp/tcp.h"
#include "stack/udp.h"

namespace accel {

Stack::Stack(const StackConfig& config, FramePool& pool, Counters& counters)
    : core_(std::make_unique<StackCore>(config, pool, counters)),
      udp_((core_->udp = std::make_unique<UdpLayer>(*core_)).get()),
      tcp_((core_->tcp = std::make_unique<TcpLayer>(*core_)).get()) {}
Stack::~Stack() = default;

// ---- interfaces, routes, neighbours ----
void Stack::set_interface(InterfaceId id, const Interface& info) { core_->set_interface(id, info); }
const Interface& Stack::interface(InterfaceId id) const { return core_->interfaces[id].info; }
void Stack::remove_interface(InterfaceId id) { core_->remove_interface(id); }
void Stack::set_routes(std::vector<RouteEntry> routes, bool ask) {
  core_->set_routes(std::move(routes), ask);
}
std::optional<MetricsId> Stack::metrics_id(const RouteMetrics& metrics) { return core_->metrics_id(metrics); }
const StackConfig& Stack::config() const { return core_->config; }
void Stack::follow_host(const StackConfig& config) {
  const StackConfig before = std::exchange(core_->config, config);
  core_->config.secret = before.secret;
  core_->config.timestamp_secret = before.timestamp_secret;
  core_->tcp_memory.set_limits(config.tcp_memory);
  core_->udp_memory.set_limits(config.udp_memory);
}
std::vector<Stack::RouteQuestion> Stack::take_route_questions() { return core_->take_route_questions(); }
bool Stack::has_route_questions() const { return !core_->awaiting_route.empty(); }
void Stack::learn_route(const RouteQuestion& question, const RouteEntry& answer) {
  core_->routes.learn(question.remote, question.local, answer);
}
void Stack::resume(Instant now) { core_->resume(now); }
void Stack::set_neighbour(InterfaceId id, const IpAddress& address, std::optional<MacAddress> mac) {
  core_->set_neighbour(id, address, mac);
}
std::vector<Stack::Unresolved> Stack::take_unresolved() { return core_->take_unresolved(); }
bool Stack::has_unresolved() const { return !core_->waiting_hops.empty(); }
std::vector<Stack::Unresolved> Stack::neighbours_in_use() const {
  std::vector<Unresolved> used;
  for (const auto& [key, hop] : core_->hops)  // groups are no neighbours
    if (hop->users > 0 && !key.address.is_multicast()) used.push_back({key.interface, key.address});
  return used;
}

// ---- a pass ----
void Stack::on_packets(std::span<Packet* const> frames, InterfaceId id, Instant now, int cpu) {
  core_->cpu = cpu;
  core_->on_packets(frames, id, now);
}
void Stack::note_look() { ++core_->look; }
uint16_t Stack::looks() const { return core_->look; }
int Stack::receiving_cpu() const { return core_->cpu; }
void Stack::on_deadlines(Instant now) {
  core_->now = now;
  core_->tcp->on_deadlines(now);
  if (core_->reassembly.next_expiry() <= now) core_->reassembly.expire(now);
}
bool Stack::has_work(Instant now) const {
  return !core_->awaiting_route.empty() || !core_->frames_for_kernel.empty() || next_deadline() <= now;
}
Instant Stack::next_deadline() const {
  return std::min(core_->tcp->next_deadline(), core_->reassembly.next_expiry());
}
void Stack::flush(Instant now) {
  core_->now = now;
  core_->tcp->flush(now);
  core_->udp->flush();
}
bool Stack::has_to_send() const {
  return core_->tcp->has_to_send() || std::any_of(core_->interfaces.begin(), core_->interfaces.end(),
                                                  [](const auto& i) { return !i.tx.empty(); });
}
PacketQueue& Stack::tx_queue(InterfaceId id) { return core_->interfaces[id].tx; }
StackSocket* Stack::take_ready() { return core_->take_ready(); }
std::vector<Stack::FlowChange>& Stack::flow_changes() { return core_->flow_changes; }
PacketQueue& Stack::frames_for_kernel() { return core_->frames_for_kernel; }

}  // namespace accel
