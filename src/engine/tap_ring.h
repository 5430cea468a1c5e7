// The ring by which accel capture gets a process's frames: a memfd named kTapName among its descriptors. The
// process writes records and `head`, the reader moves `tail`. Neither trusts the other's numbers.
#pragma once

#include <atomic>
#include <cstdint>

namespace accel::tap {

inline constexpr char kTapName[] = "libaccel-capture";
inline constexpr uint64_t kMagic = 0x7061746c65636361;  // "accelTap"
inline constexpr uint32_t kRingBytes = 16 << 20;
inline constexpr uint32_t kMostBytes = 65536;  ///< of one frame

/// Behind it the frame's first bytes; records begin at multiples of 8, and do not wrap: a skip leads to the
/// ring's start.
struct Record {
  uint32_t captured = 0, length = 0;  ///< bytes that follow, bytes of the frame
  uint64_t nanoseconds = 0;           ///< since 1970
  uint32_t ifindex = 0;
  uint8_t outgoing = 0, path = 0;  ///< PathKind
  uint8_t cut = 0;                 ///< the device cuts it into segments
  uint8_t skip = 0;                ///< no frame: go on at the ring's start
};
static_assert(sizeof(Record) == 24);

struct Ring {
  uint64_t magic;
  uint32_t size;                  ///< of data
  uint32_t snap;                  ///< most bytes of a frame
  std::atomic<uint64_t> head;     ///< bytes written since the start
  std::atomic<uint64_t> tail;     ///< bytes read
  std::atomic<uint64_t> dropped;  ///< frames that found no room
  std::atomic<uint64_t> reader;   ///< CLOCK_MONOTONIC in seconds when the reader last looked
  uint8_t unused[16];
  uint8_t data[kRingBytes];
};

constexpr uint64_t room_of(uint32_t captured) { return (sizeof(Record) + captured + 7) & ~uint64_t{7}; }

}  // namespace accel::tap
