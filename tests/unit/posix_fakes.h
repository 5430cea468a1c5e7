// Files whose readiness the test decides, and the calls as a program sees them (-1 and errno).
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <initializer_list>

#include "posix/calls.h"
#include "posix/file.h"
#include "posix/guard.h"

namespace accel::posix {

class FakeFile final : public File {
 public:
  explicit FakeFile(int* closes) : File(FileKind::kTcp), closes_(closes) {}
  uint32_t readiness() override { return bits; }
  int kernel_fd() override { return shadow; }
  void on_last_close(Pass*) override { ++*closes_; }
  uint32_t bits = 0;
  int shadow = -1;

 private:
  int* closes_;
};

/// A file in the table, by the number of an eventfd (its "shadow" when the test says so).
class Fake {
 public:
  Fake() : fd(eventfd(0, EFD_NONBLOCK)) {
    fds.open();
    Guard guard;
    file = new FakeFile(&closes);
    fds.insert(fd, file);
  }
  ~Fake() { close(); }
  void close() {
    if (fds.owns(fd)) {
      Guard guard;
      fds.erase(fd, guard.pass());
    }
    if (fd >= 0) ::close(fd);
    fd = -1;
  }
  int duplicate() {
    const int copy = ::dup(fd);
    Guard guard;
    fds.insert(copy, file);
    return copy;
  }
  void close_duplicate(int copy) {
    {
      Guard guard;
      fds.erase(copy, guard.pass());
    }
    ::close(copy);
  }
  void become(uint32_t bits, uint32_t edges) {
    Guard guard;
    file->bits = bits;
    if (edges != 0) file->notify(edges);
  }
  void readable() { become(EPOLLIN | EPOLLRDNORM, kReadable); }
  void idle() { become(0, 0); }
  void signal_shadow() {
    const uint64_t one = 1;
    EXPECT_EQ(write(fd, &one, sizeof(one)), 8);
  }

  int fd;
  FakeFile* file;
  int closes = 0;
};

}  // namespace accel::posix
