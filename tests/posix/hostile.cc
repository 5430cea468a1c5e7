// A library under a name that libaccel looks for, where it must not be found: it says so by a file.
#include <fcntl.h>

#include <cstdlib>

namespace {

[[gnu::constructor]] void leave_mark() {
  if (const char* mark = std::getenv("HOSTILE_MARK")) (void)!creat(mark, 0600);
}

}  // namespace
