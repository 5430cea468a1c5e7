#include "posix/silent_peers.h"

#include <algorithm>

#include "base/private_fds.h"

namespace accel::posix {

template <class Predicate>
size_t SilentPeers::close_if(Predicate over) {
  const auto rest = std::remove_if(peers_.begin(), peers_.end(), [&](const Peer& p) {
    if (!over(p)) return false;
    close_private(p.fd);
    return true;
  });
  const auto closed = static_cast<size_t>(peers_.end() - rest);
  peers_.erase(rest, peers_.end());
  return closed;
}

bool SilentPeers::keep(int fd, Wants what, Instant now) {
  if (peers_.size() >= kMost) return false;
  peers_.push_back({keep_private(fd), what, now + kSpeaks});
  return true;
}

size_t SilentPeers::end_late(Instant now) {
  return close_if([now](const Peer& p) { return p.leaves <= now; });
}

Instant SilentPeers::next_end() const {
  return peers_.empty() ? kNever : peers_.front().leaves;  // as they have come
}

std::optional<SilentPeers::Wants> SilentPeers::take(int fd) {
  const auto kept = std::find_if(peers_.begin(), peers_.end(), [fd](const Peer& p) { return p.fd == fd; });
  if (kept == peers_.end()) return std::nullopt;
  const Wants what = kept->what;
  note_private(fd, false);
  peers_.erase(kept);
  return what;
}

void SilentPeers::watch(std::vector<pollfd>& watched) const {
  for (const Peer& p : peers_) watched.push_back({p.fd, POLLIN, 0});
}

bool SilentPeers::any(Wants what) const {
  return std::any_of(peers_.begin(), peers_.end(), [what](const Peer& p) { return p.what == what; });
}

void SilentPeers::close(Wants what) {
  close_if([what](const Peer& p) { return p.what == what; });
}

void SilentPeers::close_all() {
  close_if([](const Peer&) { return true; });
}

}  // namespace accel::posix
