// A library that is loaded with RTLD_DEEPBIND, and what is loaded for it, finds libc before us. Once the
// program looks a function up in any library, the slots through which such a one calls what we stand in front
// of get our functions. To drop the flag would bind all its other symbols otherwise than its author wants.
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "preload/linker/lookup.h"

namespace accel::preload {
namespace {

#if defined(__x86_64__)
constexpr uint32_t kJumpSlot = R_X86_64_JUMP_SLOT, kGlobalData = R_X86_64_GLOB_DAT;
#elif defined(__aarch64__)
constexpr uint32_t kJumpSlot = R_AARCH64_JUMP_SLOT, kGlobalData = R_AARCH64_GLOB_DAT;
#else
#error "deep binding: name this machine's relocations"
#endif

/// A pointer of a library's to a function of one of our names.
struct Slot {
  void** at;
  const char* name;
  bool unbound;  ///< it leads into the library itself, to be resolved at the first call
};

struct Library {
  std::string name;
  ElfW(Addr) base = 0;
  ElfW(Addr) guarded = 0, guarded_end = 0;  ///< read-only since it is relocated (PT_GNU_RELRO)
  std::vector<Slot> slots;
};

std::atomic<bool> expected{false};
using Bases = std::vector<ElfW(Addr)>;
constinit Mutex before_lock;                ///< who fills `before`
std::atomic<const Bases*> before{nullptr};  ///< where what was there before the first such library lies
std::atomic<unsigned long long> led{0};     ///< loads whose libraries have been led here (dlpi_adds)
constinit Mutex write_lock;                 ///< of the protection of the slots' pages

struct Dynamic {
  const ElfW(Sym) * symbols = nullptr;
  const char* names = nullptr;
  const ElfW(Rela) * relocations = nullptr, *jumps = nullptr;
  size_t relocations_size = 0, jumps_size = 0;
};

Dynamic read_dynamic(const ElfW(Dyn) * entry, ElfW(Addr) base) {
  Dynamic d;
  const auto at = [&]<class T>(const T*& to) {  // the linker has made addresses of them, as a rule
    to = reinterpret_cast<const T*>(entry->d_un.d_ptr < base ? base + entry->d_un.d_ptr : entry->d_un.d_ptr);
  };
  for (; entry->d_tag != DT_NULL; ++entry) switch (entry->d_tag) {
      case DT_SYMTAB:
        at(d.symbols);
        break;
      case DT_STRTAB:
        at(d.names);
        break;
      case DT_RELA:
        at(d.relocations);
        break;
      case DT_RELASZ:
        d.relocations_size = entry->d_un.d_val;
        break;
      case DT_JMPREL:
        at(d.jumps);
        break;
      case DT_PLTRELSZ:
        d.jumps_size = entry->d_un.d_val;
        break;
      default:
        break;
    }
  return d;
}

bool lies_in(const dl_phdr_info& info, const void* p) {
  const auto address = reinterpret_cast<ElfW(Addr)>(p);
  return std::any_of(info.dlpi_phdr, info.dlpi_phdr + info.dlpi_phnum, [&](const ElfW(Phdr) & segment) {
    const ElfW(Addr) first = info.dlpi_addr + segment.p_vaddr;
    return segment.p_type == PT_LOAD && address >= first && address - first < segment.p_memsz;
  });
}

void add_slots(Library& library, const dl_phdr_info& info, const Dynamic& d, const ElfW(Rela) * first,
               size_t size) {
  for (const ElfW(Rela)* r = first; r < first + size / sizeof *r; ++r) {
    const auto type = static_cast<uint32_t>(ELF64_R_TYPE(r->r_info));
    if (type != kJumpSlot && type != kGlobalData) continue;
    const ElfW(Sym)& symbol = d.symbols[ELF64_R_SYM(r->r_info)];
    const char* name = d.names + symbol.st_name;
    if (symbol.st_shndx != SHN_UNDEF || wrapper_of(name) == nullptr) continue;
    auto** at = reinterpret_cast<void**>(info.dlpi_addr + r->r_offset);
    library.slots.push_back({at, name, type == kJumpSlot && lies_in(info, *at)});
  }
}

/// Asks the dynamic linker nothing: its list is locked.
int note_library(dl_phdr_info* info, size_t, void* context) {
  const Bases& known = *before.load(std::memory_order_acquire);
  if (std::find(known.begin(), known.end(), info->dlpi_addr) == known.end())
    static_cast<std::vector<Library>*>(context)->push_back({info->dlpi_name, info->dlpi_addr, 0, 0, {}});
  return 0;
}

/// `context`: the library whose slots are wanted. The linker has relocated it.
int note_slots(dl_phdr_info* info, size_t, void* context) {
  auto& library = *static_cast<Library*>(context);
  if (info->dlpi_addr != library.base) return 0;
  const ElfW(Dyn)* dynamic = nullptr;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = info->dlpi_phdr[i];
    const ElfW(Addr) first = info->dlpi_addr + segment.p_vaddr;
    if (segment.p_type == PT_DYNAMIC) dynamic = reinterpret_cast<const ElfW(Dyn)*>(first);
    if (segment.p_type != PT_GNU_RELRO) continue;
    library.guarded = first;
    library.guarded_end = first + segment.p_memsz;
  }
  if (dynamic == nullptr) return 1;
  const Dynamic d = read_dynamic(dynamic, info->dlpi_addr);
  if (d.symbols == nullptr || d.names == nullptr) return 1;
  add_slots(library, *info, d, d.relocations, d.relocations_size);
  add_slots(library, *info, d, d.jumps, d.jumps_size);
  return 1;
}

void write_slot(const Library& library, const Slot& slot, void* function) {
  const auto page_size = static_cast<ElfW(Addr)>(getpagesize());
  const auto at = reinterpret_cast<ElfW(Addr)>(slot.at);
  const auto page = reinterpret_cast<void*>(at & ~(page_size - 1));
  // The linker protects whole pages only.
  const bool guarded =
      at >= (library.guarded & ~(page_size - 1)) && at < (library.guarded_end & ~(page_size - 1));
  const MutexLock lock(write_lock);
  if (!guarded || mprotect(page, page_size, PROT_READ | PROT_WRITE) == 0) {
    __atomic_store_n(slot.at, function, __ATOMIC_RELEASE);
    if (guarded) mprotect(page, page_size, PROT_READ);
  }
}

/// What is bound to libc, or would be at the first call.
void lead_here(Library& library) {
  // The library stays meanwhile. A load in another thread is waited for: its library is relocated afterwards.
  void* handle = dlopen(library.name.c_str(), RTLD_LAZY | RTLD_NOLOAD);
  if (handle == nullptr) {
    (void)dlerror();
    return;
  }
  dl_iterate_phdr(note_slots, &library);
  for (const Slot& slot : library.slots) {
    const void* leads_to =
        slot.unbound ? looked_up_past_us(handle, slot.name) : __atomic_load_n(slot.at, __ATOMIC_RELAXED);
    void* const ours = wrapper_of(slot.name);
    const bool first_of_all = looked_up_past_us(RTLD_DEFAULT, slot.name) == ours;
    if (first_of_all && leads_to != nullptr && leads_to == libcs(slot.name)) write_slot(library, slot, ours);
  }
  dlclose(handle);
}

int note_base(dl_phdr_info* info, size_t, void* bases) {
  static_cast<Bases*>(bases)->push_back(info->dlpi_addr);
  return 0;
}

int count_loaded(dl_phdr_info* info, size_t, void* adds) {
  *static_cast<unsigned long long*>(adds) = info->dlpi_adds;
  return 1;
}

}  // namespace

void expect_deep_bound() {
  const MutexLock lock(before_lock);
  if (before.load(std::memory_order_relaxed) == nullptr) {
    auto* found = new Bases;
    dl_iterate_phdr(note_base, found);
    before.store(found, std::memory_order_release);
  }
  expected.store(true, std::memory_order_release);
}

/// Threads may do the same at once. A library counts as led only when its slots are written.
void lead_deep_bound_here() {
  if (!expected.load(std::memory_order_acquire)) return;
  unsigned long long loaded = 0;
  dl_iterate_phdr(count_loaded, &loaded);
  if (loaded == led.load(std::memory_order_acquire)) return;
  std::vector<Library> libraries;
  dl_iterate_phdr(note_library, &libraries);
  for (Library& library : libraries) lead_here(library);
  led.store(loaded, std::memory_order_release);
}

}  // namespace accel::preload
