// A program that has little memory left: socket() and epoll_ctl() may fail with ENOMEM, or leave a socket to
// the kernel; they never end it. Run on the kernel and with the whole library.
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

namespace {

constexpr rlim_t kLeft = 1 << 20;
constexpr int kSockets = 20000;

/// The data segment as it is, in bytes (proc(5), VmData).
rlim_t data_size() {
  FILE* file = fopen("/proc/self/status", "re");
  char line[256];
  unsigned long kib = 0;
  while (file && fgets(line, sizeof line, file))
    if (sscanf(line, "VmData: %lu", &kib) == 1) break;
  if (file) fclose(file);
  return rlim_t{kib} * 1024;
}

bool is_expected(int error) {
  return error == ENOMEM || error == ENOBUFS || error == EMFILE || error == ENFILE || error == ENOSPC;
}

int fail(const char* call, int error) {
  printf("%s: error %d\n", call, error);
  return 1;
}

}  // namespace

int main() {
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
  const int set = epoll_create1(EPOLL_CLOEXEC);
  close(socket(AF_INET, SOCK_STREAM, 0));
  const rlimit data{data_size() + kLeft, data_size() + kLeft};
  setrlimit(RLIMIT_DATA, &data);
  int made = 0;
  for (; made < kSockets; ++made) {
    const int fd = socket(AF_INET, made % 2 == 0 ? SOCK_STREAM : SOCK_DGRAM, 0);
    if (fd < 0 && is_expected(errno)) break;
    if (fd < 0) return fail("socket", errno);
    epoll_event event{EPOLLIN, {.fd = fd}};
    if (epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) != 0 && !is_expected(errno))
      return fail("epoll_ctl", errno);
  }
  printf("%d sockets\n", made);
  return made > 100 ? 0 : 1;
}
