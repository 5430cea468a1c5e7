#include "posix/process_door.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <vector>

#include "base/private_fds.h"
#include "base/real.h"
#include "engine/engine.h"
#include "posix/groups.h"
#include "posix/meeting.h"
#include "posix/rights.h"
#include "posix/taking.h"
#include "posix/udp_rivals.h"

namespace accel::posix {
namespace {

constexpr char kDoors[] = "accel-door-";
constexpr auto kAnswersWithin = std::chrono::milliseconds(500);  ///< of all; one that is stopped does not

using Clock = std::chrono::steady_clock;

/// Others' Unix sockets at this process's door: few, not for long, and never waited for. The attendant's; a
/// fork() may copy them at any moment.
struct Visitor {
  std::atomic<int> fd{-1};
  Clock::time_point leaves;
};
constexpr size_t kMostVisitors = 32;
constexpr auto kSpeaksWithin = std::chrono::seconds(1);
Visitor visitors[kMostVisitors];

/// One that is free, or that of whoever has been silent for longest.
Visitor& place_for_visitor() {
  Visitor* oldest = &visitors[0];
  for (Visitor& v : visitors) {
    if (v.fd.load() < 0) return v;
    if (v.leaves < oldest->leaves) oldest = &v;
  }
  return *oldest;
}

void count_refused() {
  if (Engine* engine = Engine::get()) engine->counters().add(Counter::visitors_refused);
}

/// Who has taken a descriptor shows it: the kernel has let him.
int answer_to(const Question& question, bool trusted, int proof) {
  using enum Question::About;
  switch (question.about) {
    case kDescriptor:
      return give_taken(question, proof, trusted);
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

namespace {

/// What the visitor says; closes nothing. `proof`: -1, or a descriptor to be closed.
bool hear_question(int visitor, Question& question, int& proof) {
  iovec vector{&question, sizeof question};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof proof)]{};
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t n = real.recvmsg(visitor, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  each_descriptor_in(message, [&](int fd) {
    proof = move_high(fd);
    return true;
  });
  return n == sizeof question;
}

void answer(int visitor) {
  Question question{};
  int proof = -1;
  if (hear_question(visitor, question, proof)) {
    const int answer = answer_to(question, peer_is_trusted(visitor), proof);
    real.send(visitor, &answer, sizeof answer, MSG_NOSIGNAL | MSG_DONTWAIT);
  } else {
    count_refused();
  }
  if (proof >= 0) real.close(proof);
}

void dismiss(Visitor& v) {
  if (const int fd = v.fd.exchange(-1); fd >= 0) close_private(fd);
}

/// Some of those that stand there now. Most have spoken by then.
void let_in(int door, Clock::time_point now) {
  for (size_t i = 0; i < kMostVisitors; ++i) {
    const int fd = keep_private(real.accept4(door, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd < 0) return;
    Visitor& place = place_for_visitor();
    if (place.fd.load() >= 0) count_refused();
    dismiss(place);
    place.leaves = now + kSpeaksWithin;
    place.fd.store(fd);
    pollfd words{fd, POLLIN, 0};
    if (real.poll(&words, 1, 0) <= 0) continue;
    answer(fd);
    dismiss(place);
  }
}

}  // namespace

int add_process_door(int door, std::vector<pollfd>& watched) {
  watched.push_back({door, POLLIN, 0});
  auto first = Clock::time_point::max();
  for (const Visitor& v : visitors) {
    if (v.fd.load() < 0) continue;
    watched.push_back({v.fd.load(), POLLIN, 0});
    first = std::min(first, v.leaves);
  }
  if (first == Clock::time_point::max()) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(first - Clock::now());
  return static_cast<int>(std::max(left.count(), left.zero().count()));
}

void serve_process_door(int door, std::span<const pollfd> watched) {
  const auto now = Clock::now();
  const auto ready = [&](int fd) {
    return std::any_of(watched.begin(), watched.end(),
                       [fd](const pollfd& w) { return w.fd == fd && w.revents != 0; });
  };
  for (Visitor& v : visitors) {
    const int fd = v.fd.load();
    const bool speaks = fd >= 0 && ready(fd);
    if (fd < 0 || (!speaks && now < v.leaves)) continue;
    speaks ? answer(fd) : count_refused();
    dismiss(v);
  }
  if (ready(door)) let_in(door, now);
}

void forget_process_visitors() {
  for (Visitor& v : visitors) dismiss(v);
}

bool put_question(int door, const Question& question, int proof) {
  iovec vector{const_cast<Question*>(&question), sizeof question};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof proof)]{};
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  if (proof >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(sizeof proof);
    std::memcpy(CMSG_DATA(c), &proof, sizeof proof);
  }
  return real.sendmsg(door, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == sizeof question;
}

void ask_all_processes(const Question& question) {
  const std::string own = process_door_of("/proc/self", getpid());
  std::vector<pollfd> asked;
  for (const std::string& name : names_that_begin(kDoors)) {
    const int fd = name == own ? -1 : connect_by_name(name);
    if (fd < 0) continue;
    (void)put_question(fd, question, -1);
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
