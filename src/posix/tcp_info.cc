#include "posix/tcp_info.h"

#include <linux/inet_diag.h>
#include <linux/tcp.h>
#include <netinet/in.h>

#include "base/real.h"
#include "posix/options.h"
#include "posix/tcp_socket.h"

namespace accel::posix {
namespace {

/// The headers' tcp_info with what younger kernels have behind it.
struct LongTcpInfo : tcp_info {
  uint32_t tcpi_rcv_wnd;  // Linux 6.2
  uint32_t tcpi_rehash;   // and here
  uint8_t tcpi_younger[272];
};

constexpr int kOpenedBySyn = 128;  ///< TCPI_OPT_TFO_CHILD of younger kernels

void fill(LongTcpInfo& out, const TcpInfo& in) {
  out.tcpi_state = static_cast<uint8_t>(in.state);
  out.tcpi_ca_state = in.congestion_state;
  out.tcpi_retransmits = in.retransmits;
  out.tcpi_probes = in.probes;
  out.tcpi_backoff = in.backoff;
  out.tcpi_options =
      static_cast<uint8_t>((in.timestamps ? TCPI_OPT_TIMESTAMPS : 0) | (in.sack ? TCPI_OPT_SACK : 0) |
                           (in.window_scaling ? TCPI_OPT_WSCALE : 0) | (in.ecn ? TCPI_OPT_ECN : 0) |
                           (in.ecn_seen ? TCPI_OPT_ECN_SEEN : 0) | (in.syn_text ? TCPI_OPT_SYN_DATA : 0) |
                           (in.opened_by_syn ? kOpenedBySyn : 0));
  out.tcpi_fastopen_client_fail = static_cast<uint8_t>(in.fast_open_failure & 3);
  out.tcpi_snd_wscale = in.snd_wscale;
  out.tcpi_rcv_wscale = in.rcv_wscale;
  out.tcpi_rto = in.rto_us;
  out.tcpi_ato = in.ack_timeout_us;
  out.tcpi_snd_mss = in.snd_mss;
  out.tcpi_rcv_mss = in.rcv_mss;
  out.tcpi_unacked = in.unacked_segments;
  out.tcpi_sacked = in.sacked_segments;
  out.tcpi_lost = in.lost_segments;
  out.tcpi_retrans = in.resent_segments;
  out.tcpi_last_data_sent = in.last_data_sent_ms;
  out.tcpi_last_data_recv = in.last_data_received_ms;
  out.tcpi_last_ack_recv = in.last_ack_received_ms;
  out.tcpi_pmtu = in.pmtu;
  out.tcpi_rcv_ssthresh = in.window_clamp;
  out.tcpi_rtt = in.rtt_us;
  out.tcpi_rttvar = in.rttvar_us;
  out.tcpi_snd_ssthresh = in.snd_ssthresh_segments;
  out.tcpi_snd_cwnd = in.snd_cwnd_segments;
  out.tcpi_advmss = in.advertised_mss;
  out.tcpi_reordering = in.reordering;
  out.tcpi_rcv_space = in.receive_space;
  out.tcpi_rcv_rtt = in.receive_rtt_us;
  out.tcpi_total_retrans = in.total_retransmits;
  out.tcpi_bytes_acked = in.bytes_acked;
  out.tcpi_bytes_received = in.bytes_received;
  out.tcpi_segs_out = in.segments_out;
  out.tcpi_segs_in = in.segments_in;
  out.tcpi_notsent_bytes = in.notsent_bytes;
  out.tcpi_min_rtt = in.min_rtt_us;
  out.tcpi_data_segs_in = in.data_segments_in;
  out.tcpi_data_segs_out = in.data_segments_out;
  out.tcpi_pacing_rate = in.pacing_rate;
  out.tcpi_max_pacing_rate = in.max_pacing_rate;
  out.tcpi_delivery_rate = in.delivery_rate;
  out.tcpi_delivery_rate_app_limited = in.delivery_rate_app_limited;
  out.tcpi_bytes_sent = in.bytes_sent;
  out.tcpi_bytes_retrans = in.bytes_retransmitted;
  out.tcpi_busy_time = in.busy_us;
  out.tcpi_rwnd_limited = in.window_limited_us;
  out.tcpi_sndbuf_limited = in.buffer_limited_us;
  out.tcpi_delivered = in.delivered;
  out.tcpi_delivered_ce = in.delivered_ce;
  out.tcpi_dsack_dups = in.duplicates_reported;
  out.tcpi_reord_seen = in.reorderings;
  out.tcpi_rcv_ooopack = in.out_of_order_segments;
  out.tcpi_rehash = in.rehashes;
  out.tcpi_snd_wnd = in.snd_wnd;
  out.tcpi_rcv_wnd = in.rcv_wnd;
}

/// How long the running kernel's tcp_info is.
size_t kernels_info_size(const Socket& s) {
  static const size_t size = [&s] {
    LongTcpInfo info;
    socklen_t length = sizeof info;
    return real.getsockopt(s.shadow(), IPPROTO_TCP, TCP_INFO, &info, &length) == 0 ? length
                                                                                   : sizeof(tcp_info);
  }();
  return size;
}

}  // namespace

Result<int> put_tcp_info(const Socket& s, const TcpInfo& info, void* value, socklen_t* length) {
  LongTcpInfo kernels{};
  fill(kernels, info);
  return put_option(&kernels, kernels_info_size(s), value, length);
}

Result<int> put_bbr_info(const BbrInfo& info, void* value, socklen_t* length) {
  tcp_bbr_info kernels{};
  kernels.bbr_bw_lo = static_cast<uint32_t>(info.bandwidth);
  kernels.bbr_bw_hi = static_cast<uint32_t>(info.bandwidth >> 32);
  kernels.bbr_min_rtt = info.min_rtt_us;
  kernels.bbr_pacing_gain = info.pacing_gain;
  kernels.bbr_cwnd_gain = info.window_gain;
  return put_option(&kernels, sizeof kernels, value, length);
}

/// tcp_get_info(): a listener's tcpi_unacked is the length of its accept queue, which we have a part of.
Result<int> TcpSocket::listener_info(Pass& pass, void* value, socklen_t* length) {
  LongTcpInfo info{};
  socklen_t size = sizeof info;
  if (real.getsockopt(shadow(), IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return kOnKernel;
  info.tcpi_unacked += static_cast<uint32_t>(handed_off_.size());
  if (flow_ != nullptr)
    info.tcpi_unacked += pass.stack().tcp().accept_queue_length(*pass.engine().listener(*flow_));
  return put_option(&info, size, value, length);
}

}  // namespace accel::posix
