#include "posix/request_thread.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <vector>

#include "base/config.h"
#include "base/poll.h"
#include "base/private_fds.h"
#include "base/real.h"
#include "base/served_call.h"
#include "posix/calls.h"
#include "posix/finish_request.h"
#include "posix/own_thread.h"
#include "posix/peer_requests.h"
#include "posix/pidfd_getfd.h"
#include "posix/process.h"
#include "posix/received_descriptors.h"
#include "posix/reuseport_programs.h"
#include "posix/udp_port_claims.h"

namespace accel::posix {
namespace {

constexpr int kNoMemoryPause = 100;  // ms

std::atomic<int> wake_fd{-1};
std::atomic<int> request_socket{-1};  ///< posix/peer_requests.h
std::atomic<bool> running{false};
std::atomic<bool> end_wanted{false};
std::atomic<bool> leave_wanted{false};
pthread_t thread;

void wake() {
  const uint64_t one = 1;
  (void)!real.write(wake_fd.load(), &one, sizeof(one));
}

/// A process that has taken a descriptor shows it: the kernel has allowed that.
int answer_to(const PeerRequest& request, bool trusted, int proof) {
  using enum PeerRequest::About;
  switch (request.about) {
    case kDescriptor:
      return detach_taken(request, proof, trusted);
    case kUdpPort:  // anybody may bind it, and what is done then is as the kernel says
      settle_udp_port(request.local.port);
      return 0;
    case kGroup:
      if (trusted) group_got_program(request.protocol, request.local);
      return 0;
  }
  return 0;
}

/// False: the thread is to end.
bool serve_once() {
  std::vector<pollfd> watched{{wake_fd.load(), POLLIN, 0}};
  const int for_requests = add_request_sockets(request_socket.load(), watched);
  const size_t listeners_begin = watched.size();
  const int for_listeners = add_handoff_sockets(watched);
  const auto most = static_cast<int>(std::min(static_cast<unsigned>(for_requests),
                                              static_cast<unsigned>(for_listeners)));  // -1 is the largest
  const timespec limit{most / 1000, most % 1000 * 1'000'000L};
  if (poll_beyond_limit(watched, most < 0 ? nullptr : &limit, nullptr) < 0) return true;
  serve_peer_requests(request_socket.load(), {watched.data() + 1, listeners_begin - 1}, answer_to);
  for (size_t i = listeners_begin; i < watched.size(); ++i)
    if ((watched[i].revents & POLLIN) != 0) serve_handoff_socket(watched[i].fd);
  if (watched[0].revents == 0) return true;
  uint64_t count = 0;
  // It fails where the program has closed every descriptor that it does not know.
  if (real.read(wake_fd.load(), &count, sizeof(count)) < 0 || end_wanted.load()) return false;
  serve_fork_requests();
  close_all_received();
  if (leave_wanted.exchange(false)) detach_for_foreign_waits();
  if (!finish_requested()) return true;
  hand_back_all();
  answer_finish_request();
  return true;
}

void* serve(void*) {
  ServedCall::for_ever();
  for (bool goes_on = true; goes_on;) {
    try {
      goes_on = serve_once();
    } catch (const std::bad_alloc&) {
      real.poll(nullptr, 0, kNoMemoryPause);  // nothing says when there is memory again
    }
  }
  running = false;
  take_no_finish_requests();
  return nullptr;
}

}  // namespace

void start_request_thread() {
  if (running.exchange(true)) return;
  leave_wanted = false;
  const int fd = keep_private(real.eventfd(0, EFD_CLOEXEC));
  wake_fd.store(fd);
  request_socket.store(open_request_socket());
  if (fd < 0 || !start_own_thread(&thread, serve, nullptr)) {
    running = false;
    return;
  }
  pthread_setname_np(thread, "accel-requests");
  take_finish_requests(fd, config().settings.exit_wait_ms + 1000);
}

void end_request_thread() {
  if (!running.load()) return;
  end_wanted.store(true);
  wake();
  join_own_thread(thread);
  if (const int fd = request_socket.exchange(-1); fd >= 0) close_private(fd);
}

void request_thread_look_again() {
  if (running.load()) wake();
}

void request_thread_detach_for_foreign_waits() {
  if (!running.load()) return detach_for_foreign_waits();
  leave_wanted.store(true);
  wake();
}

int request_thread_wake_fd() { return running.load() ? wake_fd.load() : -1; }

void request_thread_after_fork_in_child(bool keep) {
  running = false;
  take_no_finish_requests();
  forget_peers();
  if (const int fd = request_socket.exchange(-1); fd >= 0) close_private(fd);
  const int fd = wake_fd.exchange(-1);
  if (fd >= 0 && !keep) close_private(fd);
}

}  // namespace accel::posix
