// The rsocket stream protocol over iWARP (rdma-core librdmacm/rsocket.c with RS_OPT_MSG_SEND): a pure state
// machine. Bytes that a peer writes into our ring, the four-byte messages that announce them, and what we may
// write into the peer's. The ring and the two buffer entries here are the only memory that a peer can write;
// nothing can be read by it.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "siw_fallback/bytes.h"
#include "siw_fallback/violation.h"

namespace accel::siw {

inline constexpr size_t kRsConnectionData = 40;
inline constexpr size_t kRsEntrySize = 16;  // struct rs_sge: address, key, length, in the host's order
inline constexpr size_t kRsEntries = 2;
inline constexpr size_t kRsMessageSize = 4;
inline constexpr uint32_t kRsMaxGrant = 1u << 29;  // the longest that a DATA message can tell
inline constexpr uint32_t kRsControlSlack = 8;

enum class RsOp : uint8_t {
  kData = 0,
  kEntry = 4,
  kIomap = 6,
  kControl = 7
};  // RS_OP_*, kEntry is RS_OP_SGL
enum class RsControl : uint32_t { kDisconnect = 0, kKeepalive = 1, kShutdown = 2 };

constexpr uint32_t rs_message(RsOp op, uint32_t data) {
  return static_cast<uint32_t>(op) << 29 | (data & 0x1fffffff);
}

/// The private data of MPA's request and reply (rsocket.c struct rs_conn_data), big-endian.
struct RsConnectionData {
  bool big_endian_host = false;
  // Ours alone, in a byte that rsockets leave 0 and do not look at: after its program's close this side goes
  // on reading until the peer has ended too, so nothing that reaches it late does harm.
  bool lingers = false;
  uint16_t credits = 0;
  uint8_t iomap_size = 0;
  uint64_t entries_address = 0, data_address = 0;
  uint32_t entries_key = 0, entries = kRsEntries, data_key = 0, data_length = 0;
  bool operator==(const RsConnectionData&) const = default;
};

constexpr Violation parse_connection_data(Bytes in, RsConnectionData& out) {
  if (in.size() < kRsConnectionData || in[0] != 1) return Violation::rs_connection_data;
  out.big_endian_host = in[1] & 1;
  out.lingers = in[4] & 1;
  out.credits = load_be<uint16_t>(in, 2);
  out.iomap_size = in[7];
  out.entries_address = load_be<uint64_t>(in, 8);
  out.entries_key = load_be<uint32_t>(in, 16);
  out.entries = load_be<uint32_t>(in, 20);
  out.data_address = load_be<uint64_t>(in, 24);
  out.data_key = load_be<uint32_t>(in, 32);
  out.data_length = load_be<uint32_t>(in, 36);
  // Upstream forgets that it has to swap for a host of the other order (rsocket.c:1165), so such a pair
  // cannot work.
  return out.big_endian_host ? Violation::rs_connection_data : Violation::none;
}

constexpr std::array<uint8_t, kRsConnectionData> build_connection_data(const RsConnectionData& d) {
  std::array<uint8_t, kRsConnectionData> out{};
  out[0] = 1;
  out[1] = d.big_endian_host;
  out[4] = d.lingers;
  store_be(out, 2, d.credits);
  out[7] = d.iomap_size;
  store_be(out, 8, d.entries_address);
  store_be(out, 16, d.entries_key);
  store_be(out, 20, d.entries);
  store_be(out, 24, d.data_address);
  store_be(out, 32, d.data_key);
  store_be(out, 36, d.data_length);
  return out;
}

/// Steering tags and addresses under which our memory is known to the peer. Random for each connection, and
/// no pointers.
struct RsIdentity {
  uint32_t data_key = 0, entries_key = 0;
  uint64_t data_address = 0, entries_address = 0;
};

/// From 24 random bytes; the two tags differ, neither is 0 or 1 (which keepalives and RTRs use), no address
/// can wrap.
RsIdentity make_identity(std::span<const uint8_t, 24> random);

/// One transfer to the peer: an RDMA Write, a message behind it, or both.
struct RsTransfer {
  bool write = false;
  uint32_t stag = 0;
  uint64_t offset = 0;
  size_t length = 0;                            // DATA: of the bytes that were offered
  std::array<uint8_t, kRsEntrySize> control{};  // otherwise what to write
  std::optional<uint32_t> message;
};

class RsStream {
 public:
  /// `ring` bytes (rounded to a power of two from 4 KB to 16 MB) take what the peer sends, in at most
  /// `credits` unread messages.
  RsStream(const RsIdentity& id, size_t ring, uint16_t credits);

  std::array<uint8_t, kRsConnectionData> connection_data() const;
  /// The peer's connection data; before it nothing can be sent.
  Violation start(Bytes connection_data);
  /// The kernel's siw closes its TCP connection as soon as its program closes, with bytes still to send: what
  /// reaches it then makes that TCP reset the connection and drop them (TCPAbortOnData). A reader of TCP
  /// sends nothing, so neither do we: credits go only to a peer that can send no more without them, so has
  /// not closed; or has with the last byte granted, and that one is here.
  void grant_late() { late_ = true; }
  bool peer_lingers() const { return peer_lingers_; }

  // From the wire.
  /// The ring's memory for a Write of data whose payload has not come; empty where it may not go to the ring.
  /// What is there counts once on_write() is called with it.
  MutableBytes place_for(uint32_t stag, uint64_t offset, size_t size);
  Violation on_write(uint32_t stag, uint64_t offset, Bytes payload);
  Violation on_message(Bytes message);

  // To the wire.
  /// The next piece of `available` bytes of data, if credits and the peer's buffer allow one.
  std::optional<RsTransfer> send_data(size_t available);
  bool can_send() const;
  /// Credits, shutdown, disconnect, keepalive; call until it gives none.
  std::optional<RsTransfer> send_control();

  // The program's side.
  size_t readable() const { return announced_; }
  /// Copies up to `out.size()` bytes; with `peek` they stay.
  size_t read(MutableBytes out, bool peek = false);
  void shutdown_write();
  void shutdown_read();
  void disconnect();
  void keepalive() { want_keepalive_ = true; }

  bool peer_finished() const { return peer_shutdown_ || peer_disconnected_; }
  bool peer_disconnected() const { return peer_disconnected_; }
  bool write_open() const { return write_open_; }
  bool read_open() const { return read_open_; }
  bool disconnected() const { return disconnected_; }

 private:
  struct Entry {
    uint64_t address = 0;
    uint32_t key = 0, length = 0;
  };
  Entry entry(size_t index) const;
  void store_entry(size_t index, const Entry& e);
  bool may_place(uint64_t at, size_t size) const;
  Violation place_data(uint64_t at, Bytes payload);
  Violation on_data(uint32_t length);
  Violation on_control(uint32_t what);
  bool peer_is_stuck() const;
  bool owes_credits() const;
  RsTransfer grant();
  void consumed(size_t bytes);

  RsIdentity id_;
  bool started_ = false, peer_lingers_ = false, late_ = false;

  // Receiving. The ring's two halves are granted in turn, a half again once it has been read.
  std::vector<uint8_t> ring_;
  size_t read_at_ = 0, write_at_ = 0;  // offsets in the ring
  size_t granted_;                     // bytes that the peer may still place
  size_t announced_ = 0;               // placed and announced, not yet read
  size_t placed_ = 0;                  // placed, not yet announced
  size_t free_;                        // read and not granted again
  size_t next_half_;                   // offset of the half to grant next
  std::vector<uint32_t> messages_;     // lengths of announced messages, a ring of rq_size_
  size_t head_ = 0, count_ = 0;
  uint16_t rq_size_;
  uint16_t received_ = 0;  // DATA messages that came
  uint16_t limit_;         // and how far the peer may count (absolute)
  uint16_t read_ = 0;      // messages read whole (rsocket.c rseq_no)
  uint16_t grant_due_;     // grant again when read_ comes here (rseq_comp)
  size_t peer_entry_ = 1;  // where our next grant goes (remote_sge)
  uint32_t control_budget_ = kRsControlSlack;
  bool peer_shutdown_ = false, peer_disconnected_ = false;

  // Sending.
  std::array<uint8_t, kRsEntrySize * kRsEntries> entries_{};  // written by the peer (target_sgl)
  size_t current_ = 0;                                        // target_sge
  uint16_t sent_ = 0, peer_limit_ = 0;                        // sseq_no, sseq_comp
  uint64_t peer_entries_address_ = 0;
  uint32_t peer_entries_key_ = 0, peer_entries_ = kRsEntries;
  bool write_open_ = true, read_open_ = true, disconnected_ = false;
  bool want_shutdown_ = false, want_disconnect_ = false, want_keepalive_ = false;
};

}  // namespace accel::siw
