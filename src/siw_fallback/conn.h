// A stream socket's connection over iWARP: MPA, RDMAP and the rsocket stream joined, for both roles. No I/O
// and no clock: whoever owns the byte stream hands in what it read, writes what is pending, and closes it
// when wants_close().
#pragma once

#include "base/result.h"
#include "siw_fallback/endpoint.h"
#include "siw_fallback/rsocket.h"

namespace accel::siw {

struct ConnOptions {
  Role role = Role::kInitiator;
  MpaOffer offer{};
  RsIdentity identity;             // make_identity() of fresh random bytes
  size_t ring = 128 << 10;         // what the peer may write into
  uint16_t credits = 384;          // unread messages; rsockets' default
  size_t max_fpdu = 1448;          // see EndpointOptions
  size_t max_pending = 256 << 10;  // send() takes no more while this many bytes wait
};

class Conn {
 public:
  explicit Conn(const ConnOptions& options);

  // The byte stream.
  void receive(Bytes in);
  /// Memory for the stream's next bytes, or nothing: what is read there needs no receive().
  MutableBytes landing() const { return failed() ? MutableBytes{} : endpoint_.landing(); }
  void landed(size_t n) { endpoint_.landed(n); }
  /// It pays to read no more than a header at a time where landing() is empty.
  bool expects_long() const { return endpoint_.expects_long(); }
  void receive_end();
  void receive_reset();
  /// What waits to go out; while the program's memory is on loan, out() has its pieces.
  Bytes pending() const { return endpoint_.pending(); }
  const OutQueue& out() const { return endpoint_.out(); }
  void sent(size_t n) { endpoint_.sent(n); }
  /// Nothing more will come or go over the byte stream, once what is pending has been written.
  bool wants_close() const;

  // The program. Errors are those of a TCP socket; nothing blocks, EAGAIN instead.
  /// `lent`: long data may stay the program's memory, until keep().
  Result<size_t> send(Bytes data, bool lent = false);
  /// The program's call ends: what was lent and has not gone out is copied.
  void keep() { endpoint_.keep(); }
  /// 0 is the end of the stream.
  Result<size_t> recv(MutableBytes out, bool peek = false);
  /// SHUT_RD, SHUT_WR or SHUT_RDWR.
  Result<void> shutdown(int how);
  bool writable() const;
  /// Bytes that recv() has at once.
  size_t available() const { return stream_.readable(); }
  /// recv() gives no more than those: the peer has finished, or this side does not read.
  bool read_over() const { return failed() || ended_ || stream_.peer_finished() || !stream_.read_open(); }
  /// send() takes nothing more.
  bool write_over() const { return failed() || !stream_.write_open(); }

  /// The peer's direction is over, and ours.
  bool peer_ended() const { return failed() || ended_ || stream_.peer_finished(); }
  bool write_ended() const { return failed() || !stream_.write_open(); }

  bool established() const { return established_; }
  bool failed() const { return violation_ != Violation::none || reset_; }
  /// ECONNREFUSED, ECONNRESET or EPIPE when failed.
  Errno error() const;
  Violation violation() const { return violation_; }
  /// The byte stream ended without the peer's farewell, as when its process was killed.
  bool ended_unannounced() const { return ended_ && !stream_.peer_finished(); }
  /// What reaches the peer after its close does no harm: it is libaccel.
  bool peer_lingers() const { return stream_.peer_lingers(); }
  /// An empty Write. A kernel's siw that lost its wake-up goes on when more bytes come (siw_qp.c:93).
  void kick();

  const Endpoint& endpoint() const { return endpoint_; }

 private:
  Violation on_event(const Event& event);
  Violation on_request(Bytes private_data);
  Violation on_reply(Bytes private_data);
  void establish();
  void emit_control();
  void fail(Violation why);
  size_t room() const;
  /// It has closed: to the program a FIN, behind which the first write succeeds.
  bool peer_is_gone() const { return ended_ || stream_.peer_disconnected(); }
  bool reset_behind_end() const { return reset_ && (ended_ || stream_.peer_finished()); }

  ConnOptions options_;
  Endpoint endpoint_;
  RsStream stream_;
  bool established_ = false;
  bool ended_ = false, reset_ = false;
  size_t unheard_ = 0;  // bytes that the program sent before the peer said anything
  Violation violation_ = Violation::none;
};

}  // namespace accel::siw
