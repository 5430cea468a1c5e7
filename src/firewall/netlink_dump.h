// Requests to the kernel by a netlink socket of our own. Without libraries: they are made under the worker's
// lock, in any thread's calls, and their memory is the library's.
#pragma once

#include "base/result.h"
#include "firewall/attributes.h"
#include "firewall/rules.h"

namespace accel::firewall {

/// A netlink socket, kept private. -1: closed.
class NetlinkSocket {
 public:
  NetlinkSocket() = default;
  ~NetlinkSocket() { close(); }
  NetlinkSocket(const NetlinkSocket&) = delete;
  NetlinkSocket& operator=(const NetlinkSocket&) = delete;

  Result<void> open(int protocol);
  void close();
  bool is_open() const { return fd_ >= 0; }
  int fd() const { return fd_; }

  /// Sends a request for a dump and adds the messages of the answer to `out`. Errors: the kernel's; EAGAIN:
  /// what is dumped changed meanwhile.
  Result<void> dump(uint16_t type, View payload, Bytes& out);
  /// The answer is one message, added to `out`.
  Result<void> get(uint16_t type, View payload, Bytes& out);
  /// Joins a multicast group.
  Result<void> join(unsigned group);
  /// Whether anything has come by the groups since the last time; reads it.
  bool heard();

 private:
  Result<void> ask(uint16_t type, uint16_t flags, View payload, Bytes& out);
  Result<bool> take(View datagram, Bytes& out, bool dumping);
  int fd_ = -1;
  bool named_ = false;  ///< bind()
  uint32_t number_ = 0;
};

/// A request's payload: a head of fixed size, then attributes.
class Payload {
 public:
  template <class Head>
  explicit Payload(const Head& head) {
    put_bytes(&head, sizeof head);
  }
  void put(uint16_t type, View value);
  void put_text(uint16_t type, const std::string& text);
  View view() const { return bytes_; }

 private:
  void put_bytes(const void* data, size_t size);
  Bytes bytes_;
};

}  // namespace accel::firewall
