#include "posix/process_door.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <vector>

#include "base/real.h"
#include "posix/groups.h"
#include "posix/meeting.h"
#include "posix/taking.h"
#include "posix/udp_rivals.h"

namespace accel::posix {
namespace {

constexpr char kDoors[] = "accel-door-";
constexpr auto kAnswersWithin = std::chrono::milliseconds(500);  ///< of all; one that is stopped does not

int answer_to(const Question& question, bool trusted) {
  using enum Question::About;
  switch (question.about) {
    case kDescriptor:
      return trusted ? give_taken(question) : 0;
    case kUdpPort:  // anybody may bind it, and what is done then is as the kernel says
      settle_udp_port(question.local.port);
      return 0;
    case kGroup:
      if (trusted) group_got_program(question.protocol, question.local);
      return 0;
  }
  return 0;
}

}  // namespace

std::string process_door_of(const std::string& process, pid_t number) {
  struct stat space {};
  if (stat((process + "/ns/pid").c_str(), &space) != 0) return {};
  return kDoors + std::to_string(space.st_ino) + "." + std::to_string(number);
}

int open_process_door() {
  const std::string name = process_door_of("/proc/self", getpid());
  return name.empty() ? -1 : listen_by_name(name);
}

void serve_process_door(int door) {
  const int visitor = real.accept4(door, nullptr, nullptr, SOCK_CLOEXEC);
  if (visitor < 0) return;
  wait_for_words(visitor);
  Question question{};
  if (real.recv(visitor, &question, sizeof question, 0) == sizeof question) {
    const int answer = answer_to(question, peer_is_trusted(visitor));
    real.send(visitor, &answer, sizeof answer, MSG_NOSIGNAL);
  }
  real.close(visitor);
}

void ask_all_processes(const Question& question) {
  const std::string own = process_door_of("/proc/self", getpid());
  std::vector<pollfd> asked;
  for (const std::string& name : names_that_begin(kDoors)) {
    const int fd = name == own ? -1 : connect_by_name(name);
    if (fd < 0) continue;
    real.send(fd, &question, sizeof question, MSG_NOSIGNAL);
    asked.push_back({fd, POLLIN, 0});
  }
  const auto end = std::chrono::steady_clock::now() + kAnswersWithin;
  for (pollfd& one : asked) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    real.poll(&one, 1, static_cast<int>(std::max(left.count(), left.zero().count())));
    real.close(one.fd);
  }
}

}  // namespace accel::posix
