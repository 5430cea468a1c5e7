// TCP_INFO: what the kernel counts of a connection, and what it makes of the times.
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>

#include <climits>

#include "posix/echo.h"

using namespace posix_test;  // NOLINT: a test program

namespace {

constexpr int kOpenState = 0, kEstablishedState = 1, kCloseState = 7, kCloseWaitState = 8;

tcp_info info(int fd) {
  tcp_info i{};
  socklen_t size = sizeof i;
  EXPECT_EQ(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &i, &size), 0);
  return i;
}

/// As it is once `holds`: what is sent last tells nobody when it has come.
template <class Condition>
tcp_info info_once(int fd, Condition holds) {
  for (int tries = 0; tries < 400; ++tries) {
    if (const tcp_info i = info(fd); holds(i)) return i;
    poll(nullptr, 0, 10);
  }
  return info(fd);
}

// Takes a connection and does as it is told: "send n", "read n", "buffer n" (before it listens), "end".
FAR(puppet) {
  Fd listener = tcp_socket();
  if (!args.empty()) set_option(listener, SOL_SOCKET, SO_RCVBUF, std::stoi(args[0]));
  const Address at = here();
  bind(listener, at.raw(), at.size);
  listen(listener, 1);
  near.say(port_of(listener));
  Fd fd = accept_one(listener);
  for (std::string order; (order = near.word()) != "close";) {
    const size_t n = order.size() > 5 ? std::stoul(order.substr(5)) : 0;
    if (order.starts_with("send")) write_all(fd, pattern(n));
    if (order.starts_with("read")) near.say(static_cast<long>(read_exactly(fd, n).size()));
    if (order == "end") shutdown(fd, SHUT_WR);
  }
}

struct Puppet : Far {
  explicit Puppet(const std::vector<std::string>& arguments = {})
      : Far("puppet", arguments), fd(connect_to(there(static_cast<uint16_t>(number())))) {}
  void read(size_t n) {
    say("read " + std::to_string(n));
    EXPECT_EQ(number(), static_cast<long>(n));
  }
  void end() {
    say("close");
    fd.reset();
    finish();
    proof.all();
  }
  Echo proof{kProof};
  Fd fd;
};

TEST(Info, OfANewConnection) {
  Puppet far;
  const tcp_info i = info(far.fd);
  EXPECT_EQ(i.tcpi_state, kEstablishedState);
  EXPECT_EQ(i.tcpi_ca_state, kOpenState);
  EXPECT_EQ(i.tcpi_retransmits + i.tcpi_probes + i.tcpi_backoff, 0);
  EXPECT_EQ(i.tcpi_options, TCPI_OPT_TIMESTAMPS | TCPI_OPT_SACK | TCPI_OPT_WSCALE);
  EXPECT_EQ(i.tcpi_ato, 0u);
  EXPECT_GE(i.tcpi_rto, 200'000u);
  EXPECT_GE(i.tcpi_rto, i.tcpi_rtt);
  EXPECT_EQ(i.tcpi_snd_mss, 1448u);
  EXPECT_EQ(i.tcpi_rcv_mss, 536u);
  EXPECT_EQ(i.tcpi_advmss, 1448u);
  EXPECT_EQ(i.tcpi_pmtu, 1500u);
  EXPECT_EQ(i.tcpi_unacked + i.tcpi_sacked + i.tcpi_lost + i.tcpi_retrans, 0u);
  EXPECT_EQ(i.tcpi_snd_ssthresh, static_cast<uint32_t>(INT_MAX));
  EXPECT_EQ(i.tcpi_snd_cwnd, 10u);
  EXPECT_EQ(i.tcpi_reordering, 3u);
  EXPECT_EQ(i.tcpi_rcv_space, 14480u);
  EXPECT_GT(i.tcpi_rcv_ssthresh, 0u);
  EXPECT_GT(i.tcpi_min_rtt, 0u);
  EXPECT_EQ(i.tcpi_bytes_acked, 1u);  // the SYN
  EXPECT_EQ(i.tcpi_delivered, 1u);
  EXPECT_EQ(i.tcpi_bytes_received, 0u);
  EXPECT_EQ(i.tcpi_segs_out, 2u);
  EXPECT_EQ(i.tcpi_segs_in, 1u);
  EXPECT_EQ(i.tcpi_data_segs_in + i.tcpi_data_segs_out, 0u);
  EXPECT_EQ(i.tcpi_bytes_sent, 0u);
  EXPECT_EQ(i.tcpi_busy_time, 0u);
  EXPECT_GT(i.tcpi_snd_wnd, 0u);
  // About twice the window a round trip.
  const double window = double{1448} * i.tcpi_snd_cwnd;
  EXPECT_LE(static_cast<double>(i.tcpi_pacing_rate), 4 * window * 1e6 / i.tcpi_rtt);
  EXPECT_GE(static_cast<double>(i.tcpi_pacing_rate), window * 1e6 / (i.tcpi_rtt + 1));
  EXPECT_EQ(i.tcpi_max_pacing_rate, ULLONG_MAX);
  far.end();
}

// A rate is a time on the wire: half a second for a megabyte, which takes a few milliseconds without.
TEST(Info, OfAPacedConnection) {
  constexpr unsigned kRate = 2'000'000;
  Puppet far;
  ASSERT_EQ(setsockopt(far.fd, SOL_SOCKET, SO_MAX_PACING_RATE, &kRate, sizeof kRate), 0);
  far.say("read 1000000");
  write_all(far.fd, pattern(1'000'000));
  EXPECT_EQ(far.number(), 1'000'000);
  const tcp_info i = info_once(far.fd, [](const tcp_info& t) { return t.tcpi_unacked == 0; });
  EXPECT_EQ(i.tcpi_max_pacing_rate, kRate);
  EXPECT_EQ(i.tcpi_pacing_rate, kRate);
  EXPECT_GT(i.tcpi_busy_time, 400'000u);
  EXPECT_GT(i.tcpi_delivery_rate, kRate / 2);
  unsigned set = 0;
  socklen_t size = sizeof set;
  EXPECT_EQ(getsockopt(far.fd, SOL_SOCKET, SO_MAX_PACING_RATE, &set, &size), 0);
  EXPECT_EQ(set, kRate);
  far.end();
}

// A listener's is its connections'.
TEST(Info, OfAConnectionOfAPacedListener) {
  constexpr uint64_t kRate = 2'000'000;
  Echo proof{kProof};
  Fd listener = tcp_socket();
  ASSERT_EQ(setsockopt(listener, SOL_SOCKET, SO_MAX_PACING_RATE, &kRate, sizeof kRate), 0);
  const Address at = here();
  ASSERT_EQ(bind(listener, at.raw(), at.size), 0);
  ASSERT_EQ(listen(listener, 1), 0);
  Far far("calls", {std::to_string(port_of(listener))});
  Fd fd = accept_one(listener);
  EXPECT_EQ(info(fd).tcpi_max_pacing_rate, kRate);
  uint64_t set = 0;
  socklen_t size = sizeof set;
  EXPECT_EQ(getsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &set, &size), 0);
  EXPECT_EQ(set, kRate);
  far.say("end");
  far.finish();
  proof.all();
}

// Connects and waits.
FAR(calls) {
  Fd fd = connect_to(there(static_cast<uint16_t>(std::stoi(args[0]))));
  near.word();
}

TEST(Info, OfAnAcceptedConnection) {
  Echo proof(kProof);
  Fd listener = listen_at(here());
  Far far("calls", {std::to_string(port_of(listener))});
  Fd fd = accept_one(listener);
  const tcp_info i = info(fd);
  EXPECT_EQ(i.tcpi_bytes_acked, 0u);
  EXPECT_EQ(i.tcpi_delivered, 1u);
  EXPECT_EQ(i.tcpi_segs_out, 0u);
  EXPECT_EQ(i.tcpi_segs_in, 2u);  // the SYN, too, but no SYN-ACK
  EXPECT_EQ(i.tcpi_advmss, 1448u);
  EXPECT_EQ(i.tcpi_last_data_recv / 1000, 0u);
  EXPECT_EQ(i.tcpi_last_data_sent / 1000, 0u);
  far.say(1);
  far.finish();
  proof.all();
}

TEST(Info, CountsSegmentsAndBytes) {
  Puppet far;
  write_all(far.fd, pattern(1000));
  far.read(1000);
  tcp_info i = info_once(far.fd, [](const tcp_info& now) { return now.tcpi_unacked == 0; });
  EXPECT_EQ(i.tcpi_bytes_acked, 1001u);
  EXPECT_EQ(i.tcpi_bytes_sent, 1000u);
  EXPECT_EQ(i.tcpi_delivered, 2u);
  EXPECT_EQ(i.tcpi_data_segs_out, 1u);
  EXPECT_EQ(i.tcpi_segs_out, 3u);
  far.say("send 5000");
  EXPECT_EQ(read_exactly(far.fd, 5000), pattern(5000));
  i = info(far.fd);
  EXPECT_EQ(i.tcpi_bytes_received, 5000u);
  EXPECT_EQ(i.tcpi_data_segs_in, 4u);
  EXPECT_EQ(i.tcpi_rcv_mss, 1448u);
  EXPECT_EQ(i.tcpi_ato, 40'000u);
  far.end();
}

// tcp_skb_can_collapse_to(): what follows MSG_EOR begins a segment, and what it ended waits no more.
TEST(Info, SegmentsEndWhereRecordsDo) {
  Puppet far;
  const std::string data = pattern(200);
  ASSERT_EQ(send(far.fd, data.data(), 100, MSG_MORE | MSG_EOR), 100);
  ASSERT_EQ(send(far.fd, data.data() + 100, 100, 0), 100);
  far.read(200);
  const tcp_info i = info_once(far.fd, [](const tcp_info& now) { return now.tcpi_unacked == 0; });
  EXPECT_EQ(i.tcpi_data_segs_out, 2u);
  far.end();
}

// A FIN counts in the bytes, but is no data.
TEST(Info, CountsTheEnds) {
  Puppet far;
  far.say("send 3");
  EXPECT_EQ(read_exactly(far.fd, 3), pattern(3));
  poll(nullptr, 0, 60);
  far.say("end");
  EXPECT_NE(wait_for(far.fd, POLLRDHUP) & POLLRDHUP, 0);
  tcp_info i = info(far.fd);
  EXPECT_EQ(i.tcpi_state, kCloseWaitState);
  EXPECT_EQ(i.tcpi_bytes_received, 4u);
  EXPECT_EQ(i.tcpi_data_segs_in, 1u);
  EXPECT_GE(i.tcpi_last_data_recv, 50u);
  shutdown(far.fd, SHUT_WR);
  i = info_once(far.fd, [](const tcp_info& now) { return now.tcpi_state == kCloseState; });
  EXPECT_EQ(i.tcpi_bytes_acked, 2u);
  EXPECT_EQ(i.tcpi_delivered, 2u);
  EXPECT_EQ(i.tcpi_data_segs_out, 0u);
  far.end();
}

// Of a peer that does not read: probes, and whose fault it is.
TEST(Info, TellsOfAClosedWindow) {
  Puppet far({"8192"});
  set_nonblocking(far.fd);
  const std::string much = pattern(100'000);
  ASSERT_GT(send(far.fd, much.data(), much.size(), 0), 0);
  const tcp_info i =
      info_once(far.fd, [](const tcp_info& now) { return now.tcpi_backoff > 0 && now.tcpi_unacked == 0; });
  EXPECT_GE(i.tcpi_backoff, 1);
  EXPECT_EQ(i.tcpi_retransmits, 0);
  EXPECT_EQ(i.tcpi_unacked, 0u);
  EXPECT_GT(i.tcpi_notsent_bytes, 0u);
  EXPECT_GE(i.tcpi_rwnd_limited, 100'000u);
  EXPECT_GE(i.tcpi_busy_time, i.tcpi_rwnd_limited);
  EXPECT_EQ(i.tcpi_sndbuf_limited, 0u);
  far.end();
}

int incoming_cpu(int fd) { return get_option(fd, SOL_SOCKET, SO_INCOMING_CPU); }

FAR(datagrams) {
  Fd fd = udp_at(here());
  near.say(port_of(fd));
  Address from;
  char byte;
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(recvfrom(fd, &byte, 1, 0, from.raw(), &from.size), 1);
    EXPECT_EQ(sendto(fd, &byte, 1, 0, from.raw(), from.size), 1);
  }
}

// Of a UDP socket only once it is connected.
TEST(IncomingCpu, IsTheReceivers) {
  Puppet far;
  const long cpus = sysconf(_SC_NPROCESSORS_CONF);
  EXPECT_GE(incoming_cpu(far.fd), 0);
  EXPECT_LT(incoming_cpu(far.fd), cpus);
  Fd fresh = tcp_socket();
  EXPECT_EQ(incoming_cpu(fresh), -1);
  Fd listener = listen_at(here());
  EXPECT_EQ(incoming_cpu(listener), -1);
  Far echo("datagrams");
  const Address to = there(static_cast<uint16_t>(echo.number()));
  Fd udp = udp_at(here());
  char byte = 'x';
  ASSERT_EQ(sendto(udp, &byte, 1, 0, to.raw(), to.size), 1);
  ASSERT_EQ(recv(udp, &byte, 1, 0), 1);
  EXPECT_EQ(incoming_cpu(udp), -1);
  ASSERT_EQ(connect(udp, to.raw(), to.size), 0);
  ASSERT_EQ(send(udp, &byte, 1, 0), 1);
  ASSERT_EQ(recv(udp, &byte, 1, 0), 1);
  EXPECT_GE(incoming_cpu(udp), 0);
  EXPECT_LT(incoming_cpu(udp), cpus);
  echo.finish();
  far.end();
}

}  // namespace
