// One side of an iWARP connection over any byte stream: MPA set-up, then RDMAP messages. No I/O: bytes are
// handed in and fetched. It owns the bytes waiting to go out; events point into the bytes handed in or into
// it, until the next call.
#pragma once

#include <vector>

#include "siw_fallback/fpdu.h"
#include "siw_fallback/mpa.h"
#include "siw_fallback/out_queue.h"
#include "siw_fallback/rdmap.h"

namespace accel::siw {

enum class Role : uint8_t { kInitiator, kResponder };

struct EndpointOptions {
  Role role = Role::kInitiator;
  MpaOffer offer{};
  size_t max_fpdu = 1448;     // one segment of TCP; more is sent only where both said long_frames
  size_t max_message = 4096;  // the longest Send that is taken
  // RDMA Reads are given out as events and answered by respond(). Without it, as the library has it, nothing
  // is readable: only an empty Read has an answer.
  bool reads = false;
};

struct Event {
  enum class Kind : uint8_t {
    kNone,         // more bytes are needed
    kRequest,      // responder: `payload` is the private data; accept() or reject()
    kEstablished,  // initiator: `payload` is the reply's private data; responder: the agreed first message
                   // came
    kArriving,     // the header of a long Write, not whole yet: `stag`, `offset`, `size`; place() may follow
    kWrite,        // one segment: `stag`, `offset`, `payload`
    kSend,         // a whole message
    kRead,         // with `reads`: the peer's, `payload` is the request
    kReadData,     // with `reads`: one segment of what our Read brings: `stag`, `offset`, `payload`
  };
  Kind kind = Kind::kNone;
  Opcode opcode = Opcode::kSend;
  uint32_t stag = 0;
  uint64_t offset = 0;
  Bytes payload = {};
  size_t size = 0;
};

class Endpoint {
 public:
  explicit Endpoint(const EndpointOptions& options);

  /// Initiator: begins. False when the private data is too long for MPA.
  bool connect(Bytes private_data);
  /// Responder, after kRequest.
  bool accept(Bytes private_data);
  void reject(Violation why);

  /// Consumes from the front of `in` up to the next event. After a violation nothing more is taken.
  Violation take(Bytes& in, Event& event);
  /// After kArriving: where the payload goes, which is not copied then. It is not checked before kWrite.
  void place(MutableBytes where) { parser_.place(where); }
  /// Where the stream's next bytes belong, or nothing; what was read there is told by landed(), not taken.
  MutableBytes landing() const { return state_ == State::kOpen ? parser_.landing() : MutableBytes{}; }
  void landed(size_t n) { parser_.landed(n); }
  /// Of the last few Writes one was long.
  bool expects_long() const { return short_writes_ < kShortRun; }
  /// The stream ended: cleanly between two frames, or not.
  Violation end();

  /// RFC 5044 §7.1.3: a responder is silent until the initiator's first FPDU came.
  bool may_send() const { return state_ == State::kOpen && (options_.role == Role::kInitiator || heard_); }
  /// `lent`: the payload stays the caller's memory, until keep().
  void write(uint32_t stag, uint64_t offset, Bytes payload, bool lent = false);
  void send(Opcode opcode, Bytes payload);
  void read(const ReadRequest& request);
  void respond(const ReadRequest& request, Bytes data);
  /// Says why (once the connection stands) and takes nothing more.
  void fail(Violation why, Bytes culprit = {});

  /// What waits to go out; with memory on loan, out() has its pieces.
  Bytes pending() const { return out_.own(); }
  const OutQueue& out() const { return out_; }
  void sent(size_t n);
  void keep() { out_.keep(); }

  Violation violation() const { return violation_; }
  bool heard() const { return heard_; }
  bool open() const { return state_ == State::kOpen; }
  const MpaAgreement& agreement() const { return agreed_; }
  const Terminate& peers_terminate() const { return terminate_; }
  /// The frame whose CRC was wrong: such a thing is to be explained, never hidden by another try.
  Bytes bad_frame() const { return bad_frame_; }

 private:
  enum class State : uint8_t { kIdle, kAwaitRequest, kDeciding, kAwaitReply, kOpen, kFailed };

  bool collect(Bytes& in, MpaKind kind, MpaParsed& parsed);
  Violation take_request(Bytes& in, Event& event);
  Violation take_reply(Bytes& in, Event& event);
  Violation take_frame(Bytes& in, Event& event);
  bool announce(Event& event) const;
  static constexpr int kShortRun = 8;
  Violation on_segment(const Segment& s, Event& event);
  Violation on_send(const Segment& s, Event& event);
  Violation on_read_request(const Segment& s, Event& event);
  Violation on_read_response(const Segment& s, Event& event);
  Violation check_rtr(const Segment& s) const;
  void put_frame(const MpaFrame& frame);
  void put_segments(Segment s, Bytes payload, bool lent = false);
  void put_rtr();
  void enter_open();

  EndpointOptions options_;
  State state_;
  Violation violation_ = Violation::none;
  std::vector<uint8_t> setup_;    // the MPA frame that is arriving
  std::vector<uint8_t> request_;  // ours, as sent
  MpaAgreement agreed_;
  bool heard_ = false;  // an FPDU came
  FpduParser parser_{false};
  InboundOrder order_;
  std::vector<uint8_t> message_;  // a Send in several segments
  bool delivered_ = false;        // message_ has been given out
  int short_writes_ = kShortRun;  // since a long one
  std::array<uint32_t, kQueues> next_msn_{1, 1, 1};
  bool read_outstanding_ = false;  // our Read; the library's is the empty one that says RTR
  OutQueue out_;
  uint64_t total_out_ = 0, total_sent_ = 0;  // bytes since the beginning
  uint64_t response_end_ = 0;                // where the last Read Response ends
  Terminate terminate_;
  std::vector<uint8_t> bad_frame_;
};

}  // namespace accel::siw
