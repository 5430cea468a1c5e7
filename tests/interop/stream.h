// What rdma-core's rstream does with `-T verify`, and what netcat does, over a stream socket's connection
// (siw::Conn).
#pragma once

#include "link.h"
#include "siw_fallback/conn.h"

namespace accel::interop {

class Stream {
 public:
  explicit Stream(const PeerOptions& options);

  /// rstream's part. A message, empty when all went well.
  std::string run();
  /// As netcat: all of stdin goes to the peer, and what it sends until its end of stream goes to stdout, one
  /// after the other.
  std::string pipe(bool send_first);

  const siw::Conn& conn() const { return conn_; }
  const Link& link() const { return link_; }

 private:
  std::string step();
  std::string open();
  std::string send(siw::Bytes data);
  std::string send_counting(size_t size);
  std::string receive_counting(size_t size);
  std::string transfers();
  std::string send_stdin();
  std::string receive_to_stdout();
  std::string close();
  std::string broken(const char* what) const;

  const PeerOptions& options_;
  Link link_;
  siw::Conn conn_;
  std::vector<uint8_t> buffer_;
  uint8_t next_out_ = 0, next_in_ = 0;  // rstream's bytes count up, in each direction
  uint64_t total_in_ = 0;
};

}  // namespace accel::interop
