// The reset helper: a process that outlives its program. When the program dies without having closed its
// accelerated TCP connections (kill -9, a crash), the kernel has no such sockets and does not reset their
// peers. For each connection the helper sends an ACK from the connection's tuple that the peer has had
// already, as a keepalive is. The peer answers with an ACK of its own (RFC 9293 section 3.10.7.4, "First"),
// and for that the kernel of this host, which knows no such connection and has the tuple back by now, sends
// the reset that fits. Whoever lives after all, since another process has the connection, takes the peer's
// answer for a duplicate: nothing is ever reset that should not be.
//
// Until then it serves privileged requests (privileged_request.h), if the program has given up root.
//
// Freestanding: no libc, started by execveat() of a memfd (engine/helper_client.cc), all signals blocked. It
// ends when the program has ended (or execs) and the peers have answered, at the latest after kRounds.
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
#include "helper/freestanding.h"
#include "helper/request_handler.h"
#include "helper/table.h"
#include "helper/unanswered.h"
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

namespace accel::helper {
namespace {

/// An answer may get lost, as any packet. Milliseconds; above tcp_invalid_ratelimit, within which Linux
/// answers one such segment of a connection only.
constexpr int kRounds[] = {1000, 2000, 4000};
/// What is sent before the answers are looked at: a few hundred fill a socket's default buffer.
constexpr uint32_t kBurst = 32;

[[noreturn]] void end() {
  timespec now{};
  call(SYS_clock_gettime, CLOCK_BOOTTIME, &now);
  char name[sizeof kEndName + 8];
  memcpy(name, kEndName, sizeof kEndName);
  for (int i = 0; i < 8; ++i)
    name[sizeof kEndName - 1 + i] =
        "0123456789abcdef"[static_cast<uint64_t>(now.tv_sec) >> (28 - 4 * i) & 15];
  name[sizeof kEndName + 7] = 0;
  call(SYS_prctl, PR_SET_NAME, name);
  for (;;) call(SYS_exit_group, 0);
}

/// Zeros.
void* allocate(size_t size) {
  const long memory = call(SYS_mmap, 0, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory < 0 && memory > -4096) end();
  return reinterpret_cast<void*>(memory);
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

RequestHandler request_handler;

// ---- the program's end ----

/// The table, once there is something to be done about it.
const Table* wait_for_end(uint32_t* rows) {
  pollfd watched[] = {{kProcess, POLLIN, 0}, {kLifeline, 0, 0}, {kRequests, POLLIN, 0}};
  do {
    wait(watched, 3, -1);
    if (watched[2].revents != 0 && !request_handler.serve()) watched[2].fd = -1;
  } while (watched[0].revents == 0 && watched[1].revents == 0);
  request_handler.close_ports();
  const long size = call(SYS_lseek, kTable, 0, SEEK_END);
  const long memory = call(SYS_mmap, 0, size, PROT_READ, MAP_SHARED, kTable, 0);
  if (size < static_cast<long>(sizeof(Table)) || (memory < 0 && memory > -4096)) end();
  const auto* table = reinterpret_cast<const Table*>(memory);
  *rows = rows_of(*table, static_cast<size_t>(size));
  bool any = false;
  for (uint32_t i = 0; i < *rows && !any; ++i) any = is_used(table->row[i]);
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

/// An address of this host, and not of loopback: a process that was broken into may have written any other.
/// Rows of one address come one after the other.
class OwnAddresses {
 public:
  bool operator()(const Row& row) {
    if (asked_ && same_bytes(last_, row.local, sizeof last_)) return ours_;
    memcpy(last_, row.local, sizeof last_);
    asked_ = true;
    LocalEnd end;
    memcpy(end.address, row.local, sizeof end.address);
    ours_ = is_of_this_host(end, row.ifindex);
    return ours_;
  }

 private:
  static bool same_bytes(const uint8_t* a, const uint8_t* b, size_t n) {
    for (size_t i = 0; i < n; ++i)
      if (a[i] != b[i]) return false;
    return true;
  }

  uint8_t last_[16] = {};
  bool asked_ = false, ours_ = false;
};

class ResetRounds {
 public:
  ResetRounds(const Table& table, uint32_t rows)
      : unanswered_(table, rows, allocate(Unanswered::memory_for(rows)), OwnAddresses{}) {
    const int on = 1;
    v4_ = call(SYS_socket, AF_INET, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_TCP);
    call(SYS_setsockopt, v4_, IPPROTO_IP, IP_HDRINCL, &on, sizeof on);
    v6_ = call(SYS_socket, AF_INET6, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_TCP);
    call(SYS_setsockopt, v6_, IPPROTO_IPV6, IPV6_HDRINCL, &on, sizeof on);
  }

  bool over() const { return unanswered_.over(); }

  void send_all() {
    uint32_t sent = 0;
    unanswered_.each([&](const Row& row) {
      if (++sent % kBurst == 0) hear();
      const TcpHeader tcp = segment_of(row);
      const long r = is_v4(row.remote) ? send_v4(v4_, row, tcp) : send_v6(v6_, row, tcp);
      return r >= 0 || r == -EAGAIN || r == -ENOBUFS || r == -ENOMEM;
    });
  }

  void wait_for_answers(long patience) {
    const long until = milliseconds() + patience;
    for (long now; !over() && (now = milliseconds()) < until; hear()) {
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
      unanswered_.answered(from, data + header);
    }
    sockaddr_in6 peer{};
    for (;;) {
      int length = sizeof peer;
      if ((n = call(SYS_recvfrom, v6_, data, sizeof data, MSG_DONTWAIT, &peer, &length)) < 0) break;
      if (n < 4) continue;
      memcpy(from, &peer.sin6_addr, sizeof from);
      unanswered_.answered(from, data);
    }
  }

  Unanswered unanswered_;
  long v4_, v6_;
};

[[noreturn]] void run() {
  settle();
  request_handler.begin();
  uint32_t rows = 0;
  const Table* table = wait_for_end(&rows);
  ResetRounds rounds(*table, rows);
  for (int patience : kRounds) {
    rounds.send_all();
    rounds.wait_for_answers(patience);
    if (rounds.over()) break;
  }
  end();
}

}  // namespace
}  // namespace accel::helper

extern "C" [[noreturn, gnu::used]] void helper_main() { accel::helper::run(); }

#if defined(__x86_64__)
asm(".globl _start\n_start:\n  xor %ebp, %ebp\n  and $-16, %rsp\n  call helper_main\n");
#elif defined(__aarch64__)
asm(".globl _start\n_start:\n  bl helper_main\n");
#else
#error "write the entry point for this machine"
#endif
