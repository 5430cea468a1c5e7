#include "engine/tap.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/private_fds.h"
#include "base/real.h"

namespace accel::tap {
namespace {

constexpr uint64_t kSilence = 5;  ///< seconds without a look of the reader, after which it is gone

int ring_fd = -1;
uint64_t head = 0;   ///< ours: the shared one is the reader's to spoil
uint64_t ends[256];  ///< where the frames that are to be sent end
size_t waiting = 0;  ///< how many of them
static_assert(std::size(ends) >= 64);

uint64_t seconds() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec);
}

uint64_t nanoseconds() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

void shut(Ring* r) {
  ring.store(nullptr, std::memory_order_relaxed);
  munmap(r, sizeof(Ring));
  if (ring_fd >= 0) close_private(ring_fd);
  ring_fd = -1;
}

/// Bytes in the ring at `at`, without a wrap; nullptr: no room.
uint8_t* claim(Ring& r, uint64_t& at, uint64_t bytes) {
  const uint64_t to_end = kRingBytes - at % kRingBytes;
  const uint64_t needed = bytes <= to_end ? bytes : to_end + bytes;
  const uint64_t used = at - r.tail.load(std::memory_order_acquire);
  if (used > kRingBytes || needed > kRingBytes - used) return nullptr;
  if (bytes > to_end) {
    if (to_end >= sizeof(Record)) {
      Record skip;
      skip.skip = 1;
      std::memcpy(r.data + at % kRingBytes, &skip, sizeof skip);
    }
    at += to_end;
  }
  return r.data + at % kRingBytes;
}

/// Behind `at`, which it moves. False: no room.
bool write(Ring& r, uint64_t& at, const Packet& frame, const Where& where, bool outgoing, uint64_t when) {
  Record record;
  record.length = frame.total();
  record.captured = std::min(record.length, r.snap);
  record.nanoseconds = when;
  record.ifindex = where.ifindex;
  record.path = where.path;
  record.outgoing = outgoing ? 1 : 0;
  record.cut = frame.tso_size != 0 ? 1 : 0;
  uint8_t* to = claim(r, at, room_of(record.captured));
  if (to == nullptr) return false;
  std::memcpy(to, &record, sizeof record);
  to += sizeof record;
  uint32_t left = record.captured;
  for (const Packet* p = &frame; p != nullptr && left > 0; p = p->more) {
    const uint32_t n = std::min(left, p->length);
    std::memcpy(to, p->data(), n);
    to += n;
    left -= n;
  }
  at += room_of(record.captured);
  return true;
}

/// A reader that died leaves its ring full.
void drop(Ring* r, size_t frames) {
  r->dropped.fetch_add(frames, std::memory_order_relaxed);
  if (seconds() - r->reader.load(std::memory_order_relaxed) > kSilence) shut(r);
}

}  // namespace

std::string turn(uint32_t snap) {
  if (Ring* r = ring.load(std::memory_order_relaxed)) shut(r);
  waiting = 0;
  if (snap == 0) return "";
  const int fd = static_cast<int>(real.syscall(SYS_memfd_create, kTapName, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (fd < 0) return std::strerror(errno);
  void* memory = MAP_FAILED;
  if (ftruncate(fd, sizeof(Ring)) == 0) {
    real.fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW);  // no reader can make our stores fault
    memory = mmap(nullptr, sizeof(Ring), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  }
  if (memory == MAP_FAILED) {
    const int error = errno;
    real.close(fd);
    return std::strerror(error);
  }
  madvise(memory, sizeof(Ring), MADV_DONTDUMP);
  Ring* r = static_cast<Ring*>(memory);
  r->magic = kMagic;
  r->size = kRingBytes;
  r->snap = std::clamp(snap, 64u, kMostBytes);
  r->reader.store(seconds(), std::memory_order_relaxed);
  head = 0;
  ring_fd = keep_private(fd);
  ring.store(r, std::memory_order_relaxed);
  return "";
}

void abandon() {
  if (Ring* r = ring.load(std::memory_order_relaxed)) shut(r);
}

void received(std::span<Packet* const> frames, const Where& where) {
  Ring* r = ring.load(std::memory_order_relaxed);
  if (r == nullptr) return;
  const uint64_t when = nanoseconds();
  size_t lost = 0;
  for (const Packet* frame : frames) lost += write(*r, head, *frame, where, false, when) ? 0 : 1;
  r->head.store(head, std::memory_order_release);
  if (lost > 0) drop(r, lost);
}

void sending(std::span<Packet* const> frames, const Where& where) {
  Ring* r = ring.load(std::memory_order_relaxed);
  waiting = 0;
  if (r == nullptr || frames.size() > std::size(ends)) return;
  const uint64_t when = nanoseconds();
  uint64_t at = head;
  for (const Packet* frame : frames) {
    write(*r, at, *frame, where, true, when);
    ends[waiting++] = at;
  }
}

void sent(size_t taken) {
  Ring* r = ring.load(std::memory_order_relaxed);
  if (r == nullptr || waiting == 0) return;
  size_t lost = 0;
  for (size_t i = 0; i < std::min(taken, waiting); ++i) {
    if (ends[i] == head) ++lost;
    head = ends[i];
  }
  waiting = 0;
  r->head.store(head, std::memory_order_release);
  if (lost > 0) drop(r, lost);
}

}  // namespace accel::tap
