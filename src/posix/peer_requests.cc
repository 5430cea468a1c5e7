#include "posix/peer_requests.h"

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
#include "posix/rights.h"
#include "posix/unix_rendezvous.h"

namespace accel::posix {
namespace {

constexpr char kNamePrefix[] = "accel-requests-";
constexpr auto kAllAnswerWithin = std::chrono::milliseconds(500);  ///< of all; one that is stopped does not

using Clock = std::chrono::steady_clock;

/// Connections of other processes to the request socket: few, not for long, and never waited for. The request
/// thread's; a fork() may copy them at any moment.
struct Peer {
  std::atomic<int> fd{-1};
  Clock::time_point leaves;
};
constexpr size_t kMostPeers = 32;
constexpr auto kSendsWithin = std::chrono::seconds(1);
Peer peers[kMostPeers];

/// One that is free, or that of the peer that has been silent for longest.
Peer& place_for_peer() {
  Peer* oldest = &peers[0];
  for (Peer& v : peers) {
    if (v.fd.load() < 0) return v;
    if (v.leaves < oldest->leaves) oldest = &v;
  }
  return *oldest;
}

void count_refused() {
  if (Engine* engine = Engine::get()) engine->counters().add(Counter::peer_requests_refused);
}

}  // namespace

std::string request_socket_name(const std::string& process, pid_t number) {
  struct stat space {};
  if (stat((process + "/ns/pid").c_str(), &space) != 0) return {};
  return kNamePrefix + std::to_string(space.st_ino) + "." + std::to_string(number);
}

int open_request_socket() {
  const std::string name = request_socket_name("/proc/self", getpid());
  return name.empty() ? -1 : listen_by_name(name);
}

namespace {

/// The peer's request; closes nothing. `proof`: -1, or a descriptor to be closed.
bool receive_request(int peer, PeerRequest& request, int& proof) {
  iovec vector{&request, sizeof request};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof proof)]{};
  msghdr message{};
  message.msg_iov = &vector;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t n = real.recvmsg(peer, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  each_descriptor_in(message, [&](int fd) {
    proof = move_high(fd);
    return true;
  });
  return n == sizeof request;
}

void answer(int peer, RequestAnswerer answer_to) {
  PeerRequest request{};
  int proof = -1;
  if (receive_request(peer, request, proof)) {
    const int answer = answer_to(request, peer_is_trusted(peer), proof);
    real.send(peer, &answer, sizeof answer, MSG_NOSIGNAL | MSG_DONTWAIT);
  } else {
    count_refused();
  }
  if (proof >= 0) real.close(proof);
}

void close_peer(Peer& v) {
  if (const int fd = v.fd.exchange(-1); fd >= 0) close_private(fd);
}

/// Some of those that are queued now. Most have sent their request by then.
void accept_peers(int request_socket, Clock::time_point now, RequestAnswerer answer_to) {
  for (size_t i = 0; i < kMostPeers; ++i) {
    const int fd = keep_private(real.accept4(request_socket, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (fd < 0) return;
    Peer& place = place_for_peer();
    if (place.fd.load() >= 0) count_refused();
    close_peer(place);
    place.leaves = now + kSendsWithin;
    place.fd.store(fd);
    pollfd readable{fd, POLLIN, 0};
    if (real.poll(&readable, 1, 0) <= 0) continue;
    answer(fd, answer_to);
    close_peer(place);
  }
}

}  // namespace

int add_request_sockets(int request_socket, std::vector<pollfd>& watched) {
  watched.push_back({request_socket, POLLIN, 0});
  auto first = Clock::time_point::max();
  for (const Peer& v : peers) {
    if (v.fd.load() < 0) continue;
    watched.push_back({v.fd.load(), POLLIN, 0});
    first = std::min(first, v.leaves);
  }
  if (first == Clock::time_point::max()) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(first - Clock::now());
  return static_cast<int>(std::max(left.count(), left.zero().count()));
}

void serve_peer_requests(int request_socket, std::span<const pollfd> watched, RequestAnswerer answer_to) {
  const auto now = Clock::now();
  const auto ready = [&](int fd) {
    return std::any_of(watched.begin(), watched.end(),
                       [fd](const pollfd& w) { return w.fd == fd && w.revents != 0; });
  };
  for (Peer& v : peers) {
    const int fd = v.fd.load();
    const bool has_sent = fd >= 0 && ready(fd);
    if (fd < 0 || (!has_sent && now < v.leaves)) continue;
    has_sent ? answer(fd, answer_to) : count_refused();
    close_peer(v);
  }
  if (ready(request_socket)) accept_peers(request_socket, now, answer_to);
}

void forget_peers() {
  for (Peer& v : peers) close_peer(v);
}

bool send_request(int request_socket, const PeerRequest& request, int proof) {
  iovec vector{const_cast<PeerRequest*>(&request), sizeof request};
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
  return real.sendmsg(request_socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == sizeof request;
}

void request_of_all(const PeerRequest& request) {
  const std::string own = request_socket_name("/proc/self", getpid());
  std::vector<pollfd> asked;
  for (const std::string& name : names_that_begin(kNamePrefix)) {
    const int fd = name == own ? -1 : connect_by_name(name);
    if (fd < 0) continue;
    (void)send_request(fd, request, -1);
    asked.push_back({fd, POLLIN, 0});
  }
  const auto end = std::chrono::steady_clock::now() + kAllAnswerWithin;
  for (pollfd& one : asked) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
    real.poll(&one, 1, static_cast<int>(std::max(left.count(), left.zero().count())));
    real.close(one.fd);
  }
}

}  // namespace accel::posix
