// The client's side of the reset helper (helper/main.cc), which resets the peers of our TCP connections when
// the process dies without closing them. This side starts it and keeps the table of connections that it
// reads.
//
// Nothing here fails: without a helper connections are as good as before, their peers only learn of a kill
// -9 late. Under the engine's lock.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <span>
#include <vector>

#include "base/counters.h"
#include "base/ip.h"
#include "base/result.h"
#include "helper/privileged_request.h"
#include "helper/table.h"

namespace accel {

class HelperClient {
 public:
  explicit HelperClient(Counters& counters) : counters_(counters) {}
  ~HelperClient();
  HelperClient(const HelperClient&) = delete;
  HelperClient& operator=(const HelperClient&) = delete;

  /// The process's first accelerated TCP connection or listener is there. Starts the helper, once.
  void begin();
  /// It runs, and can do what run() says.
  bool running() const { return requests_ >= 0; }
  /// For a process without the capability: see helper/privileged_request.h. Errors: EPERM (no helper, or it
  /// does not answer within two seconds: it is given up then), and the call's. `fd`: what it is about, or -1;
  /// `listener`: kBind's second descriptor, or -1.
  Result<int> run(const helper::PrivilegedRequest& request, int fd, int listener = -1);
  Result<int> run(const helper::PrivilegedRequest& request, std::span<const int> fds);
  /// For run(): about the key's protocol, VLAN, local and remote end.
  static helper::PrivilegedRequest about(helper::RequestType type, const FlowKey& key);
  /// While the process has the privilege: the helper will help with sockets that it has there.
  void tell_local_end(Protocol protocol, const Endpoint& local, uint16_t vlan) {
    (void)run(about(helper::RequestType::kLocalEnd, {protocol, local, {}, vlan}), -1);
  }
  /// A connection has the tuple. Returns what remove() takes; 0: not listed. No system call.
  uint32_t add(const FlowKey& key, int ifindex);
  void remove(uint32_t row);
  /// The place at which the stack keeps the connection's numbers; nullptr for row 0.
  TcpNumbers* numbers(uint32_t row) { return row == 0 ? nullptr : &table_->row[row - 1].numbers; }
  /// In a forked child: it is the parent's.
  void abandon_in_child();

 private:
  const char* start();
  ssize_t await_answer(int32_t& answer) const;
  void give_up_silent();
  bool map_table(int fd);
  void close_all();

  Counters& counters_;
  helper::Table* table_ = nullptr;
  size_t size_ = 0;  ///< of the mapping
  uint32_t rows_ = 0;
  std::vector<uint32_t> free_;  ///< rows that were used
  int lifeline_ = -1;
  int requests_ = -1;
  bool begun_ = false;
};

}  // namespace accel
