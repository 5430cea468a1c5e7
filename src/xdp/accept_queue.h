// The accept queue of a listener of the kernel's, for connections whose handshake our stack has made: whoever
// accepts on the listener then gets them, libaccel's processes and others alike. Takes Linux 6.9 and the
// privilege to attach a program to `lo`.
#pragma once

#include <memory>
#include <string>

#include "base/ip.h"
#include "base/result.h"
#include "xdp/accept_abi.h"

namespace accel {

class AcceptQueue {
 public:
  virtual ~AcceptQueue() = default;
  /// Loads the program, which takes tens of milliseconds: libbpf reads the kernel's types. Errors: `why` says
  /// what the kernel lacks.
  static Result<std::unique_ptr<AcceptQueue>> open(std::string* why);

  /// The program is at `lo` from attach() to detach(). Errors: the kernel's.
  virtual Result<void> attach() = 0;
  virtual void detach() = 0;
  /// The next ACK from `peer` to `local` that comes in over loopback makes the connection. Attached only.
  virtual Result<void> expect(const Endpoint& local, const Endpoint& peer,
                              const accel_tcp_attributes& attributes) = 0;
  /// It has been sent. Errors: the kernel's for it, which has dropped it then; ETIMEDOUT: it never came.
  virtual Result<void> taken() = 0;
  /// In a forked child: closes the descriptors, and frees nothing. The object is left alone afterwards.
  virtual void abandon_in_child() = 0;
};

}  // namespace accel
