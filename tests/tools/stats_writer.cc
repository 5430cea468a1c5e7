// A process with a statistics page: a TCP listener and an unbound UDP socket, both noted as left to the
// kernel. With --fork its child makes a page of its own. Prints its descriptors, then waits for the end of
// its input. With --hostile it says that it has an engine and more rows than a page can have, and goes on
// changing how many.
#include <arpa/inet.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <thread>

#include "engine/stats.h"

using namespace accel;

namespace {

void wait_for_end_of_input() {
  char byte;
  while (read(0, &byte, 1) > 0) {
  }
}

int listener(uint16_t* port) {
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in any{};
  any.sin_family = AF_INET;
  any.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof any;
  if (bind(fd, reinterpret_cast<sockaddr*>(&any), size) != 0 || listen(fd, 1) != 0) return -1;
  getsockname(fd, reinterpret_cast<sockaddr*>(&any), &size);
  *port = ntohs(any.sin_port);
  return fd;
}

std::atomic<bool> at_end{false};

void write_lies(stats::Page* page) {
  page->has_engine = 1;
  page->ports = ~0u;
  std::memset(page->port, 0xff, sizeof page->port);
  std::memset(page->application, 'x', sizeof page->application);
  page->row[0].path = page->row[0].reason = page->row[0].state = 0xff;
  for (uint32_t n = 0; !at_end.load(std::memory_order_relaxed); ++n) {
    std::atomic_ref(page->rows).store((n & 1) != 0 ? ~0u : 1, std::memory_order_relaxed);
    page->answered.store(page->asked.load());
  }
}

}  // namespace

int main(int argc, char** argv) {
  bool forks = argc > 1 && std::strcmp(argv[1], "--fork") == 0;
  const bool hostile = argc > 1 && std::strcmp(argv[1], "--hostile") == 0;
  bool closes = argc > 1 && std::strcmp(argv[1], "--close") == 0;
  uint16_t port = 0;
  int tcp = listener(&port);
  int udp = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  int closed = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  stats::note_kernel(tcp, Reason::loopback);
  stats::note_kernel(udp, Reason::no_route);
  stats::note_kernel(closed, Reason::rule);
  stats::note_kernel(0, Reason::rule);  // no socket
  stats::note_kernel(-1, Reason::rule);
  stats::note_kernel(1 << 30, Reason::rule);
  close(closed);
  if (closes) close_range(100, ~0u, 0);  // as a program closes descriptors that it does not know
  pid_t child = 0;
  if (forks) {
    child = fork();
    if (child == 0) {
      bool mine = stats::page() == nullptr;
      stats::note_kernel(udp, Reason::inherited);
      wait_for_end_of_input();
      return mine ? 0 : 1;
    }
  }
  std::thread writing;
  if (hostile) writing = std::thread(write_lies, stats::page());
  std::printf("%d %d %d %u\n", tcp, udp, child, port);
  std::fflush(stdout);
  wait_for_end_of_input();
  at_end = true;
  if (writing.joinable()) writing.join();
  int status = 0;
  if (child && (waitpid(child, &status, 0) != child || status != 0)) return 1;
  return 0;
}
