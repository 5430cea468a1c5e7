// The engine's beginning, and its end with the process.
#include "posix/calls.h"
#include "posix/control_thread.h"
#include "posix/early_wait.h"
#include "posix/guard.h"
#include "posix/later_engine.h"
#include "posix/process.h"
#include "posix/request_thread.h"
#include "posix/same_host.h"
#include "posix/signals.h"
#include "siw_fallback/channel.h"

namespace accel::posix {

namespace {

class SocketUpcalls final : public Upcalls {
  void notify(Pass& pass, void* owner, uint32_t edges) override {
    auto* file = static_cast<File*>(owner);
    if ((edges & (siw::kDecided | kLinkEvent)) != 0)
      file->decided(edges);
    else if ((edges & kUnanswered) != 0)
      file->unanswered(pass);
    else
      file->notify(edges);
  }
  void abandoned(Pass& pass, void* file) override { static_cast<File*>(file)->release(&pass); }
};
constinit SocketUpcalls socket_upcalls;

}  // namespace

Engine* open_engine(Reason* why, Engine::Opening opening) {
  Engine* engine = Engine::open(socket_upcalls, &start_control_thread, why, opening);
  if (engine == nullptr) return nullptr;
  start_request_thread();
  guard_fatal_signals();
  wake_early_sleepers();
  return engine;
}

void at_exit() {
  drop_later_engine();
  candidates.process_ends();
  if (Engine::get() != nullptr && !Guard::inside()) hand_back_all();
}

}  // namespace accel::posix
