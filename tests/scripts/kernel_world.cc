// The kernel's TCP in real time, behind a TUN device in a network namespace of its own.
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <linux/rtnetlink.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "world.h"

namespace accel::scripts {
namespace {

using Kind = Operation::Kind;

int need(int result, const char* what) {
  if (result < 0) throw std::runtime_error(std::string(what) + ": " + std::strerror(errno));
  return result;
}

/// The fields of the kernel's struct that distributions' headers may lack.
struct LongTcpInfo : tcp_info {
  uint32_t tcpi_rcv_wnd, tcpi_rehash;
  uint8_t younger[256];
};

class KernelWorld final : public World {
 public:
  explicit KernelWorld(const Addresses& ends);
  ~KernelWorld() override = default;  // the process ends; threads in calls that sleep end with it
  Duration now() override {
    return std::chrono::duration_cast<Duration>(std::chrono::steady_clock::now() - start_);
  }
  void run(Duration until) override;
  void inject(const Bytes& packet) override;
  std::shared_ptr<Pending> start(Operation operation) override;
  std::optional<int64_t> info(int fd, const std::string& field) override;
  bool set_sysctl(const std::string& name, const std::string& value) override;
  bool set_route(const std::string& metrics) override;
  Duration early() const override { return 8ms; }  // two ticks
  /// Timers of longer than a quarter of a second have an eighth of that for granularity.
  Duration late(Duration waited) const override { return 16ms + waited / 8; }
  Duration patience() const override { return 1s; }
  bool disturbed() const override { return longest_gap_.load() > 8ms; }

 private:
  void watch();
  bool take_frames();
  bool take_returns();

  std::chrono::steady_clock::time_point start_;
  int tun_ = -1, returned_ = -1;
  /// Of each socket: a namespace's default may not be one that is not the host's.
  std::string congestion_ = "cubic";
  std::atomic<Duration> longest_gap_{Duration{0}};  ///< in which a thread of this priority did not run
  std::mutex lock_;
  std::vector<std::pair<std::shared_ptr<Pending>, Pending>> returns_;  ///< under lock_
};

bool succeeds(const std::string& command) { return std::system(command.c_str()) == 0; }

void run_command(const std::string& command) {
  if (!succeeds(command)) throw std::runtime_error("failed: " + command);
}

std::string text_of(const IpAddress& a) {
  char out[INET6_ADDRSTRLEN];
  return a.is_v4() ? inet_ntop(AF_INET, a.v4_bytes(), out, sizeof out)
                   : inet_ntop(AF_INET6, a.bytes.data(), out, sizeof out);
}

/// The kernel's notices of new routes. The one to an IPv6 address of its own comes some time after the
/// address, by a kernel's thread; a segment that is there before finds nobody.
class RouteNotices {
 public:
  RouteNotices() : fd_(need(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE), "rtnetlink")) {
    sockaddr_nl name{};
    name.nl_family = AF_NETLINK;
    name.nl_groups = RTMGRP_IPV6_ROUTE;
    need(bind(fd_, reinterpret_cast<const sockaddr*>(&name), sizeof name), "rtnetlink");
    const timeval limit{10, 0};
    need(setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), "rtnetlink");
  }
  RouteNotices(const RouteNotices&) = delete;
  RouteNotices& operator=(const RouteNotices&) = delete;
  ~RouteNotices() { close(fd_); }

  void await_local(const IpAddress& address) {
    for (bool there = false; !there;) {
      alignas(nlmsghdr) char buffer[8192];
      int left = need(static_cast<int>(recv(fd_, buffer, sizeof buffer, 0)), "route to the address");
      for (auto* m = reinterpret_cast<nlmsghdr*>(buffer); NLMSG_OK(m, static_cast<unsigned>(left));
           m = NLMSG_NEXT(m, left))
        there = there || tells_of(*m, address);
    }
  }

 private:
  static bool tells_of(nlmsghdr& m, const IpAddress& address) {
    auto* route = static_cast<rtmsg*>(NLMSG_DATA(&m));
    if (m.nlmsg_type != RTM_NEWROUTE || route->rtm_type != RTN_LOCAL) return false;
    int left = static_cast<int>(RTM_PAYLOAD(&m));
    for (rtattr* a = RTM_RTA(route); RTA_OK(a, left); a = RTA_NEXT(a, left))
      if (a->rta_type == RTA_DST && RTA_PAYLOAD(a) == 16)
        return std::memcmp(RTA_DATA(a), address.bytes.data(), 16) == 0;
    return false;
  }
  const int fd_;
};

KernelWorld::KernelWorld(const Addresses& ends) : World(ends) {
  need(unshare(CLONE_NEWNET), "a network namespace");
  tun_ = need(open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC), "/dev/net/tun");
  ifreq request{};
  std::strcpy(request.ifr_name, "script0");
  request.ifr_flags = IFF_TUN | IFF_NO_PI;
  need(::ioctl(tun_, TUNSETIFF, &request), "a TUN device");
  // Frames of several segments are cut behind the stack, and have a PSH each.
  const std::string mtu = std::to_string(1500 + ends.longer_header());
  run_command("ip link set dev script0 gso_max_segs 1 mtu " + mtu + " up");
  RouteNotices notices;
  run_command("ip addr add dev script0 " + text_of(ends.own) + (ends.v6() ? "/64 nodad" : "/8"));
  if (ends.v6()) notices.await_local(ends.own);
  returned_ = need(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC), "eventfd");
  for (const auto& [name, value] : {std::pair("net.ipv4.tcp_rmem", "4096 131072 6291456"),
                                    {"net.ipv4.tcp_wmem", "4096 16384 4194304"},
                                    {"net.ipv4.tcp_no_metrics_save", "1"}})
    if (!set_sysctl(name, value)) throw std::runtime_error(std::string("cannot set ") + name);
  // What else the machine does is no part of the times.
  const sched_param priority{.sched_priority = 1};
  need(sched_setscheduler(0, SCHED_RR, &priority), "real-time priority");
  start_ = std::chrono::steady_clock::now();
  std::thread([this] { watch(); }).detach();
}

/// Wakes up each 2 ms to see whether it can.
void KernelWorld::watch() {
  constexpr timespec kNap{0, 2'000'000};
  for (Duration before = now();;) {
    nanosleep(&kNap, nullptr);
    const Duration after = now();
    if (after - before > longest_gap_.load()) longest_gap_ = after - before;
    before = after;
  }
}

bool KernelWorld::set_sysctl(const std::string& name, const std::string& value) {
  if (name == "net.ipv4.tcp_congestion_control") {
    congestion_ = value;
    return true;
  }
  std::string path = "/proc/sys/" + name;
  std::replace(path.begin(), path.end(), '.', '/');
  std::ofstream out(path);
  out << value << std::flush;
  return out.good();
}

bool KernelWorld::set_route(const std::string& metrics) {
  return succeeds("ip route add " + text_of(addresses.peer) + " dev script0 " + metrics);
}

/// Returns whether a segment has come.
bool KernelWorld::take_frames() {
  uint8_t packet[65536];
  bool any = false;
  for (ssize_t n; (n = ::read(tun_, packet, sizeof packet)) > 0;) {
    auto s = segment_of({packet, static_cast<size_t>(n)});
    if (!s || s->source != addresses.own || s->destination != addresses.peer) continue;
    s->at = now();
    sent.push_back(std::move(*s));
    any = true;
  }
  return any;
}

bool KernelWorld::take_returns() {
  uint64_t count = 0;
  (void)!::read(returned_, &count, sizeof count);
  const std::lock_guard guard(lock_);
  for (auto& [pending, answer] : returns_) *pending = std::move(answer);
  const bool any = !returns_.empty();
  returns_.clear();
  return any;
}

void KernelWorld::run(Duration until) {
  for (;;) {
    const bool frames = take_frames(), returns = take_returns();
    if (frames || returns) return;
    const Duration left = until - now();
    if (left <= 0s) return;
    pollfd waits[] = {{tun_, POLLIN, 0}, {returned_, POLLIN, 0}};
    const timespec time{left.count() / 1'000'000'000, left.count() % 1'000'000'000};
    ppoll(waits, 2, &time, nullptr);
  }
}

void KernelWorld::inject(const Bytes& packet) {
  take_frames();
  need(static_cast<int>(::write(tun_, packet.data(), packet.size())), "write to the TUN device");
  take_frames();
}

// ---------------------------------------------------------------- system calls

Answer answer_of(int64_t result) {
  return result < 0 ? Answer::failed(errno) : Answer{result, 0, 0, {}, false, {}};
}

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;
  const sockaddr* raw() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

SocketAddress address_of(const IpAddress& address, int64_t port) {
  SocketAddress out;
  if (address.is_v4()) {
    auto& in = reinterpret_cast<sockaddr_in&>(out.storage);
    in.sin_family = AF_INET;
    in.sin_port = htons(static_cast<uint16_t>(port));
    std::memcpy(&in.sin_addr, address.v4_bytes(), 4);
    out.length = sizeof in;
  } else {
    auto& in = reinterpret_cast<sockaddr_in6&>(out.storage);
    in.sin6_family = AF_INET6;
    in.sin6_port = htons(static_cast<uint16_t>(port));
    std::memcpy(&in.sin6_addr, address.bytes.data(), 16);
    out.length = sizeof in;
  }
  return out;
}

Answer read_from(const Operation& op) {
  Bytes into(op.size);
  Answer a = answer_of(recv(op.fd, into.data(), into.size(), static_cast<int>(op.flags)));
  a.peeked = (op.flags & MSG_PEEK) != 0;
  if (a.value >= 0 && (op.flags & MSG_TRUNC) == 0) {
    into.resize(static_cast<size_t>(a.value));
    a.read = std::move(into);
  }
  return a;
}

Answer set_option(const Operation& op) {
  if (!op.text.empty())
    return answer_of(
        setsockopt(op.fd, op.level, op.name, op.text.data(), static_cast<socklen_t>(op.text.size())));
  if (op.level == SOL_SOCKET && op.name == SO_LINGER) {
    const linger l{static_cast<int>(op.number), static_cast<int>(op.second)};
    return answer_of(setsockopt(op.fd, op.level, op.name, &l, sizeof l));
  }
  const int value = static_cast<int>(op.number);
  return answer_of(setsockopt(op.fd, op.level, op.name, &value, sizeof value));
}

Answer with_out(int result, int64_t out) {
  Answer a = answer_of(result);
  a.out = out;
  return a;
}

Answer perform(const Operation& op, const Addresses& ends) {
  switch (op.kind) {
    case Kind::kSocket: {
      const int fd =
          socket(ends.v6() ? AF_INET6 : AF_INET, SOCK_STREAM | SOCK_CLOEXEC | static_cast<int>(op.flags), 0);
      if (setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, op.text.data(),
                     static_cast<socklen_t>(op.text.size())) != 0)
        return Answer::failed(errno);
      return answer_of(fd);
    }
    case Kind::kBind: {
      const SocketAddress a = address_of(ends.v6() ? IpAddress::any_v6() : IpAddress::any_v4(), op.number);
      return answer_of(bind(op.fd, a.raw(), a.length));
    }
    case Kind::kListen:
      return answer_of(listen(op.fd, static_cast<int>(op.number)));
    case Kind::kAccept:
      return answer_of(accept4(op.fd, nullptr, nullptr, static_cast<int>(op.flags)));
    case Kind::kConnect: {
      const SocketAddress a = address_of(ends.peer, op.number);
      return answer_of(connect(op.fd, a.raw(), a.length));
    }
    case Kind::kRead:
      return read_from(op);
    case Kind::kWrite: {
      const SocketAddress to = address_of(ends.peer, op.number);
      if (op.number != 0)
        return answer_of(sendto(op.fd, op.bytes.data(), op.bytes.size(),
                                static_cast<int>(op.flags) | MSG_NOSIGNAL, to.raw(), to.length));
      return answer_of(
          send(op.fd, op.bytes.data(), op.bytes.size(), static_cast<int>(op.flags) | MSG_NOSIGNAL));
    }
    case Kind::kShutdown:
      return answer_of(shutdown(op.fd, static_cast<int>(op.number)));
    case Kind::kClose:
      return answer_of(close(op.fd));
    case Kind::kSetOption:
      return set_option(op);
    case Kind::kGetOption: {
      int value = 0;
      socklen_t length = sizeof value;
      const int result = getsockopt(op.fd, op.level, op.name, &value, &length);
      return with_out(result, value);
    }
    case Kind::kNonblocking:
      return answer_of(fcntl(op.fd, F_SETFL, O_RDWR | (op.number ? O_NONBLOCK : 0)));
    case Kind::kPoll: {
      pollfd one{op.fd, static_cast<short>(op.number), 0};
      const int result = ::poll(&one, 1, static_cast<int>(op.second));
      return with_out(result, one.revents);
    }
    case Kind::kIoctl: {
      int value = 0;
      const int result = ::ioctl(op.fd, static_cast<unsigned long>(op.number), &value);
      return with_out(result, value);
    }
  }
  return Answer::failed(ENOSYS);
}

std::shared_ptr<Pending> KernelWorld::start(Operation operation) {
  take_frames();
  auto pending = std::make_shared<Pending>();
  if (operation.kind == Kind::kSocket) operation.text = congestion_;
  std::thread([this, pending, op = std::move(operation)] {
    Answer a = perform(op, addresses);
    const Duration at = now();
    const std::lock_guard guard(lock_);
    returns_.push_back({pending, Pending{std::move(a), at}});
    const uint64_t one = 1;
    (void)!::write(returned_, &one, sizeof one);
  }).detach();
  return pending;
}

std::optional<int64_t> KernelWorld::info(int fd, const std::string& field) {
  LongTcpInfo i{};
  socklen_t length = sizeof i;
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &i, &length) != 0) return std::nullopt;
  if (field == "tcpi_snd_wscale") return int64_t{i.tcpi_snd_wscale};  // bit fields
  if (field == "tcpi_fastopen_client_fail") return int64_t{i.tcpi_fastopen_client_fail};
  if (field == "tcpi_rcv_wscale") return int64_t{i.tcpi_rcv_wscale};
#define FIELD(name) \
  { #name, static_cast < int64_t>(i.name) }
  const std::map<std::string, int64_t> fields = {
      FIELD(tcpi_state),         FIELD(tcpi_ca_state),      FIELD(tcpi_retransmits),
      FIELD(tcpi_probes),        FIELD(tcpi_backoff),       FIELD(tcpi_options),
      FIELD(tcpi_rto),           FIELD(tcpi_ato),           FIELD(tcpi_snd_mss),
      FIELD(tcpi_rcv_mss),       FIELD(tcpi_unacked),       FIELD(tcpi_sacked),
      FIELD(tcpi_lost),          FIELD(tcpi_retrans),       FIELD(tcpi_pmtu),
      FIELD(tcpi_rtt),           FIELD(tcpi_rttvar),        FIELD(tcpi_snd_ssthresh),
      FIELD(tcpi_snd_cwnd),      FIELD(tcpi_advmss),        FIELD(tcpi_reordering),
      FIELD(tcpi_total_retrans), FIELD(tcpi_bytes_acked),   FIELD(tcpi_bytes_received),
      FIELD(tcpi_segs_out),      FIELD(tcpi_segs_in),       FIELD(tcpi_notsent_bytes),
      FIELD(tcpi_min_rtt),       FIELD(tcpi_data_segs_in),  FIELD(tcpi_data_segs_out),
      FIELD(tcpi_bytes_sent),    FIELD(tcpi_bytes_retrans), FIELD(tcpi_delivered),
      FIELD(tcpi_delivered_ce),  FIELD(tcpi_pacing_rate),   FIELD(tcpi_max_pacing_rate),
      FIELD(tcpi_delivery_rate), FIELD(tcpi_dsack_dups),    FIELD(tcpi_reord_seen),
      FIELD(tcpi_rcv_ooopack),   FIELD(tcpi_snd_wnd),       FIELD(tcpi_rcv_wnd)};
#undef FIELD
  auto found = fields.find(field);
  return found == fields.end() ? std::nullopt : std::optional(found->second);
}

}  // namespace

std::unique_ptr<World> make_kernel_world(const Addresses& ends) {
  return std::make_unique<KernelWorld>(ends);
}

}  // namespace accel::scripts
