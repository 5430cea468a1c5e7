// Descriptors to files: an array of pointers as long as RLIMIT_NOFILE allows, of which only the touched pages
// exist.
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>

#include "posix/file.h"
#include "posix/fork_state.h"
#include "posix/signals.h"

namespace accel::posix {

FdTable fds;

void FdTable::open() {
  if (slots_ != nullptr) return;
  constexpr rlim_t kMost = 1u << 20;
  rlimit limit{};
  rlim_t entries = getrlimit(RLIMIT_NOFILE, &limit) == 0 ? std::min(limit.rlim_max, kMost) : 1024;
  void* memory = mmap(nullptr, entries * (sizeof(*slots_) + sizeof(*waits_)), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return;  // size 0: every descriptor stays the kernel's
  slots_ = static_cast<std::atomic<File*>*>(memory);
  waits_ = reinterpret_cast<std::atomic<uint32_t>*>(slots_ + entries);
  size_.store(static_cast<unsigned>(entries), std::memory_order_release);
  check_memory_by_faults();
  adopt_handlers();
}

bool FdTable::insert(int fd, File* file) {
  if (!has(fd)) return false;
  file->retain();
  if (file->descriptors > 0) end_plain(file->recent_fd);  // who waits by one name must be found by the others
  ++file->descriptors;
  file->recent_fd = fd;
  if (fd >= limit()) limit_.store(fd + 1, std::memory_order_relaxed);
  slots_[fd].store(file, std::memory_order_release);
  return true;
}

int FdTable::first_of(const File* file) const {
  if (file->descriptors == 1 && find(file->recent_fd) == file) return file->recent_fd;
  for (int fd = 0; fd < limit(); ++fd)
    if (find(fd) == file) return fd;
  return -1;
}

void FdTable::erase(int fd, Pass* pass) {
  File* file = find(fd);
  if (file == nullptr) return;
  end_plain(fd);
  slots_[fd].store(nullptr, std::memory_order_release);
  --file->descriptors;
  leaving_ = fd;
  file->release(pass);
  leaving_ = -1;
}

void File::finish(Pass* pass) {
  // An epoll set's member goes with the open file, which another process may have by fork(): then the kernel
  // tells of it, once it has the connection.
  const bool stays =
      watches != nullptr && kind_ == FileKind::kTcp && carries_connection() && inherited_elsewhere(this);
  if (!stays) leave_sets();
  closed = true;
  on_last_close(pass);
  if (stays) move_watches_to_kernel();
  settle_descendants(this, false);
}

void FdTable::replace(File* file, File* fresh) {
  settle_descendants(file, true);
  fresh->take_watches(*file);
  file->retain();
  auto queue_handed_off = [&](int fd) {
    if (find(fd) != file) return;
    insert(fd, fresh);
    --file->descriptors;
    file->release(nullptr);
  };
  queue_handed_off(file->recent_fd);
  for (int fd = 0; file->descriptors > 0 && fd < limit(); ++fd)
    queue_handed_off(fd);  // NOLINT: retained above
  file->closed = true;
  file->release(nullptr);
}

void FdTable::forget(File* file) {
  settle_descendants(file, true);
  if (file->descriptors == 0) return;
  file->retain();
  file->closed = true;
  file->move_watches_to_kernel();
  auto take_out = [&](int fd) {
    if (find(fd) != file) return;
    end_plain(fd);
    slots_[fd].store(nullptr, std::memory_order_release);
    --file->descriptors;
    file->release(nullptr);
  };
  take_out(file->recent_fd);
  for (int fd = 0; file->descriptors > 0 && fd < limit(); ++fd) take_out(fd);  // NOLINT: retained above
  file->release(nullptr);
}

}  // namespace accel::posix
