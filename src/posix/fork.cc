// fork(): what both processes have afterwards (posix/process.h).
#include <errno.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "base/memory.h"
#include "posix/acceptor_hints.h"
#include "posix/calls.h"
#include "posix/control_thread.h"
#include "posix/early_wait.h"
#include "posix/epoll_set.h"
#include "posix/fork_state.h"
#include "posix/guard.h"
#include "posix/later_engine.h"
#include "posix/own_thread.h"
#include "posix/request_thread.h"
#include "posix/same_host.h"
#include "posix/shm_socket.h"
#include "posix/signals.h"
#include "posix/siw_socket.h"
#include "posix/tcp_socket.h"

namespace accel::posix {

namespace {

/// A fork under way, from prepare_fork() to after_fork(): both processes have a copy. The lock is held all
/// the time.
struct Forking {
  bool under_way = false;
  Engine* engine = nullptr;  ///< holds the lock by before_fork(); nullptr: `guard` does
  std::optional<Guard> guard;
  std::unique_ptr<ForkSharing> sharing;
};
Forking& forking() {
  static Forking* const f = new Forking;
  return *f;
}

/// Nothing here may wait for a lock of libc's: after _Fork() or clone() another thread's copy may hold it for
/// ever. So nothing is freed.
void child_begins(Forking& f) {
  if (f.engine != nullptr) Engine::after_fork_in_child();
  for (auto& h : fork_state().own_forks) h.release()->abandon_in_descendant();
  fork_state().own_forks.clear();  // frees nothing: the pointers are null
  own_threads_after_fork_in_child();
  control_thread_after_fork_in_child();
  request_thread_after_fork_in_child(f.sharing != nullptr);
  later_engine_after_fork_in_child();
  acceptor_hints_after_fork_in_child();
  forget_early_sleepers();
  candidates.after_fork_in_child();
  if (f.sharing != nullptr) {
    f.sharing->after_fork_in_descendant();
    fork_state().parents_forks.push_back(std::move(f.sharing));  // its place is reserved
  }
  fds.for_each(0, fds.limit(), [](int fd, File* file) {
    file->waiters = 0;
    file->served = file->has_program = false;
    if (file->inherited == File::Inherited::kConnection || fds.first_of(file) != fd) return;
    file->inherited = file->after_fork_in_child();
    if (file->inherited == File::Inherited::kDormant && file->kind() == FileKind::kTcp)
      Engine::inherit_listener();
  });
}

/// A thread that waits has to hear of them: it uses them. After a fork that failed nobody else can.
void resume_suspended(Forking& f, bool forked) {
  if (suspended_connections == 0) return;
  if (forked) {
    if (f.engine == nullptr) return;  // who waits for one has an engine
    Pass pass{*f.engine, Pass::OverFork{}};
    if (!f.engine->others_wait(pass)) return;
  }
  fds.for_each(0, fds.limit(), [](int, File* file) {
    if (file->kind() == FileKind::kIwarp) (void)file->readiness();
  });
}

void parent_goes_on(Forking& f, bool forked) {
  resume_suspended(f, forked);
  if (!forked) {
    candidates.fork_failed();
    for (auto& h : fork_state().parents_forks) h->change_descendants(-1);
    f.sharing.reset();
  } else if (f.sharing != nullptr) {
    f.sharing->after_fork_in_owner();
    fork_state().own_forks.push_back(std::move(f.sharing));
  }
}

void share_files(Forking& f) {
  forget_ended_forks();
  std::vector<File*> files;
  fds.for_each(0, fds.limit(), [&](int fd, File* file) {
    if (fds.first_of(file) != fd) return;
    // The child has no part in a connection that could not leave shared memory.
    if (file->kind() == FileKind::kShm) return;
    const bool bound = file->bound_flow() != nullptr;
    // A child may have to say that it has started a program with one whose queues are released.
    if (undecided(*file) || dormant(*file)) {
      files.push_back(file);
    } else if (f.engine != nullptr && (bound || file->carries_connection())) {
      if (file->kind() == FileKind::kIwarp) return static_cast<SiwSocket*>(file)->before_fork();
      if (bound)
        file->share_accept_queue();
      else
        static_cast<TcpSocket*>(file)->before_fork();
      files.push_back(file);
    }
  });
  if (!files.empty()) f.sharing = ForkSharing::prepare(files, request_thread_wake_fd());
  ForkSharings& parents_forks = fork_state().parents_forks;
  parents_forks.reserve(parents_forks.size() + 1);
  for (auto& h : parents_forks) h->change_descendants(+1);
}

/// Bound, and nothing done with it: it may be the child that listens.
bool may_be_a_childs(const File& file) {
  return undecided(file) && static_cast<const Socket&>(file).shadow_name().port != 0;
}

struct Releasable {
  std::vector<BoundFlow*> flows;
  std::vector<File*> files;
  bool wanted = false;
};

/// Prefork servers: see File::releasable_flow(). Ports that nobody uses are the children's too.
Releasable releasable_files(Pass& pass) {
  Releasable releasable;
  bool for_children = false;
  fds.for_each(0, fds.limit(), [&](int fd, File* file) {
    if (fds.first_of(file) != fd || file->inherited != File::Inherited::kNo) return;
    for_children = for_children || may_be_a_childs(*file);
    if (BoundFlow* flow = file->releasable_flow()) {
      releasable.flows.push_back(flow);
      releasable.files.push_back(file);
    }
  });
  releasable.wanted =
      (!releasable.flows.empty() || for_children) && pass.engine().serves_only(pass, releasable.flows.size());
  return releasable;
}

void release_queues_of_files(Engine& engine) {
  Pass pass{engine, Pass::OverFork{}};
  const Releasable releasable = releasable_files(pass);
  if (!releasable.wanted) return;
  engine.release_queues(pass, releasable.flows);
  for (File* file : releasable.files) {
    file->queues_released();
    file->inherited = File::Inherited::kDormant;
  }
}

/// Both processes may use them then.
void leave_shared_memory(Engine& engine) {
  if (!candidates.any()) return;
  Pass pass{engine, Pass::OverFork{}};
  fds.for_each(0, fds.limit(), [&](int, File* file) {
    if (file->kind() == FileKind::kShm) (void)static_cast<ShmSocket*>(file)->detach(pass, Reason::inherited);
  });
}

/// Datagrams that have come already are for whoever receives.
void empty_releasable_files() {
  if (Engine::get() == nullptr) return;
  Guard guard(Pass::Polling::kNo);
  if (guard.pass() == nullptr) return;
  const Releasable releasable = releasable_files(*guard.pass());
  if (!releasable.wanted) return;
  for (File* file : releasable.files)
    if (file->kind() == FileKind::kUdp) file->queue_for_program(*guard.pass());
}

void prepare_files() {
  if (!active() || Guard::inside()) return candidates.forget_connections();
  empty_releasable_files();
  Forking& f = forking();
  for (;;) {
    if (Engine* engine = Engine::get()) {
      engine->before_fork();
      f.engine = engine;
      break;
    }
    f.guard.emplace(Pass::Polling::kNo);
    if (f.guard->pass() == nullptr) break;
    f.guard.reset();  // another thread has opened the engine meanwhile
  }
  f.under_way = true;
  if (f.engine != nullptr) {
    leave_shared_memory(*f.engine);
    release_queues_of_files(*f.engine);
  }
  candidates.share_connections();
  share_files(f);
  fds.for_each(0, fds.limit(), [](int fd, File* file) {
    file->elsewhere_too = true;
    if (file->kind() == FileKind::kEpoll) static_cast<EpollSet*>(file)->shared = true;
    // Of TCP also what only the shadow listens on.
    if ((file->revivable() || file->kind() == FileKind::kTcp) && fds.first_of(file) == fd)
      file->share_accept_queue();
  });
}

}  // namespace

void prepare_fork() {
  prepare_files();
  memory::hold();
}

void after_fork(pid_t child) {
  memory::let_go();
  Forking& f = forking();
  // Set by this thread or by none: the lock is held. A fork from inside the lock has nothing to undo.
  if (!Guard::inside() || !f.under_way) return;
  const int saved = errno;
  Engine* const engine = f.engine;
  if (child == 0)
    child_begins(f);
  else
    parent_goes_on(f, child > 0);
  f.under_way = false;
  f.engine = nullptr;
  if (child != 0 && engine != nullptr) engine->after_fork_in_parent();
  if (engine == nullptr) f.guard.reset();
  if (child == 0) signals_after_fork_in_child();
  errno = saved;
}

void fork_failed() {
  if (!active() || Guard::inside()) return;
  Guard guard(Pass::Polling::kNo);
  if (!guard.ok()) return;
  for (auto& h : fork_state().parents_forks) h->change_descendants(-1);
}

bool must_fork_for_vfork() { return active(); }

}  // namespace accel::posix
