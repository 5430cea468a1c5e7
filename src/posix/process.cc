#include "posix/process.h"

#include <errno.h>
#include <sys/socket.h>

#include <algorithm>
#include <set>

#include "base/config.h"
#include "base/log.h"
#include "posix/detach.h"
#include "posix/early_wait.h"
#include "posix/fork_state.h"
#include "posix/tcp_socket.h"

namespace accel::posix {

Result<bool> take_connection(File* file) {
  for (auto& h : fork_state().parents_forks) {
    switch (h->take(file)) {
      case SharedState::kKernel:
        file->inherited = File::Inherited::kNo;
        if (file->kind() == FileKind::kTcp) static_cast<TcpSocket*>(file)->note_automatic_name();
        fds.forget(file);
        return false;
      default:
        break;
    }
  }
  return err(ECONNRESET);
}

void ask_owners(const File* file) {
  for (auto& h : fork_state().parents_forks)
    if (h->owner_wake_fd() >= 0) (void)h->take(file);
}

/// There is no engine for it.
static void serve_by_shadow(File* file, Reason why) {
  static_cast<Socket*>(file)->choice.reason = why;
  if (file->kind() == FileKind::kTcp) static_cast<TcpSocket*>(file)->close_handoff_socket();
}

/// A descendant notes its program first and then looks who has the file; its owner takes the file back first
/// and then looks for a program: one of both sees the other.
static bool is_given_meanwhile(File* file) {
  learn_of_programs(file);
  if (!file->has_program || file->served) return false;
  for (auto& h : fork_state().own_forks) h->tell(file, SharedState::kKernel);
  return true;
}

Result<bool> settle_inherited(Guard& guard, File* file, bool waits) {
  if (file->inherited == File::Inherited::kConnection) return take_connection(file);
  if (file->revivable()) {
    if (file->kind() != FileKind::kIwarp) ask_owners(file);
    for (auto& h : fork_state().own_forks) h->take_back(file);
    if (waits && is_given_meanwhile(file)) return true;
    file->inherited = File::Inherited::kNo;
    Reason why{};
    if (Pass* pass = guard.open_engine(&why))
      file->revive(*pass);
    else
      serve_by_shadow(file, why);
  }
  return !file->closed;
}

bool detach_inherited(File* file, Reason reason) {
  if (file->inherited == File::Inherited::kConnection) return take_connection(file).ok();
  if (file->kind() == FileKind::kIwarp) return false;
  ask_owners(file);
  serve_by_shadow(file, reason);
  fds.forget(file);
  return true;
}

void learn_of_programs(File* file) {
  if (file->has_program) return;
  // Datagrams that a UDP socket's queue brings here no child could have.
  file->has_program = file->kind() == FileKind::kUdp && inherited_elsewhere(file);
  learn_of_descendants_programs(file);
}

void release_for_descendants(Pass& pass, File* file) {
  file->retain();
  if (file->has_program) file->queue_for_program(pass);
  file->hand_off_queue(pass);
  if (BoundFlow* flow = file->bound_flow()) pass.engine().release_queues(pass, {&flow, 1});
  file->queues_released();
  file->inherited = File::Inherited::kDormant;
  file->announce_inherited();
  file->release(&pass);
}

namespace {

/// It stays where a thread waits on it, since both processes do. A process that has never accepted by it
/// waits for its programs' sake (File::has_program). `all`: this process ends.
SharedState answer_for_bound(Pass* pass, File* file, bool all) {
  learn_of_programs(file);
  if (pass == nullptr || file->bound_flow() == nullptr) return SharedState::kKernel;
  file->has_program |= file->kind() == FileKind::kUdp;  // what its queue brings would be nobody else's
  const bool supervises = file->has_program && !file->served;
  bool for_program = false;
  for (auto& h : fork_state().own_forks) for_program |= h->take_program_request(file);
  if (!all && !supervises && (for_program || file->waited_on_now())) {
    file->serve_handoff_queue();
    return SharedState::kKept;
  }
  release_for_descendants(*pass, file);
  if (all || supervises || !file->waited_on_now()) return SharedState::kKernel;
  file->inherited = File::Inherited::kNo;  // one has come meanwhile
  file->revive(*pass);
  return SharedState::kKept;
}

void hand_back_for_descendants(Pass* pass, File* file) {
  if (detach(pass, file, Reason::handed_back)) return;
  log(LogLevel::kError, "a connection that a forked child uses could not be handed back to the kernel: %s",
      reason_text(Reason::no_privilege));
  settle_descendants(file, false);
}

}  // namespace

void serve_descendants(Pass* pass, bool all) {
  forget_ended_forks();
  ForkSharings& own_forks = fork_state().own_forks;
  std::set<File*> files;
  for (auto& h : own_forks) h->add_wanted(all, files);
  for (File* file : files)
    file->retain();  // the lock is let go meanwhile: neither they nor own_forks may stay
  for (File* file : files) {
    if (file->carries_connection()) {
      hand_back_for_descendants(pass, file);
    } else {
      const SharedState where = answer_for_bound(pass, file, all);
      for (auto& h : own_forks) h->tell(file, where);
    }
    file->release(pass);
  }
}

void serve_fork_requests() {
  Guard guard;
  if (guard.ok()) serve_descendants(guard.pass(), false);
}

int add_handoff_sockets(std::vector<pollfd>& watched) {
  Guard guard(Pass::Polling::kNo);
  if (!guard.ok()) return -1;
  Instant first = kNever;
  fds.for_each(0, fds.limit(), [&](int fd, File* file) {
    if (fds.first_of(file) != fd) return;
    for (int handoff_socket : {file->served_handoff_socket(), file->group_socket()})
      if (handoff_socket >= 0) watched.push_back({handoff_socket, POLLIN, 0});
    first = std::min(first, file->watch_silent_peers(watched));
  });
  if (first == kNever) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(first - monotonic_now());
  return static_cast<int>(std::max(left.count(), left.zero().count()));
}

void serve_handoff_socket(int handoff_socket) {
  Guard guard(Pass::Polling::kNo);
  for (int fd = 0; guard.pass() != nullptr && fd < fds.limit(); ++fd)
    if (File* file = fds.find(fd); file != nullptr) {
      if (file->served_handoff_socket() == handoff_socket) return file->handoff_arrived(*guard.pass());
      if (file->group_socket() == handoff_socket) return file->member_arrived();
      if (file->silent_peer_spoke(*guard.pass(), handoff_socket)) return;
    }
}

namespace {

/// What the kernel does to the descriptors of a process that ends: it closes them.
void close_connection(Pass& pass, int fd, File* file) {
  file->retain();
  fds.erase(fd, &pass);
  // A call that another thread is blocked in still uses it: the peer gets its FIN all the same.
  if (file->descriptors == 0 && file->carries_connection() && !file->last_reference())
    (void)static_cast<Socket*>(file)->shutdown(pass, SHUT_RDWR);
  file->release(&pass);
}

/// The process goes on for a while: its other threads until exit_group(), and in this one libraries'
/// destructors and quick_exit()'s handlers. So what can goes on in the kernel, which closes it in the end.
void hand_back_or_close(Pass& pass, int fd, File* file) {
  if (file->carries_connection()) {
    if (!detach(&pass, file, Reason::handed_back)) close_connection(pass, fd, file);
    return;
  }
  if (file->inherited != File::Inherited::kNo) return;
  file->hand_off_queue(pass);
  if (undecided(*file)) (void)detach(&pass, file, Reason::handed_back);
}

}  // namespace

void hand_back_all() {
  Engine* engine = Engine::get();
  if (engine == nullptr) return;
  {
    Guard guard;
    Pass* pass = guard.pass();
    if (pass == nullptr) return;
    serve_descendants(pass, true);
    for (int fd = 0; fd < fds.limit(); ++fd)
      if (File* file = fds.find(fd)) hand_back_or_close(*pass, fd, file);
  }
  engine->finish(std::chrono::milliseconds(config().settings.exit_wait_ms), true);
}

}  // namespace accel::posix
