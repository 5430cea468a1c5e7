#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>

#include "tools/commands.h"

namespace accel::tools {
namespace {

namespace fs = std::filesystem;

/// Beside this program first, so that a build tree or an unpacked archive uses its own.
std::optional<fs::path> find_library() {
  std::error_code error;
  fs::path here = fs::read_symlink("/proc/self/exe", error).parent_path();
  for (const fs::path& place :
       {here / "../lib", here / ".." / ACCEL_LIBDIR, here, fs::path(ACCEL_INSTALL_LIBDIR)}) {
    fs::path library = place / "libaccel.so";
    if (fs::is_regular_file(library, error)) return fs::canonical(library, error);
  }
  return {};
}

}  // namespace

int run(const RunOptions& options) {
  if (options.command.empty()) {
    fmt::print(stderr, "accel run: no command given: accel run -- COMMAND [ARGUMENT...]\n");
    return 2;
  }
  auto library = find_library();
  if (!library) {
    fmt::print(stderr, "accel run: libaccel.so is neither beside this program nor in {}\n",
               ACCEL_INSTALL_LIBDIR);
    return 2;
  }
  if (library->string().find_first_of(": ") != std::string::npos) {
    fmt::print(stderr, "accel run: the dynamic linker cannot preload {}: its path has a space or colon\n",
               library->string());
    return 2;
  }
  std::string preload = library->string();
  if (const char* others = getenv("LD_PRELOAD"); others && *others) preload += std::string(":") + others;
  setenv("LD_PRELOAD", preload.c_str(), 1);
  if (!options.profile.empty()) setenv("ACCEL_PROFILE", options.profile.c_str(), 1);
  if (options.require) setenv("ACCEL_REQUIRE", "1", 1);
  if (!options.config.empty()) setenv("ACCEL_CONFIG", fs::absolute(options.config).c_str(), 1);

  std::vector<char*> arguments;
  for (const std::string& a : options.command) arguments.push_back(const_cast<char*>(a.c_str()));
  arguments.push_back(nullptr);
  execvp(arguments[0], arguments.data());
  int error = errno;
  fmt::print(stderr, "accel run: {}: {}\n", arguments[0], std::strerror(error));
  return error == ENOENT ? 127 : 126;  // as shells do
}

}  // namespace accel::tools
