#include "posix/process.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "base/config.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/real.h"
#include "base/user_memory.h"
#include "posix/acceptor_hints.h"
#include "posix/calls.h"
#include "posix/control_thread.h"
#include "posix/early_wait.h"
#include "posix/epoll_set.h"
#include "posix/fork_state.h"
#include "posix/later_engine.h"
#include "posix/listener_handoff.h"
#include "posix/own_thread.h"
#include "posix/request_thread.h"
#include "posix/rights.h"
#include "posix/signals.h"
#include "posix/siw_socket.h"
#include "posix/socket.h"
#include "posix/tcp_socket.h"
#include "posix/unix_rendezvous.h"

namespace accel::posix {

ForkState& fork_state() {
  static ForkState* const f = new ForkState;
  return *f;
}

namespace {

// ---- fork ----

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

/// A TCP socket that has neither connected nor listened.
bool undecided(const File& file) {
  return file.kind() == FileKind::kTcp &&
         static_cast<const Socket&>(file).choice.reason == Reason::not_decided;
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
    for (auto& h : fork_state().parents_forks) h->change_descendants(-1);
    f.sharing.reset();
  } else if (f.sharing != nullptr) {
    f.sharing->after_fork_in_owner();
    fork_state().own_forks.push_back(std::move(f.sharing));
  }
}

void learn_of_descendants_programs(File* file) {
  file->has_program |= std::any_of(fork_state().own_forks.begin(), fork_state().own_forks.end(),
                                   [&](const auto& h) { return h->has_program(file); });
  fork_state().programs_have_listeners |= file->has_program && file->kind() == FileKind::kTcp;
}

/// No descendant of these forks is left, but their programs may be.
void forget_ended_forks() {
  ForkSharings& own_forks = fork_state().own_forks;
  const auto has_ended = [](const auto& h) { return h->has_ended(); };
  if (std::none_of(own_forks.begin(), own_forks.end(), has_ended)) return;
  fds.for_each(0, fds.limit(), [](int, File* file) { learn_of_descendants_programs(file); });
  std::erase_if(own_forks, has_ended);
}

void share_files(Forking& f) {
  forget_ended_forks();
  std::vector<File*> files;
  fds.for_each(0, fds.limit(), [&](int fd, File* file) {
    if (fds.first_of(file) != fd) return;
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
  if (!active() || Guard::inside()) return;
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
  if (f.engine != nullptr) release_queues_of_files(*f.engine);
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

bool active() { return (fds.limit() > 0 || Engine::get() != nullptr) && !retired(); }

// ---- what was inherited ----

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

bool inherited_elsewhere(const File* file) {
  return std::any_of(fork_state().own_forks.begin(), fork_state().own_forks.end(),
                     [&](const auto& h) { return h->has_descendants(file); });
}

bool others_have(const File* file) {
  return inherited_elsewhere(file) ||
         std::any_of(fork_state().parents_forks.begin(), fork_state().parents_forks.end(),
                     [&](const auto& h) { return h->others_have(file); });
}

void settle_descendants(const File* file, bool in_kernel) {
  for (auto& h : fork_state().own_forks)
    h->settle(file, in_kernel ? SharedState::kKernel : SharedState::kLost);
  for (auto& h : fork_state().parents_forks) h->give_up(file);
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

void add_handoff_sockets(std::vector<pollfd>& watched) {
  Guard guard(Pass::Polling::kNo);
  if (!guard.ok()) return;
  fds.for_each(0, fds.limit(), [&](int fd, File* file) {
    for (int handoff_socket : {file->served_handoff_socket(), file->group_socket()})
      if (handoff_socket >= 0 && fds.first_of(file) == fd) watched.push_back({handoff_socket, POLLIN, 0});
  });
}

void serve_handoff_socket(int handoff_socket) {
  Guard guard(Pass::Polling::kNo);
  for (int fd = 0; guard.pass() != nullptr && fd < fds.limit(); ++fd)
    if (File* file = fds.find(fd); file != nullptr) {
      if (file->served_handoff_socket() == handoff_socket) return file->handoff_arrived(*guard.pass());
      if (file->group_socket() == handoff_socket) return file->member_arrived();
    }
}

// ---- the engine's beginning, the process's end ----

namespace {

class SocketUpcalls final : public Upcalls {
  void notify(Pass& pass, void* owner, uint32_t edges) override {
    auto* file = static_cast<File*>(owner);
    if ((edges & siw::kDecided) != 0)
      file->decided(edges);
    else if ((edges & kUnanswered) != 0)
      file->unanswered(pass);
    else
      file->notify(edges);
  }
  void abandoned(Pass& pass, void* file) override { static_cast<File*>(file)->release(&pass); }
  void after_unlock() override { admit_put_off_signals(); }
};
constinit SocketUpcalls socket_upcalls;

}  // namespace

Engine* open_engine(Reason* why) {
  Engine* engine = Engine::open(socket_upcalls, &start_control_thread, why);
  if (engine == nullptr) return nullptr;
  start_request_thread();
  guard_fatal_signals();
  wake_early_sleepers();
  return engine;
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

void at_exit() {
  drop_later_engine();
  if (Engine::get() != nullptr && !Guard::inside()) hand_back_all();
}

}  // namespace accel::posix
