#include "siw_fallback/conn.h"

#include <sys/socket.h>

#include <algorithm>

namespace accel::siw {
namespace {

constexpr size_t kMinWrite = 64;  // room below which nothing more is cut off for the output
// An acceptor of the kernel's siw may sleep over what reached it just after its MPA reply
// (siw_qp_llp_data_ready), until more comes. A full window would let no kick reach it: so little is sent
// before it has said something, which rsockets do at once (their first grant of credits).
constexpr size_t kUnheard = 16 << 10;

EndpointOptions endpoint_options(const ConnOptions& o) {
  return {.role = o.role, .offer = o.offer, .max_fpdu = o.max_fpdu, .max_message = kRsMessageSize};
}

}  // namespace

Conn::Conn(const ConnOptions& options)
    : options_(options),
      endpoint_(endpoint_options(options)),
      stream_(options.identity, options.ring, options.credits) {
  if (options_.role == Role::kInitiator) endpoint_.connect(stream_.connection_data());
}

// --- the byte stream ---

void Conn::receive(Bytes in) {
  while (!failed()) {
    Event event;
    Violation v = endpoint_.take(in, event);
    if (v != Violation::none) {
      violation_ = v;
      break;
    }
    if (event.kind == Event::Kind::kNone) break;
    v = on_event(event);
    if (v != Violation::none) return fail(v);
  }
  emit_control();
}

Violation Conn::on_event(const Event& event) {
  switch (event.kind) {
    case Event::Kind::kRequest:
      return on_request(event.payload);
    case Event::Kind::kEstablished:
      if (options_.role == Role::kResponder) return Violation::none;
      return on_reply(event.payload);
    case Event::Kind::kArriving:
      if (const auto place = stream_.place_for(event.stag, event.offset, event.size); !place.empty())
        endpoint_.place(place);
      return Violation::none;
    case Event::Kind::kWrite:
      return stream_.on_write(event.stag, event.offset, event.payload);
    case Event::Kind::kSend:
      return stream_.on_message(event.payload);
    case Event::Kind::kRead:  // not without EndpointOptions::reads
    case Event::Kind::kReadData:
    case Event::Kind::kNone:
      break;
  }
  return Violation::none;
}

Violation Conn::on_request(Bytes private_data) {
  const Violation v = stream_.start(private_data);
  if (v != Violation::none) {
    endpoint_.reject(v);
    return v;
  }
  endpoint_.accept(stream_.connection_data());
  establish();
  return v;
}

Violation Conn::on_reply(Bytes private_data) {
  const Violation v = stream_.start(private_data);
  if (v == Violation::none)
    emit_control();  // the first grant, which the responder may have to wait for before it speaks
  establish();
  return v;
}

void Conn::establish() {
  established_ = true;
  if (!stream_.peer_lingers()) stream_.grant_late();
}

void Conn::fail(Violation why) {
  endpoint_.fail(why);
  violation_ = why;
}

void Conn::receive_end() {
  if (failed() || ended_) return;
  ended_ = true;
  violation_ = endpoint_.end();
}

void Conn::receive_reset() {
  // rsockets close with a farewell and then a reset as often as with an end.
  if (stream_.peer_disconnected() || stream_.disconnected()) return receive_end();
  reset_ = true;
}

bool Conn::wants_close() const {
  if (failed() || stream_.disconnected() || stream_.peer_disconnected()) return true;
  return ended_ || (stream_.peer_finished() && !stream_.write_open());
}

void Conn::emit_control() {
  if (!endpoint_.may_send()) return;
  while (auto t = stream_.send_control()) {
    if (t->write) endpoint_.write(t->stag, t->offset, Bytes(t->control).first(t->length));
    if (!t->message) continue;
    std::array<uint8_t, kRsMessageSize> word;
    store_le(MutableBytes(word), 0, *t->message);
    endpoint_.send(Opcode::kSend, word);
  }
}

// --- the program ---

Errno Conn::error() const {
  if (reset_behind_end()) return err(EPIPE);  // as of a reset behind a FIN
  return err(violation_ == Violation::mpa_rejected ? ECONNREFUSED : ECONNRESET);
}

Result<size_t> Conn::send(Bytes data, bool lent) {
  if (failed()) return error();
  if (!stream_.write_open()) return err(EPIPE);
  if (data.empty()) return size_t{0};
  if (peer_is_gone()) {  // with TCP it goes out, and the peer answers by a reset
    reset_ = true;
    return data.size();
  }
  size_t done = 0;
  while (done < data.size() && writable()) {
    const auto t = stream_.send_data(std::min(data.size() - done, room()));
    if (!t) break;
    endpoint_.write(t->stag, t->offset, data.subspan(done, t->length), lent);
    std::array<uint8_t, kRsMessageSize> word;
    store_le(MutableBytes(word), 0, *t->message);
    endpoint_.send(Opcode::kSend, word);
    done += t->length;
    if (!endpoint_.heard()) unheard_ += t->length;
  }
  if (done == 0) return err(EAGAIN);
  return done;
}

Result<size_t> Conn::recv(MutableBytes out, bool peek) {
  if (out.empty()) return size_t{0};
  // What was announced before a failure is good, and TCP delivers it too.
  if (const size_t n = stream_.read(out, peek); n > 0) {
    if (!peek) emit_control();
    return n;
  }
  if (failed() && !reset_behind_end()) return error();
  if (stream_.peer_finished() || ended_ || !stream_.read_open()) return size_t{0};
  return err(EAGAIN);
}

Result<void> Conn::shutdown(int how) {
  if (failed() || !established_) return err(ENOTCONN);
  switch (how) {
    case SHUT_RD:
      stream_.shutdown_read();
      break;
    case SHUT_WR:
      stream_.shutdown_write();
      break;
    case SHUT_RDWR:
      stream_.disconnect();
      break;
    default:
      return err(EINVAL);
  }
  emit_control();
  return {};
}

bool Conn::writable() const {
  if (peer_is_gone()) return !failed() && stream_.write_open();
  return !failed() && endpoint_.may_send() && stream_.can_send() && room() >= kMinWrite;
}

/// How many bytes the program may send now; a little more goes out with their headers.
size_t Conn::room() const {
  const size_t pending = endpoint_.out().size();
  if (pending >= options_.max_pending || (!endpoint_.heard() && unheard_ >= kUnheard)) return 0;
  const size_t room = options_.max_pending - pending;
  return endpoint_.heard() ? room : std::min(room, kUnheard - unheard_);
}

void Conn::kick() {
  if (endpoint_.may_send()) endpoint_.write(1, 0, {});
}

}  // namespace accel::siw
