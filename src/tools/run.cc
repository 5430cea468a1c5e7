#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>

#include "tools/commands.h"
#include "tools/preloading.h"

namespace accel::tools {
namespace {

namespace fs = std::filesystem;

/// As execvp finds it; empty when it does not.
fs::path find_command(const std::string& name) {
  std::error_code error;
  if (name.find('/') != std::string::npos) return name;
  const char* path = getenv("PATH");
  std::istringstream folders(path ? path : "/bin:/usr/bin");
  for (std::string folder; std::getline(folders, folder, ':');) {
    fs::path file = fs::path(folder.empty() ? "." : folder) / name;
    if (access(file.c_str(), X_OK) == 0 && fs::is_regular_file(file, error)) return file;
  }
  return {};
}

}  // namespace

int run(const RunOptions& options) {
  if (options.command.empty()) {
    fmt::print(stderr, "accel run: no command given: accel run -- COMMAND [ARGUMENT...]\n");
    return 2;
  }
  auto library = find_preload_library();
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
  if (std::string why = preload_obstacle(find_command(options.command[0])); !why.empty()) {
    fmt::print(stderr,
               "accel run: {} {}: libaccel cannot be preloaded into it, its sockets stay with the kernel\n",
               options.command[0], why);
    if (options.require) return 2;
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
