#include "engine/helper_client.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/memfd.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/bare_syscall.h"
#include "base/config.h"
#include "base/log.h"
#include "base/private_fds.h"
#include "base/real.h"
#include "base/signals_blocked.h"
#include "engine/orphans.h"
#include "engine/stats.h"
#include "helper/program.h"

#ifndef MFD_EXEC  // 6.3
#define MFD_EXEC 0x0010U
#endif

namespace accel {
namespace {

using CloneFunction = int (*)(int (*)(void*), void*, int, void*, ...);

/// A privileged request is a few system calls.
constexpr auto kAnswersWithin = std::chrono::seconds(2);
constexpr size_t kStack = 16 * 1024;
/// As vfork(): the caller's memory, and the calling thread waits. No signal at the end, which would be the
/// program's SIGCHLD, and no tracer is told.
constexpr int kVfork = CLONE_VM | CLONE_VFORK | CLONE_UNTRACED;

/// Arguments and results of the processes that become the helper; in the caller's memory.
struct StartState {
  CloneFunction clone;
  char* stack;  ///< the second one's, its upper end
  pid_t process;
  int table, lifeline, requests;
  char* arguments[3];
  char* environment[1];
  int helper = -1;  ///< its pid
  int error = 0;
};

/// A new program loses what capabilities a user other than root has, but ambient ones. Those that are not
/// there stay so.
void keep_capabilities() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct sets[2]{};
  bare_syscall(SYS_capget, reinterpret_cast<long>(&header), reinterpret_cast<long>(sets));
  for (const int kept : {CAP_NET_RAW, CAP_NET_ADMIN, CAP_NET_BIND_SERVICE})
    sets[0].inheritable |= sets[0].permitted & 1u << kept;
  bare_syscall(SYS_capset, reinterpret_cast<long>(&header), reinterpret_cast<long>(sets));
  for (const int kept : {CAP_NET_RAW, CAP_NET_ADMIN, CAP_NET_BIND_SERVICE})
    bare_syscall(SYS_prctl, PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, kept);
}

/// The program in a memfd: it needs no file, so neither chroot() nor an upgrade takes it away.
long make_image() {
  const auto name = reinterpret_cast<long>("accel-guard");
  long image = bare_syscall(SYS_memfd_create, name, MFD_CLOEXEC | MFD_EXEC);
  if (image == -EINVAL) image = bare_syscall(SYS_memfd_create, name, MFD_CLOEXEC);
  if (image < 0) return image;
  const long n = bare_syscall(SYS_write, image, reinterpret_cast<long>(helper::kProgram),
                              static_cast<long>(helper::kProgramSize));
  return n == static_cast<long>(helper::kProgramSize) ? image : n < 0 ? n : -ENOSPC;
}

/// The second process, with a descriptor table of its own and the caller's memory: system calls only.
int exec_helper(void* context) {
  auto& b = *static_cast<StartState*>(context);
  constexpr int kClear = 8;  // above the numbers that come into use
  constexpr int kImage = helper::kRequests + 1;
  const long sources[] = {b.table, bare_syscall(SYS_pidfd_open, b.process), b.lifeline, b.requests,
                          make_image()};
  long moved[kImage + 1];
  for (int i = 0; i <= kImage; ++i) {
    moved[i] = sources[i] < 0 ? sources[i] : bare_syscall(SYS_fcntl, sources[i], F_DUPFD, kClear);
    if (moved[i] < 0) {
      b.error = static_cast<int>(-moved[i]);
      return 1;
    }
  }
  for (int i = 0; i <= kImage; ++i) bare_syscall(SYS_dup3, moved[i], i, i == kImage ? O_CLOEXEC : 0);
  bare_syscall(SYS_close_range, kImage + 1, ~0u);
  keep_capabilities();
  const long failed =
      bare_syscall(SYS_execveat, kImage, reinterpret_cast<long>(""), reinterpret_cast<long>(b.arguments),
                   reinterpret_cast<long>(b.environment), AT_EMPTY_PATH);
  b.error = static_cast<int>(-failed);
  return 1;
}

/// The first process: its end makes the helper an orphan, which init reaps. As a child it would show in the
/// program's wait(), since execve() gives it SIGCHLD as the signal of its end.
int clone_helper(void* context) {
  auto& b = *static_cast<StartState*>(context);
  b.helper = b.clone(&exec_helper, b.stack, kVfork, &b);
  if (b.helper < 0) b.error = errno;
  return 0;
}

/// Who would be an orphan's parent, if it is this process; and what else speaks against starting one.
const char* obstacle() {
  if (getpid() == 1)
    return "the program is process 1 of its pid namespace, with which every other process ends";
  int subreaper = 0;
  if (real.syscall(SYS_prctl, PR_GET_CHILD_SUBREAPER, &subreaper) == 0 && subreaper != 0)
    return "the program is a subreaper and would find the helper among its children";
  struct stat own {
  }, childrens{};
  if (stat("/proc/self/ns/pid", &own) == 0 && stat("/proc/self/ns/pid_for_children", &childrens) == 0 &&
      own.st_ino != childrens.st_ino)
    return "the program's children are in another pid namespace";
  return orphans_become_zombies();
}

struct Closing {
  int fd;
  ~Closing() {
    if (fd >= 0) real.close(fd);
  }
};

/// Returns 0 or an errno value.
int start_helper(int table, int lifeline, int requests, int* pid) {
  void* memory = mmap(nullptr, 2 * kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return errno;
  auto* stacks = static_cast<char*>(memory);
  char name[] = "accel-guard";
  char process[16];
  snprintf(process, sizeof process, "%d", getpid());
  // ThreadSanitizer takes clone() for a fork: __clone() is the same.
  StartState state{reinterpret_cast<CloneFunction>(find_real("__clone")),
                   stacks + 2 * kStack,
                   getpid(),
                   table,
                   lifeline,
                   requests,
                   {name, process, nullptr},
                   {nullptr}};
  {
    // A signal to the program's group must do nothing to the helper either, which keeps this mask.
    const AllSignalsBlocked blocked;
    const int first = state.clone(&clone_helper, stacks + kStack, kVfork, &state);
    if (first < 0)
      state.error = errno;
    else  // it has ended by now
      bare_syscall(SYS_wait4, first, 0, __WALL);
  }
  munmap(memory, 2 * kStack);
  *pid = state.helper;
  return state.error;
}

/// The kernel's error as text, in memory of its own.
const char* refusal(int error) {
  static char text[80];
  snprintf(text, sizeof text, "the kernel refused to start it: %s", strerrordesc_np(error));
  return text;
}

}  // namespace

/// The caller may hold the engine's lock: a helper that is stopped must not stop the program, too. As
/// recv(); EAGAIN: none came in time.
ssize_t HelperClient::await_answer(int32_t& answer) const {
  const auto end = std::chrono::steady_clock::now() + kAnswersWithin;
  pollfd readable{requests_, POLLIN, 0};
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    const int ready = real.poll(&readable, 1, static_cast<int>(std::max(left.count(), left.zero().count())));
    if (ready > 0) return real.recv(requests_, &answer, sizeof answer, MSG_DONTWAIT);
    if (ready == 0) errno = EAGAIN;
    if (errno != EINTR) return -1;
  }
}

/// An answer that comes late would be taken for the next request's.
void HelperClient::give_up_silent() {
  close_private(std::exchange(requests_, -1));
  counters_.add(Counter::helper_silent);
  log(LogLevel::kWarning,
      "accel-guard does not answer (is it stopped?): connections that this process, which has given up root, "
      "passes on or leaves behind will be broken off");
}

HelperClient::~HelperClient() { close_all(); }

void HelperClient::close_all() {
  if (table_ != nullptr) munmap(table_, size_);
  table_ = nullptr;
  rows_ = 0;
  if (lifeline_ >= 0) close_private(lifeline_);
  lifeline_ = -1;
  if (requests_ >= 0) close_private(requests_);
  requests_ = -1;
}

void HelperClient::abandon_in_child() { close_all(); }

void HelperClient::begin() {
  if (begun_) return;
  begun_ = true;
  if (!config().settings.helper) return;
  const int saved = errno;
  if (const char* why = start()) {
    close_all();
    stats::note_helper(0, why);
  }
  errno = saved;
}

/// nullptr, or why there is none.
const char* HelperClient::start() {
  if (const char* why = obstacle()) return why;
  rows_ = config().settings.max_connections;
  size_ = sizeof(helper::Table) + rows_ * sizeof(helper::Row);
  rlimit limit{};
  // Growing a file beyond the limit would be a SIGXFSZ for the program.
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < size_)
    return "its table would exceed RLIMIT_FSIZE";
  int ends[2];
  const Closing table{
      static_cast<int>(real.syscall(SYS_memfd_create, "libaccel-helper", MFD_CLOEXEC | MFD_ALLOW_SEALING))};
  if (table.fd < 0 || !map_table(table.fd) || real.pipe2(ends, O_CLOEXEC) != 0) return refusal(errno);
  const Closing lifeline{ends[0]};
  lifeline_ = keep_private(ends[1]);
  if (real.socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return refusal(errno);
  const Closing requests{ends[0]};
  const int on = 1;  // before the first request: the kernel adds the sender as it is sent
  real.setsockopt(requests.fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof on);
  requests_ = keep_private(ends[1]);
  int pid = 0;
  if (const int error = start_helper(table.fd, lifeline.fd, requests.fd, &pid)) return refusal(error);
  stats::note_helper(pid, nullptr);
  return nullptr;
}

/// Sparse: rows that were never used take no memory. Of this size for ever: the helper reads it.
bool HelperClient::map_table(int fd) {
  if (ftruncate(fd, static_cast<off_t>(size_)) != 0) return false;
  if (real.fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) return false;
  void* memory = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (memory == MAP_FAILED) return false;
  madvise(memory, size_, MADV_DONTDUMP);
  table_ = static_cast<helper::Table*>(memory);
  return true;
}

uint32_t HelperClient::add(const FlowKey& key, int ifindex) {
  if (table_ == nullptr || (free_.empty() && table_->touched == rows_)) {
    if (config().settings.helper) counters_.add(Counter::tcp_without_helper);
    return 0;
  }
  uint32_t i = table_->touched;
  if (!free_.empty()) {
    i = free_.back();
    free_.pop_back();
  }
  helper::Row& row = table_->row[i];
  row.ifindex = static_cast<uint32_t>(ifindex);
  std::memcpy(row.local, key.local.address.bytes.data(), sizeof row.local);
  std::memcpy(row.remote, key.remote.address.bytes.data(), sizeof row.remote);
  row.local_port = htons(key.local.port);
  row.remote_port = htons(key.remote.port);
  row.numbers = {};
  std::atomic_ref(row.used).store(1, std::memory_order_release);
  if (i == table_->touched) std::atomic_ref(table_->touched).store(i + 1, std::memory_order_release);
  return i + 1;
}

void HelperClient::remove(uint32_t row) {
  if (table_ == nullptr || row == 0) return;
  std::atomic_ref(table_->row[row - 1].used).store(0, std::memory_order_release);
  free_.push_back(row - 1);
}

Result<int> HelperClient::run(const helper::PrivilegedRequest& request, int fd, int listener) {
  const int fds[] = {fd, listener};
  return run(request, {fds, fd < 0 ? size_t{0} : listener < 0 ? size_t{1} : size_t{2}});
}

helper::PrivilegedRequest HelperClient::about(helper::RequestType type, const FlowKey& key) {
  helper::PrivilegedRequest request{type, 0, 0, {}, {}};
  FlowRule& rule = request.rule;
  rule.protocol = static_cast<uint8_t>(key.protocol);
  rule.vlan = key.vlan;
  rule.local_port = key.local.port;
  rule.remote_port = key.remote.port;
  std::memcpy(rule.local, key.local.address.bytes.data(), sizeof rule.local);
  if (key.is_connected()) std::memcpy(rule.remote, key.remote.address.bytes.data(), sizeof rule.remote);
  return request;
}

Result<int> HelperClient::run(const helper::PrivilegedRequest& request, std::span<const int> fds) {
  if (requests_ < 0) return err(EPERM);
  iovec vector{const_cast<helper::PrivilegedRequest*>(&request), sizeof request};
  const size_t size = fds.size_bytes();
  alignas(cmsghdr) char control[CMSG_SPACE(helper::kMostDescriptors * sizeof(int))]{};
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  if (size > 0) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(size);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(size);
    std::memcpy(CMSG_DATA(header), fds.data(), size);
  }
  int32_t answer = 0;
  ssize_t n = real.sendmsg(requests_, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (n >= 0) n = await_answer(answer);
  if (n != sizeof answer) {
    if (n < 0 && errno == EAGAIN) give_up_silent();
    return err(EPERM);  // else it was killed
  }
  if (answer < 0) return err(-answer);
  return answer;
}

}  // namespace accel
