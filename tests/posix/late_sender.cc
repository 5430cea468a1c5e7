// A library that sends when it is unloaded, after what the program itself does at exit().
#include <sys/socket.h>

[[gnu::visibility("default")]] int late_sender_fd = -1;

namespace {

[[gnu::destructor]] void say() {
  if (late_sender_fd >= 0) (void)!send(late_sender_fd, "library", 7, MSG_NOSIGNAL);
}

}  // namespace
