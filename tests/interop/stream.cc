#include "stream.h"

#include <sys/random.h>
#include <sys/socket.h>

#include <cstdio>

namespace accel::interop {
namespace {

constexpr size_t kSyncSize = 16;  // rstream's exchange before the transfers

siw::ConnOptions conn_options(const PeerOptions& o) {
  std::array<uint8_t, 24> random{};
  if (getrandom(random.data(), random.size(), 0) < 0) random.fill(7);
  siw::ConnOptions c;
  c.role = o.role;
  c.offer = o.offer;
  c.identity = siw::make_identity(random);
  c.max_fpdu = o.max_fpdu;
  c.ring = o.ring;
  return c;
}

}  // namespace

Stream::Stream(const PeerOptions& options)
    : options_(options), link_(options), conn_(conn_options(options)), buffer_(options.size) {}

std::string Stream::broken(const char* what) const {
  return std::string(what) + " after " + std::to_string(total_in_) + " bytes, violation " +
         std::string(siw::name_of(conn_.violation()));
}

std::string Stream::step() {
  if (link_.ended()) return broken(link_.reset() ? "reset" : "ended");
  size_t written = 0;
  const siw::Bytes in = link_.exchange(conn_.pending(), written);
  conn_.sent(written);
  conn_.receive(in);
  if (link_.ended()) link_.reset() ? conn_.receive_reset() : conn_.receive_end();
  if (conn_.failed()) return broken("broken off");
  if (link_.timed_out()) return broken("nothing came for too long");
  if (conn_.established() && options_.role == siw::Role::kInitiator &&
      link_.kick_due(conn_.endpoint().heard()))
    conn_.kick();
  return {};
}

std::string Stream::send(siw::Bytes data) {
  while (!data.empty()) {
    if (const auto n = conn_.send(data)) {
      data = data.subspan(*n);
    } else if (!n.is(EAGAIN)) {
      return broken("send failed");
    }
    if (auto e = step(); !e.empty()) return e;
  }
  return {};
}

std::string Stream::send_counting(size_t size) {
  for (size_t i = 0; i < size; i++) buffer_[i] = next_out_++;
  return send(siw::Bytes(buffer_).first(size));
}

std::string Stream::receive_counting(size_t size) {
  for (size_t at = 0; at < size;) {
    const auto n = conn_.recv(siw::MutableBytes(buffer_).subspan(at, size - at));
    if (n && *n == 0) return broken("end of stream");
    if (!n && !n.is(EAGAIN)) return broken("recv failed");
    if (!n) {
      if (auto e = step(); !e.empty()) return e;
      continue;
    }
    for (size_t i = at; i < at + *n; i++) {
      if (buffer_[i] != next_in_++)
        return "byte " + std::to_string(total_in_ + i - at) + " of the stream is wrong";
    }
    at += *n;
    total_in_ += *n;
  }
  return {};
}

/// The client sends first, and so in each iteration.
std::string Stream::transfers() {
  const bool client = options_.role == siw::Role::kInitiator;
  const auto round = [&](bool sending, size_t size, size_t count) -> std::string {
    for (size_t t = 0; t < count; t++) {
      if (auto e = sending ? send_counting(size) : receive_counting(size); !e.empty()) return e;
    }
    return {};
  };
  for (const bool sending : {client, !client}) {
    if (auto e = round(sending, kSyncSize, 1); !e.empty()) return e;
  }
  for (size_t i = 0; i < options_.iterations; i++) {
    for (const bool sending : {client, !client}) {
      if (auto e = round(sending, options_.size, options_.count); !e.empty()) return e;
    }
  }
  return {};
}

/// Shuts down as rstream does, and awaits the peer's end.
std::string Stream::close() {
  if (auto r = conn_.shutdown(SHUT_RDWR); !r) return broken("shutdown failed");
  while (!conn_.pending().empty() && !link_.ended()) {
    if (auto e = step(); !e.empty()) return e;
  }
  link_.end_sending();
  while (!link_.ended()) {
    if (auto e = step(); !e.empty()) return e;
  }
  return {};
}

std::string Stream::open() {
  if (auto e = link_.open(); !e.empty()) return e;
  while (!conn_.established()) {
    if (auto e = step(); !e.empty()) return e;
  }
  return {};
}

std::string Stream::send_stdin() {
  std::vector<uint8_t> bytes(size_t{64} << 10);
  while (true) {
    const size_t got = fread(bytes.data(), 1, bytes.size(), stdin);
    if (got == 0) break;
    if (auto e = send(siw::Bytes(bytes).first(got)); !e.empty()) return e;
  }
  if (auto r = conn_.shutdown(SHUT_WR); !r) return broken("shutdown failed");
  while (!conn_.pending().empty()) {
    if (auto e = step(); !e.empty()) return e;
  }
  return {};
}

std::string Stream::receive_to_stdout() {
  std::vector<uint8_t> bytes(size_t{64} << 10);
  while (true) {
    const auto n = conn_.recv(bytes);
    if (n && *n == 0) break;
    if (n) {
      fwrite(bytes.data(), 1, *n, stdout);
      total_in_ += *n;
    } else if (!n.is(EAGAIN)) {
      return broken("recv failed");
    } else if (auto e = step(); !e.empty()) {
      return e;
    }
  }
  fflush(stdout);
  return {};
}

std::string Stream::pipe(bool send_first) {
  if (auto e = open(); !e.empty()) return e;
  for (const bool sending : {send_first, !send_first}) {
    if (auto e = sending ? send_stdin() : receive_to_stdout(); !e.empty()) return e;
  }
  return close();
}

std::string Stream::run() {
  buffer_.resize(std::max(options_.size, kSyncSize));
  if (auto e = open(); !e.empty()) return e;
  if (auto e = transfers(); !e.empty()) return e;
  return close();
}

}  // namespace accel::interop
