// Stack's calls, handed to the part that does them.
#include "stack/stack.h"

#include <algorithm>
#include <utility>

#include "stack/core.h"
#include "stack/tcp/tcp.h"
#include "stack/udp.h"

namespace accel {

struct Stack::Core : StackCore {
  using StackCore::StackCore;
};

Stack::Stack(const StackConfig& config, FramePool& pool, Counters& counters)
    : core_(std::make_unique<Core>(config, pool, counters)) {
  core_->udp = std::make_unique<UdpLayer>(*core_);
  core_->tcp = std::make_unique<TcpLayer>(*core_);
}
Stack::~Stack() = default;

// ---- interfaces, routes, neighbours ----
void Stack::set_interface(InterfaceId id, const Interface& info) { core_->set_interface(id, info); }
const Interface& Stack::interface(InterfaceId id) const { return core_->interfaces[id].info; }
void Stack::remove_interface(InterfaceId id) { core_->remove_interface(id); }
void Stack::set_routes(std::vector<RouteEntry> routes, bool ask) {
  core_->set_routes(std::move(routes), ask);
}
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
bool Stack::has_ready() const { return core_->ready_head != nullptr; }
std::vector<Stack::FlowChange>& Stack::flow_changes() { return core_->flow_changes; }

// ---- TCP ----
Result<TcpConn*> Stack::tcp_connect(const Endpoint& local, const Endpoint& remote, const Route& route,
                                    const TcpSettings& settings, void* owner, Instant now) {
  return core_->tcp->connect(local, remote, route, settings, owner, now);
}
Result<TcpListener*> Stack::tcp_listen(const Endpoint& local, bool v6_only, bool reuse_port, uint32_t backlog,
                                       const TcpSettings& settings, void* owner, InterfaceId device) {
  return core_->tcp->listen(local, v6_only, reuse_port, backlog, settings, owner, device);
}
void Stack::set_device(TcpListener& listener, InterfaceId device) {
  core_->tcp->set_device(listener, device);
}
void Stack::set_backlog(TcpListener& listener, uint32_t backlog) {
  core_->tcp->set_backlog(listener, backlog);
}
TcpSettings& Stack::settings(TcpListener& listener) { return core_->tcp->settings(listener); }
void Stack::set_defer_accept(TcpListener& listener, Duration d) { core_->tcp->set_defer_accept(listener, d); }
void Stack::tcp_listen_shut(TcpListener& listener, bool read, bool write) {
  core_->tcp->listen_shut(listener, read, write);
}
TcpConn* Stack::tcp_accept(TcpListener& listener) { return core_->tcp->accept(listener); }
void Stack::tcp_put_back(TcpListener& listener, TcpConn& conn) { core_->tcp->put_back(listener, conn); }
uint32_t Stack::accept_queue_length(const TcpListener& listener) const {
  return core_->tcp->accept_queue_length(listener);
}
bool Stack::tcp_misdirected(const FlowKey& key, const MisdirectedSegment& segment, Instant now) {
  return core_->tcp->misdirected(key, segment, now);
}
void Stack::tcp_end_handshake(const FlowKey& key) { core_->tcp->end_handshake(key); }
void Stack::tcp_set_deaf(const FlowKey& key, bool deaf) { core_->tcp->set_deaf(key, deaf); }
void Stack::tcp_complete_handshakes(TcpListener& listener, Instant now) {
  core_->tcp->complete_handshakes(listener, now);
}
void Stack::tcp_note_numbers(const FlowKey& key, TcpNumbers* numbers) {
  core_->tcp->note_numbers(key, numbers);
}
void Stack::tcp_leave_handshakes(TcpListener& listener) { core_->tcp->leave_handshakes(listener); }
void Stack::tcp_close_listener(TcpListener* listener) { core_->tcp->close_listener(listener); }
Result<size_t> Stack::tcp_send(TcpConn& conn, std::span<const iovec> data, TcpWrite how, Instant now) {
  return core_->tcp->send(conn, data, how, now);
}
Result<size_t> Stack::tcp_receive(TcpConn& conn, std::span<const iovec> into, bool peek, size_t peek_offset,
                                  Instant now) {
  return core_->tcp->receive(conn, into, peek, peek_offset, now);
}
Result<size_t> Stack::tcp_discard(TcpConn& conn, size_t n, Instant now) {
  return core_->tcp->discard(conn, n, now);
}
Result<size_t> Stack::tcp_receive_urgent(TcpConn& conn, uint8_t* byte, bool peek) {
  return core_->tcp->receive_urgent(conn, byte, peek);
}
bool Stack::tcp_at_mark(const TcpConn& conn) const { return core_->tcp->at_mark(conn); }
Result<void> Stack::tcp_shutdown(TcpConn& conn, int how, Instant now) {
  return core_->tcp->shutdown(conn, how, now);
}
void Stack::tcp_close(TcpConn* conn, bool abort, Instant now) { core_->tcp->close(conn, abort, now); }
uint32_t Stack::tcp_readiness(const TcpConn& conn) const { return core_->tcp->readiness(conn); }
uint32_t Stack::tcp_readiness(const TcpListener& listener) const { return core_->tcp->readiness(listener); }
int Stack::tcp_take_error(TcpConn& conn) { return core_->tcp->take_error(conn); }
int Stack::tcp_peek_error(const TcpConn& conn) const { return core_->tcp->peek_error(conn); }
TcpSettings& Stack::settings(TcpConn& conn) { return core_->tcp->settings(conn); }
void Stack::tcp_settings_changed(TcpConn& conn, Instant now, bool push) {
  core_->tcp->settings_changed(conn, now, push);
}
TcpInfo Stack::tcp_info(const TcpConn& conn, Instant now) const { return core_->tcp->info(conn, now); }
TcpState Stack::tcp_state(const TcpConn& conn) const { return core_->tcp->state(conn); }
Endpoint Stack::tcp_local(const TcpConn& conn) const { return core_->tcp->local(conn); }
Endpoint Stack::tcp_remote(const TcpConn& conn) const { return core_->tcp->remote(conn); }
InterfaceId Stack::tcp_interface(const TcpConn& conn) const { return core_->tcp->interface(conn); }
size_t Stack::tcp_readable_bytes(const TcpConn& conn) const { return core_->tcp->readable_bytes(conn); }
size_t Stack::tcp_unacked_bytes(const TcpConn& conn) const { return core_->tcp->unacked_bytes(conn); }
uint32_t Stack::tcp_max_window(const TcpConn& conn) const { return core_->tcp->max_window(conn); }
void Stack::tcp_connect_shut(TcpConn& conn, bool read, bool write) {
  core_->tcp->connect_shut(conn, read, write);
}
size_t Stack::tcp_unsent_bytes(const TcpConn& conn) const { return core_->tcp->unsent_bytes(conn); }
bool Stack::tcp_all_acked(const TcpConn& conn) const { return core_->tcp->all_acked(conn); }
size_t Stack::tcp_lingering() const { return core_->tcp->lingering(); }
void Stack::tcp_for_each(void (*visit)(TcpConn& conn, void* context), void* context) {
  core_->tcp->for_each(visit, context);
}
Result<TcpSnapshot> Stack::tcp_snapshot(const TcpConn& conn, Instant now) const {
  return core_->tcp->snapshot(conn, now);
}
void Stack::tcp_forget(TcpConn* conn) { core_->tcp->forget(conn); }
PacketQueue& Stack::frames_for_kernel() { return core_->frames_for_kernel; }
void Stack::tcp_fail(TcpConn& conn, int error) { core_->tcp->end_with(conn, error); }
Result<TcpConn*> Stack::tcp_adopt(const TcpSnapshot& snapshot, const Route& route,
                                  const TcpSettings& settings, void* owner, Instant now) {
  return core_->tcp->adopt(snapshot, route, settings, owner, now);
}
bool Stack::tcp_bind_conflicts(const Endpoint& local, bool v6_only, bool reuse_address) const {
  return core_->tcp->bind_conflicts(local, v6_only, reuse_address);
}
bool Stack::tcp_port_in_use(const IpAddress& local, uint16_t port) const {
  return core_->tcp->port_in_use(local, port);
}
Stack::Followed Stack::tcp_follow_route(TcpConn& conn) { return core_->tcp->follow_route(conn); }

// ---- UDP ----
Result<UdpPcb*> Stack::udp_open(const Endpoint& local, const Endpoint& remote, bool v6_only, void* owner) {
  return core_->udp->open(local, remote, v6_only, owner);
}
void Stack::udp_connect(UdpPcb& pcb, const Endpoint& local, const Endpoint& remote) {
  core_->udp->connect(pcb, local, remote);
}
void Stack::udp_close(UdpPcb* pcb) { core_->udp->close(pcb); }
void Stack::udp_set_device(UdpPcb& pcb, InterfaceId device) { pcb.device = device; }
void Stack::udp_take_queue(UdpPcb& to, UdpPcb& from) { core_->udp->take_queue(to, from); }
Result<size_t> Stack::udp_send(UdpPcb& pcb, std::span<const iovec> data, const Endpoint& from,
                               const Endpoint& to, const Route& route, const UdpFields& fields, Instant now) {
  core_->now = now;
  return core_->udp->send(pcb, data, from, to, route, fields);
}
void Stack::udp_set_mtu_options(UdpPcb& pcb, const UdpMtuOptions& options) { pcb.mtu = options; }
const Datagram* Stack::udp_front(const UdpPcb& pcb) const { return pcb.head ? &pcb.head->info : nullptr; }
size_t Stack::udp_receive(UdpPcb& pcb, std::span<const iovec> into, bool pop) {
  return core_->udp->receive(pcb, into, pop);
}
uint32_t Stack::udp_readiness(const UdpPcb& pcb) const { return core_->udp->readiness(pcb); }
int Stack::udp_take_error(UdpPcb& pcb) { return core_->udp->take_error(pcb); }
void Stack::udp_set_placing(UdpPcb& pcb, bool on) { pcb.placing = on; }
void Stack::udp_set_receive_buffer(UdpPcb& pcb, uint32_t bytes) { pcb.receive_buffer = bytes; }
uint64_t Stack::udp_drops(const UdpPcb& pcb) const { return pcb.drops; }
size_t Stack::udp_queued_bytes(const UdpPcb& pcb) const { return pcb.queued_bytes; }

}  // namespace accel
