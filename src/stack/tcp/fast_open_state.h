// TCP Fast Open (RFC 7413): what a host keeps of it beside its connections.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <unordered_map>

#include "stack/tcp/options.h"
#include "stack/types.h"

namespace accel {

struct TcpConn;
struct TcpListener;

/// Bits of TcpConn::fast_open.
enum FastOpenState : uint8_t {
  kFastOpenAsked = 1,           ///< the SYN that it sent had the option
  kFastOpenText = 2,            ///< and text
  kFastOpenTaken = 4,           ///< the text of the SYN was acknowledged, by either end
  kFastOpenChild = 8,           ///< a listener has opened it by its SYN alone
  kFastOpenHalf = 16,           ///< and the ACK of the SYN-ACK has not come
  kFastOpenWaits = 32,          ///< the SYN leaves with the first write
  kFastOpenGives = 64,          ///< the next SYN-ACK has a cookie
  kFastOpenExperimental = 128,  ///< in RFC 7413 appendix B's form
};

/// What a client remembers of a server (tcp_metrics' tcp_fastopen_metrics).
struct FastOpenPeer {
  uint16_t mss = 0;
  uint8_t try_experiment = 0;  ///< 1: no cookie came for the option, 2: nor for the experimental one
  FastOpenCookie cookie;
};

/// Of a pair of addresses.
struct FastOpenPair {
  IpAddress local, remote;
  bool operator==(const FastOpenPair&) const = default;
};
struct FastOpenPairHash {
  uint64_t secret;
  size_t operator()(const FastOpenPair& p) const {
    return static_cast<size_t>(hash_tuple({p.local, 0}, {p.remote, 0}, secret));
  }
};

/// A listener's connections whose handshakes are not through (struct fastopen_queue).
struct FastOpenQueue {
  FastOpenServer server;
  uint32_t length = 0;           ///< `resets` included
  std::deque<Instant> resets{};  ///< until when those count whose peers have reset them
};

/// A connection with kFastOpenHalf.
struct FastOpenHalf {
  TcpListener* listener = nullptr;  ///< nullptr: it is closed
  Instant began{};
};

struct FastOpenContext {
  explicit FastOpenContext(uint64_t secret) : peers(16, FastOpenPairHash{secret}) {}
  std::unordered_map<FastOpenPair, FastOpenPeer, FastOpenPairHash> peers;
  std::unordered_map<const TcpConn*, FastOpenHalf> halves;
  uint32_t times_disabled = 0;  ///< in a row: a path swallows what belongs to it
  Instant disabled_at{};
};

}  // namespace accel
