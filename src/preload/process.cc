// Processes made, replaced and ended. libc's own implementations call each other by hidden names, so each
// entry point is taken by itself.
#include <alloca.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <pthread.h>
#include <pty.h>
#include <sched.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/sysmacros.h>
#include <unistd.h>
#include <utmp.h>

#include <array>

#include "posix/privilege.h"
#include "preload/preload.h"

using namespace accel;           // NOLINT
using namespace accel::preload;  // NOLINT

extern "C" void* __libc_malloc(size_t size) noexcept;  // NOLINT: glibc's own, whoever has malloc()

// ---- ends ----

ACCEL_EXPORT(void, _exit, (int status)) {
  if (!in_vfork_child()) served(end);
  real._exit(status);
}
ACCEL_ALIAS(_Exit, _exit)

ACCEL_EXPORT(void, quick_exit, (int status)) {
  if (!in_vfork_child()) served(end);
  real.quick_exit(status);
}

// ---- privilege ----

namespace {

constexpr auto kSame = static_cast<uid_t>(-1);

/// `set`, a call that makes `user` the effective one, and `kept` the real and saved ones. The kernel takes
/// the capabilities when that is not root any more, and gives them back when it is again (capabilities(7)).
template <class F>
int changing_user(uid_t user, std::array<uid_t, 2> kept, F set) {
  if (!on() || in_vfork_child() || user == kSame) return set();
  return deferred([=] {
    const ServedCall inside;
    if (user != 0) posix::before_privileges_go(kept[0] == 0 || kept[1] == 0);
    const int r = set();
    const int error = errno;
    posix::after_privileges_changed();
    errno = error;
    return r;
  });
}

/// Real and saved.
std::array<uid_t, 2> kept_users() {
  uid_t real_user = 0, effective = 0, saved = 0;
  (void)getresuid(&real_user, &effective, &saved);
  return {real_user, saved};
}

bool has_raw(__u32 __user_cap_data_struct::*set, const cap_user_data_t sets) {
  return sets != nullptr && (sets[CAP_TO_INDEX(CAP_NET_RAW)].*set & CAP_TO_MASK(CAP_NET_RAW)) != 0;
}

}  // namespace

ACCEL_EXPORT(int, setuid, (uid_t user)) {
  return changing_user(user, {user, user}, [&] { return real.setuid(user); });
}
ACCEL_EXPORT(int, seteuid, (uid_t user)) {
  return changing_user(user, kept_users(), [&] { return real.seteuid(user); });
}
ACCEL_EXPORT(int, setreuid, (uid_t user, uid_t effective)) {
  const uid_t now = user != kSame ? user : getuid();
  return changing_user(effective, {now, now}, [&] { return real.setreuid(user, effective); });
}
ACCEL_EXPORT(int, setresuid, (uid_t user, uid_t effective, uid_t saved)) {
  auto kept = kept_users();
  if (user != kSame) kept[0] = user;
  if (saved != kSame) kept[1] = saved;
  return changing_user(effective, kept, [&] { return real.setresuid(user, effective, saved); });
}
ACCEL_EXPORT(int, capset, (cap_user_header_t header, const cap_user_data_t sets)) {
  if (!on() || in_vfork_child()) return real.capset(header, sets);
  return served([=] {
    if (!has_raw(&__user_cap_data_struct::effective, sets))
      posix::before_privileges_go(has_raw(&__user_cap_data_struct::permitted, sets));
    const int r = real.capset(header, sets);
    const int error = errno;
    posix::after_privileges_changed();
    errno = error;
    return r;
  });
}

// ---- beginnings ----

namespace accel::preload {

namespace {

void before_fork() {
  if (on() || posix::active()) served(posix::prepare_fork);
}
void after_fork_in_parent() {
  served([] { posix::after_fork(1); });
}
void after_fork_in_child() {
  forget_parents_rings();
  served([] { posix::after_fork(0); });
}

}  // namespace

void stand_first_at_fork() {
  if (static_cast<void* (*)(size_t)>(malloc) != __libc_malloc) free(malloc(1));
  pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
}

}  // namespace accel::preload

ACCEL_EXPORT(pid_t, fork, ()) {
  vforked_from = 0;
  return deferred([] {
    const pid_t child = real.fork();
    if (child >= 0) return child;
    const int error = errno;
    served(posix::fork_failed);
    errno = error;
    return -1;
  });
}
ACCEL_ALIAS(__fork, fork)

ACCEL_EXPORT(pid_t, _Fork, ()) {
  vforked_from = 0;
  if (!posix::active()) return real._Fork();
  return served([] {
    posix::prepare_fork();
    const pid_t child = real._Fork();
    posix::after_fork(child);
    return child;
  });
}

namespace accel::preload {

constinit thread_local pid_t vforked_from [[gnu::tls_model("initial-exec")]] = 0;

bool in_vfork_child() {
  if (vforked_from == 0) [[likely]]
    return false;
  if (getpid() != vforked_from) return true;
  vforked_from = 0;  // back in the parent, whose child is on its way
  return false;
}

}  // namespace accel::preload

/// Where vfork goes: to libc's, which needs the caller's own frame, or to fork() when the child would disturb
/// our state, since it runs on the parent's memory.
extern "C" pid_t (*accel_vfork_target())() {
  static std::atomic<pid_t (*)()> libc{nullptr};
  if (on() && served(posix::must_fork_for_vfork)) return accel_call_fork;
  auto f = libc.load(std::memory_order_relaxed);
  if (f == nullptr)
    libc.store(f = reinterpret_cast<pid_t (*)()>(find_real("vfork")), std::memory_order_relaxed);
  vforked_from = getpid();
  return f;
}

// A C++ frame here would be gone when the parent comes back to it: asks, then jumps with the stack as it was.
#if defined(__x86_64__)
asm(R"(
  .text
  .globl vfork, __vfork
  .type vfork, @function
  .type __vfork, @function
vfork:
__vfork:
  .cfi_startproc
  endbr64
  subq $8, %rsp
  .cfi_adjust_cfa_offset 8
  call accel_vfork_target
  addq $8, %rsp
  .cfi_adjust_cfa_offset -8
  jmp *%rax
  .cfi_endproc
  .size vfork, .-vfork
  .size __vfork, .-__vfork
)");
#elif defined(__aarch64__)
asm(R"(
  .text
  .globl vfork, __vfork
  .type vfork, @function
  .type __vfork, @function
vfork:
__vfork:
  .cfi_startproc
  stp x29, x30, [sp, -16]!
  bl accel_vfork_target
  mov x16, x0
  ldp x29, x30, [sp], 16
  br x16
  .cfi_endproc
  .size vfork, .-vfork
  .size __vfork, .-__vfork
)");
#else
#error "vfork: write the jump for this machine"
#endif

namespace {

using CloneFunction = int (*)(int (*)(void*), void*, int, void*, ...);

/// What the child of a clone() that copies memory starts with; lives in the parent's frame, which the child
/// has a copy of.
struct CloneStart {
  int (*function)(void*);
  void* argument;
  int error;  ///< errno at the call
};

/// A child on its parent's memory with descriptors of its own: what it closes would leave the table of both.
/// So it becomes a copy, as vfork() does.
bool vforks(int flags) {
  return (flags & (CLONE_VM | CLONE_VFORK | CLONE_FILES | CLONE_SIGHAND)) == (CLONE_VM | CLONE_VFORK);
}

int start_clone(void* context) {
  const CloneStart start = *static_cast<CloneStart*>(context);
  served([] { posix::after_fork(0); });
  ServedCall::leave_handler(false);  // from here on the program's code
  errno = start.error;
  return start.function(start.argument);
}

}  // namespace

ACCEL_EXPORT(int, clone,
             (int (*function)(void*), void* stack, int flags, void* argument, pid_t* parent, void* tls,
              pid_t* child_id)) {
  auto libc = reinterpret_cast<CloneFunction>(find_real("clone"));
  vforked_from = 0;
  if ((flags & CLONE_NEWNS) != 0) before_root_change();
  if (!posix::active() || (flags & CLONE_THREAD) != 0)
    return libc(function, stack, flags, argument, parent, tls, child_id);
  if (vforks(flags)) flags &= ~(CLONE_VM | CLONE_VFORK);
  if ((flags & CLONE_VM) != 0) {  // as posix_spawn makes them: the child execs
    served([] { posix::before_spawn(); });
    return libc(function, stack, flags, argument, parent, tls, child_id);
  }
  CloneStart start{function, argument, errno};
  return served([=, &start] {
    posix::prepare_fork();
    const int child = libc(start_clone, stack, flags, &start, parent, tls, child_id);
    posix::after_fork(child);
    return child;
  });
}
ACCEL_ALIAS(__clone, clone)

// As glibc's misc/daemon.c, with our fork and our exit.
ACCEL_EXPORT(int, daemon, (int keep_directory, int keep_streams)) {
  vforked_from = 0;
  if (!posix::active()) return real.daemon(keep_directory, keep_streams);
  switch (accel_call_fork()) {
    case -1:
      return -1;
    case 0:
      break;
    default:
      accel_call__exit(0);
  }
  if (setsid() == -1) return -1;
  if (keep_directory == 0 && chdir("/") != 0) return -1;
  if (keep_streams != 0) return 0;
  const int null = real.open("/dev/null", O_RDWR, 0);
  struct stat status {};
  if (null < 0 || real.fstat(null, &status) != 0) return -1;
  if (!S_ISCHR(status.st_mode) || status.st_rdev != makedev(1, 3)) {
    real.close(null);
    errno = ENODEV;
    return -1;
  }
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; ++fd) accel_call_dup2(null, fd);
  if (null > STDERR_FILENO) real.close(null);
  return 0;
}

// As glibc's login/forkpty.c.
ACCEL_EXPORT(int, forkpty, (int* parent_end, char* name, const termios* modes, const winsize* size)) {
  if (!posix::active()) {
    auto libc = reinterpret_cast<int (*)(int*, char*, const termios*, const winsize*)>(find_real("forkpty"));
    return libc(parent_end, name, modes, size);
  }
  int outer = -1, terminal = -1;
  if (openpty(&outer, &terminal, name, modes, size) == -1) return -1;
  const pid_t child = accel_call_fork();
  if (child == -1) {
    real.close(outer);
    real.close(terminal);
    return -1;
  }
  if (child == 0) {
    real.close(outer);
    if (login_tty(terminal) != 0) real._exit(1);
    return 0;
  }
  *parent_end = outer;
  real.close(terminal);
  return child;
}

namespace {

/// Makes `spawn`'s child a descendant as after exec.
template <class F>
auto spawning(F spawn) {
  if (posix::active()) served([] { posix::before_spawn(); });
  return spawn();
}

}  // namespace

ACCEL_EXPORT(int, posix_spawn_file_actions_init, (posix_spawn_file_actions_t * actions)) {
  const int r = real.posix_spawn_file_actions_init(actions);
  served([=] { posix::forget_spawn_sources(actions); });
  return r;
}
ACCEL_EXPORT(int, posix_spawn_file_actions_destroy, (posix_spawn_file_actions_t * actions)) {
  served([=] { posix::forget_spawn_sources(actions); });
  return real.posix_spawn_file_actions_destroy(actions);
}
ACCEL_EXPORT(int, posix_spawn_file_actions_adddup2, (posix_spawn_file_actions_t * actions, int fd, int as)) {
  const int r = real.posix_spawn_file_actions_adddup2(actions, fd, as);
  if (r == 0) served([=] { posix::add_spawn_source(actions, fd); });
  return r;
}

ACCEL_EXPORT(int, system, (const char* command)) {
  return spawning([&] { return real.system(command); });
}
ACCEL_EXPORT(FILE*, popen, (const char* command, const char* mode)) {
  return spawning([&] { return real.popen(command, mode); });
}
ACCEL_ALIAS(_IO_popen, popen)

// posix_spawn has two versions: since 2.15 a file that is no program is an error, before that it went to the
// shell.
#define SPAWN_PARAMETERS                                                       \
  (pid_t * child, const char* path, const posix_spawn_file_actions_t* actions, \
   const posix_spawnattr_t* attributes, char* const* arguments, char* const* environment)
#define SPAWN_ARGUMENTS (child, path, actions, attributes, arguments, environment)
#define SPAWN(name, number, version, libc)                                                                  \
  extern "C" [[gnu::visibility("default")]] int accel_##name##_##number SPAWN_PARAMETERS asm("accel_" #name \
                                                                                             "_" #number);  \
  asm(".symver accel_" #name "_" #number ", " #name version);                                               \
  extern "C" int accel_##name##_##number SPAWN_PARAMETERS {                                                 \
    if (posix::active()) served([=] { posix::before_spawn(actions); });                                     \
    return libc SPAWN_ARGUMENTS;                                                                            \
  }
#define OLD_SPAWN(name) reinterpret_cast<int(*) SPAWN_PARAMETERS>(dlvsym(RTLD_NEXT, name, "GLIBC_2.2.5"))

SPAWN(posix_spawn, new, "@@GLIBC_2.15", real.posix_spawn)
SPAWN(posix_spawnp, new, "@@GLIBC_2.15", real.posix_spawnp)
#if defined(__x86_64__)  // younger machines never had the old one
SPAWN(posix_spawn, old, "@GLIBC_2.2.5", OLD_SPAWN("posix_spawn"))
SPAWN(posix_spawnp, old, "@GLIBC_2.2.5", OLD_SPAWN("posix_spawnp"))
#endif

// ---- replacements ----

namespace accel::preload {

int replacing(int (*exec)(const void* context), const void* context) {
  if (!posix::active() || ServedCall::inside()) return exec(context);
  served(posix::before_exec);
  // The memory of a vfork() child, this thread's mark in it, is its parent's again when exec() succeeds.
  const auto marked = [&] {
    const ServedCall inside;
    return exec(context);
  };
  const int r = in_vfork_child() ? exec(context) : marked();
  const int error = errno;
  served(posix::after_failed_exec);
  errno = error;
  return r;
}

}  // namespace accel::preload

ACCEL_EXPORT(int, execve, (const char* path, char* const* arguments, char* const* environment)) {
  return replacing([&] { return real.execve(path, arguments, environment); });
}
ACCEL_EXPORT(int, execv, (const char* path, char* const* arguments)) {
  return replacing([&] { return real.execv(path, arguments); });
}
ACCEL_EXPORT(int, execvp, (const char* file, char* const* arguments)) {
  return replacing([&] { return real.execvp(file, arguments); });
}
ACCEL_EXPORT(int, execvpe, (const char* file, char* const* arguments, char* const* environment)) {
  return replacing([&] { return real.execvpe(file, arguments, environment); });
}
ACCEL_EXPORT(int, fexecve, (int fd, char* const* arguments, char* const* environment)) {
  return replacing([&] { return real.fexecve(fd, arguments, environment); });
}
ACCEL_EXPORT(int, execveat,
             (int directory, const char* path, char* const* arguments, char* const* environment, int flags)) {
  return replacing([&] { return real.execveat(directory, path, arguments, environment, flags); });
}

// The list of arguments becomes an array in the caller's frame: exec may run where malloc may not (after
// vfork, in a handler). execle has the environment behind the closing null.
#define COLLECT(first, array, list)                                        \
  va_list list;                                                            \
  size_t count = 1;                                                        \
  va_start(list, first);                                                   \
  while (va_arg(list, char*) != nullptr) ++count;                          \
  va_end(list);                                                            \
  char** array = static_cast<char**>(alloca((count + 1) * sizeof(char*))); \
  va_start(list, first);                                                   \
  array[0] = const_cast<char*>(first);                                     \
  for (size_t i = 1; i <= count; ++i) array[i] = va_arg(list, char*);

ACCEL_EXPORT(int, execl, (const char* path, const char* first, ...)) {
  COLLECT(first, arguments, list)
  va_end(list);
  return accel_call_execv(path, arguments);
}
ACCEL_EXPORT(int, execlp, (const char* file, const char* first, ...)) {
  COLLECT(first, arguments, list)
  va_end(list);
  return accel_call_execvp(file, arguments);
}
ACCEL_EXPORT(int, execle, (const char* path, const char* first, ...)) {
  COLLECT(first, arguments, list)
  char* const* environment = va_arg(list, char* const*);
  va_end(list);
  return accel_call_execve(path, arguments, environment);
}
