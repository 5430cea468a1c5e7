// The names in comments are those of rdma-core's librdmacm/rsocket.c, which defines this protocol.
#include "siw_fallback/rsocket.h"

#include <algorithm>
#include <bit>
#include <cstring>

namespace accel::siw {
namespace {

size_t ring_size(size_t wanted) { return std::bit_ceil(std::clamp<size_t>(wanted, 4096, 16 << 20)); }

/// Memory of the peer that we were offered: not absurdly long, and not wrapping around.
bool possible(uint64_t address, uint32_t length) {
  return length <= kRsMaxGrant && address + length >= address;
}

}  // namespace

RsIdentity make_identity(std::span<const uint8_t, 24> random) {
  RsIdentity id;
  id.data_key = std::max(load_le<uint32_t>(random, 0), 2u);
  id.entries_key = std::max(load_le<uint32_t>(random, 4), 2u);
  if (id.entries_key == id.data_key) id.entries_key ^= 0x100;
  if (id.entries_key < 2) id.entries_key = id.data_key + 1;
  constexpr uint64_t kMask = 0x0000'7fff'ffff'f000;  // looks like a user's page; not 0
  id.data_address = (load_le<uint64_t>(random, 8) & kMask) | 0x1000;
  id.entries_address = (load_le<uint64_t>(random, 16) & kMask) | 0x1000;
  return id;
}

RsStream::RsStream(const RsIdentity& id, size_t ring, uint16_t credits)
    : id_(id),
      ring_(ring_size(ring)),
      granted_(ring_.size() / 2),
      free_(ring_.size() / 2),
      next_half_(ring_.size() / 2),
      rq_size_(std::clamp<uint16_t>(credits, 4, 0x7fff)),
      limit_(rq_size_),
      grant_due_(rq_size_ / 2) {
  messages_.resize(rq_size_);
}

std::array<uint8_t, kRsConnectionData> RsStream::connection_data() const {
  RsConnectionData d;
  d.lingers = true;
  d.credits = rq_size_;
  d.entries_address = id_.entries_address, d.entries_key = id_.entries_key;
  d.data_address = id_.data_address, d.data_key = id_.data_key;
  d.data_length = static_cast<uint32_t>(ring_.size() / 2);
  return build_connection_data(d);
}

Violation RsStream::start(Bytes data) {
  RsConnectionData peer;
  if (auto v = parse_connection_data(data, peer); v != Violation::none) return v;
  if (peer.entries == 0 || peer.entries > 1024 || !possible(peer.data_address, peer.data_length) ||
      !possible(peer.entries_address, static_cast<uint32_t>(peer.entries * kRsEntrySize))) {
    return Violation::rs_target;
  }
  peer_lingers_ = peer.lingers;
  peer_entries_address_ = peer.entries_address;
  peer_entries_key_ = peer.entries_key;
  peer_entries_ = peer.entries;
  peer_entry_ = 1 % peer_entries_;
  peer_limit_ = peer.credits;
  store_entry(0, {peer.data_address, peer.data_key, peer.data_length});
  started_ = true;
  return Violation::none;
}

// --- from the wire ---

Violation RsStream::on_write(uint32_t stag, uint64_t offset, Bytes payload) {
  // RFC 5041 §5.2.1: an empty segment's tag is not looked at. Keepalives, kicks and RTRs are such.
  if (payload.empty()) return Violation::none;
  if (stag == id_.data_key) {
    if (offset < id_.data_address) return Violation::ddp_bounds;
    return place_data(offset - id_.data_address, payload);
  }
  if (stag != id_.entries_key) return Violation::ddp_stag;
  const uint64_t at = offset - id_.entries_address;
  if (offset < id_.entries_address || at > entries_.size() || payload.size() > entries_.size() - at) {
    return Violation::ddp_bounds;
  }
  std::memcpy(entries_.data() + at, payload.data(), payload.size());
  return Violation::none;
}

MutableBytes RsStream::place_for(uint32_t stag, uint64_t offset, size_t size) {
  if (stag != id_.data_key || peer_finished() || !may_place(offset - id_.data_address, size)) return {};
  return MutableBytes(ring_).subspan(write_at_, size);
}

/// A peer fills what it was granted from front to back, and no transfer of it crosses a half.
bool RsStream::may_place(uint64_t at, size_t size) const {
  const size_t half = ring_.size() / 2;
  return at == write_at_ && size <= granted_ && size <= half - write_at_ % half;
}

Violation RsStream::place_data(uint64_t at, Bytes payload) {
  if (peer_finished()) return Violation::rs_after_shutdown;
  if (!may_place(at, payload.size())) return Violation::ddp_bounds;
  // After shutdown(SHUT_RD) bytes are still taken, and can be read, as with TCP.
  uint8_t* const place = ring_.data() + write_at_;
  if (payload.data() != place) std::memcpy(place, payload.data(), payload.size());
  write_at_ = (write_at_ + payload.size()) % ring_.size();
  granted_ -= payload.size();
  placed_ += payload.size();
  return Violation::none;
}

Violation RsStream::on_message(Bytes message) {
  if (message.size() != kRsMessageSize) return Violation::rs_message_size;
  const uint32_t word = load_le<uint32_t>(message, 0), data = word & 0x1fffffff;
  const auto op = static_cast<RsOp>(word >> 29);
  if (op == RsOp::kData) return on_data(data);
  // Control messages cost the peer no credit. What it can have cause to send grows with what we sent.
  if (control_budget_ == 0) return Violation::rs_control_flood;
  control_budget_--;
  switch (op) {
    case RsOp::kEntry:
      peer_limit_ = static_cast<uint16_t>(data);  // rseq_no + rq_size is not cut to 16 bits by the sender
      for (size_t i = 0; i < kRsEntries; i++) {
        if (const Entry e = entry(i); !possible(e.address, e.length)) return Violation::rs_target;
      }
      return Violation::none;
    case RsOp::kIomap:
      return Violation::rs_iomap;
    case RsOp::kControl:
      return on_control(data);
    default:
      return Violation::rs_message;
  }
}

Violation RsStream::on_data(uint32_t length) {
  if (peer_finished()) return Violation::rs_after_shutdown;
  if (length == 0 || length > placed_) return Violation::rs_data_length;
  if (received_ == limit_) return Violation::rs_credits;
  received_++;
  placed_ -= length;
  announced_ += length;
  messages_[(head_ + count_++) % rq_size_] = length;
  return Violation::none;
}

Violation RsStream::on_control(uint32_t what) {
  switch (static_cast<RsControl>(what)) {
    case RsControl::kDisconnect:
      peer_disconnected_ = true;
      return Violation::none;
    case RsControl::kKeepalive:
      return Violation::none;
    case RsControl::kShutdown:
      peer_shutdown_ = true;
      return Violation::none;
  }
  return Violation::rs_message;
}

// --- to the wire ---

RsStream::Entry RsStream::entry(size_t index) const {
  const Bytes e = Bytes(entries_).subspan(index * kRsEntrySize, kRsEntrySize);
  return {load_le<uint64_t>(e, 0), load_le<uint32_t>(e, 8), load_le<uint32_t>(e, 12)};
}

void RsStream::store_entry(size_t index, const Entry& e) {
  const MutableBytes out = MutableBytes(entries_).subspan(index * kRsEntrySize, kRsEntrySize);
  store_le(out, 0, e.address);
  store_le(out, 8, e.key);
  store_le(out, 12, e.length);
}

bool RsStream::can_send() const {  // rs_can_send
  if (!started_ || !write_open_ || peer_disconnected_ || sent_ == peer_limit_) return false;
  // A peer may rewrite an entry at any time: the check at its announcement does not last.
  const Entry e = entry(current_);
  return e.length != 0 && possible(e.address, e.length);
}

std::optional<RsTransfer> RsStream::send_data(size_t available) {  // rs_write_data
  if (available == 0 || !can_send()) return {};
  Entry e = entry(current_);
  RsTransfer t;
  t.write = true;
  t.stag = e.key;
  t.offset = e.address;
  t.length = std::min<size_t>({available, e.length, kRsMaxGrant - 1});
  t.message = rs_message(RsOp::kData, static_cast<uint32_t>(t.length));
  e.address += t.length;
  e.length -= static_cast<uint32_t>(t.length);
  store_entry(current_, e);
  if (e.length == 0) current_ = (current_ + 1) % kRsEntries;
  sent_++;
  control_budget_ = std::min(control_budget_ + 1, 0x10000 + kRsControlSlack);
  return t;
}

bool RsStream::peer_is_stuck() const { return (granted_ == 0 && placed_ == 0) || received_ == limit_; }

bool RsStream::owes_credits() const {  // rs_give_credits
  if (late_ && !peer_is_stuck()) return false;
  return free_ >= ring_.size() / 2 || static_cast<int16_t>(static_cast<uint16_t>(read_ - grant_due_)) >= 0;
}

RsTransfer RsStream::grant() {  // rs_send_credits
  const size_t half = ring_.size() / 2;
  RsTransfer t;
  grant_due_ = static_cast<uint16_t>(read_ + rq_size_ / 2);
  limit_ = static_cast<uint16_t>(read_ + rq_size_);
  t.message = rs_message(RsOp::kEntry, limit_);
  if (free_ < half) return t;
  t.write = true;
  t.stag = peer_entries_key_;
  t.offset = peer_entries_address_ + kRsEntrySize * peer_entry_;
  t.length = kRsEntrySize;
  store_le(t.control, 0, id_.data_address + next_half_);
  store_le(t.control, 8, id_.data_key);
  store_le(t.control, 12, static_cast<uint32_t>(half));
  free_ -= half;
  granted_ += half;
  next_half_ = (next_half_ + half) % ring_.size();
  peer_entry_ = (peer_entry_ + 1) % peer_entries_;
  return t;
}

std::optional<RsTransfer> RsStream::send_control() {
  if (!started_ || disconnected_) return {};
  const auto control = [](RsControl what) {
    RsTransfer t;
    t.message = rs_message(RsOp::kControl, static_cast<uint32_t>(what));
    return t;
  };
  if (want_disconnect_) {
    disconnected_ = true;
    return control(RsControl::kDisconnect);
  }
  if (peer_disconnected_) return {};
  if (owes_credits() && !peer_finished()) return grant();
  if (want_shutdown_) {
    want_shutdown_ = false;
    return control(RsControl::kShutdown);
  }
  if (want_keepalive_) {  // an empty Write with tag 0 and no message
    want_keepalive_ = false;
    RsTransfer t;
    t.write = true;
    return t;
  }
  return {};
}

// --- the program's side ---

size_t RsStream::read(MutableBytes out, bool peek) {
  const size_t n = std::min(out.size(), announced_);
  if (n == 0) return 0;
  const size_t first = std::min(n, ring_.size() - read_at_);
  std::memcpy(out.data(), ring_.data() + read_at_, first);
  if (n > first) std::memcpy(out.data() + first, ring_.data(), n - first);
  if (!peek) consumed(n);
  return n;
}

void RsStream::consumed(size_t bytes) {
  read_at_ = (read_at_ + bytes) % ring_.size();
  announced_ -= bytes;
  free_ += bytes;
  while (bytes > 0) {
    uint32_t& left = messages_[head_];
    const auto n = static_cast<uint32_t>(std::min<size_t>(left, bytes));
    left -= n;
    bytes -= n;
    if (left != 0) continue;
    read_++;
    count_--;
    head_ = (head_ + 1) % rq_size_;
  }
}

void RsStream::shutdown_write() {  // rshutdown: the second direction to close disconnects
  if (!write_open_) return;
  write_open_ = false;
  // Unlike upstream, the peer's half being over is not enough: our own program may still have to read.
  (read_open_ ? want_shutdown_ : want_disconnect_) = true;
}

void RsStream::shutdown_read() {  // nothing on the wire, as with TCP
  read_open_ = false;
  if (!write_open_) want_disconnect_ = true;
}

void RsStream::disconnect() {
  write_open_ = read_open_ = false;
  want_disconnect_ = true;
}

}  // namespace accel::siw
