// What the sockets of a protocol hold, in true sizes, against the bounds of net.ipv4.tcp_mem and udp_mem.
#pragma once

#include <cstdint>

namespace accel {

/// Three thresholds in bytes, as tcp(7) and udp(7) describe tcp_mem and udp_mem (there in pages).
struct MemoryLimits {
  uint64_t low;       ///< below it nobody is asked to save
  uint64_t pressure;  ///< from here on windows and buffers stop growing
  uint64_t most;      ///< beyond it only a socket's reserve is granted
};

/// One for each protocol, so that unread datagrams take nothing from connections. True sizes are those of the
/// buffers: a frame of the pool counts whole, however little of it is payload.
class MemoryAccount {
 public:
  explicit MemoryAccount(const MemoryLimits& limits) : limits_(limits) {}

  void set_limits(const MemoryLimits& limits) { limits_ = limits; }
  void charge(uint64_t bytes) { used_ += bytes; }
  void release(uint64_t bytes) { used_ -= bytes; }
  uint64_t used() const { return used_; }
  bool below_low() const { return used_ < limits_.low; }
  bool under_pressure() const { return used_ >= limits_.pressure; }
  bool full() const { return used_ >= limits_.most; }

  /// Whether a socket that holds `own` bytes may hold `more`; __sk_mem_raise_allocated() of net/core/sock.c.
  /// `reserve`: what each socket has for certain (tcp_rmem[0], tcp_wmem[0], udp_rmem_min). `sockets`: of this
  /// protocol; under pressure none may hold more than its share.
  bool allows(uint64_t own, uint64_t more, uint64_t reserve, uint64_t sockets) const {
    if (used_ + more < limits_.pressure || own < reserve) return true;
    return used_ + more <= limits_.most && (own + more) * sockets < limits_.most;
  }

 private:
  MemoryLimits limits_;
  uint64_t used_ = 0;
};

}  // namespace accel
