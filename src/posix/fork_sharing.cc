#include "posix/fork_sharing.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <new>
#include <string_view>

#include "base/private_fds.h"
#include "base/real.h"

namespace accel::posix {
namespace {

/// While it waits, a descendant looks this often whether the owner still lives.
constexpr timespec kOwnerLook{0, 20'000'000};
/// An owner that does not answer for so many of these (stopped, or its request thread is gone) has kept the
/// connection.
constexpr int kMostLooks = 500;

constexpr uint32_t raw(SharedState w) { return static_cast<uint32_t>(w); }

void close_end(int& fd) {
  if (fd >= 0) close_private(fd);
  fd = -1;
}

}  // namespace

std::unique_ptr<ForkSharing> ForkSharing::prepare(const std::vector<File*>& files, int owner_wake_fd) {
  std::unique_ptr<ForkSharing> h(new (std::nothrow) ForkSharing);
  int ends[2];
  if (h == nullptr || real.pipe2(ends, O_CLOEXEC) != 0) return nullptr;
  h->reading_end_ = keep_private(ends[0]);
  h->writing_end_ = keep_private(ends[1]);
  h->count_ = files.size();
  void* memory =
      mmap(nullptr, h->count_ * sizeof(Slot), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  h->slots_ = static_cast<Slot*>(memory);
  for (File* file : files) {
    const size_t i = h->index_.size();
    const SharedState where = file->revivable() ? SharedState::kKernel : SharedState::kOwner;
    new (&h->slots_[i]) Slot{{raw(where)}, {1}, {0}, {0}};
    h->index_.emplace(file, i);
  }
  h->owner_ = getpid();
  h->owner_wake_fd_ = owner_wake_fd;
  return h;
}

ForkSharing::~ForkSharing() {
  close_end(reading_end_);
  close_end(writing_end_);
  if (slots_ != nullptr) munmap(slots_, count_ * sizeof(Slot));
}

ForkSharing::Slot* ForkSharing::slot(const File* file) const {
  auto found = index_.find(file);
  return found == index_.end() ? nullptr : &slots_[found->second];
}

void ForkSharing::after_fork_in_owner() { close_end(writing_end_); }

void ForkSharing::after_fork_in_descendant() { close_end(reading_end_); }

void ForkSharing::abandon_in_descendant() {
  close_end(reading_end_);
  munmap(slots_, count_ * sizeof(Slot));
  slots_ = nullptr;
}

bool ForkSharing::has_ended() const {
  pollfd end{reading_end_, 0, 0};
  return real.poll(&end, 1, 0) == 1;  // POLLHUP
}

bool ForkSharing::has_descendants(const File* file) const {
  const Slot* s = slot(file);
  return s != nullptr && s->descendants.load() > 0 && !has_ended();
}

bool ForkSharing::has_program(const File* file) const {
  const Slot* s = slot(file);
  return s != nullptr && s->program.load() != 0;
}

bool ForkSharing::take_program_request(const File* file) {
  Slot* s = slot(file);
  return s != nullptr && s->program_request.exchange(0) != 0;
}

void ForkSharing::note_program(const File* file) {
  Slot* s = slot(file);
  if (s == nullptr) return;
  s->program.store(1);
  s->program_request.store(1);
}

void ForkSharing::tell(const File* file, SharedState where) {
  Slot* s = slot(file);
  if (s == nullptr) return;
  s->where.store(raw(where));
  real.syscall(SYS_futex, &s->where, static_cast<long>(FUTEX_WAKE), 0x7fffffffL, 0L, 0L, 0L);
}

void ForkSharing::take_back(const File* file) {
  uint32_t in_kernel = raw(SharedState::kKernel);
  if (Slot* s = slot(file)) s->where.compare_exchange_strong(in_kernel, raw(SharedState::kOwner));
}

void ForkSharing::settle(const File* file, SharedState where) {
  tell(file, where);
  index_.erase(file);
}

void ForkSharing::add_wanted(bool all, std::set<File*>& files) const {
  for (auto [file, i] : index_)
    if (slots_[i].where.load() == raw(SharedState::kRequested) || (all && slots_[i].descendants.load() > 0))
      files.insert(const_cast<File*>(file));
}

void ForkSharing::change_descendants(int by) {
  for (auto [file, i] : index_) slots_[i].descendants.fetch_add(static_cast<uint32_t>(by));
}

/// A dead parent that nobody has waited for yet still has its number: its state tells.
bool ForkSharing::owner_lives() const {
  if (getppid() == owner_) return true;
  char path[32], text[512];
  std::snprintf(path, sizeof(path), "/proc/%d/stat", owner_);
  const int fd = real.open(path, O_RDONLY | O_CLOEXEC);
  const ssize_t size = fd < 0 ? 0 : real.read(fd, text, sizeof(text));
  if (fd >= 0) real.close(fd);
  const std::string_view stat(text, size > 0 ? static_cast<size_t>(size) : 0);
  const size_t name_end = stat.rfind(") ");  // the name may have any character in it
  if (name_end == stat.npos || name_end + 2 >= stat.size()) return false;
  return stat[name_end + 2] != 'Z' && stat[name_end + 2] != 'X';
}

bool ForkSharing::others_have(const File* file) const {
  const Slot* s = slot(file);
  if (s == nullptr) return false;
  return s->descendants.load() > 1 || (s->where.load() != raw(SharedState::kLost) && owner_lives());
}

void ForkSharing::request(const File* file) {
  Slot* s = slot(file);
  uint32_t seen = raw(SharedState::kOwner);
  if (s == nullptr || !s->where.compare_exchange_strong(seen, raw(SharedState::kRequested))) return;
  const uint64_t one = 1;
  (void)!real.write(owner_wake_fd_, &one, sizeof(one));
}

SharedState ForkSharing::take(const File* file) {
  Slot* s = slot(file);
  if (s == nullptr) return SharedState::kLost;
  bool asked = false;
  for (int looks = 0; looks < kMostLooks; ++looks) {
    uint32_t seen = s->where.load();
    // kOwner again: the owner has opened it anew before this process saw the answer.
    if (seen == raw(SharedState::kOwner) || (seen == raw(SharedState::kKept) && !asked)) {
      if (!s->where.compare_exchange_strong(seen, raw(SharedState::kRequested))) continue;
      seen = raw(SharedState::kRequested);
      asked = true;
      const uint64_t one = 1;
      (void)!real.write(owner_wake_fd_, &one, sizeof(one));
    }
    if (seen > raw(SharedState::kKept)) return SharedState::kLost;
    if (seen >= raw(SharedState::kKernel)) return static_cast<SharedState>(seen);
    if (!owner_lives()) return SharedState::kLost;
    real.syscall(SYS_futex, &s->where, static_cast<long>(FUTEX_WAIT), static_cast<long>(seen), &kOwnerLook,
                 0L, 0L);
  }
  return SharedState::kLost;
}

void ForkSharing::give_up(const File* file) {
  if (Slot* s = slot(file)) s->descendants.fetch_sub(1);
  index_.erase(file);
}

void ForkSharing::survive_exec() {
  if (writing_end_ >= 0) real.fcntl(writing_end_, F_SETFD, 0);
}

}  // namespace accel::posix
