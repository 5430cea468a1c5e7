// The hooks. The device file is a real descriptor of /dev/null, and the fake sysfs says so (1:3), so that
// libibverbs' own checks hold; calls on it, and on paths below the RDMA classes of sysfs, come to the model.
// Everything else goes to the function behind us.
#include "model/front/interpose.h"

#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "model/front/context.h"
#include "model/front/environment.h"
#include "model/front/helper_calls.h"
#include "model/front/raw.h"
#include "model/front/refuse.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace model {
namespace {

constexpr int kDescriptors = 65536;
std::array<std::atomic<Context*>, kDescriptors> files{};
std::atomic<int> open_files{0};

Context* context(int fd) {
  if (fd < 0 || fd >= kDescriptors || open_files.load(std::memory_order_relaxed) == 0) return nullptr;
  return files[static_cast<size_t>(fd)].load(std::memory_order_acquire);
}

template <class F>
F* behind(const char* name) {
  return reinterpret_cast<F*>(dlsym(RTLD_NEXT, name));
}

bool is_device(const char* path) {
  return path != nullptr && !environment().netdev.empty() && strcmp(path, kDeviceNode) == 0;
}

/// Where a path of the RDMA classes really is; every other path as it came.
const char* redirect(const char* path, char (&space)[4096]) {
  constexpr char kClasses[] = "/sys/class/infiniband";
  if (path == nullptr || strncmp(path, kClasses, sizeof kClasses - 1) != 0) return path;
  if (environment().netdev.empty() || environment().sysfs.empty()) return path;
  snprintf(space, sizeof space, "%s%s", environment().sysfs.c_str(), path + sizeof("/sys") - 1);
  return space;
}

void after_fork_in_child() {
  for (auto& file : files) {
    if (Context* c = file.load()) c->abandon();
  }
}

int open_device(int flags) {
  static const int registered = pthread_atfork(nullptr, nullptr, after_fork_in_child);
  (void)registered;
  if (const int no = refusal("open"); no != 0) return -no;
  const auto fd = static_cast<int>(
      raw::call(SYS_openat, AT_FDCWD, raw::word("/dev/null"), (flags & O_CLOEXEC) | O_RDWR, 0));
  if (fd < 0 || fd >= kDescriptors) return fd < 0 ? fd : -EMFILE;
  files[static_cast<size_t>(fd)].store(new Context, std::memory_order_release);
  open_files.fetch_add(1);
  return fd;
}

int do_open(const char* path, int flags, mode_t mode) {
  char space[4096];
  if (is_device(path)) return static_cast<int>(raw::to_libc(open_device(flags)));
  using Open = int(const char*, int, ...);
  static Open* const next = behind<Open>("open");
  return next(redirect(path, space), flags, mode);
}

mode_t mode_of(int flags, va_list list) {
  return (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(list, mode_t) : 0;
}

void forget(int fd) {
  if (fd < 0 || fd >= kDescriptors || open_files.load(std::memory_order_relaxed) == 0) return;
  Context* mine = files[static_cast<size_t>(fd)].exchange(nullptr);
  if (mine != nullptr) {
    open_files.fetch_sub(1);
    if (std::find(files.begin(), files.end(), mine) != files.end()) return;  // it has another number too
    if (mine->owned())
      delete mine;
    else if (!mine->abandoned())  // in a forked child its thread and locks are not ours to end
      mine->abandon();
    return;
  }
  for (auto& file : files) {
    if (Context* c = file.load(std::memory_order_acquire)) c->closed(fd);
  }
}

/// The driver gives the device file or a channel another number; it closes the old one afterwards.
void duplicated(int from, int to) {
  if (from < 0 || from >= kDescriptors || to < 0 || to >= kDescriptors) return;
  if (Context* c = context(from)) {
    files[static_cast<size_t>(to)].store(c, std::memory_order_release);
    open_files.fetch_add(1);
  } else if (open_files.load(std::memory_order_relaxed) != 0) {
    for (auto& file : files)
      if (Context* each = file.load(std::memory_order_acquire)) each->renumbered(from, to);
  }
}

int do_fcntl(int fd, int command, long argument) {
  static auto* const next = behind<int(int, int, ...)>("fcntl");
  const int result = next(fd, command, argument);
  if (command == F_DUPFD_CLOEXEC) duplicated(fd, result);
  return result;
}

}  // namespace

void for_each_device(const std::function<void(int, Context*)>& see) {
  int left = open_files.load();
  for (int fd = 0; fd < kDescriptors && left > 0; ++fd) {
    Context* c = context(fd);
    if (c == nullptr) continue;
    --left;
    see(fd, c);
  }
}

}  // namespace model

using model::behind;

/// As libaccel's helper is started; libc's threads do not come this way.
EXPORT int __clone(int (*run)(void*), void* stack, int flags, void* argument, ...) {  // NOLINT: libc's name
  static auto* const next = behind<model::CloneFunction>("__clone");
  return model::clone_for_helper(next, run, stack, flags, argument);
}

/// For tests that have to know that all they sent has left and all that came is in a queue (README.md).
EXPORT void mlx5_model_settle() {
  model::for_each_device([](int, model::Context* c) { c->settle(); });
}

EXPORT int fcntl(int fd, int command, ...) {
  va_list list;
  va_start(list, command);
  const long argument = va_arg(list, long);
  va_end(list);
  return model::do_fcntl(fd, command, argument);
}

EXPORT int fcntl64(int fd, int command, ...) {
  va_list list;
  va_start(list, command);
  const long argument = va_arg(list, long);
  va_end(list);
  return model::do_fcntl(fd, command, argument);
}

EXPORT int open(const char* path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  const mode_t mode = model::mode_of(flags, list);
  va_end(list);
  return model::do_open(path, flags, mode);
}

EXPORT int open64(const char* path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  const mode_t mode = model::mode_of(flags, list);
  va_end(list);
  return model::do_open(path, flags, mode);
}

EXPORT int close(int fd) {
  if (model::raw::is_kept(static_cast<unsigned>(fd))) return static_cast<int>(model::raw::to_libc(-EBADF));
  model::forget(fd);
  static auto* const next = behind<int(int)>("close");
  return next(fd);
}

EXPORT int close_range(unsigned first, unsigned last, int flags) {
  using model::raw::call;
  for (unsigned fd = first; fd <= last && fd < model::raw::kept.size(); ++fd) {
    if (!model::raw::is_kept(fd)) continue;
    if (const long bad = fd > first ? call(SYS_close_range, first, fd - 1, flags) : 0; bad < 0)
      return static_cast<int>(model::raw::to_libc(bad));
    first = fd + 1;
  }
  return first > last ? 0 : static_cast<int>(model::raw::to_libc(call(SYS_close_range, first, last, flags)));
}

EXPORT ssize_t write(int fd, const void* data, size_t size) {
  if (model::Context* c = model::context(fd)) {
    const int bad = c->command({static_cast<const uint8_t*>(data), size});
    return bad == 0 ? static_cast<ssize_t>(size) : model::raw::to_libc(-bad);
  }
  static auto* const next = behind<ssize_t(int, const void*, size_t)>("write");
  return next(fd, data, size);
}

EXPORT int ioctl(int fd, unsigned long request, ...) {
  va_list list;
  va_start(list, request);
  void* argument = va_arg(list, void*);
  va_end(list);
  if (model::Context* c = model::context(fd)) {
    return static_cast<int>(model::raw::to_libc(-c->ioctl(request, argument)));
  }
  static auto* const next = behind<int(int, unsigned long, ...)>("ioctl");
  return next(fd, request, argument);
}

EXPORT void* mmap(void* address, size_t size, int protection, int flags, int fd, off_t offset) {
  if (model::Context* c = (flags & MAP_ANONYMOUS) == 0 ? model::context(fd) : nullptr) {
    void* p = c->map(size, protection, offset);
    return model::raw::failed(p) ? reinterpret_cast<void*>(model::raw::to_libc(reinterpret_cast<long>(p)))
                                 : p;
  }
  // By itself, not by the function behind: mmap is called before dlsym can be.
  return reinterpret_cast<void*>(
      model::raw::to_libc(model::raw::call(SYS_mmap, model::raw::word(address), model::raw::word(size),
                                           protection, flags, fd, model::raw::word(offset))));
}

EXPORT void* mmap64(void* address, size_t size, int protection, int flags, int fd, off_t offset) {
  return mmap(address, size, protection, flags, fd, offset);
}

EXPORT int stat(const char* path, struct stat* out) {
  char space[4096];
  static auto* const next = behind<int(const char*, struct stat*)>("stat");
  return next(model::is_device(path) ? "/dev/null" : model::redirect(path, space), out);
}

EXPORT int lstat(const char* path, struct stat* out) {
  char space[4096];
  static auto* const next = behind<int(const char*, struct stat*)>("lstat");
  return next(model::is_device(path) ? "/dev/null" : model::redirect(path, space), out);
}

EXPORT int access(const char* path, int mode) {
  char space[4096];
  static auto* const next = behind<int(const char*, int)>("access");
  return next(model::is_device(path) ? "/dev/null" : model::redirect(path, space), mode);
}

EXPORT ssize_t readlink(const char* path, char* out, size_t size) {
  char space[4096];
  static auto* const next = behind<ssize_t(const char*, char*, size_t)>("readlink");
  return next(model::redirect(path, space), out, size);
}

EXPORT DIR* opendir(const char* path) {
  char space[4096];
  static auto* const next = behind<DIR*(const char*)>("opendir");
  return next(model::redirect(path, space));
}

EXPORT FILE* fopen(const char* path, const char* mode) {
  char space[4096];
  static auto* const next = behind<FILE*(const char*, const char*)>("fopen");
  return next(model::redirect(path, space), mode);
}

EXPORT FILE* fopen64(const char* path, const char* mode) { return fopen(path, mode); }

namespace {

/// What a hook finds at its first call: the first may be a signal's handler's, in the midst of malloc().
[[gnu::constructor]] void call_each_once() {
  struct stat nothing;
  char target[1];
  (void)model::environment();
  (void)open("", O_RDONLY);
  (void)fcntl(-1, F_GETFD);
  (void)close(-1);
  (void)!write(-1, target, 0);
  (void)ioctl(-1, 0);
  (void)stat("", &nothing);
  (void)lstat("", &nothing);
  (void)access("", 0);
  (void)!readlink("", target, sizeof target);
  if (DIR* d = opendir("")) closedir(d);
  if (FILE* f = fopen("", "r")) fclose(f);
}

}  // namespace
