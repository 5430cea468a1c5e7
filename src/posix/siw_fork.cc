// An iWARP connection over fork(). Its state is memory, of which both processes get a copy, and its socket is
// theirs in common: so it can go on in either, but in one. Whoever uses it first has it (in an accept-fork
// server the child, after system() the parent); to the other it looks reset. Until then it is suspended.
#include <sys/mman.h>
#include <unistd.h>

#include <array>

#include "posix/early_wait.h"
#include "posix/siw_socket.h"

namespace accel::posix {

uint32_t suspended_connections = 0;

namespace {

constexpr size_t kPage = 4096;
/// Words that both processes see. A page once made stays: a few bytes for each connection that was open in a
/// fork.
std::atomic<int>* page = nullptr;
size_t used = 0;
std::atomic<int> nobodys{-1};

std::atomic<int>* shared_word() {
  if (page == nullptr || used == kPage / sizeof *page) {
    void* memory = mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return nullptr;
    page = static_cast<std::atomic<int>*>(memory);
    used = 0;
  }
  return &page[used++];
}

}  // namespace

void SiwSocket::before_fork() {
  if (!live() || holder_ != nullptr) return;
  if ((holder_ = shared_word()) == nullptr) return;  // the child does without
  ++suspended_connections;
  channel_->flush(monotonic_now());
  channel_->suspend();
}

File::Inherited SiwSocket::after_fork_in_child() {
  if (!live()) return Inherited::kNo;
  page = nullptr;  // the rest of it is the parent's
  if (holder_ == nullptr) holder_ = &nobodys;
  channel_->leave_parents_reactor();
  return Inherited::kDormant;
}

bool SiwSocket::take_over() {
  Engine* engine = Engine::get();
  siw::Reactor* reactor = engine != nullptr ? engine->channels() : nullptr;
  int holder = 0;
  if (reactor == nullptr || !holder_->compare_exchange_strong(holder, getpid())) return false;
  holder_ = nullptr;
  --suspended_connections;
  engine->counters().add(Counter::iwarp_claims);
  channel_->wake(*reactor, monotonic_now());
  return true;
}

void SiwSocket::revive(Pass&) {
  if (live() && holder_ != nullptr) (void)take_over();
}

}  // namespace accel::posix
