#include "posix/engine_events.h"

#include "posix/acceptor_hints.h"
#include "posix/foreign_waits.h"
#include "posix/fork_state.h"
#include "posix/guard.h"
#include "posix/published.h"
#include "posix/shm_socket.h"
#include "posix/tcp_socket.h"

namespace accel::posix {
namespace {

/// False: no other process has a listener of this one.
bool offer_unaccepted() {
  if (!acceptor_hints_are_shared() && !fork_state().programs_have_listeners) return false;
  const bool waited_for = others_wait_for_connections();
  if (!waited_for && !fork_state().programs_have_listeners) return true;
  Guard guard(Pass::Polling::kNo);
  if (guard.pass() == nullptr) return true;
  bool on = waited_for;
  fds.for_each(0, fds.limit(), [&](int, File* file) {
    if (file->kind() != FileKind::kTcp) return;
    auto* listener = static_cast<TcpSocket*>(file);
    if (file->has_program) listener->queue_unaccepted(*guard.pass());
    if (on && file->shared_listener) on = listener->hand_off_unaccepted(*guard.pass());
  });
  return true;
}

/// Tells every file of this process's own.
template <void (File::*tell)(Pass&)>
void tell_files(Pass& pass) {
  fds.for_each(0, fds.limit(), [&](int fd, File* file) {
    if (fds.first_of(file) == fd && file->inherited == File::Inherited::kNo) (file->*tell)(pass);
  });
}

/// True: as tell_ports_opened().
bool tell_port_lost() {
  Guard guard(Pass::Polling::kNo);
  if (guard.pass() == nullptr) return false;
  tell_files<&File::port_lost>(*guard.pass());
  return guard.pass()->engine().end_lost_ports(*guard.pass());
}

void tell_hand_backs_due() {
  Guard guard(Pass::Polling::kNo);
  if (guard.pass() == nullptr) return;
  tell_files<&File::hand_back_due>(*guard.pass());
  guard.pass()->engine().finish_hand_backs(*guard.pass());
}

void follow_filters() {
  Guard guard(Pass::Polling::kNo);
  if (guard.pass() == nullptr) return;
  fds.for_each(0, fds.limit(), [&](int fd, File* file) {
    if (file->kind() == FileKind::kShm && fds.first_of(file) == fd)
      static_cast<ShmSocket*>(file)->follow_filters(*guard.pass());
  });
}

void answer_readers() {
  Guard guard(Pass::Polling::kNo);
  if (guard.pass() != nullptr) publish_sockets(*guard.pass());
}

}  // namespace

void tell_ports_opened() {
  Guard guard(Pass::Polling::kNo);
  if (guard.pass() != nullptr) tell_files<&File::ports_opened>(*guard.pass());
}

bool see_to(const Housekeeping::Events& events) {
  if (events.ports_opened) tell_ports_opened();
  if (events.port_lost && tell_port_lost()) tell_ports_opened();
  if (events.hand_backs_due) tell_hand_backs_due();
  if (events.filters_changed) follow_filters();
  const bool again = events.unaccepted && offer_unaccepted();
  if (events.statistics) answer_readers();
  if (events.ticked) look_for_foreign_waits(events.absent);
  return again;
}

}  // namespace accel::posix
