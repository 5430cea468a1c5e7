// exec, spawn and passing (SCM_RIGHTS): what another program is about to have is the kernel's.
//
// A program that exec() starts may be without libaccel and see the shadows only. So its supervisor, a process
// that has never accepted or received by it, releases the queues of a listener or UDP socket that the program
// gets, until it accepts or receives itself (File::has_program). What has come already joins the kernel's
// queues. A server that accepts itself keeps its own, and lets the kernel have what it does not accept in
// time.
#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>

#include <map>
#include <vector>

#include "base/config.h"
#include "base/log.h"
#include "base/real.h"
#include "base/user_memory.h"
#include "posix/calls.h"
#include "posix/detach.h"
#include "posix/fork_state.h"
#include "posix/guard.h"
#include "posix/process.h"
#include "posix/rights.h"
#include "posix/same_host.h"
#include "posix/siw_socket.h"
#include "posix/udp_socket.h"

namespace accel::posix {
namespace {

/// Whether `fd` will be open in the next program.
bool survives_exec(int fd) {
  const int flags = real.fcntl(fd, F_GETFD);
  return flags >= 0 && (flags & FD_CLOEXEC) == 0;
}

/// Its owner is to know.
void note_program(const File* file) {
  for (auto& h : fork_state().parents_forks) h->note_program(file);
}

/// A program that this process is about to start besides itself gets the listener or UDP socket.
void hand_to_program(Pass* pass, File* file) {
  file->has_program = true;
  if (file->kind() == FileKind::kTcp)
    file->share_accept_queue();  // a program that ends hands off there what it has
  if (file->kind() == FileKind::kUdp && pass != nullptr) static_cast<UdpSocket*>(file)->follow_groups(*pass);
  if (dormant(*file)) {
    note_program(file);
    ask_owners(file);
  } else if (pass != nullptr) {
    fork_state().programs_have_listeners = true;
    if (!file->served) release_for_descendants(*pass, file);
  }
}

bool may_be_handed(const File& file) { return file.bound_flow() != nullptr || dormant(file); }

/// Descriptors that a next program uses without being told their number.
constexpr int kStandard = 2;

/// A parent that has not answered by then for one connection (it is stopped) is not waited for at the next.
constexpr auto kSilent = std::chrono::seconds(1);

/// Descriptors that are open at exec only if it fails.
std::vector<int>& withheld() {
  static auto* const descriptors = new std::vector<int>;
  return *descriptors;
}

/// What an iWARP connection is, this process remembers: the next program would find frames in its descriptor.
void withhold_from_exec(Guard& guard, int fd, const SiwSocket* socket) {
  if (!survives_exec(fd)) return;
  if (!socket->suspended()) {  // then it is the parent's business
    if (detach(guard.pass(), fds.find(fd), Reason::handed_back)) return;
    log(LogLevel::kError, "an iWARP connection cannot go on in another program: exec closes it");
  }
  withheld().push_back(fd);
  real.fcntl(fd, F_SETFD, FD_CLOEXEC);
}

/// Its parent's sockets that the next program gets, and may use by their number: both have them in the kernel
/// then. Those that are not meant for it have FD_CLOEXEC, or the child has closed them.
void take_for_next_program(Guard& guard) {
  const auto each = [](auto visit) {
    fds.for_each(0, fds.limit(), [&](int fd, File* file) {
      const bool theirs = file->inherited == File::Inherited::kConnection || dormant(*file);
      if (theirs && survives_exec(fd)) visit(file);
    });
  };
  each([](File* file) {  // first, so that the parent answers for all at once
    if (dormant(*file)) note_program(file);
    for (auto& h : fork_state().parents_forks) h->request(file);
  });
  bool silent = false;
  each([&](File* file) {
    const auto asked = std::chrono::steady_clock::now();
    if (!silent && dormant(*file)) {
      ask_owners(file);
      silent = std::chrono::steady_clock::now() - asked > kSilent;
      return;
    }
    if (!silent && settle_inherited(guard, file)) return;
    silent = silent || std::chrono::steady_clock::now() - asked > kSilent;
    for (auto& h : fork_state().parents_forks) h->survive_exec();
  });
}

void hand_over_for_exec(Guard& guard, int fd, File* file) {
  if (file->inherited == File::Inherited::kConnection || dormant(*file)) return;
  if (file->bound_flow() != nullptr) {
    if (survives_exec(fd)) release_for_descendants(*guard.pass(), file);
  } else if (file->kind() == FileKind::kIwarp && file->carries_connection()) {
    withhold_from_exec(guard, fd, static_cast<SiwSocket*>(file));
  } else if (file->carries_connection() && !detach(guard.pass(), file, Reason::handed_back)) {
    log(LogLevel::kError, "a connection could not be handed back to the kernel before exec: %s",
        reason_text(Reason::no_privilege));
  }
}

}  // namespace

void before_exec() {
  if (!active() || Guard::inside()) return;
  {
    Guard guard;
    if (!guard.ok()) return;
    fds.for_each(0, fds.limit(), [](int fd, File* file) {
      if (file->bound_flow() != nullptr && survives_exec(fd)) file->has_program = true;
    });
    serve_descendants(guard.pass(), true);
    take_for_next_program(guard);
    fds.for_each(0, fds.limit(), [&](int fd, File* file) { hand_over_for_exec(guard, fd, file); });
  }
  if (Engine* engine = Engine::get())
    engine->finish(std::chrono::milliseconds(config().settings.exit_wait_ms), false);
}

void after_failed_exec() {
  if (!active() || Guard::inside()) return;
  Guard guard;
  for (int fd : withheld()) real.fcntl(fd, F_SETFD, 0);
  withheld().clear();
}

namespace {

using SpawnSources = std::map<const void*, std::vector<int>>;

/// Under the lock, and never destroyed.
SpawnSources& spawn_sources() {
  static SpawnSources* const s = new SpawnSources;
  return *s;
}

}  // namespace

void add_spawn_source(const void* actions, int fd) {
  candidates.forget(fd);
  if (Guard::inside()) return;
  Guard guard(Pass::Polling::kNo);
  if (guard.ok()) spawn_sources()[actions].push_back(fd);
}

void forget_spawn_sources(const void* actions) {
  if (Guard::inside()) return;
  Guard guard(Pass::Polling::kNo);
  if (guard.ok()) spawn_sources().erase(actions);
}

void before_spawn(const void* actions) {
  if (!active() || Guard::inside()) return;
  Guard guard;
  if (!guard.ok()) return;
  auto give = [&](File* file) {
    if (file->inherited == File::Inherited::kConnection)
      (void)settle_inherited(guard, file);
    else if (may_be_handed(*file) && !file->served)
      hand_to_program(guard.pass(), file);
    else
      (void)detach(guard.pass(), file, Reason::handed_back);
  };
  fds.for_each(0, fds.limit(), [&](int fd, File* file) {
    if (may_be_handed(*file) && survives_exec(fd)) hand_to_program(guard.pass(), file);
  });
  fds.for_each(0, kStandard, [&](int fd, File* file) {
    if (survives_exec(fd) && (file->carries_connection() || file->inherited == File::Inherited::kConnection))
      give(file);
  });
  auto found = spawn_sources().find(actions);
  if (found == spawn_sources().end()) return;
  for (int fd : found->second)
    if (File* file = fds.find(fd)) give(file);
}

Result<void> pass_on(int fd) {
  Guard guard;
  File* file = guard.ok() ? fds.find(fd) : nullptr;
  if (file == nullptr) return {};
  file->retain();
  bool given = true;
  if (file->inherited == File::Inherited::kConnection) {
    (void)take_connection(file);
  } else {
    if (!file->carries_connection()) note_passed();
    given = detach(guard.pass(), file, Reason::handed_back);
  }
  // Bytes of theirs are in this process alone.
  const bool kept = file->kind() == FileKind::kIwarp || file->kind() == FileKind::kShm;
  if (!given && !kept)
    log(LogLevel::kError, "a connection passed to another process could not be handed back to the kernel: %s",
        reason_text(Reason::no_privilege));
  file->release(guard.pass());
  return !given && kept ? err(EOPNOTSUPP) : Result<void>();
}

Result<void> before_passing(const msghdr* message) {
  msghdr copy;
  if (!active() || !get_user(copy, message) || copy.msg_controllen == 0) return {};
  if (!can_read(copy.msg_control, copy.msg_controllen)) return {};
  Result<void> result;
  each_descriptor_in(copy, [&](int fd) {
    candidates.forget(fd);
    if (fds.owns(fd)) result = pass_on(fd);
    return result.ok();
  });
  return result;
}

}  // namespace accel::posix
