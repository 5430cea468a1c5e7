// Several descriptors of one socket.
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utility>

#include "posix/differential/log.h"
#include "posix/differential/sequence.h"

namespace differential {

using std::to_string;

/// Another descriptor takes the first one's place, which is closed at once or remains.
void Sequence::duplicate() {
  const uint32_t how = below(6);
  int other = -1, place = -1;
  if (how == 2 || how == 3) place = open("/dev/null", O_RDONLY | O_CLOEXEC);
  switch (how) {
    case 0:
    case 1:
      other = dup(sock_);
      break;
    case 2:
      other = dup2(sock_, place);
      break;
    case 3:
      other = dup3(sock_, place, O_CLOEXEC);
      break;
    case 4:
      other = fcntl(sock_, F_DUPFD_CLOEXEC, 0);
      break;
    default:
      log({"dup onto itself"}, shown(dup2(sock_, sock_) - sock_) + " " + shown(dup3(sock_, sock_, 0)));
      return;
  }
  std::string result = other < 0 ? shown(other) : "done";
  if (other >= 0) {
    result += ", flags " + to_string(fcntl(other, F_GETFD)) + " " + to_string(fcntl(other, F_GETFL));
    std::swap(sock_, other);
    if (chance(60))
      ::close(other);
    else
      twins_.push_back(other);
  } else if (place >= 0) {
    ::close(place);
  }
  log({"dup", to_string(how), twins_.empty() ? "" : "and keep"}, result);
}

/// One of those that remain, or the one in use, goes, perhaps since another file takes its number.
void Sequence::close_one() {
  if (twins_.empty()) return;
  int going = twins_.back();
  twins_.pop_back();
  if (chance(50)) std::swap(sock_, going);
  if (chance(30)) {
    const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    const bool taken = dup2(null, going) == going;
    log({"dup2 onto one"}, taken ? "done" : shown(-1));
    ::close(null);
  }
  log({"close of one"}, shown(::close(going)));
}

}  // namespace differential
