// Any bytes as libaccel.toml: nothing happens but problems, and whatever was not understood is the kernel's.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "base/config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace accel;
  static const int fd = memfd_create("config", 0);
  if (ftruncate(fd, 0) != 0 || pwrite(fd, data, size, 0) != static_cast<ssize_t>(size)) abort();
  ConfigSource source;
  source.programs = {"redis-server"};
  source.file = "/proc/self/fd/" + std::to_string(fd);
  source.file_must_exist = true;
  std::vector<std::string> problems;
  Config config = load_config(source, problems);
  if (problems.size() > 21) abort();
  if (config.misread && (problems.empty() || config.path_for(Role::kTcpServer, {}) != Path::kKernel)) abort();
  return 0;
}
