#include "posix/call.h"

#include "posix/process.h"

namespace accel::posix {

SocketCall::SocketCall(int fd, Pass::Polling polling, Use use) : guard_(polling) {
  if (!guard_.ok()) return;
  socket_ = find_socket(fd);
  if (socket_ == nullptr) return;
  socket_->retain();
  if (Pass* pass = guard_.pass()) pass->retains(static_cast<File*>(socket_));
  if (socket_->inherited == File::Inherited::kNo) return;
  if (!socket_->opens_for(use)) return;
  Result<bool> settled = settle_inherited(guard_, socket_);
  if (settled && *settled) return;
  if (!settled) error_ = settled.error();
  if (Pass* pass = guard_.pass()) pass->retains(nullptr);
  socket_->release(guard_.pass());
  socket_ = nullptr;
}

SocketCall::~SocketCall() {
  if (socket_ != nullptr) socket_->release(guard_.pass());
}

Result<Pass*> SocketCall::engine(bool wanted) {
  if (guard_.pass() != nullptr || !wanted) return guard_.pass();
  Reason why = Reason::disabled;
  if (Pass* pass = guard_.open_engine(&why)) {
    pass->retains(static_cast<File*>(socket_));
    return pass;
  }
  return socket_->detach_undecided(nullptr, why);
}

}  // namespace accel::posix
