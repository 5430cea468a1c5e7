#include "stack/ip_reassembly.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

#include "stack/wire/checksum.h"
#include "stack/wire/ipv4.h"
#include "stack/wire/ipv6.h"

namespace accel {
namespace {

constexpr uint8_t kNotEct = 0, kCe = 3;  // RFC 3168 section 5
constexpr uint32_t kMostIpHeader = 60;

/// Copies `n` bytes of a chain from `offset` on; false: they are not there.
bool copy_from(const Packet* frame, uint32_t offset, uint8_t* to, uint32_t n) {
  for (; frame && n > 0; frame = frame->more) {
    if (offset >= frame->length) {
      offset -= frame->length;
      continue;
    }
    const uint32_t part = std::min(frame->length - offset, n);
    std::memcpy(to, frame->data() + offset, part);
    to += part;
    n -= part;
    offset = 0;
  }
  return n == 0;
}

}  // namespace

struct IpReassembly::Piece {
  uint32_t offset, length;
  std::unique_ptr<uint8_t[]> bytes;
  uint32_t end() const { return offset + length; }
};

struct IpReassembly::Partial {
  FragmentKey key;
  Instant until{};
  std::vector<Piece> pieces;  ///< by offset
  uint32_t present = 0;       ///< bytes of payload
  uint32_t end = 0;           ///< the furthest seen; with `last_seen` the length of all
  bool last_seen = false;
  uint8_t ecn_seen = 0;                         ///< a bit for each code point
  uint8_t protocol = 0;                         ///< of the first fragment
  std::array<uint8_t, kMostIpHeader> header{};  ///< of the first fragment, without extension headers
  uint32_t header_length = 0;
  uint64_t timestamp = 0;
  size_t charge() const { return present + pieces.size() * kOverhead; }
};

IpReassembly::IpReassembly(FramePool& pool, Counters& counters) : pool_(pool), counters_(counters) {}
IpReassembly::~IpReassembly() = default;

size_t IpReassembly::index_of(const Partial& p) const {
  auto at = std::find_if(partials_.begin(), partials_.end(), [&](const auto& o) { return o.get() == &p; });
  return static_cast<size_t>(at - partials_.begin());
}

void IpReassembly::note_expiry() {
  next_expiry_ = kNever;
  for (const auto& p : partials_) next_expiry_ = std::min(next_expiry_, p->until);
}

void IpReassembly::remove(size_t index) {
  bytes_ -= partials_[index]->charge();
  partials_.erase(partials_.begin() + static_cast<ptrdiff_t>(index));
  note_expiry();
}

void IpReassembly::discard(size_t index) {
  counters_.add(Counter::drop_fragment, partials_[index]->pieces.size());
  remove(index);
}

void IpReassembly::expire(Instant now) {
  for (size_t i = partials_.size(); i-- > 0;)
    if (partials_[i]->until <= now) discard(i);
}

IpReassembly::Partial* IpReassembly::find_or_begin(const Fragment& fragment, Instant now) {
  size_t of_source = 0, oldest_of_source = 0;
  for (size_t i = partials_.size(); i-- > 0;) {
    if (partials_[i]->key == fragment.key) return partials_[i].get();
    if (partials_[i]->key.source != fragment.key.source) continue;
    ++of_source;
    oldest_of_source = i;
  }
  if (of_source >= kMostPacketsOfSource)
    discard(oldest_of_source);
  else if (partials_.size() >= kMostPackets)
    discard(0);
  std::unique_ptr<Partial> made(new (std::nothrow) Partial);
  if (!made) return nullptr;
  made->key = fragment.key;
  made->until = now + (fragment.key.source.is_v4() ? kTimeV4 : kTimeV6);
  partials_.push_back(std::move(made));
  note_expiry();
  return partials_.back().get();
}

/// RFC 5722: any overlap condemns the packet; but bytes that are there in one run may come again (RFC 8200
/// section 4.5, inet_frag_queue_insert()).
IpReassembly::Fit IpReassembly::fit(const Partial& p, const Fragment& f) const {
  const uint32_t end = f.offset + f.length;
  if (!f.more && (end < p.end || (p.last_seen && end != p.end))) return Fit::kConflict;
  if (f.more && p.last_seen && end > p.end) return Fit::kConflict;
  uint32_t covered = f.offset;
  bool overlaps = false;
  for (const Piece& piece : p.pieces) {
    if (piece.offset >= end) break;
    if (piece.end() <= f.offset) continue;
    overlaps = true;
    if (piece.offset <= covered) covered = piece.end();
  }
  return !overlaps ? Fit::kFits : covered >= end ? Fit::kDuplicate : Fit::kConflict;
}

/// False: there is no room without taking `keep` itself away.
bool IpReassembly::make_room(const Partial& keep, size_t bytes) {
  auto of_source = [&](size_t i) { return partials_[i]->key.source == keep.key.source; };
  for (;;) {
    size_t mine = 0;
    for (size_t i = 0; i < partials_.size(); ++i) mine += of_source(i) ? partials_[i]->charge() : 0;
    const bool source_full = mine + bytes > kMostBytesOfSource;
    if (!source_full && bytes_ + bytes <= kMostBytes) return true;
    size_t oldest = 0;
    while (oldest < partials_.size() &&
           (partials_[oldest].get() == &keep || (source_full && !of_source(oldest))))
      ++oldest;
    if (oldest == partials_.size()) return false;
    discard(oldest);
  }
}

bool IpReassembly::keep(Partial& p, const Packet& frame, const Fragment& f) {
  Piece piece{f.offset, f.length, std::unique_ptr<uint8_t[]>(new (std::nothrow) uint8_t[f.length])};
  if (!piece.bytes || !copy_from(&frame, f.header_length, piece.bytes.get(), f.length)) return false;
  if (f.offset == 0) {
    const bool v4 = f.key.source.is_v4();
    p.header_length = v4 ? f.header_length : static_cast<uint32_t>(sizeof(Ipv6Header));
    if (!copy_from(&frame, 0, p.header.data(), p.header_length)) return false;
    p.protocol = f.protocol;
    p.timestamp = frame.timestamp;
  }
  auto at = std::find_if(p.pieces.begin(), p.pieces.end(),
                         [&](const Piece& other) { return other.offset > f.offset; });
  p.pieces.insert(at, std::move(piece));
  p.present += f.length;
  p.end = std::max(p.end, f.offset + f.length);
  p.last_seen |= !f.more;
  p.ecn_seen = static_cast<uint8_t>(p.ecn_seen | 1 << f.ecn);
  bytes_ += f.length + kOverhead;
  return true;
}

Packet* IpReassembly::add(const Packet& frame, const Fragment& f, Instant now) {
  if (next_expiry_ <= now) expire(now);
  const bool malformed =
      f.length == 0 || (f.more && f.length % 8 != 0) || f.header_length + f.offset + f.length > kMostPayload;
  Partial* p = malformed ? nullptr : find_or_begin(f, now);
  if (p == nullptr) {
    counters_.add(Counter::drop_fragment);
    return nullptr;
  }
  const Fit fits = fit(*p, f);
  if (fits == Fit::kDuplicate) return nullptr;
  if (fits == Fit::kConflict || p->pieces.size() >= kMostFragments || !make_room(*p, f.length + kOverhead) ||
      !keep(*p, frame, f)) {
    counters_.add(Counter::drop_fragment);
    discard(index_of(*p));
    return nullptr;
  }
  if (!p->last_seen || p->present != p->end) return nullptr;
  Packet* whole = finish(*p);
  if (whole != nullptr) {
    counters_.add(Counter::ip_reassembled);
    remove(index_of(*p));
  } else {
    discard(index_of(*p));
  }
  return whole;
}

Packet* IpReassembly::new_frame() {
  Packet* p = pool_.take();
  if (!p) counters_.add(Counter::no_frame);
  return p;
}

/// The first fragment's header in front of all payload. nullptr: no frames, or code points of ECN that do not
/// go together (RFC 3168 section 5.3; ip_frag_ecn_table).
Packet* IpReassembly::finish(Partial& p) {
  const bool unmarked = p.ecn_seen & 1 << kNotEct, congested = p.ecn_seen & 1 << kCe;
  if (unmarked && p.ecn_seen != 1 << kNotEct) return nullptr;
  const bool v4 = p.key.source.is_v4();
  Packet* whole = new_frame();
  if (whole == nullptr) return nullptr;
  uint8_t* header = whole->data();
  std::memcpy(header, p.header.data(), p.header_length);
  whole->length = p.header_length;
  whole->timestamp = p.timestamp;
  if (v4) {
    auto& ip = wire_at<Ipv4Header>(header);
    ip.total_length = static_cast<uint16_t>(p.header_length + p.end);
    ip.fragment = 0;
    if (congested) ip.tos |= kCe;
    store_checksum(&ip.checksum, 0);
    store_checksum(&ip.checksum, finish_sum(sum_bytes(header, p.header_length)));
  } else {
    auto& ip = wire_at<Ipv6Header>(header);
    ip.payload_length = static_cast<uint16_t>(p.end);
    ip.next_header = p.protocol;
    if (congested) ip.version_class_flow = ip.version_class_flow | uint32_t{kCe} << 20;
  }
  Packet* last = whole;
  for (const Piece& piece : p.pieces)
    for (uint32_t done = 0; done < piece.length;) {
      if (last->tailroom() == 0) {
        last->more = new_frame();
        if (last->more == nullptr) {
          FramePool::release(whole);
          return nullptr;
        }
        last = last->more;
      }
      const uint32_t part = std::min(last->tailroom(), piece.length - done);
      std::memcpy(last->data() + last->length, piece.bytes.get() + done, part);
      last->length += part;
      done += part;
    }
  return whole;
}

}  // namespace accel
