// The guardian of this process: guardian/main.cc, which resets the peers of our TCP connections when the
// process dies without closing them. This side starts it and keeps the table of connections that it reads.
//
// Nothing here fails: without a guardian connections are as good as before, their peers only learn of a kill
// -9 late. Under the engine's lock.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <span>
#include <vector>

#include "base/counters.h"
#include "base/ip.h"
#include "base/result.h"
#include "guardian/errand.h"
#include "guardian/table.h"

namespace accel {

class Guardian {
 public:
  explicit Guardian(Counters& counters) : counters_(counters) {}
  ~Guardian();
  Guardian(const Guardian&) = delete;
  Guardian& operator=(const Guardian&) = delete;

  /// The process's first accelerated TCP connection or listener is there. Starts the guardian, once.
  void begin();
  /// It runs, and can do what run() says.
  bool running() const { return errands_ >= 0; }
  /// For a process without the capability: see guardian/errand.h. Errors: EPERM (no guardian, or it does not
  /// answer within two seconds: it is given up then), and the call's. `fd`: what it is about, or -1;
  /// `listener`: kBind's second descriptor, or -1.
  Result<int> run(const guardian::Request& request, int fd, int listener = -1);
  Result<int> run(const guardian::Request& request, std::span<const int> fds);
  /// For run(): about the key's protocol, VLAN, local and remote end.
  static guardian::Request about(guardian::Errand errand, const FlowKey& key);
  /// While the process has the privilege: the guardian will help with sockets that it has there.
  void tell_local_end(Protocol protocol, const Endpoint& local, uint16_t vlan) {
    (void)run(about(guardian::Errand::kLocalEnd, {protocol, local, {}, vlan}), -1);
  }
  /// A connection has the tuple. Returns what remove() takes; 0: not listed. No system call.
  uint32_t add(const FlowKey& key, int ifindex);
  void remove(uint32_t row);
  /// Where the stack keeps the connection's numbers; nullptr for row 0.
  TcpNumbers* numbers(uint32_t row) { return row == 0 ? nullptr : &table_->row[row - 1].numbers; }
  /// In a forked child: it is the parent's.
  void abandon_in_child();

 private:
  const char* start();
  ssize_t await_answer(int32_t& answer) const;
  void give_up_silent();
  bool map_table(int fd);
  void let_go();

  Counters& counters_;
  guardian::Table* table_ = nullptr;
  size_t size_ = 0;  ///< of the mapping
  uint32_t rows_ = 0;
  std::vector<uint32_t> free_;  ///< rows that were used
  int lifeline_ = -1;
  int errands_ = -1;
  bool begun_ = false;
};

}  // namespace accel
