// A library that entry_test loads with RTLD_DEEPBIND: its own names and libc's go before the program's.
#include <sys/socket.h>
#include <unistd.h>

extern "C" [[gnu::visibility("default")]] bool deep_bound_echo(int fd, const char* text, char* answer,
                                                               size_t size) {
  return send(fd, text, size, 0) == static_cast<ssize_t>(size) &&
         recv(fd, answer, size, MSG_WAITALL) == static_cast<ssize_t>(size);
}

extern "C" [[gnu::visibility("default")]] bool deep_bound_close(int fd) {
  ssize_t (*volatile by_pointer)(int, const void*, size_t) = &write;  // by the other kind of slot
  char answer;
  return by_pointer(fd, "!", 1) == 1 && read(fd, &answer, 1) == 1 && close(fd) == 0;
}
