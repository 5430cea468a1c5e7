// accel_wire A B --ab IMPAIRMENT --ba IMPAIRMENT [--seed N]: forwards frames between two devices of its
// network namespace as an impaired path would, until SIGTERM. Then it prints what it did, as JSON.
//
// A frame's fate depends on when the kernel received it, not on when this program looks: a late look makes
// frames late, but neither the rate nor the queue wider.
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <queue>
#include <string_view>
#include <vector>

#include "path.h"

namespace accel::wire {
namespace {

constexpr unsigned kSlots = 4096;  ///< of a receive ring
constexpr unsigned kMostAtOnce = 64;

[[noreturn]] void fail(const char* what) {
  perror(what);
  exit(1);
}

long check(long result, const char* what) {
  if (result < 0) fail(what);
  return result;
}

uint64_t clock_now() {
  timespec t;
  clock_gettime(CLOCK_REALTIME, &t);  // what the ring's stamps are in
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(t.tv_nsec);
}

/// A device's frames, coming in by a ring and going out by sendmmsg().
class Device {
 public:
  explicit Device(const char* name) {
    fd_ = static_cast<int>(check(socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0), "socket"));
    ifreq request{};
    strncpy(request.ifr_name, name, IFNAMSIZ - 1);
    check(ioctl(fd_, SIOCGIFMTU, &request), name);
    slot_ = request.ifr_mtu <= 1800 ? 2048 : 16384;  // a frame and the ring's own header
    const int version = TPACKET_V2, on = 1;
    check(setsockopt(fd_, SOL_PACKET, PACKET_VERSION, &version, sizeof version), "PACKET_VERSION");
    check(setsockopt(fd_, SOL_PACKET, PACKET_IGNORE_OUTGOING, &on, sizeof on), "PACKET_IGNORE_OUTGOING");
    check(setsockopt(fd_, SOL_PACKET, PACKET_QDISC_BYPASS, &on, sizeof on), "PACKET_QDISC_BYPASS");
    tpacket_req ring{.tp_block_size = 16 * slot_,
                     .tp_block_nr = kSlots / 16,
                     .tp_frame_size = slot_,
                     .tp_frame_nr = kSlots};
    check(setsockopt(fd_, SOL_PACKET, PACKET_RX_RING, &ring, sizeof ring), "PACKET_RX_RING");
    void* memory = mmap(nullptr, size_t{slot_} * kSlots, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
    if (memory == MAP_FAILED) fail("mmap");
    ring_ = static_cast<uint8_t*>(memory);
    sockaddr_ll to{};
    to.sll_family = AF_PACKET;
    to.sll_protocol = __builtin_bswap16(ETH_P_ALL);
    to.sll_ifindex = static_cast<int>(if_nametoindex(name));
    if (to.sll_ifindex == 0) fail(name);
    check(bind(fd_, reinterpret_cast<sockaddr*>(&to), sizeof to), "bind");
  }
  int fd() const { return fd_; }

  /// Calls visit(frame, when) for each frame that has come.
  template <class Visit>
  void drain(Visit&& visit) {
    for (unsigned n = 0; n < kSlots; ++n) {
      auto* head = reinterpret_cast<tpacket2_hdr*>(ring_ + size_t{slot_} * at_);
      if ((__atomic_load_n(&head->tp_status, __ATOMIC_ACQUIRE) & TP_STATUS_USER) == 0) return;
      const uint64_t when = uint64_t{head->tp_sec} * 1'000'000'000 + head->tp_nsec;
      visit(std::span<uint8_t>(reinterpret_cast<uint8_t*>(head) + head->tp_mac, head->tp_snaplen), when);
      __atomic_store_n(&head->tp_status, TP_STATUS_KERNEL, __ATOMIC_RELEASE);
      at_ = (at_ + 1) % kSlots;
    }
  }

  /// Frames that the ring had no room for, or that could not be sent.
  uint64_t dropped() {
    tpacket_stats s{};
    socklen_t n = sizeof s;
    if (getsockopt(fd_, SOL_PACKET, PACKET_STATISTICS, &s, &n) == 0) dropped_ += s.tp_drops;
    return dropped_;
  }
  void send(std::span<const iovec> frames) {
    std::array<mmsghdr, kMostAtOnce> messages{};
    for (size_t i = 0; i < frames.size(); ++i) {
      messages[i].msg_hdr.msg_iov = const_cast<iovec*>(&frames[i]);
      messages[i].msg_hdr.msg_iovlen = 1;
    }
    for (size_t done = 0; done < frames.size();) {
      const int n = sendmmsg(fd_, &messages[done], static_cast<unsigned>(frames.size() - done), 0);
      if (n > 0) {
        done += static_cast<size_t>(n);
      } else if (errno != EINTR) {  // the far device's queue is full
        ++dropped_;
        ++done;
      }
    }
  }

 private:
  int fd_ = -1;
  unsigned slot_ = 0;
  uint8_t* ring_ = nullptr;
  unsigned at_ = 0;
  uint64_t dropped_ = 0;
};

/// Frames under way in one direction.
class Direction {
 public:
  Direction(Device& from, Device& to, const Impairment& impairment, uint64_t seed, uint64_t began)
      : from_(from), to_(to), path_(impairment, seed), began_(began) {}

  void take_in() {
    from_.drain([&](std::span<uint8_t> frame, uint64_t when) {
      const Path::Fate fate = path_.take(frame, when > began_ ? when - began_ : 0);
      for (int i = 0; i < fate.copies; ++i) {
        auto copy = std::make_unique_for_overwrite<uint8_t[]>(frame.size());
        memcpy(copy.get(), frame.data(), frame.size());
        waiting_.push({fate.at[i], order_++, static_cast<uint32_t>(frame.size()), std::move(copy)});
      }
    });
  }

  /// Sends what is due; returns when the next one is, in ns since the beginning.
  uint64_t send_due(uint64_t now) {
    std::array<iovec, kMostAtOnce> frames;
    std::array<std::unique_ptr<uint8_t[]>, kMostAtOnce> held;
    while (!waiting_.empty() && waiting_.top().at <= now) {
      size_t n = 0;
      for (; n < kMostAtOnce && !waiting_.empty() && waiting_.top().at <= now; ++n) {
        auto& top = const_cast<Waiting&>(waiting_.top());
        frames[n] = {top.bytes.get(), top.size};
        held[n] = std::move(top.bytes);
        waiting_.pop();
      }
      to_.send({frames.data(), n});
    }
    return waiting_.empty() ? UINT64_MAX : waiting_.top().at;
  }
  const Counts& counts() const { return path_.counts(); }

 private:
  struct Waiting {
    uint64_t at, order;
    uint32_t size;
    std::unique_ptr<uint8_t[]> bytes;
    bool operator<(const Waiting& o) const { return at != o.at ? at > o.at : order > o.order; }
  };
  Device& from_;
  Device& to_;
  Path path_;
  uint64_t began_;
  uint64_t order_ = 0;
  std::priority_queue<Waiting> waiting_;
};

volatile sig_atomic_t stopped = 0;

void print(const char* name, const Counts& c, Device& in, bool last) {
  printf(
      "\"%s\": {\"frames\": %lu, \"bytes\": %lu, \"lost\": %lu, \"overflowed\": %lu, \"dark\": %lu, "
      "\"too_long\": %lu, "
      "\"duplicated\": %lu, \"corrupted\": %lu, \"reordered\": %lu, \"marked\": %lu, \"not_carried\": %lu}%s",
      name, c.frames, c.bytes, c.lost, c.overflowed, c.dark, c.too_long, c.duplicated, c.corrupted,
      c.reordered, c.marked, in.dropped(), last ? "}\n" : ", ");
}

void forward(Device& a, Device& b, const Impairment& ab, const Impairment& ba, uint64_t seed) {
  const uint64_t began = clock_now();
  Direction there(a, b, ab, seed, began), back(b, a, ba, ~seed, began);
  sigset_t unblocked;
  sigemptyset(&unblocked);
  while (!stopped) {
    there.take_in();
    back.take_in();
    const uint64_t now = clock_now() - began;
    const uint64_t next = std::min(there.send_due(now), back.send_due(now));
    const uint64_t later = clock_now() - began, wait = next > later ? next - later : 0;
    if (next != UINT64_MAX && wait == 0) continue;
    const timespec t{static_cast<time_t>(wait / 1'000'000'000), static_cast<long>(wait % 1'000'000'000)};
    pollfd fds[] = {{a.fd(), POLLIN, 0}, {b.fd(), POLLIN, 0}};
    ppoll(fds, 2, next == UINT64_MAX ? nullptr : &t, &unblocked);
  }
  printf("{");
  print("ab", there.counts(), a, false);
  print("ba", back.counts(), b, true);
}

}  // namespace
}  // namespace accel::wire

int main(int argc, char** argv) {
  using namespace accel::wire;
  Impairment ab, ba;
  uint64_t seed = 1;
  bool good = argc >= 3 && argc % 2 == 1;
  for (int i = 3; good && i < argc; i += 2) {
    const std::string_view word = argv[i];
    if (word == "--seed")
      seed = strtoull(argv[i + 1], nullptr, 10);
    else
      good = (word == "--ab" && parse(argv[i + 1], ab)) || (word == "--ba" && parse(argv[i + 1], ba));
  }
  if (!good) return fprintf(stderr, "accel_wire A B [--ab IMPAIRMENT] [--ba IMPAIRMENT] [--seed N]\n"), 2;
  // Looked at only while it sleeps in ppoll().
  sigset_t end;
  sigemptyset(&end);
  sigaddset(&end, SIGTERM);
  sigprocmask(SIG_BLOCK, &end, nullptr);
  struct sigaction action {};
  action.sa_handler = [](int) { stopped = 1; };
  sigaction(SIGTERM, &action, nullptr);
  prctl(PR_SET_TIMERSLACK, 1);
  const sched_param priority{.sched_priority = 1};
  (void)sched_setscheduler(0, SCHED_FIFO, &priority);  // without privilege: as others
  Device a(argv[1]), b(argv[2]);
  puts("ready");
  fflush(stdout);
  forward(a, b, ab, ba, seed);
  return 0;
}
