#include "base/start_paths.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>

#ifndef STATX_MNT_ID  // 5.8
#define STATX_MNT_ID 0x1000U
#endif

namespace accel {
namespace {

/// A folder, and the mount that it is reached by: a new mount namespace has other mounts.
struct Identity {
  uint64_t device = 0, inode = 0, mount = 0;
  bool operator==(const Identity&) const = default;
};

/// {} where it cannot be looked at.
Identity identity_of(const char* folder) {
  struct statx s {};
  if (statx(AT_FDCWD, folder, AT_STATX_DONT_SYNC, STATX_INO | STATX_MNT_ID, &s) != 0) return {};
  const uint64_t mount = (s.stx_mask & STATX_MNT_ID) != 0 ? s.stx_mnt_id : 0;
  return {makedev(s.stx_dev_major, s.stx_dev_minor), s.stx_ino, mount};
}

struct Start {
  Identity root, working, own;
  bool relative_libraries = false;
  char folder[PATH_MAX] = {};  ///< empty: unknown
};
Start start;
std::atomic<bool> noted{false};

/// ld.so(8): entries end at a colon or semicolon, an empty one is the working folder, and $ORIGIN is
/// absolute.
bool has_relative_entry(const char* list) {
  if (list == nullptr || *list == '\0') return false;
  for (const char* entry = list;; ++entry) {
    if (*entry != '/' && *entry != '$') return true;
    entry += std::strcspn(entry, ":;");
    if (*entry == '\0') return false;
  }
}

/// Of the object that this code is in. A relative LD_PRELOAD gives it a relative name.
void note_own_folder() {
  Dl_info self{};
  if (dladdr(reinterpret_cast<void*>(&note_start_paths), &self) == 0 || self.dli_fname == nullptr) return;
  const char* const slash = std::strrchr(self.dli_fname, '/');
  const size_t length = slash == nullptr ? 0 : static_cast<size_t>(slash - self.dli_fname);
  size_t used = 0;
  if (self.dli_fname[0] != '/') {
    if (getcwd(start.folder, sizeof start.folder) == nullptr || start.folder[0] != '/') {
      start.folder[0] = '\0';
      return;
    }
    used = std::strlen(start.folder);
    start.folder[used++] = '/';
  }
  if (used + length >= sizeof start.folder) {
    start.folder[0] = '\0';
    return;
  }
  std::memcpy(start.folder + used, self.dli_fname, length);
  start.folder[used + length] = '\0';
  if (used + length == 0) std::strcpy(start.folder, "/");
  start.own = identity_of(start.folder);
}

[[gnu::constructor]] void note_at_load() { note_start_paths(); }

}  // namespace

void note_start_paths() {
  if (noted.exchange(true)) return;
  const int saved = errno;
  start.root = identity_of("/");
  start.relative_libraries = has_relative_entry(std::getenv("LD_LIBRARY_PATH"));
  if (start.relative_libraries) start.working = identity_of(".");
  note_own_folder();
  errno = saved;
}

const char* start_paths_changed() {
  note_start_paths();
  if (identity_of("/") != start.root)
    return "the process has another root than at its start (chroot, pivot_root, a mount namespace)";
  if (start.relative_libraries && identity_of(".") != start.working)
    return "LD_LIBRARY_PATH has relative entries, and the process has changed its working folder";
  return nullptr;
}

std::string own_folder(std::string& why) {
  if (const char* changed = start_paths_changed()) {
    why += changed;
    return {};
  }
  if (start.folder[0] == '\0' || start.own == Identity{} || identity_of(start.folder) != start.own) {
    why += start.folder[0] == '\0' ? "the folder of libaccel.so is not known"
                                   : std::string(start.folder) + " is not the folder that it was at start";
    return {};
  }
  return start.folder;
}

}  // namespace accel
