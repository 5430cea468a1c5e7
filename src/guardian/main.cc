// The guardian: a process that outlives the program it stands by. When the program dies without having closed
// its accelerated TCP connections (kill -9, a crash), nobody would tell their peers: the kernel has no such
// sockets. For each one it sends an ACK from the connection's tuple that the peer has had already, as a
// keepalive is. The peer answers with an ACK of its own (RFC 9293 section 3.10.7.4, "First"), and for that
// the kernel of this host, which knows no such connection and has the tuple back by now, sends the reset that
// fits. Whoever lives after all, since another process has the connection, takes the peer's answer for a
// duplicate: nothing is ever reset that should not be.
//
// Until then it runs errands (errand.h), if the program has given up root.
//
// Freestanding: no libc, started by execveat() of a memfd (engine/guardian.cc), all signals blocked. It ends
// when the program has ended (or execs) and the peers have answered, at the latest after kRounds.
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/prctl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>

#include "base/bare_syscall.h"
#include "base/uverbs.h"
#include "guardian/errand.h"
#include "guardian/table.h"
#include "stack/wire/checksum.h"
#include "stack/wire/ipv4.h"
#include "stack/wire/ipv6.h"
#include "stack/wire/tcp.h"

// The compiler's own calls.
extern "C" {
void* memset(void* to, int byte, size_t n) {
  for (size_t i = 0; i < n; ++i) static_cast<volatile uint8_t*>(to)[i] = static_cast<uint8_t>(byte);
  return to;
}
void* memcpy(void* to, const void* from, size_t n) {
  for (size_t i = 0; i < n; ++i) static_cast<volatile uint8_t*>(to)[i] = static_cast<const uint8_t*>(from)[i];
  return to;
}
}

namespace accel::guardian {
namespace {

/// An answer may get lost, as any packet. Milliseconds; above tcp_invalid_ratelimit, within which Linux
/// answers one such segment of a connection only.
constexpr int kRounds[] = {1000, 2000, 4000};
/// What is sent before the answers are looked at: a few hundred fill a socket's default buffer.
constexpr uint32_t kBurst = 32;

template <class... A>
long call(long number, A... arguments) {
  return bare_syscall(number, (long)arguments...);  // NOLINT: pointers and numbers alike
}

[[noreturn]] void end() {
  for (;;) call(SYS_exit_group, 0);
}

template <class T>
T* allocate(size_t count) {
  const long memory =
      call(SYS_mmap, 0, count * sizeof(T), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory < 0 && memory > -4096) end();
  return reinterpret_cast<T*>(memory);
}

long milliseconds() {
  timespec now{};
  call(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000 + now.tv_nsec / 1'000'000;
}

/// `timeout` in milliseconds, negative: none.
void wait(pollfd* watched, unsigned count, long timeout) {
  timespec t{timeout / 1000, timeout % 1000 * 1'000'000};
  while (call(SYS_ppoll, watched, count, timeout < 0 ? nullptr : &t, 0, 0) == -EINTR) {
  }
}

// ---- beginning ----

/// Leaves everything of the program's that it can: terminal, folder, privileges but those that it uses.
void settle() {
  call(SYS_prctl, PR_SET_NAME, "accel-guard");
  call(SYS_setsid, 0);
  call(SYS_chdir, "/");
  const long score = call(SYS_openat, AT_FDCWD, "/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
  if (score >= 0) {
    call(SYS_write, score, "-1000", 5);  // a program that dies for want of memory is what it is for
    call(SYS_close, score);
  }
  call(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct sets[2] = {};
  call(SYS_capget, &header, sets);
  const uint32_t kept =
      sets[0].permitted & (1u << CAP_NET_RAW | 1u << CAP_NET_ADMIN | 1u << CAP_NET_BIND_SERVICE);
  sets[0] = {kept, kept, 0};
  sets[1] = {};
  call(SYS_capset, &header, sets);
}

// ---- errands ----

long set_option(int fd, int level, int name, int value) {
  return call(SYS_setsockopt, fd, level, name, &value, sizeof value);
}

bool in_repair_mode(int fd) {
  int on = 0, length = sizeof on;
  return call(SYS_getsockopt, fd, IPPROTO_TCP, TCP_REPAIR, &on, &length) == 0 && on == 1;
}

/// For which rules may be made.
constexpr size_t kMostLocalEnds = 256;
FlowRule local_ends[kMostLocalEnds];
size_t local_end_count = 0;
bool sealed = false;

bool same_bytes(const uint8_t* a, const uint8_t* b, size_t n) {
  for (size_t i = 0; i < n; ++i)
    if (a[i] != b[i]) return false;
  return true;
}

bool has_local_end(const FlowRule& rule) {
  for (size_t i = 0; i < local_end_count; ++i) {
    const FlowRule& end = local_ends[i];
    if (end.protocol == rule.protocol && end.local_port == rule.local_port && end.vlan == rule.vlan &&
        same_bytes(end.local, rule.local, sizeof rule.local))
      return true;
  }
  return false;
}

long add_local_end(const FlowRule& rule) {
  if (sealed || rule.local_port == 0) return -EPERM;
  if (has_local_end(rule)) return 0;
  if (local_end_count == kMostLocalEnds) return -ENOSPC;
  local_ends[local_end_count++] = rule;
  return 0;
}

bool is_v4(const uint8_t* address) {
  for (int i = 0; i < 10; ++i)
    if (address[i] != 0) return false;
  return address[10] == 0xff && address[11] == 0xff;
}

/// Specifications as the kernel reads them, one behind the other. Bits that the mask leaves out are zero.
class Specifications {
 public:
  explicit Specifications(const FlowRule& rule) {
    add_link(rule);
    is_v4(rule.local) ? add_v4(rule) : add_v6(rule);
    add_ports(rule);
    ib_uverbs_flow_spec_action_tag tag{};
    tag.tag_id = rule.tag;
    if (rule.tag != 0) add(tag, IB_FLOW_SPEC_ACTION_TAG);
  }
  long create(const FlowRule& rule, int device) {
    auto* command = reinterpret_cast<ib_uverbs_create_flow*>(bytes_);
    command->qp_handle = rule.queue_pair;
    command->flow_attr.size = static_cast<uint16_t>(used_ - sizeof *command);
    command->flow_attr.priority = rule.priority;
    command->flow_attr.num_of_specs = count_;
    command->flow_attr.port = rule.device_port;
    ib_uverbs_create_flow_resp made{};
    const long failed =
        uverbs_command([&](void* request) { return call(SYS_ioctl, device, RDMA_VERBS_IOCTL, request); },
                       IB_USER_VERBS_EX_CMD_CREATE_FLOW, bytes_, used_, &made, sizeof made);
    return failed != 0 ? failed : static_cast<long>(made.flow_handle & 0x7fffffff);
  }

 private:
  /// Of the kernel's own header (rdma/ib_verbs.h), as libibverbs' are.
  enum : uint32_t {
    IB_FLOW_SPEC_ETH = 0x20,
    IB_FLOW_SPEC_IPV4 = 0x30,
    IB_FLOW_SPEC_IPV6 = 0x31,
    IB_FLOW_SPEC_TCP = 0x40,
    IB_FLOW_SPEC_UDP = 0x41,
    IB_FLOW_SPEC_ACTION_TAG = 0x1000
  };
  static constexpr uint16_t be16(uint16_t host) { return __builtin_bswap16(host); }

  template <class Spec>
  void add(Spec& spec, uint32_t type) {
    spec.type = type;
    spec.size = sizeof spec;
    memcpy(bytes_ + used_, &spec, sizeof spec);
    used_ = static_cast<uint16_t>(used_ + sizeof spec);
    ++count_;
  }
  void add_link(const FlowRule& rule) {
    ib_uverbs_flow_spec_eth eth{};
    eth.val.vlan_tag = be16(rule.vlan);
    eth.mask.vlan_tag = rule.vlan != 0 ? be16(0x0fff) : 0;
    add(eth, IB_FLOW_SPEC_ETH);
  }
  void add_v4(const FlowRule& rule) {
    ib_uverbs_flow_spec_ipv4 ip{};
    memcpy(&ip.val.dst_ip, rule.local + 12, 4);
    ip.mask.dst_ip = ~0u;
    if (rule.one_remote) {
      memcpy(&ip.val.src_ip, rule.remote + 12, 4);
      ip.mask.src_ip = ~0u;
    }
    add(ip, IB_FLOW_SPEC_IPV4);
  }
  void add_v6(const FlowRule& rule) {
    ib_uverbs_flow_spec_ipv6 ip{};
    memcpy(ip.val.dst_ip, rule.local, 16);
    memset(ip.mask.dst_ip, 0xff, 16);
    if (rule.one_remote) {
      memcpy(ip.val.src_ip, rule.remote, 16);
      memset(ip.mask.src_ip, 0xff, 16);
    }
    add(ip, IB_FLOW_SPEC_IPV6);
  }
  void add_ports(const FlowRule& rule) {
    ib_uverbs_flow_spec_tcp_udp ports{};
    ports.val.dst_port = be16(rule.local_port);
    ports.mask.dst_port = 0xffff;
    ports.val.src_port = be16(rule.remote_port);
    ports.mask.src_port = be16(rule.remote_mask);
    add(ports, rule.protocol == IPPROTO_TCP ? IB_FLOW_SPEC_TCP : IB_FLOW_SPEC_UDP);
  }

  alignas(ib_uverbs_create_flow)
      uint8_t bytes_[sizeof(ib_uverbs_create_flow) + sizeof(ib_uverbs_flow_spec_eth) +
                     sizeof(ib_uverbs_flow_spec_ipv6) + sizeof(ib_uverbs_flow_spec_tcp_udp) +
                     sizeof(ib_uverbs_flow_spec_action_tag)]{};
  uint16_t used_ = sizeof(ib_uverbs_create_flow);
  uint8_t count_ = 0;
};

long make_rule(const FlowRule& rule, int device) {
  if (!sealed || !has_local_end(rule)) return -EPERM;
  return Specifications(rule).create(rule, device);
}

long run(const Request& request, int fd) {
  switch (request.errand) {
    case Errand::kRepair:
      return set_option(fd, IPPROTO_TCP, TCP_REPAIR, request.value);
    case Errand::kSendBuffer:
      return set_option(fd, SOL_SOCKET, SO_SNDBUFFORCE, request.value);
    case Errand::kReceiveBuffer:
      return set_option(fd, SOL_SOCKET, SO_RCVBUFFORCE, request.value);
    case Errand::kBind:
      if (!in_repair_mode(fd) || request.length > sizeof request.address) return -EPERM;
      return call(SYS_bind, fd, request.address, request.length);
    case Errand::kLocalEnd:
      return add_local_end(request.rule);
    case Errand::kSeal:
      sealed = true;
      return 0;
    case Errand::kRule:
      return make_rule(request.rule, fd);
  }
  return -EINVAL;
}

/// False: the process has closed its end.
bool run_errand() {
  Request request{};
  iovec vector{&request, sizeof request};
  alignas(cmsghdr) uint8_t control[CMSG_SPACE(sizeof(int))]{};
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const long n = call(SYS_recvmsg, kErrands, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (n <= 0) return n == -EAGAIN || n == -EINTR;
  int fd = -1;
  const auto* header = reinterpret_cast<const cmsghdr*>(control);
  if (message.msg_controllen >= CMSG_LEN(sizeof fd) && header->cmsg_type == SCM_RIGHTS)
    memcpy(&fd, CMSG_DATA(header), sizeof fd);
  const auto answer = static_cast<int32_t>(n == sizeof request ? run(request, fd) : -EINVAL);
  if (fd >= 0) call(SYS_close, fd);
  call(SYS_sendto, kErrands, &answer, sizeof answer, MSG_DONTWAIT | MSG_NOSIGNAL, 0, 0);
  return true;
}

// ---- the program's end ----

/// The table, once there is something to be done about it.
const Table* wait_for_end(uint32_t* rows) {
  pollfd watched[] = {{kProcess, POLLIN, 0}, {kLifeline, 0, 0}, {kErrands, POLLIN, 0}};
  do {
    wait(watched, 3, -1);
    if (watched[2].revents != 0 && !run_errand()) watched[2].fd = -1;
  } while (watched[0].revents == 0 && watched[1].revents == 0);
  const long size = call(SYS_lseek, kTable, 0, SEEK_END);
  const long memory = call(SYS_mmap, 0, size, PROT_READ, MAP_SHARED, kTable, 0);
  if (size < static_cast<long>(sizeof(Table)) || (memory < 0 && memory > -4096)) end();
  const auto* table = reinterpret_cast<const Table*>(memory);
  *rows = table->touched;
  const auto most = (static_cast<size_t>(size) - sizeof(Table)) / sizeof(Row);
  if (*rows > most) *rows = static_cast<uint32_t>(most);
  bool any = false;
  for (uint32_t i = 0; i < *rows && !any; ++i) any = table->row[i].used == 1;
  if (!any) end();
  // The lifeline alone: the process is about to be dead, or it execs with connections that could not be
  // handed back. Only the former has an event for the moment at which all of its descriptors are closed and
  // the tuples are the kernel's.
  if (watched[0].revents == 0) wait(watched, 1, kRounds[0]);
  return table;
}

// ---- segments ----

constexpr uint8_t kAck = 0x10;
constexpr uint8_t kTtl = 64;

/// IPv4's mapped prefix counts for nothing but 0xffff, which is 0 in this sum.
TcpHeader segment_of(const Row& row) {
  TcpHeader tcp{};
  memcpy(&tcp.source, &row.local_port, 2);
  memcpy(&tcp.destination, &row.remote_port, 2);
  tcp.sequence = row.numbers.sequence;
  tcp.acknowledgment = row.numbers.acknowledgment;
  tcp.data_offset = 5 << 4;
  tcp.flags = kAck;
  const uint64_t addresses = sum_fixed<16>(row.local) + sum_fixed<16>(row.remote);
  const uint64_t pseudo = addresses + sum_of(IPPROTO_TCP) + sum_of(sizeof tcp);
  store_checksum(&tcp.checksum, finish_sum(pseudo + sum_fixed<20>(reinterpret_cast<const uint8_t*>(&tcp))));
  return tcp;
}

long send_v4(long fd, const Row& row, const TcpHeader& tcp) {
  struct {
    Ipv4Header ip;
    TcpHeader tcp;
  } packet{{}, tcp};
  packet.ip.version_ihl = 0x45;
  packet.ip.total_length = sizeof packet;
  packet.ip.ttl = kTtl;
  packet.ip.protocol = IPPROTO_TCP;
  memcpy(&packet.ip.source, row.local + 12, 4);
  memcpy(&packet.ip.destination, row.remote + 12, 4);
  sockaddr_in to{};
  to.sin_family = AF_INET;
  memcpy(&to.sin_addr, row.remote + 12, 4);
  return call(SYS_sendto, fd, &packet, sizeof packet, MSG_DONTWAIT, &to, sizeof to);
}

long send_v6(long fd, const Row& row, const TcpHeader& tcp) {
  struct {
    Ipv6Header ip;
    TcpHeader tcp;
  } packet{{}, tcp};
  packet.ip.version_class_flow = 6u << 28;
  packet.ip.payload_length = sizeof tcp;
  packet.ip.next_header = IPPROTO_TCP;
  packet.ip.hop_limit = kTtl;
  memcpy(&packet.ip.source, row.local, 16);
  memcpy(&packet.ip.destination, row.remote, 16);
  sockaddr_in6 to{};
  to.sin6_family = AF_INET6;
  memcpy(&to.sin6_addr, row.remote, 16);
  const bool link_local = row.remote[0] == 0xfe && (row.remote[1] & 0xc0) == 0x80;
  if (link_local) to.sin6_scope_id = row.ifindex;
  return call(SYS_sendto, fd, &packet, sizeof packet, MSG_DONTWAIT, &to, sizeof to);
}

// ---- connections that wait for an answer ----

class Wake {
 public:
  Wake(const Table& table, uint32_t rows) : table_(table), rows_(rows), done_(allocate<bool>(rows)) {
    for (uint32_t i = 0; i < rows; ++i)
      if (table.row[i].used == 1)
        ++open_;
      else
        done_[i] = true;
    for (slots_ = 64; slots_ < 2 * open_;) slots_ *= 2;
    index_ = allocate<uint32_t>(slots_);
    for (uint32_t i = 0; i < rows; ++i)
      if (!done_[i]) *free_slot(table.row[i]) = i + 1;
    const int on = 1;
    v4_ = call(SYS_socket, AF_INET, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_TCP);
    call(SYS_setsockopt, v4_, IPPROTO_IP, IP_HDRINCL, &on, sizeof on);
    v6_ = call(SYS_socket, AF_INET6, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_TCP);
    call(SYS_setsockopt, v6_, IPPROTO_IPV6, IPV6_HDRINCL, &on, sizeof on);
  }

  bool over() const { return open_ == 0; }

  void send_all() {
    for (uint32_t i = 0, sent = 0; i < rows_; ++i) {
      if (done_[i]) continue;
      const Row& row = table_.row[i];
      const TcpHeader tcp = segment_of(row);
      const long r = is_v4(row.remote) ? send_v4(v4_, row, tcp) : send_v6(v6_, row, tcp);
      if (r < 0 && r != -EAGAIN && r != -ENOBUFS && r != -ENOMEM) finish(i);  // no way to that peer any more
      if (++sent % kBurst == 0) hear();
    }
  }

  void wait_for_answers(long patience) {
    const long until = milliseconds() + patience;
    for (long now; open_ != 0 && (now = milliseconds()) < until; hear()) {
      pollfd watched[] = {{static_cast<int>(v4_), POLLIN, 0}, {static_cast<int>(v6_), POLLIN, 0}};
      wait(watched, 2, until - now);
    }
  }

 private:
  /// What the kernel gets of TCP: an answer, to which it sends its reset in the same breath.
  void hear() {
    alignas(4) uint8_t data[128];
    uint8_t from[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
    long n;
    while ((n = call(SYS_recvfrom, v4_, data, sizeof data, MSG_DONTWAIT, 0, 0)) >= 0) {
      const long header = (data[0] & 15) * 4;
      if (n < header + 4) continue;
      memcpy(from + 12, data + 12, 4);
      answered(from, data + header);
    }
    sockaddr_in6 peer{};
    for (;;) {
      int length = sizeof peer;
      if ((n = call(SYS_recvfrom, v6_, data, sizeof data, MSG_DONTWAIT, &peer, &length)) < 0) break;
      if (n >= 4) answered(reinterpret_cast<const uint8_t*>(&peer.sin6_addr), data);
    }
  }

  /// Our address is not compared: connections of two addresses of ours with one tuple of a peer's answer for
  /// each other, and what that can cost is a second try.
  void answered(const uint8_t* from, const uint8_t* ports) {
    Row row{};
    memcpy(row.remote, from, 16);
    memcpy(&row.remote_port, ports, 2);
    memcpy(&row.local_port, ports + 2, 2);
    for (uint32_t slot = hash(row);; ++slot) {
      const uint32_t i = index_[slot & (slots_ - 1)];
      if (i == 0) return;
      if (!done_[i - 1] && same(table_.row[i - 1], row)) finish(i - 1);
    }
  }

  void finish(uint32_t i) {
    if (!done_[i]) --open_;
    done_[i] = true;
  }

  static bool same(const Row& a, const Row& b) {
    for (int i = 0; i < 16; ++i)
      if (a.remote[i] != b.remote[i]) return false;
    return a.remote_port == b.remote_port && a.local_port == b.local_port;
  }

  /// FNV-1a.
  static uint32_t hash(const Row& row) {
    uint32_t h = 2166136261;
    for (int i = 0; i < 16; ++i) h = (h ^ row.remote[i]) * 16777619;
    h = (h ^ row.remote_port) * 16777619;
    h = (h ^ row.local_port) * 16777619;
    return h ^ h >> 15;
  }

  uint32_t* free_slot(const Row& row) {
    for (uint32_t slot = hash(row);; ++slot)
      if (index_[slot & (slots_ - 1)] == 0) return &index_[slot & (slots_ - 1)];
  }

  const Table& table_;
  uint32_t rows_;
  bool* done_;
  uint32_t open_ = 0;
  uint32_t* index_ = nullptr;  ///< of rows, plus 1, by hash; 0: free
  uint32_t slots_ = 0;
  long v4_, v6_;
};

[[noreturn]] void run() {
  settle();
  uint32_t rows = 0;
  const Table* table = wait_for_end(&rows);
  Wake wake(*table, rows);
  for (int patience : kRounds) {
    wake.send_all();
    wake.wait_for_answers(patience);
    if (wake.over()) break;
  }
  end();
}

}  // namespace
}  // namespace accel::guardian

extern "C" [[noreturn, gnu::used]] void guardian_main() { accel::guardian::run(); }

#if defined(__x86_64__)
asm(".globl _start\n_start:\n  xor %ebp, %ebp\n  and $-16, %rsp\n  call guardian_main\n");
#elif defined(__aarch64__)
asm(".globl _start\n_start:\n  bl guardian_main\n");
#else
#error "write the entry point for this machine"
#endif
