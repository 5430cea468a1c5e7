// The engine's side of soft-iWARP: the channels are polled where ports are, and their edges go the same way.
#include "base/config.h"
#include "base/libraries.h"
#include "base/log.h"
#include "engine/engine.h"
#include "engine/worker.h"

namespace accel {

static_assert(uint32_t{siw::kIn} == kReadable && uint32_t{siw::kOut} == kWritable &&
              uint32_t{siw::kEnd} == kReadClosed && uint32_t{siw::kHup} == kHangUp &&
              uint32_t{siw::kErr} == kError);

siw::Reactor* Engine::channels() {
  Worker& w = *worker_;
  if (w.channels) return w.channels.get();
  if (in_handler()) return nullptr;
  if (const char* missing; !load_iwarp_libraries(&missing)) {
    log(LogLevel::kWarning, "%s cannot be loaded, so there is no iWARP: is its package installed?", missing);
    return nullptr;
  }
  const Settings& s = config().settings;
  auto reactor =
      siw::Reactor::open(w.counters, {.crc = s.iwarp_crc, .ring = s.iwarp_ring, .memory = s.iwarp_memory});
  if (!reactor) return nullptr;
  w.held();
  w.channels = std::move(*reactor);
  w.sleepers.add_channels(*w.channels, w.pass_now);
  return w.channels.get();
}

bool Worker::notify_channels(Pass& pass) {
  bool changed = false;
  while (siw::Channel* channel = channels->take_ready()) {
    changed = true;
    const uint32_t edges = std::exchange(channel->edges, 0);
    if (channel->owner) above.notify(pass, channel->owner, edges);
  }
  const auto now = static_cast<uint32_t>(channels->channels());
  const uint32_t before = channel_count.exchange(now, std::memory_order_relaxed);
  if (before == 0 && now > 0) housekeeping.application_began();
  return changed;
}

}  // namespace accel
