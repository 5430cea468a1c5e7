// Just enough of verbs to play rping: one queue pair whose regions the peer may read and write. For tests
// only; the library itself lets nobody read anything (EndpointOptions::reads is off there).
#pragma once

#include <map>
#include <optional>

#include "link.h"

namespace accel::interop {

class QueuePair {
 public:
  explicit QueuePair(const PeerOptions& options);

  /// Opens the connection and sets iWARP up. A message, empty when all went well; so with all below.
  std::string open();

  /// Memory that the peer may read and write under `stag` from address `at`.
  void add_region(uint32_t stag, uint64_t at, std::vector<uint8_t>& memory);

  void send(siw::Bytes message) { endpoint_.send(siw::Opcode::kSend, message); }
  void write(uint32_t stag, uint64_t offset, siw::Bytes data) { endpoint_.write(stag, offset, data); }
  std::string receive(std::vector<uint8_t>& message);
  /// An RDMA Read into a region of ours, and its completion.
  std::string read(const siw::ReadRequest& request);
  /// Until all has been written; then until the peer ends, if `await_end`.
  std::string finish(bool await_end);

  const siw::Endpoint& endpoint() const { return endpoint_; }
  const Link& link() const { return link_; }

 private:
  struct Region {
    uint64_t at;
    std::vector<uint8_t>* memory;
  };

  std::string step();
  std::string on_event(const siw::Event& event);
  /// The region's bytes; nothing when it is not all inside.
  std::optional<siw::MutableBytes> find(uint32_t stag, uint64_t offset, size_t size);
  std::string broken(const char* what) const;

  const PeerOptions& options_;
  Link link_;
  siw::Endpoint endpoint_;
  std::map<uint32_t, Region> regions_;
  std::vector<std::vector<uint8_t>> inbox_;
  size_t read_left_ = 0;
  bool established_ = false;
};

}  // namespace accel::interop
