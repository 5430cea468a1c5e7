// Functions that the socket programs of this folder share. The programs know nothing of libaccel.
#pragma once

#include <arpa/inet.h>
#include <sys/socket.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

using Clock = std::chrono::steady_clock;

[[noreturn]] inline void fail(const char* what) {
  perror(what);
  exit(1);
}

/// A call's result; a negative one ends the program.
inline int check(long result, const char* what) {
  if (result < 0) fail(what);
  return static_cast<int>(result);
}

inline sockaddr_in address(const char* text, const char* port) {
  sockaddr_in a{};
  a.sin_family = AF_INET;
  a.sin_port = htons(static_cast<uint16_t>(atoi(port)));
  if (inet_pton(AF_INET, text, &a.sin_addr) != 1) fail("address");
  return a;
}

template <class T>
void set_option(int fd, int level, int name, const T& value) {
  check(setsockopt(fd, level, name, &value, sizeof value), "setsockopt");
}
