#include "engine/stack_config.h"

#include <unistd.h>

#include <algorithm>

#include "base/own_table.h"
#include "base/proc.h"

namespace accel {
namespace {

/// net.ipv4.tcp_mem or udp_mem, which bound all of the host's sockets, in bytes, and no more than one
/// process's part: what StackConfig says.
MemoryLimits memory_limits(const SysctlFolder& ipv4, const char* name, const MemoryLimits& most) {
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const auto pages = ipv4.triple(name, {most.low / page, most.pressure / page, most.most / page});
  return {std::min(pages[0] * page, most.low), std::min(pages[1] * page, most.pressure),
          std::min(pages[2] * page, most.most)};
}

constexpr uint32_t kLeastBuffer = 4096;  ///< of the settings that fix one

void take_buffer_sysctls(const SysctlFolder& ipv4, StackConfig& c) {
  const auto bytes = [](uint64_t n) { return static_cast<uint32_t>(std::clamp<uint64_t>(n, 1, 1u << 30)); };
  const auto receive =
      ipv4.triple("tcp_rmem", {c.tcp_receive_least, c.tcp_receive_first, c.tcp_receive_most});
  c.tcp_receive_least = bytes(receive[0]);
  c.tcp_receive_first = bytes(receive[1]);
  c.tcp_receive_most = std::max(bytes(receive[2]), c.tcp_receive_first);
  const auto send = ipv4.triple("tcp_wmem", {c.tcp_send_least, c.tcp_send_first, c.tcp_send_most});
  c.tcp_send_least = bytes(send[0]);
  c.tcp_send_first = bytes(send[1]);
  c.tcp_send_most = std::max(bytes(send[2]), c.tcp_send_first);
  // tcp_rcv_space_adjust() heeds it; off, buffers stay as they begin.
  if (ipv4.number("tcp_moderate_rcvbuf", 1) == 0) c.tcp_receive_most = c.tcp_receive_first;
  c.most_receive_buffer = bytes(static_cast<uint64_t>(sysctl("/proc/sys/net/core/rmem_max", 212992)));
  const auto datagrams = static_cast<uint32_t>(sysctl("/proc/sys/net/core/rmem_default", 212992));
  c.udp_receive_buffer = c.receive_buffer != 0 ? c.receive_buffer : datagrams;
}

/// The work of stack_config(); for a caller within in_own_table(), as SysctlFolder wants it.
StackConfig read_stack_config(const Settings& s) {
  const SysctlFolder ipv4("/proc/sys/net/ipv4");
  StackConfig c;
  c.tcp_memory = memory_limits(ipv4, "tcp_mem", c.tcp_memory);
  c.udp_memory = memory_limits(ipv4, "udp_mem", c.udp_memory);
  c.udp_receive_least = static_cast<uint32_t>(ipv4.number("udp_rmem_min", 4096));
  c.max_connections = s.max_connections;
  c.receive_buffer = s.receive_buffer != 0 ? std::max(s.receive_buffer, kLeastBuffer) : 0;
  c.send_buffer = s.send_buffer != 0 ? std::max(s.send_buffer, kLeastBuffer) : 0;
  take_buffer_sysctls(ipv4, c);
  c.delayed_ack = std::chrono::milliseconds(s.delayed_ack_ms);
  c.min_rto = std::chrono::milliseconds(s.min_rto_ms);
  c.retries = static_cast<uint32_t>(ipv4.number("tcp_retries2", 15));
  c.synack_retries = static_cast<uint32_t>(ipv4.number("tcp_synack_retries", 5));
  const int orphans = ipv4.number("tcp_orphan_retries", 0);
  if (orphans > 0) c.orphan_retries = static_cast<uint32_t>(orphans);  // tcp_orphan_retries()
  c.max_orphans = static_cast<uint32_t>(ipv4.number("tcp_max_orphans", 65536));
  // Each has a flow of the device's table (XdpOptions::flow_table): half of that is left to the living.
  constexpr int kMostTimeWaits = 131072;
  c.max_time_waits =
      static_cast<uint32_t>(std::min(ipv4.number("tcp_max_tw_buckets", kMostTimeWaits), kMostTimeWaits));
  // 2, the kernel's own choice, is for loopback.
  if (ipv4.number("tcp_tw_reuse", 2) == 1)
    c.time_wait_reuse = std::chrono::milliseconds(ipv4.number("tcp_tw_reuse_delay", 1000));
  c.invalid_ratelimit = std::chrono::milliseconds(ipv4.number("tcp_invalid_ratelimit", 500));
  c.syn_linear_timeouts = static_cast<uint32_t>(ipv4.number("tcp_syn_linear_timeouts", 0));
  // -1, the kernel's own choice, is no limit.
  c.notsent_low_water = static_cast<uint32_t>(ipv4.number("tcp_notsent_lowat", -1));
  c.min_snd_mss = static_cast<uint32_t>(ipv4.number("tcp_min_snd_mss", 48));
  c.frto = ipv4.number("tcp_frto", 2) != 0;
  // 3 and more are AccECN's, which we have not: what is left of them is RFC 3168's (tcp_ecn_mode_*()).
  const int ecn = ipv4.number("tcp_ecn", 2);
  c.ecn_accept = ecn != 0;
  c.ecn_ask = ecn == 1 || ecn == 3 || ecn == 4;
  c.ecn_fallback = ipv4.number("tcp_ecn_fallback", 1) != 0;
  c.syn_cookies = ipv4.number("tcp_syncookies", 1) != 0;
  c.fast_open = static_cast<uint32_t>(ipv4.number("tcp_fastopen", 1));
  c.fast_open_black_hole = std::chrono::seconds(ipv4.number("tcp_fastopen_blackhole_timeout_sec", 0));
  c.abort_on_overflow = ipv4.number("tcp_abort_on_overflow", 0) != 0;
  c.slow_start_after_idle = ipv4.number("tcp_slow_start_after_idle", 1) != 0;
  c.window_scaling = ipv4.number("tcp_window_scaling", 1) != 0;
  c.sack = ipv4.number("tcp_sack", 1) != 0;
  c.timestamps = ipv4.number("tcp_timestamps", 1) != 0;
  const int labels = sysctl("/proc/sys/net/ipv6/auto_flowlabels", 1);
  c.auto_flow_labels = labels >= 0 && labels <= 3 ? AutoFlowLabels(labels) : AutoFlowLabels::kOptOut;
  c.flow_label_ranges = sysctl("/proc/sys/net/ipv6/flowlabel_state_ranges", 0) != 0;
  return c;
}

}  // namespace

StackConfig stack_config(const Settings& s) {
  StackConfig c;
  in_own_table([&] { c = read_stack_config(s); });
  return c;
}

std::optional<StackConfig> changed_stack_config(const Settings& s) {
  if (read_proc("/proc/sys/net/ipv4/tcp_retries2").empty()) return std::nullopt;
  return stack_config(s);
}

}  // namespace accel
