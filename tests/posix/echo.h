// The far end that most tests of live connections want: it echoes, and says at the end what it saw.
#pragma once

#include "posix/far.h"

namespace posix_test {

// Accepts, then echoes bytes until the end of the stream; says what it saw, line ends as '|'.
FAR(echo_stream) {
  Fd listener = listen_at(here());
  near.say(port_of(listener));
  Fd fd = accept_one(listener);
  char buffer[4096];
  std::string all;
  ssize_t n;
  while ((n = recv(fd, buffer, sizeof(buffer), 0)) > 0) {
    write_all(fd, buffer, static_cast<size_t>(n));
    all.append(buffer, static_cast<size_t>(n));
  }
  for (char& c : all)
    if (c == '\n') c = '|';
  near.say(n < 0 ? strerror(errno) : all.empty() ? "-" : all);
}

inline void exchange(int fd, const std::string& text) {
  write_all(fd, text);
  EXPECT_EQ(read_exactly(fd, text.size()), text);
}

/// A connection to echo_stream. `dots`: it first carries so many, for run.py's proof, since what follows may
/// be the kernel's; they are not told then.
struct Echo : Far {
  explicit Echo(int dots = 0)
      : Far("echo_stream"), fd(connect_to(there(static_cast<uint16_t>(number())))), proved(dots > 0) {
    for (int i = 0; i < dots; ++i) exchange(fd, ".");
  }
  /// What the other end says it got, once the connection has ended.
  std::string seen() {
    std::string text = word();
    if (proved) std::erase(text, '.');
    return text.empty() ? "-" : text;
  }
  std::string all() {
    fd.reset();
    const std::string text = seen();
    finish();
    return text;
  }
  Fd fd;
  const bool proved;
};

constexpr int kProof = 100;

}  // namespace posix_test
