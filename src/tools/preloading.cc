#include "tools/preloading.h"

#include <elf.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <fstream>

namespace accel::tools {

namespace fs = std::filesystem;

std::optional<fs::path> find_preload_library() {
  std::error_code error;
  fs::path here = fs::read_symlink("/proc/self/exe", error).parent_path();
  for (const fs::path& place :
       {here / "../lib", here / ".." / ACCEL_LIBDIR, here, fs::path(ACCEL_INSTALL_LIBDIR)}) {
    fs::path library = place / "libaccel.so";
    if (fs::is_regular_file(library, error)) return fs::canonical(library, error);
  }
  return {};
}

/// Why the dynamic linker will not preload anything into this program; "" when it will, or when that is not
/// known (a script).
std::string preload_obstacle(const fs::path& program) {
  struct stat facts {};
  if (::stat(program.c_str(), &facts) != 0 || !S_ISREG(facts.st_mode)) return "";
  if ((facts.st_mode & S_ISUID && facts.st_uid != getuid()) ||
      (facts.st_mode & S_ISGID && facts.st_gid != getgid()))
    return "is setuid or setgid";
  std::ifstream file(program, std::ios::binary);
  Elf64_Ehdr header{};
  file.read(reinterpret_cast<char*>(&header), sizeof header);
  if (!file || std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) return "";
  if (header.e_ident[EI_CLASS] != ELFCLASS64) return "is a 32-bit program";
  for (unsigned i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment{};
    file.seekg(static_cast<std::streamoff>(header.e_phoff + uint64_t{i} * header.e_phentsize));
    file.read(reinterpret_cast<char*>(&segment), sizeof segment);
    if (!file) return "";
    if (segment.p_type == PT_INTERP) return "";
  }
  return "is linked statically";
}

std::string why_not_preloaded(int pid) {
  if (std::string why = preload_obstacle(fmt::format("/proc/{}/exe", pid)); !why.empty()) return "it " + why;
  std::ifstream variables(fmt::format("/proc/{}/environ", pid));
  for (std::string one; std::getline(variables, one, '\0');)
    if (one.starts_with("LD_PRELOAD=") && one.find("libaccel") != std::string::npos)
      return "LD_PRELOAD names it, but the dynamic linker did not load it (see the program's first lines on "
             "stderr)";
  return "LD_PRELOAD does not name it (accel run -- COMMAND)";
}

}  // namespace accel::tools
