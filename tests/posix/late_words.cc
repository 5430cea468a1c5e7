// A library that has something to say when it is unloaded, behind what the program itself has at exit().
#include <sys/socket.h>

[[gnu::visibility("default")]] int late_words_to = -1;

namespace {

[[gnu::destructor]] void say() {
  if (late_words_to >= 0) (void)!send(late_words_to, "library", 7, MSG_NOSIGNAL);
}

}  // namespace
