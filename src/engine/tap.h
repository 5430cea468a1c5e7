// Frames of this process for accel capture (tap_ring.h). Off it costs one load for each burst; on, a copy of
// each frame. Under the worker's lock, all but abandon().
#pragma once

#include <span>
#include <string>

#include "engine/tap_ring.h"
#include "stack/packet.h"

namespace accel::tap {

/// What is known of the port.
struct Where {
  uint32_t ifindex = 0;
  uint8_t path = 0;
};

inline std::atomic<Ring*> ring{nullptr};
inline bool on() { return ring.load(std::memory_order_relaxed) != nullptr; }

/// Begins with frames of at most `snap` bytes, or ends (0). "": done; else why not.
std::string turn(uint32_t snap);
/// In a fork's child: the ring is the parent's.
void abandon();

/// Received frames.
void received(std::span<Packet* const> frames, const Where& where);
/// Frames that are to be sent: written, and seen by the reader once sent() says how many of them left.
void sending(std::span<Packet* const> frames, const Where& where);
void sent(size_t taken);

}  // namespace accel::tap
