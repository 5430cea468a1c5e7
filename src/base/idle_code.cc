#include "base/idle_code.h"

#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <string_view>

#include "base/real.h"

namespace accel {
namespace {

constexpr uintptr_t kPage = 4096;

/// Libraries that load the XDP program and read the network's tables, and libraries of which loading alone
/// has touched pages.
constexpr std::string_view kLibraries[] = {"libaccel-xdp.so",  "libxdp.so",   "libbpf.so",
                                           "libelf",           "libz.so",     "libnl-3.so",
                                           "libnl-route-3.so", "libgcc_s.so", "libm.so"};

bool is_listed(const char* path) {
  const std::string_view name = path;
  const std::string_view file = name.substr(name.rfind('/') + 1);
  return std::any_of(std::begin(kLibraries), std::end(kLibraries),
                     [&](std::string_view library) { return file.starts_with(library); });
}

/// Entries of /proc/self/pagemap (Documentation/admin-guide/mm/pagemap.rst).
constexpr uint64_t kPresent = uint64_t{1} << 63, kOfFile = uint64_t{1} << 61;
constexpr size_t kEntries = 256;

/// Of [begin, end) the pages that are still the file's. A page that somebody has written to (a debugger, a
/// library that redirects functions) is the process's own and stays.
void release_pages(int pagemap, uintptr_t begin, uintptr_t end) {
  while (begin < end) {
    uint64_t pages[kEntries];
    const size_t wanted = std::min<size_t>((end - begin + kPage - 1) / kPage, kEntries);
    const ssize_t got = real.pread(pagemap, pages, wanted * sizeof pages[0],
                                   static_cast<off_t>(begin / kPage * sizeof pages[0]));
    if (got <= 0) return;
    const size_t count = static_cast<size_t>(got) / sizeof pages[0];
    for (size_t i = 0; i < count;) {
      size_t run = i;
      while (run < count && (pages[run] & (kPresent | kOfFile)) == (kPresent | kOfFile)) ++run;
      if (run > i) madvise(reinterpret_cast<void*>(begin + i * kPage), (run - i) * kPage, MADV_DONTNEED);
      i = run + 1;
    }
    begin += count * kPage;
  }
}

/// Segments that nobody writes: the part that relocations have changed has a segment of its own.
int release(dl_phdr_info* library, size_t, void* pagemap) {
  if (library->dlpi_name == nullptr || !is_listed(library->dlpi_name)) return 0;
  for (int i = 0; i < library->dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = library->dlpi_phdr[i];
    if (segment.p_type != PT_LOAD || (segment.p_flags & PF_W) != 0) continue;
    const uintptr_t begin = (library->dlpi_addr + segment.p_vaddr) & ~(kPage - 1);
    release_pages(*static_cast<int*>(pagemap), begin, library->dlpi_addr + segment.p_vaddr + segment.p_memsz);
  }
  return 0;
}

}  // namespace

void release_idle_code() {
  const int saved = errno;
  int pagemap = real.open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  if (pagemap >= 0) {
    dl_iterate_phdr(&release, &pagemap);
    real.close(pagemap);
  }
  errno = saved;
}

}  // namespace accel
