// Reassembly of IPv4 and IPv6 fragments (RFC 791 section 3.2, RFC 8200 section 4.5, RFC 5722), with the
// limits of RFC 8900 section 4.1 and net/ipv4/inet_fragment.c.
//
// Fragments are copied out of their frames, since a frame of two kilobytes must not be held for eight bytes
// of payload. What is kept is bounded in number, bytes and time, and for each source too: the oldest goes,
// since an honest packet is whole within a round trip. So few are kept that the search needs no hash.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/counters.h"
#include "base/instant.h"
#include "base/ip.h"
#include "stack/frame_pool.h"
#include "stack/packet.h"

namespace accel {

/// What fragments of one packet have in common.
struct FragmentKey {
  IpAddress source, destination;
  uint32_t id = 0;
  uint8_t protocol = 0;  ///< of IPv4; IPv6 has it in the first fragment only
  bool operator==(const FragmentKey&) const = default;
};

struct Fragment {
  FragmentKey key;
  uint32_t header_length = 0;  ///< of all IP headers in front of its payload
  uint32_t length = 0;         ///< of its payload
  uint32_t offset = 0;         ///< of its payload in the packet's
  bool more = false;
  uint8_t protocol = 0;  ///< what its payload is
  uint8_t ecn = 0;
};

class IpReassembly {
 public:
  IpReassembly(FramePool& pool, Counters& counters);
  ~IpReassembly();
  IpReassembly(const IpReassembly&) = delete;
  IpReassembly& operator=(const IpReassembly&) = delete;

  /// Takes a copy of a fragment's payload; `frame` begins with the IP header and stays the caller's. Returns
  /// the whole packet, without extension headers in front of the fragment header, once all is there, else
  /// nullptr. What is dropped is counted as drop_fragment, for each fragment.
  Packet* add(const Packet& frame, const Fragment& fragment, Instant now);
  /// Packets that have waited too long.
  void expire(Instant now);
  /// kNever: nothing waits.
  Instant next_expiry() const { return next_expiry_; }

  static constexpr size_t kMostPackets = 128, kMostPacketsOfSource = 16, kMostFragments = 128;
  /// Payload and what it takes to keep it; a quarter of net.ipv4.ipfrag_high_thresh.
  static constexpr size_t kMostBytes = 1 << 20, kMostBytesOfSource = 256 << 10;
  static constexpr size_t kOverhead = 64;   ///< of each fragment
  static constexpr Duration kTimeV4 = 30s;  ///< net.ipv4.ipfrag_time
  static constexpr Duration kTimeV6 = 60s;  ///< net.ipv6.ip6frag_time, RFC 8200 section 4.5
  static constexpr uint32_t kMostPayload = 65535;

 private:
  struct Piece;
  struct Partial;
  enum class Fit : uint8_t { kFits, kDuplicate, kConflict };

  Partial* find_or_begin(const Fragment& fragment, Instant now);
  Fit fit(const Partial& p, const Fragment& f) const;
  bool keep(Partial& p, const Packet& frame, const Fragment& f);
  bool make_room(const Partial& keep, size_t bytes);
  Packet* new_frame();
  Packet* finish(Partial& p);
  /// Counts its fragments as dropped.
  void discard(size_t index);
  void remove(size_t index);
  size_t index_of(const Partial& p) const;
  void note_expiry();

  FramePool& pool_;
  Counters& counters_;
  std::vector<std::unique_ptr<Partial>> partials_;  ///< oldest first
  size_t bytes_ = 0;
  Instant next_expiry_ = kNever;
};

}  // namespace accel
