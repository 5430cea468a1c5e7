// A connection over a kernel TCP socket that is, or may become, iWARP: all of soft-iWARP's I/O, none of which
// blocks. Under the lock of the engine, as the reactor (reactor.h) that drives it.
#pragma once

#include <memory>
#include <optional>

#include "base/counters.h"
#include "base/instant.h"
#include "siw_fallback/conn.h"

namespace accel::siw {

class Reactor;

/// What has happened to a channel: the bits of Ready (stack/stack.h), and one more.
enum Edge : uint32_t { kIn = 1, kOut = 2, kEnd = 4, kHup = 8, kErr = 16, kDecided = 1u << 31 };

class Channel {
 public:
  enum class Stage : uint8_t {
    kConnecting,   ///< TCP's handshake
    kUndecided,    ///< accepted, and the peer's bytes have not told MPA from plain TCP yet
    kNegotiating,  ///< MPA's handshake
    kOpen,
    kPlain,   ///< the peer speaks plain TCP: of a listener, its socket is untouched; of a client, a new
              ///< connection is due. The channel has no more part in it
    kFailed,  ///< error() says why
  };

  /// `fd` stays the caller's; `required`: there is no plain TCP for it.
  Channel(Reactor& reactor, int fd, bool required, void* owner);
  ~Channel();
  Channel(const Channel&) = delete;
  Channel& operator=(const Channel&) = delete;

  /// The socket is connecting.
  void begin_client(Instant now);
  /// The socket was accepted.
  void begin_server(Instant now);

  /// Reads, writes and decides what can be now. Edges go to the reactor's ready list.
  /// `to_the_end`: the kernel says that the stream is over.
  void progress(Instant now, bool to_the_end = false);
  void on_deadline(Instant now);
  Instant deadline() const { return deadline_; }

  Stage stage() const { return stage_; }
  /// Why it failed; 0 while it has not.
  Errno error() const;
  bool established() const { return stage_ == Stage::kOpen; }
  /// kUndecided: whoever speaks first may be plain. Sends wait until it is over (a peer of iWARP sends its
  /// request at once).
  bool hold_over() const { return hold_over_; }
  /// kUndecided: this side has something to say and the peer was silent: plain TCP.
  void commit_plain();
  /// kUndecided: what shutdown() has ended; the peer is told when it is known what it speaks.
  void shutdown_later(int how);
  bool read_shut() const { return (shut_later_ & 1) != 0; }
  bool write_shut() const { return (shut_later_ & 2) != 0; }
  /// From kNegotiating on, else nullptr.
  Conn* conn() { return conn_ ? &*conn_ : nullptr; }
  const Conn* conn() const { return conn_ ? &*conn_ : nullptr; }
  /// To be called when the program's call has put something into conn(): sends it, and copies what was lent
  /// and the socket has not taken.
  void flush(Instant now);
  /// Bytes that the socket has not taken yet.
  bool unsent() const { return conn_ && !conn_->out().empty(); }
  /// The peer has acknowledged all that was sent.
  bool delivered() const;
  /// Nothing more comes: the peer has ended too, it failed, or it is plain TCP.
  bool over() const;
  /// Open, and only its socket's next bytes can change anything: to read is all that progress() would do.
  bool awaits_bytes() const {
    return stage_ == Stage::kOpen && !output_watched_ && !lost_ && !conn_->failed();
  }
  uint64_t bytes_in() const { return bytes_in_; }
  uint64_t bytes_out() const { return bytes_out_; }

  /// close() leaves something to do: a farewell, or first an answer to the MPA request that the peer has sent
  /// or will send. With TCP its connect() would have been done.
  bool outlives_close() const {
    return stage_ == Stage::kOpen || stage_ == Stage::kUndecided ||
           (server_ && stage_ == Stage::kNegotiating);
  }
  /// The program is through with it: says farewell, as soon as it is known what the peer speaks. What is left
  /// to do then is the reactor's (Reactor::adopt).
  void close(Instant now);
  /// `fd` goes away, `other` is the same socket.
  void move_to(int other);
  int fd() const { return fd_; }

  /// Around fork(): in the child the reactor is another one, or nullptr until there is one; nothing is sent
  /// or read meanwhile.
  void suspend();
  void wake(Reactor& reactor, Instant now);
  void leave_parents_reactor();

  void* owner;
  uint32_t edges = 0;  ///< since the reactor gave it out

 private:
  friend class Reactor;
  void finish_tcp(Instant now);
  void classify(Instant now);
  bool open_conn(Role role);
  void request(Instant now);
  void answer(Instant now);
  void read_socket(Instant now, bool to_the_end);
  void lose(Errno why);
  void converse(Instant now);
  void kick(Instant now);
  void end_hold();
  void unsuitable(Errno error);
  void fail(Errno error);
  void decide(Stage stage);
  void count(Counter c);
  void explain_failure();
  void end_pending();
  void schedule(Instant when);
  void raise(uint32_t bits);
  void raise_changes();

  Reactor* reactor_;
  int fd_;
  bool required_;
  bool server_ = false;
  Stage stage_ = Stage::kConnecting;
  bool hold_over_ = false, pending_mpa_ = false, output_watched_ = false, shut_ = false, lost_ = false;
  uint8_t shut_later_ = 0;  ///< reading 1, writing 2
  bool was_writable_ = false, was_over_ = false, was_failed_ = false, watched_ = false;
  Errno error_{}, broken_{};
  Instant deadline_ = kNever;
  Instant kick_until_{};  ///< of an initiator whose peer may sleep; else long ago
  size_t reserved_ = 0;
  uint64_t bytes_in_ = 0, bytes_out_ = 0;
  uint64_t kicked_ = 0;  ///< of bytes_out_, with the last kick
  std::optional<Conn> conn_;
};

}  // namespace accel::siw
