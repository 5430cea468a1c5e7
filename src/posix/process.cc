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
#include "posix/attendant.h"
#include "posix/calls.h"
#include "posix/control_thread.h"
#include "posix/early_wait.h"
#include "posix/epoll_set.h"
#include "posix/family.h"
#include "posix/later_engine.h"
#include "posix/meeting.h"
#include "posix/rights.h"
#include "posix/signals.h"
#include "posix/siw_socket.h"
#include "posix/socket.h"
#include "posix/succession.h"
#include "posix/tcp_socket.h"
#include "posix/waiters.h"

namespace accel::posix {

Family& family() {
  static Family* const f = new Family;
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
  std::unique_ptr<Heritage> heritage;
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
  for (auto& h : family().bequests) h.release()->abandon_in_heir();
  family().bequests.clear();  // frees nothing: the pointers are null
  control_thread_after_fork_in_child();
  attendant_after_fork_in_child(f.heritage != nullptr);
  later_engine_after_fork_in_child();
  waiters_after_fork_in_child();
  forget_early_sleepers();
  if (f.heritage != nullptr) {
    f.heritage->after_fork_in_heir();
    family().inheritances.push_back(std::move(f.heritage));  // its place is reserved
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
void claim_resting(Forking& f, bool forked) {
  if (resting_connections == 0) return;
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
  claim_resting(f, forked);
  if (!forked) {
    for (auto& h : family().inheritances) h->change_heirs(-1);
    f.heritage.reset();
  } else if (f.heritage != nullptr) {
    f.heritage->after_fork_in_owner();
    family().bequests.push_back(std::move(f.heritage));
  }
}

void learn_of_heirs_programs(File* file) {
  file->has_program |= std::any_of(family().bequests.begin(), family().bequests.end(),
                                   [&](const auto& h) { return h->has_program(file); });
  family().programs_have_listeners |= file->has_program && file->kind() == FileKind::kTcp;
}

/// No heir of these forks is left, but their programs may be.
void forget_extinct() {
  Heritages& bequests = family().bequests;
  const auto extinct = [](const auto& h) { return h->extinct(); };
  if (std::none_of(bequests.begin(), bequests.end(), extinct)) return;
  fds.for_each(0, fds.limit(), [](int, File* file) { learn_of_heirs_programs(file); });
  std::erase_if(bequests, extinct);
}

void bequeath(Forking& f) {
  forget_extinct();
  std::vector<File*> files;
  fds.for_each(0, fds.limit(), [&](int fd, File* file) {
    if (fds.first_of(file) != fd) return;
    const bool bound = file->bound_flow() != nullptr;
    // A child may have to say that it has started a program with one that rests.
    if (undecided(*file) || dormant(*file)) {
      files.push_back(file);
    } else if (f.engine != nullptr && (bound || file->carries_connection())) {
      if (file->kind() == FileKind::kIwarp) return static_cast<SiwSocket*>(file)->before_fork();
      if (bound)
        file->share_queue();
      else
        static_cast<TcpSocket*>(file)->before_fork();
      files.push_back(file);
    }
  });
  if (!files.empty()) f.heritage = Heritage::prepare(files, attendant_wake_fd());
  Heritages& inheritances = family().inheritances;
  inheritances.reserve(inheritances.size() + 1);
  for (auto& h : inheritances) h->change_heirs(+1);
}

/// Bound, and nothing done with it: it may be the child that listens.
bool may_be_a_childs(const File& file) {
  return undecided(file) && static_cast<const Socket&>(file).shadow_name().port != 0;
}

struct Resting {
  std::vector<BoundFlow*> flows;
  std::vector<File*> files;
  bool wanted = false;
};

/// Prefork servers: see File::resting_flow(). Ports that nobody uses are the children's too.
Resting resting_files(Pass& pass) {
  Resting resting;
  bool for_children = false;
  fds.for_each(0, fds.limit(), [&](int fd, File* file) {
    if (fds.first_of(file) != fd || file->inherited != File::Inherited::kNo) return;
    for_children = for_children || may_be_a_childs(*file);
    if (BoundFlow* flow = file->resting_flow()) {
      resting.flows.push_back(flow);
      resting.files.push_back(file);
    }
  });
  resting.wanted =
      (!resting.flows.empty() || for_children) && pass.engine().serves_only(pass, resting.flows.size());
  return resting;
}

void rest_files(Engine& engine) {
  Pass pass{engine, Pass::OverFork{}};
  const Resting resting = resting_files(pass);
  if (!resting.wanted) return;
  engine.rest(pass, resting.flows);
  for (File* file : resting.files) {
    file->rested();
    file->inherited = File::Inherited::kDormant;
  }
}

/// Datagrams that have come already are for whoever receives.
void empty_resting_files() {
  if (Engine::get() == nullptr) return;
  Guard guard(Pass::Polling::kNo);
  if (guard.pass() == nullptr) return;
  const Resting resting = resting_files(*guard.pass());
  if (!resting.wanted) return;
  for (File* file : resting.files)
    if (file->kind() == FileKind::kUdp) file->queue_for_program(*guard.pass());
}

void prepare_files() {
  if (!active() || Guard::inside()) return;
  empty_resting_files();
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
  if (f.engine != nullptr) rest_files(*f.engine);
  bequeath(f);
  fds.for_each(0, fds.limit(), [](int fd, File* file) {
    file->elsewhere_too = true;
    if (file->kind() == FileKind::kEpoll) static_cast<EpollSet*>(file)->shared = true;
    // Of TCP also what only the shadow listens on.
    if ((file->revivable() || file->kind() == FileKind::kTcp) && fds.first_of(file) == fd)
      file->share_queue();
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
  for (auto& h : family().inheritances) h->change_heirs(-1);
}

bool must_fork_for_vfork() { return active(); }

bool active() { return (fds.limit() > 0 || Engine::get() != nullptr) && !retired(); }

// ---- what was inherited ----

Result<bool> claim_connection(File* file) {
  for (auto& h : family().inheritances) {
    switch (h->claim(file)) {
      case Whereabouts::kKernel:
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
  for (auto& h : family().inheritances)
    if (h->owner_wake_fd() >= 0) (void)h->claim(file);
}

/// There is no engine for it.
static void leave_to_shadow(File* file, Reason why) {
  static_cast<Socket*>(file)->choice.reason = why;
  if (file->kind() == FileKind::kTcp) static_cast<TcpSocket*>(file)->close_door();
}

/// An heir notes its program first and then looks who has the file; its owner takes the file back first and
/// then looks for a program: one of both sees the other.
static bool is_given_meanwhile(File* file) {
  learn_of_programs(file);
  if (!file->has_program || file->served) return false;
  for (auto& h : family().bequests) h->tell(file, Whereabouts::kKernel);
  return true;
}

Result<bool> settle_inherited(Guard& guard, File* file, bool waits) {
  if (file->inherited == File::Inherited::kConnection) return claim_connection(file);
  if (file->revivable()) {
    if (file->kind() != FileKind::kIwarp) ask_owners(file);
    for (auto& h : family().bequests) h->take_back(file);
    if (waits && is_given_meanwhile(file)) return true;
    file->inherited = File::Inherited::kNo;
    Reason why{};
    if (Pass* pass = guard.open_engine(&why))
      file->revive(*pass);
    else
      leave_to_shadow(file, why);
  }
  return !file->closed;
}

bool leave_inherited(File* file, Reason reason) {
  if (file->inherited == File::Inherited::kConnection) return claim_connection(file).ok();
  if (file->kind() == FileKind::kIwarp) return false;
  ask_owners(file);
  leave_to_shadow(file, reason);
  fds.forget(file);
  return true;
}

void learn_of_programs(File* file) {
  if (file->has_program) return;
  // Datagrams that a UDP socket's queue brings here no child could have.
  file->has_program = file->kind() == FileKind::kUdp && inherited_elsewhere(file);
  learn_of_heirs_programs(file);
}

bool inherited_elsewhere(const File* file) {
  return std::any_of(family().bequests.begin(), family().bequests.end(),
                     [&](const auto& h) { return h->has_heirs(file); });
}

bool others_have(const File* file) {
  return inherited_elsewhere(file) || std::any_of(family().inheritances.begin(), family().inheritances.end(),
                                                  [&](const auto& h) { return h->others_have(file); });
}

void settle_heirs(const File* file, bool in_kernel) {
  for (auto& h : family().bequests) h->settle(file, in_kernel ? Whereabouts::kKernel : Whereabouts::kLost);
  for (auto& h : family().inheritances) h->renounce(file);
}

void rest_for_heirs(Pass& pass, File* file) {
  file->retain();
  if (file->has_program) file->queue_for_program(pass);
  file->give_up_queue(pass);
  if (BoundFlow* flow = file->bound_flow()) pass.engine().rest(pass, {&flow, 1});
  file->rested();
  file->inherited = File::Inherited::kDormant;
  file->announce_inherited();
  file->release(&pass);
}

namespace {

/// It stays where a thread waits on it, since both processes do. A process that has never accepted by it
/// waits for its programs' sake (File::has_program). `all`: this process ends.
Whereabouts answer_for_bound(Pass* pass, File* file, bool all) {
  learn_of_programs(file);
  if (pass == nullptr || file->bound_flow() == nullptr) return Whereabouts::kKernel;
  file->has_program |= file->kind() == FileKind::kUdp;  // what its queue brings would be nobody else's
  const bool supervises = file->has_program && !file->served;
  bool for_program = false;
  for (auto& h : family().bequests) for_program |= h->take_program_claim(file);
  if (!all && !supervises && (for_program || file->waited_on_now())) {
    file->serve_queue();
    return Whereabouts::kKept;
  }
  rest_for_heirs(*pass, file);
  if (all || supervises || !file->waited_on_now()) return Whereabouts::kKernel;
  file->inherited = File::Inherited::kNo;  // one has come meanwhile
  file->revive(*pass);
  return Whereabouts::kKept;
}

void hand_back_for_heirs(Pass* pass, File* file) {
  if (leave_to_kernel(pass, file, Reason::handed_back)) return;
  log(LogLevel::kError, "a connection that a forked child uses could not be handed back to the kernel: %s",
      reason_text(Reason::no_privilege));
  settle_heirs(file, false);
}

}  // namespace

void serve_heirs(Pass* pass, bool all) {
  forget_extinct();
  Heritages& bequests = family().bequests;
  std::set<File*> files;
  for (auto& h : bequests) h->add_wanted(all, files);
  for (File* file : files)
    file->retain();  // the lock is let go meanwhile: neither they nor bequests may stay
  for (File* file : files) {
    if (file->carries_connection()) {
      hand_back_for_heirs(pass, file);
    } else {
      const Whereabouts where = answer_for_bound(pass, file, all);
      for (auto& h : bequests) h->tell(file, where);
    }
    file->release(pass);
  }
}

void serve_claims() {
  Guard guard;
  if (guard.ok()) serve_heirs(guard.pass(), false);
}

void add_doors(std::vector<pollfd>& watched) {
  Guard guard(Pass::Polling::kNo);
  if (!guard.ok()) return;
  fds.for_each(0, fds.limit(), [&](int fd, File* file) {
    for (int door : {file->served_door(), file->newcomers_door()})
      if (door >= 0 && fds.first_of(file) == fd) watched.push_back({door, POLLIN, 0});
  });
}

void serve_door(int door) {
  Guard guard(Pass::Polling::kNo);
  for (int fd = 0; guard.pass() != nullptr && fd < fds.limit(); ++fd)
    if (File* file = fds.find(fd); file != nullptr) {
      if (file->served_door() == door) return file->visitor_came(*guard.pass());
      if (file->newcomers_door() == door) return file->newcomer_came();
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
  start_attendant();
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
void deliver(Pass& pass, int fd, File* file) {
  if (file->carries_connection()) {
    if (!leave_to_kernel(&pass, file, Reason::handed_back)) close_connection(pass, fd, file);
    return;
  }
  if (file->inherited != File::Inherited::kNo) return;
  file->give_up_queue(pass);
  if (undecided(*file)) (void)leave_to_kernel(&pass, file, Reason::handed_back);
}

}  // namespace

void deliver_all() {
  Engine* engine = Engine::get();
  if (engine == nullptr) return;
  {
    Guard guard;
    Pass* pass = guard.pass();
    if (pass == nullptr) return;
    serve_heirs(pass, true);
    for (int fd = 0; fd < fds.limit(); ++fd)
      if (File* file = fds.find(fd)) deliver(*pass, fd, file);
  }
  engine->finish(std::chrono::milliseconds(config().settings.exit_wait_ms), true);
}

void at_exit() {
  drop_later_engine();
  if (Engine::get() != nullptr && !Guard::inside()) deliver_all();
}

}  // namespace accel::posix
