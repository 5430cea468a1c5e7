// A plain kernel TCP connection, and what came over it: when a frame turns out bad, it is kept together with
// the bytes before it, never hidden by another try.
#pragma once

#include <string>

#include "siw_fallback/endpoint.h"
#include "trace.h"

namespace accel::interop {

struct PeerOptions {
  std::string address = "0.0.0.0";
  uint16_t port = 7471;
  siw::Role role = siw::Role::kInitiator;
  siw::MpaOffer offer{};
  size_t max_fpdu = 1448;
  size_t ring = 128 << 10;
  int64_t kick_after_ms = 100;  // see Link::kick_due
  std::string keep = "";        // the folder for bad frames
  size_t size = 1000, count = 100, iterations = 1;
};

class Link {
 public:
  explicit Link(const PeerOptions& options);
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  /// Connects or accepts one. A message, empty when all went well.
  std::string open();
  /// Waits until bytes come or, when there are some, `out` can be written; both are done. Returns what came,
  /// valid until the next call; `written` is how much of `out` went.
  siw::Bytes exchange(siw::Bytes out, size_t& written);
  bool ended() const { return ended_; }
  bool reset() const { return reset_; }
  bool timed_out() const { return timed_out_; }

  /// The kernel's siw may sleep over what reaches it just after its MPA reply, until more bytes come
  /// (siw_qp.c, siw_qp_llp_data_ready). True when nothing came for a while at a connection's beginning: send
  /// an empty Write, one for whatever was sent; more to a peer that was not `heard` at all.
  bool kick_due(bool heard);
  unsigned kicks() const { return kicks_; }

  /// After this nothing more is sent; what the peer still has to say is read. Closing with bytes unread would
  /// be a reset, and that may overtake what the peer has not read.
  void end_sending();
  /// Writes what passed, as text, and a bad frame with the stream before it, into the folder for such.
  void keep(const siw::Endpoint& endpoint, const std::string& error) const;

 private:
  const PeerOptions& options_;
  int fd_ = -1;
  bool ended_ = false, reset_ = false, timed_out_ = false, quiet_ = false;
  bool unkicked_ = false, kicking_ = false;  // bytes went since the last kick; the next that go are one
  unsigned kicks_ = 0;
  int64_t opened_ms_ = 0, heard_ms_ = 0;
  std::vector<uint8_t> buffer_;
  Trace trace_;
};

}  // namespace accel::interop
