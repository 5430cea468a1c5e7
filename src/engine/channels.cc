// The engine's side of soft-iWARP and of shared memory: channels and links are polled where ports are, and
// their edges go the same way.
#include "base/config.h"
#include "base/libraries.h"
#include "base/log.h"
#include "engine/engine.h"
#include "engine/process.h"

namespace accel {

static_assert(uint32_t{siw::kIn} == kReadable && uint32_t{siw::kOut} == kWritable &&
              uint32_t{siw::kEnd} == kReadClosed && uint32_t{siw::kHup} == kHangUp &&
              uint32_t{siw::kErr} == kError);

siw::Reactor* Engine::channels() {
  Process& p = *process_;
  if (p.channels) return p.channels.get();
  if (in_handler()) return nullptr;
  if (const char* missing; !load_iwarp_libraries(&missing)) {
    log(LogLevel::kWarning, "%s cannot be loaded, so there is no iWARP: is its package installed?", missing);
    return nullptr;
  }
  const Settings& s = config().settings;
  auto reactor =
      siw::Reactor::open(p.counters, {.crc = s.iwarp_crc, .ring = s.iwarp_ring, .memory = s.iwarp_memory});
  if (!reactor) return nullptr;
  p.held();
  p.channels = std::move(*reactor);
  p.sleepers.add_channels(p.channels->fd(), p.pass_now());
  return p.channels.get();
}

bool Process::notify_channels(Pass& pass) {
  bool changed = false;
  while (siw::Channel* channel = channels->take_ready()) {
    changed = true;
    const uint32_t edges = std::exchange(channel->edges, 0);
    if (channel->owner) above.notify(pass, channel->owner, edges);
  }
  count_channels();
  return changed;
}

shm::Poller* Engine::links() {
  Process& p = *process_;
  if (p.shm_links) return p.shm_links.get();
  auto poller = shm::Poller::open();
  if (!poller) return nullptr;
  p.held();
  p.shm_links = std::move(*poller);
  p.sleepers.add_channels(p.shm_links->fd(), p.pass_now());
  return p.shm_links.get();
}

bool Process::notify_links(Pass& pass) {
  bool changed = false;
  while (shm::Link* link = shm_links->take_ready()) {
    changed = true;
    above.notify(pass, link->owner, kLinkEvent);
  }
  count_channels();
  return changed;
}

void Process::count_channels() {
  const size_t all = (channels ? channels->channels() : 0) + (shm_links ? shm_links->links() : 0);
  const auto now = static_cast<uint32_t>(all);
  const uint32_t before = channel_count.exchange(now, std::memory_order_relaxed);
  if (before == 0 && now > 0) housekeeping.application_began();
}

}  // namespace accel
