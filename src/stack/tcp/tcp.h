// TCP of one stack: all connections and listeners, their timers and buffers. Stack delegates its tcp_* calls
// to this.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "stack/tcp/segment.h"
#include "stack/types.h"

namespace accel {

struct StackCore;
struct TcpContext;  // stack/tcp/context.h

class TcpLayer {
 public:
  explicit TcpLayer(StackCore& core);
  ~TcpLayer();
  TcpLayer(const TcpLayer&) = delete;
  TcpLayer& operator=(const TcpLayer&) = delete;

  // ---- from ingress ----
  /// Takes ownership of the frame.
  void on_segment(Packet* frame, const TcpSegmentInfo& segment, Instant now);
  /// An ICMP error that quotes a segment we sent. `error`: what a socket would get (ECONNREFUSED,
  /// EHOSTUNREACH ...); `hard`: it ends a connection that is being opened. `mtu`: not 0 for fragmentation
  /// needed / packet too big. False: no connection has the flow, or the sequence number is not in flight (RFC
  /// 5927).
  bool on_icmp_error(const Endpoint& local, const Endpoint& remote, uint32_t seq, int error, bool hard,
                     uint32_t mtu, Instant now);

  // ---- a pass ----
  void on_deadlines(Instant now);
  Instant next_deadline() const;
  void flush(Instant now);
  bool has_to_send() const;  ///< flush() has something to do

  // ---- Stack's calls, same contracts ----
  Result<TcpConn*> connect(const Endpoint& local, const Endpoint& remote, const Route& route,
                           const TcpSettings& settings, void* owner, Instant now);
  Result<TcpListener*> listen(const Endpoint& local, bool v6_only, bool reuse_port, uint32_t backlog,
                              const TcpSettings& settings, void* owner, InterfaceId device);
  void set_device(TcpListener& l, InterfaceId device);
  void set_backlog(TcpListener& listener, uint32_t backlog);
  TcpSettings& settings(TcpListener& listener);
  void listen_shut(TcpListener& l, bool read, bool write);
  void set_defer_accept(TcpListener& listener, Duration d);
  TcpConn* accept(TcpListener& listener);
  void put_back(TcpListener& listener, TcpConn& conn);
  uint32_t accept_queue_length(const TcpListener& listener) const;
  void complete_handshakes(TcpListener& listener, Instant now);
  bool misdirected(const FlowKey& key, const MisdirectedSegment& segment, Instant now);
  void end_handshake(const FlowKey& key);
  void set_deaf(const FlowKey& key, bool deaf);
  void note_numbers(const FlowKey& key, TcpNumbers* numbers);
  void leave_handshakes(TcpListener& listener);
  void close_listener(TcpListener* listener);
  Result<size_t> send(TcpConn& conn, std::span<const iovec> data, TcpWrite how, Instant now);
  Result<size_t> receive(TcpConn& conn, std::span<const iovec> into, bool peek, size_t peek_offset,
                         Instant now);
  Result<size_t> discard(TcpConn& conn, size_t n, Instant now);
  Result<size_t> receive_urgent(TcpConn& conn, uint8_t* byte, bool peek);
  bool at_mark(const TcpConn& conn) const;
  Result<void> shutdown(TcpConn& conn, int how, Instant now);
  void close(TcpConn* conn, bool abort, Instant now);
  uint32_t readiness(const TcpConn& conn) const;
  uint32_t readiness(const TcpListener& listener) const;
  int take_error(TcpConn& conn);
  int peek_error(const TcpConn& conn) const;
  TcpSettings& settings(TcpConn& conn);
  void settings_changed(TcpConn& conn, Instant now, bool push);
  TcpInfo info(const TcpConn& conn, Instant now) const;
  TcpState state(const TcpConn& conn) const;
  Endpoint local(const TcpConn& conn) const;
  Endpoint remote(const TcpConn& conn) const;
  InterfaceId interface(const TcpConn& conn) const;
  size_t readable_bytes(const TcpConn& conn) const;
  size_t unacked_bytes(const TcpConn& conn) const;
  size_t unsent_bytes(const TcpConn& conn) const;
  uint32_t max_window(const TcpConn& conn) const;
  void connect_shut(TcpConn& conn, bool read, bool write);
  bool all_acked(const TcpConn& conn) const;
  size_t lingering() const;
  void for_each(void (*visit)(TcpConn& conn, void* context), void* context);
  Result<TcpSnapshot> snapshot(const TcpConn& conn, Instant now) const;
  void forget(TcpConn* conn);
  void end_with(TcpConn& conn, int error);
  Result<TcpConn*> adopt(const TcpSnapshot& snapshot, const Route& route, const TcpSettings& settings,
                         void* owner, Instant now);
  bool bind_conflicts(const Endpoint& local, bool v6_only, bool reuse_address) const;
  bool port_in_use(const IpAddress& local, uint16_t port) const;
  Followed follow_route(TcpConn& conn);

 private:
  std::unique_ptr<TcpContext> context_;
};

}  // namespace accel
