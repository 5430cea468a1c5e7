#include <poll.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/real.h"
#include "engine/housekeeping.h"
#include "posix/early_wait.h"
#include "posix/fork_state.h"
#include "posix/group_looks.h"
#include "posix/udp_port_owners.h"
#include "posix/udp_socket.h"
#include "posix/unix_rendezvous.h"
#include "stack/udp.h"

namespace accel::posix {
namespace {

/// How long a socket of a program without libaccel may have to wait for its groups.
constexpr Duration kLook = 100ms;
/// While they are left to the kernel.
constexpr Duration kLookForLeave = 1s;

/// Open sockets that have joined a group.
template <class F>
void for_each_member(F visit) {
  for_each_open_udp([&](Socket& socket) {
    auto& s = static_cast<UdpSocket&>(socket);
    if (s.in_group()) visit(s);
  });
}

/// A socket has joined a group since the last look.
std::atomic<bool> look_asked_for{false};

/// Some socket of this process has joined one. Under the Guard.
bool groups_joined = false;

/// A port that has groups, as the last look found it.
struct Watched {
  uint16_t port;
  bool taken;
  bool may_be;
};

}  // namespace

void ask_for_look(Engine& engine) {
  look_asked_for.store(true, std::memory_order_relaxed);
  engine.housekeeping().wake();
}

/// Processes that have one socket have one queue, the kernel's.
bool UdpSocket::may_take_groups() const {
  return config().settings.multicast && !groups_lent_ && !has_program && !dormant(*this);
}

/// The lock is held over fork().
void UdpSocket::share_accept_queue() {
  shared_ = groups_lent_ = true;
  Engine* engine = Engine::get();
  if (engine == nullptr || flow_ == nullptr) return;
  Pass pass{*engine, Pass::OverFork{}};
  follow_groups(pass);
}

/// Those who have got it by fork() have gone, or have closed it.
void UdpSocket::end_lending() { groups_lent_ = groups_lent_ && others_have(this); }

Groups UdpSocket::groups_now(Pass& pass, uint16_t port) {
  groups_joined = true;
  Groups groups = joined_.read(shadow(), pass.engine().devices(pass));
  groups.taken = !groups.memberships.empty() && may_take_groups() &&
                 !others_take_groups(users_of_udp_port(port), port, cookie_of(shadow()));
  return groups;
}

void UdpSocket::follow_groups(Pass& pass) {
  if (flow_ == nullptr || !joined_.touched()) return;
  Engine& engine = pass.engine();
  const bool had = engine.brings_groups(pass, *flow_);
  engine.set_groups(pass, *flow_, groups_now(pass, local_.port));
  const bool has = engine.brings_groups(pass, *flow_);
  if (has && !had) {  // what the shadow has came first
    pollfd kernel{shadow(), POLLIN, 0};
    shadows_first_ |= pass.stack().udp().front(*pcb(pass)) == nullptr && real.poll(&kernel, 1, 0) > 0;
  }
  look_at_shadow_ = true;
  engine.touch();
}

bool UdpSocket::brings_groups(Pass& pass) const {
  return flow_ != nullptr && pass.engine().brings_groups(pass, *flow_);
}

Result<void> UdpSocket::groups_were_set(Pass& pass) {
  if (state_ == State::kKernel || shadow_name().port == 0) return {};
  if (state_ == State::kUndecided && flow_ == nullptr) {
    // It is bound to a group, and a thread that waits for it in the kernel would never hear of our queue.
    if (!shadow_name().address.is_multicast() || served) return {};
    Result<void> opened = open(pass, Role::kUdpReceiver, shadow_name(), {});
    return opened || opened.error() == kOnKernel ? Result<void>{} : opened;
  }
  follow_groups(pass);
  ask_for_look(pass.engine());
  const bool served_here = !joined_.any() || brings_groups(pass) || choice.reason == Reason::port_opening;
  return served_here ? Result<void>{} : may_use_kernel(Reason::multicast);
}

void settle_groups(Pass& pass, uint16_t port) {
  if (!groups_joined || port == 0) return;
  for_each_member([&](UdpSocket& s) {
    if (s.local_endpoint().port != port) return;
    if (s.port_is_shared()) s.settle_ownership(pass);  // those who had it may have gone
    s.follow_groups(pass);
  });
}

Instant look_at_groups() {
  static Instant due = kNever;  // the control thread's
  const Instant now = monotonic_now();
  if (!look_asked_for.exchange(false, std::memory_order_relaxed) && now < due) return due;
  std::vector<Watched> ports;
  {
    Guard guard(Pass::Polling::kNo);
    if (guard.pass() == nullptr) return kNever;
    for_each_member([&](UdpSocket& s) {
      s.end_lending();
      const uint16_t port = s.local_endpoint().port;
      const bool taken = guard.pass()->engine().takes_groups(*guard.pass(), *s.flow());
      const auto known =
          std::find_if(ports.begin(), ports.end(), [&](const Watched& w) { return w.port == port; });
      if (known == ports.end())
        ports.push_back({port, taken, s.may_take_groups()});
      else
        *known = {port, known->taken || taken, known->may_be || s.may_take_groups()};
    });
  }
  const bool any_taken = std::any_of(ports.begin(), ports.end(), [](const Watched& w) { return w.taken; });
  due = ports.empty() ? kNever : now + (any_taken ? kLook : kLookForLeave);
  for (const Watched& watched : ports) {
    const std::vector<UdpUser> users = users_of_udp_port(watched.port);  // takes a while: without the lock
    Guard guard(Pass::Polling::kNo);
    if (guard.pass() == nullptr) return kNever;
    const bool may_be = watched.may_be && !others_take_groups(users, watched.port);
    if (may_be != watched.taken) settle_groups(*guard.pass(), watched.port);
  }
  return due;
}

}  // namespace accel::posix
