#include "base/idle_code.h"

#include <link.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <string_view>

namespace accel {
namespace {

constexpr uintptr_t kPage = 4096;

/// Those that load the XDP program and read the network's tables, and those that little but their loading has
/// touched.
constexpr std::string_view kLibraries[] = {"libaccel-xdp.so",  "libxdp.so",   "libbpf.so",
                                           "libelf",           "libz.so",     "libnl-3.so",
                                           "libnl-route-3.so", "libgcc_s.so", "libm.so"};

bool is_listed(const char* path) {
  const std::string_view name = path;
  const std::string_view file = name.substr(name.rfind('/') + 1);
  return std::any_of(std::begin(kLibraries), std::end(kLibraries),
                     [&](std::string_view library) { return file.starts_with(library); });
}

/// Segments that nobody writes: the part that relocations have changed has a segment of its own.
int release(dl_phdr_info* library, size_t, void*) {
  if (library->dlpi_name == nullptr || !is_listed(library->dlpi_name)) return 0;
  for (int i = 0; i < library->dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = library->dlpi_phdr[i];
    if (segment.p_type != PT_LOAD || (segment.p_flags & PF_W) != 0) continue;
    const uintptr_t begin = (library->dlpi_addr + segment.p_vaddr) & ~(kPage - 1);
    const uintptr_t end = library->dlpi_addr + segment.p_vaddr + segment.p_memsz;
    madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
  }
  return 0;
}

}  // namespace

void release_idle_code() {
  const int saved = errno;
  dl_iterate_phdr(&release, nullptr);
  errno = saved;
}

}  // namespace accel
