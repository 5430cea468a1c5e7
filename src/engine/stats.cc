// The page itself and the notes; what the engine answers is in stats_publish.cc.
#include "engine/stats.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/inherited_filter.h"
#include "base/private_fds.h"
#include "base/real.h"
#include "engine/tap.h"
#include "engine/wish.h"

namespace accel::stats {
namespace {

std::atomic<Page*> current{nullptr};
/// Where the descriptor was put and what it is: the program may close it and get the number for something
/// else.
int page_fd = -1;
uint64_t page_device = 0, page_inode = 0;

/// Out of the way of the numbers that the program sees, yet below 1024: the kernel's table need not grow.
int move_up(int fd) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  int from = static_cast<int>(std::min<rlim_t>(limit.rlim_cur, 1024)) - 16;
  int moved = from > fd ? static_cast<int>(real.fcntl(fd, F_DUPFD_CLOEXEC, from)) : -1;
  if (moved < 0) return fd;
  real.close(fd);
  return moved;
}

void copy_text(char* into, size_t size, std::string_view text) {
  size_t n = std::min(size - 1, text.size());
  std::memcpy(into, text.data(), n);
  into[n] = '\0';
}

void fill_header(Page& p) {
  const Config& c = config();
  copy_text(p.config_file, sizeof p.config_file, c.file);
  copy_text(p.application, sizeof p.application, c.application);
  copy_text(p.profile, sizeof p.profile, word(c.settings.profile));
  copy_text(p.mistake, sizeof p.mistake, c.first_problem);
  p.pid = static_cast<int32_t>(getpid());
  p.size = sizeof(Page);
  p.counters = static_cast<uint32_t>(Counter::kCount);
  p.version = kVersion;
  p.magic = kMagic;
}

/// A memfd of our own size, mapped; nullptr: the process goes without.
Page* make(int* fd) {
  rlimit limit{};
  // Growing a file beyond the limit would be a SIGXFSZ for the program.
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < sizeof(Page)) return nullptr;
  *fd = static_cast<int>(real.syscall(SYS_memfd_create, kStatsName, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (*fd < 0) return nullptr;
  *fd = move_up(*fd);
  void* memory = MAP_FAILED;
  // Sparse: what is not written takes no memory.
  if (ftruncate(*fd, sizeof(Page)) == 0) {
    real.fcntl(*fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW);  // no reader can make our stores fault
    memory = mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, *fd, 0);
  }
  if (memory == MAP_FAILED) {
    real.close(*fd);
    return nullptr;
  }
  madvise(memory, sizeof(Page), MADV_DONTDUMP);
  return static_cast<Page*>(memory);
}

/// The page, made if need be; nullptr when there is none.
Page* ensure() {
  if (Page* p = current.load(std::memory_order_acquire)) return p;
  if (!config().settings.stats || killing_filter() != nullptr) return nullptr;
  int saved = errno;
  int fd = -1;
  Page* mine = make(&fd);
  if (mine) {
    fill_header(*mine);
    struct stat facts {};
    fstat(fd, &facts);
    Page* faster = nullptr;
    if (current.compare_exchange_strong(faster, mine, std::memory_order_acq_rel)) {
      page_fd = keep_private(fd);
      page_device = facts.st_dev;
      page_inode = facts.st_ino;
      static std::atomic_flag registered;
      if (!registered.test_and_set()) pthread_atfork(nullptr, nullptr, after_fork_in_child);
    } else {
      munmap(mine, sizeof(Page));
      real.close(fd);
      mine = faster;
    }
  }
  errno = saved;
  return mine;
}

}  // namespace

Page* page() { return current.load(std::memory_order_acquire); }

void open() {
  if (Page* p = ensure()) p->has_engine = 1;
}

void close() {
  if (Page* p = page()) p->has_engine = 0;
}

void note_helper(int pid, const char* why) {
  Page* p = page();
  if (!p) return;
  p->helper = pid;
  if (why != nullptr) copy_text(p->no_helper, sizeof p->no_helper, why);
}

void after_fork_in_child() {
  tap::abandon();
  Page* p = current.exchange(nullptr, std::memory_order_acq_rel);
  if (!p) return;
  munmap(p, sizeof(Page));
  if (is_file(page_fd, page_device, page_inode)) close_private(page_fd);
  page_fd = -1;
}

static bool has_wish(const Page& page) {
  return page.wish.asked.load(std::memory_order_acquire) !=
         page.wish.answered.load(std::memory_order_relaxed);
}

/// A wish may come between the look for wishes and the answer to what was asked: it is asked for by itself.
bool requested() {
  const Page* p = page();
  return p && (p->asked.load(std::memory_order_relaxed) != p->answered.load(std::memory_order_relaxed) ||
               has_wish(*p));
}

std::optional<std::string> wish() {
  Page* p = page();
  if (!p || !has_wish(*p)) return std::nullopt;
  char text[sizeof p->wish.text];
  std::memcpy(text, p->wish.text, sizeof text);
  return std::string(text, strnlen(text, sizeof text));
}

void answer_wish(const std::string& why_not) {
  Page* p = page();
  if (!p) return;
  copy_text(p->wish.answer, sizeof p->wish.answer, why_not);
  p->wish.answered.store(p->wish.asked.load(std::memory_order_relaxed), std::memory_order_release);
}

void note_kernel(int fd, Reason reason, uint8_t detail) {
  if (fd < 0 || static_cast<uint32_t>(fd) >= kMaxNotes) return;
  Page* p = ensure();
  if (!p) return;
  int saved = errno;
  struct stat facts;
  if (fstat(fd, &facts) == 0 && S_ISSOCK(facts.st_mode)) {
    NoteRow& note = p->note[fd];
    note.inode.store(0, std::memory_order_release);
    note.reason = static_cast<uint8_t>(reason);
    note.detail = has_detail(reason) ? detail : 0;
    note.inode.store(facts.st_ino, std::memory_order_release);
  }
  errno = saved;
}

std::optional<KernelNote> kernel_note(int fd, int limit) {
  const Page* p = page();
  struct stat facts;
  if (p == nullptr || fd < 0 || fstat(fd, &facts) != 0) return {};
  const auto find = [&](uint32_t number) -> std::optional<KernelNote> {
    const NoteRow& note = p->note[number];
    if (note.inode.load(std::memory_order_acquire) != facts.st_ino) return {};
    return KernelNote{static_cast<Reason>(note.reason), note.detail};
  };
  if (static_cast<uint32_t>(fd) < kMaxNotes)
    if (const auto own = find(static_cast<uint32_t>(fd))) return own;
  for (uint32_t number = 0; number < std::min(static_cast<uint32_t>(limit), kMaxNotes); ++number)
    if (const auto other = find(number)) return other;
  return {};
}

void forget_kernel(int fd) {
  if (Page* p = page(); p != nullptr && fd >= 0 && static_cast<uint32_t>(fd) < kMaxNotes)
    p->note[fd].inode.store(0, std::memory_order_release);
}

uint8_t note_detail(const char* text) {
  Page* p = ensure();
  for (uint32_t i = 1; p != nullptr && i <= kMaxDetails; ++i) {
    if (p->detail[i][0] == 0) copy_text(p->detail[i], sizeof p->detail[i], text);
    if (std::strncmp(p->detail[i], text, sizeof p->detail[i] - 1) == 0) return static_cast<uint8_t>(i);
  }
  return 0;
}

std::string detail_text(uint8_t number) {
  const Page* p = page();
  if (p == nullptr || number == 0) return "";
  const auto& text = p->detail[number];
  return {text, strnlen(text, sizeof text)};
}

}  // namespace accel::stats
