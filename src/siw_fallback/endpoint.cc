#include "siw_fallback/endpoint.h"

#include <algorithm>

namespace accel::siw {
namespace {

constexpr uint32_t kRtrStag = 1;  // what the kernel's siw uses for its empty messages (siw_qp.c)
constexpr size_t kMinFpdu = 128, kMaxFpdu = 65528;
constexpr size_t kWorthALoan =
    1024;  // a shorter piece is copied in less time than the kernel takes to find it

}  // namespace

Endpoint::Endpoint(const EndpointOptions& options)
    : options_(options), state_(options.role == Role::kResponder ? State::kAwaitRequest : State::kIdle) {
  // siw_qp_tx.c cuts segments to a multiple of eight as well: full ones need no pad.
  options_.max_fpdu = std::clamp(options.max_fpdu, kMinFpdu, kMaxFpdu) & ~size_t{7};
}

// --- MPA ---

void Endpoint::put_frame(const MpaFrame& frame) {
  std::array<uint8_t, kMpaMaxFrame> wire;
  const size_t n = build_mpa(frame, wire);
  out_.put(Bytes(wire).first(n));
  total_out_ += n;
}

bool Endpoint::connect(Bytes private_data) {
  if (state_ != State::kIdle || private_data.size() > kMpaMaxPrivate - kMpaEnhancedSize) return false;
  put_frame(make_request(options_.offer, private_data));
  request_.assign(out_.own().begin(), out_.own().end());
  state_ = State::kAwaitReply;
  return true;
}

bool Endpoint::accept(Bytes private_data) {
  if (state_ != State::kDeciding || private_data.size() > kMpaMaxPrivate - kMpaEnhancedSize) return false;
  MpaFrame reply;
  agreed_ = answer_request(parse_mpa(MpaKind::kRequest, setup_).frame, options_.offer, private_data, reply);
  put_frame(reply);
  enter_open();
  return true;
}

void Endpoint::reject(Violation why) {
  if (state_ != State::kDeciding) return;
  put_frame(make_refusal(parse_mpa(MpaKind::kRequest, setup_).frame));
  violation_ = why;
  state_ = State::kFailed;
}

void Endpoint::enter_open() {
  parser_ = FpduParser(agreed_.crc);
  if (agreed_.long_frames) options_.max_fpdu = kMaxFpdu;
  state_ = State::kOpen;
}

/// Takes no byte beyond the MPA frame: what follows belongs to FPDUs. True when the frame is whole or bad.
bool Endpoint::collect(Bytes& in, MpaKind kind, MpaParsed& parsed) {
  while (!in.empty()) {
    size_t wanted = kMpaHeaderSize;
    if (setup_.size() >= kMpaHeaderSize) wanted += load_be<uint16_t>(setup_, 18);
    const size_t n = std::min(in.size(), wanted - setup_.size());
    setup_.insert(setup_.end(), in.begin(), in.begin() + static_cast<ptrdiff_t>(n));
    in = in.subspan(n);
    parsed = parse_mpa(kind, setup_);
    if (parsed.size != 0 || parsed.violation != Violation::none) return true;
  }
  return false;
}

Violation Endpoint::take_request(Bytes& in, Event& event) {
  MpaParsed parsed;
  if (!collect(in, MpaKind::kRequest, parsed)) return Violation::none;
  if (parsed.size == 0) return parsed.violation;  // no frame to answer
  state_ = State::kDeciding;
  // RFC 5044 §7.1.1: the initiator must not send before our reply.
  if (!in.empty()) return Violation::mpa_early_data;
  MpaFrame reply;
  Violation v = parsed.violation;
  if (v == Violation::none) v = answer_request(parsed.frame, options_.offer, {}, reply).violation;
  if (v != Violation::none) return reject(v), v;
  event.kind = Event::Kind::kRequest;
  event.payload = parsed.frame.private_data;
  return v;
}

Violation Endpoint::take_reply(Bytes& in, Event& event) {
  MpaParsed parsed;
  if (!collect(in, MpaKind::kReply, parsed)) return Violation::none;
  if (parsed.violation != Violation::none) return parsed.violation;
  agreed_ = conclude(parse_mpa(MpaKind::kRequest, request_).frame, parsed.frame);
  if (agreed_.violation != Violation::none) return agreed_.violation;
  enter_open();
  put_rtr();
  event.kind = Event::Kind::kEstablished;
  event.payload = parsed.frame.private_data;
  return Violation::none;
}

/// RFC 6581 §9.3: the initiator speaks first, with nothing to say.
void Endpoint::put_rtr() {
  switch (agreed_.rtr) {
    case kRtrNone:
      return;
    case kRtrWrite:
      return write(kRtrStag, 0, {});
    case kRtrSend:
      return send(Opcode::kSend, {});
    default:
      break;
  }
  read({.sink_stag = kRtrStag, .source_stag = kRtrStag});
}

Violation Endpoint::check_rtr(const Segment& s) const {
  switch (agreed_.rtr) {
    case kRtrNone:
      return Violation::none;
    case kRtrWrite:
      return s.opcode == Opcode::kWrite && s.last && s.payload.empty() ? Violation::none
                                                                       : Violation::mpa_wrong_rtr;
    case kRtrSend:
      return s.opcode == Opcode::kSend && s.last && s.payload.empty() ? Violation::none
                                                                      : Violation::mpa_wrong_rtr;
    default:
      return s.opcode == Opcode::kReadRequest ? Violation::none : Violation::mpa_wrong_rtr;
  }
}

// --- the way in ---

Violation Endpoint::take(Bytes& in, Event& event) {
  event = {};
  Violation v = Violation::none;
  switch (state_) {
    case State::kIdle:
      return Violation::none;
    case State::kFailed:
      return in = {}, violation_;
    case State::kDeciding:
      v = in.empty() ? v : Violation::mpa_early_data;
      break;
    case State::kAwaitRequest:
      v = take_request(in, event);
      break;
    case State::kAwaitReply:
      v = take_reply(in, event);
      break;
    case State::kOpen:
      v = take_frame(in, event);
      break;
  }
  if (v != Violation::none && state_ != State::kFailed) fail(v);
  return violation_;
}

Violation Endpoint::take_frame(Bytes& in, Event& event) {
  if (delivered_) message_.clear(), delivered_ = false;
  while (event.kind == Event::Kind::kNone) {
    if (parser_.begins_long(in) && announce(event)) return Violation::none;
    Bytes ulpdu;
    Violation v = parser_.take(in, ulpdu);
    if (v == Violation::fpdu_crc) bad_frame_.assign(parser_.frame().begin(), parser_.frame().end());
    if (v != Violation::none || ulpdu.empty()) return v;
    Segment s;
    v = parse_segment(ulpdu, s);
    if (!parser_.placed().empty()) s.payload = parser_.placed();
    if (v == Violation::none) v = order_.check(s, s.queue == kSendQueue ? options_.max_message : kMaxUlpdu);
    const bool rtr = !heard_ && agreed_.rtr != kRtrNone && options_.role == Role::kResponder;
    if (v == Violation::none && rtr && s.opcode != Opcode::kTerminate) v = check_rtr(s);
    if (v == Violation::none) heard_ = true, v = on_segment(s, event);
    if (v != Violation::none) return fail(v, parser_.in_one_piece()), v;
    if (rtr) event = {.kind = Event::Kind::kEstablished};  // it is not the program's
  }
  return Violation::none;
}

bool Endpoint::announce(Event& event) const {
  Segment s;
  if (parse_segment(parser_.header(), s) != Violation::none || s.opcode != Opcode::kWrite) return false;
  event = {.kind = Event::Kind::kArriving,
           .opcode = s.opcode,
           .stag = s.stag,
           .offset = s.offset,
           .size = parser_.place_size()};
  return true;
}

Violation Endpoint::on_segment(const Segment& s, Event& event) {
  switch (s.opcode) {
    case Opcode::kWrite:
      short_writes_ = s.payload.size() >= kLongUlpdu - kMinUlpdu ? 0 : std::min(short_writes_ + 1, kShortRun);
      event = {.kind = Event::Kind::kWrite,
               .opcode = s.opcode,
               .stag = s.stag,
               .offset = s.offset,
               .payload = s.payload};
      return Violation::none;
    case Opcode::kReadRequest:
      return on_read_request(s, event);
    case Opcode::kReadResponse:
      return on_read_response(s, event);
    case Opcode::kTerminate:
      parse_terminate(s.payload, terminate_);
      return Violation::rdmap_terminated;
    case Opcode::kSendInvalidate:
    case Opcode::kSendSolicitedInvalidate:
      return Violation::rdmap_invalidate;
    default:
      return on_send(s, event);
  }
}

Violation Endpoint::on_send(const Segment& s, Event& event) {
  event = {.opcode = s.opcode};
  if (s.last && message_.empty()) {
    event.kind = Event::Kind::kSend;
    event.payload = s.payload;
    return Violation::none;
  }
  message_.insert(message_.end(), s.payload.begin(), s.payload.end());
  if (!s.last) return Violation::none;
  delivered_ = true;
  event.kind = Event::Kind::kSend;
  event.payload = message_;
  return Violation::none;
}

/// Nothing of ours is readable, so only an empty Read has an answer.
Violation Endpoint::on_read_request(const Segment& s, Event& event) {
  ReadRequest r;
  if (!s.last) return Violation::rdmap_read_size;
  if (auto v = parse_read_request(s.payload, r); v != Violation::none) return v;
  if (r.size != 0 && !options_.reads) return Violation::rdmap_read_stag;
  // One at a time was agreed: before our answer has gone there is no cause for another.
  if (response_end_ > total_sent_) return Violation::mpa_insufficient_ird;
  if (r.size == 0) {
    respond(r, {});
  } else {
    event = {.kind = Event::Kind::kRead, .opcode = s.opcode, .payload = s.payload};
  }
  return Violation::none;
}

Violation Endpoint::on_read_response(const Segment& s, Event& event) {
  if (!read_outstanding_) return Violation::rdmap_opcode;
  if (!options_.reads && (!s.payload.empty() || !s.last)) return Violation::rdmap_read_size;
  if (s.last) read_outstanding_ = false;
  if (s.payload.empty()) return Violation::none;
  event = {.kind = Event::Kind::kReadData,
           .opcode = s.opcode,
           .stag = s.stag,
           .offset = s.offset,
           .payload = s.payload};
  return Violation::none;
}

Violation Endpoint::end() {
  if (state_ == State::kFailed) return violation_;
  if (state_ == State::kOpen && parser_.between_frames()) return Violation::none;
  fail(Violation::stream_cut);  // perhaps the peer still reads
  return violation_;
}

// --- the way out ---

void Endpoint::put_segments(Segment s, Bytes payload, bool lent) {
  const size_t room = options_.max_fpdu - 2 - header_size(s.opcode) - kFpduCrcSize;
  // With a CRC it is copied: another thread may write to it until the kernel has it, and the CRC would be
  // wrong then.
  lent = lent && !agreed_.crc;
  do {
    const Bytes piece = payload.first(std::min(room, payload.size()));
    payload = payload.subspan(piece.size());
    s.last = payload.empty();
    const SegmentHead head = build_head(s, piece.size());
    const FpduTail tail = fpdu_tail(head.view(), piece, agreed_.crc);
    out_.put(head.view());
    lent&& piece.size() >= kWorthALoan ? out_.lend(piece) : out_.put(piece);
    out_.put(tail.view());
    total_out_ += head.size + piece.size() + tail.size;
    s.offset += piece.size();
  } while (!payload.empty());
}

void Endpoint::write(uint32_t stag, uint64_t offset, Bytes payload, bool lent) {
  if (state_ == State::kOpen)
    put_segments({.opcode = Opcode::kWrite, .stag = stag, .offset = offset}, payload, lent);
}

void Endpoint::send(Opcode opcode, Bytes payload) {
  if (state_ == State::kOpen) put_segments({.opcode = opcode, .msn = next_msn_[kSendQueue]++}, payload);
}

void Endpoint::read(const ReadRequest& request) {
  if (state_ != State::kOpen) return;
  read_outstanding_ = true;
  put_segments({.opcode = Opcode::kReadRequest, .queue = kReadQueue, .msn = next_msn_[kReadQueue]++},
               build_read_request(request));
}

void Endpoint::respond(const ReadRequest& r, Bytes data) {
  if (state_ != State::kOpen) return;
  put_segments({.opcode = Opcode::kReadResponse, .stag = r.sink_stag, .offset = r.sink_offset}, data);
  response_end_ = total_out_;
}

void Endpoint::fail(Violation why, Bytes culprit) {
  if (state_ == State::kFailed) return;
  if (state_ == State::kOpen && why != Violation::rdmap_terminated) {
    put_segments({.opcode = Opcode::kTerminate, .queue = kTerminateQueue, .msn = 1},
                 build_terminate(why, culprit).view());
  }
  violation_ = why;
  state_ = State::kFailed;
}

void Endpoint::sent(size_t n) {
  out_.sent(n);
  total_sent_ += n;
}

}  // namespace accel::siw
