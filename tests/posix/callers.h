// What tests of descriptors in messages share.
#pragma once

#include <stdexcept>
#include <string>

#include "posix/far.h"

namespace posix_test {

struct Pair {
  Pair() {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) throw std::runtime_error("socketpair");
    mine = Fd(ends[0]);
    theirs = Fd(ends[1]);
  }
  Fd mine, theirs;
};

// Calls as often as told, sends a byte each time and says what it got to the end.
FAR(callers) {
  for (std::string order; (order = near.word()) != "end";) {
    Fd fd = connect_to(there(static_cast<uint16_t>(std::stoi(order))));
    write_all(fd, "?");
    near.say(read_to_end(fd));
  }
}

/// Serves one caller.
inline void serve(int listener, const std::string& answer) {
  Fd fd = accept_one(listener);
  EXPECT_EQ(read_exactly(fd, 1), "?");
  write_all(fd, answer);
}

struct Callers : Far {
  explicit Callers(int listener) : Far("callers"), port(std::to_string(port_of(listener))) {}
  void call() { say(port); }
  ~Callers() {
    say("end");
    finish();
  }
  const std::string port;
};

}  // namespace posix_test
