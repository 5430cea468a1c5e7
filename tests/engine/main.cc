#include <poll.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <thread>

#include "base/put_off_signals.h"
#include "base/signals_blocked.h"
#include "engine/housekeeping.h"
#include "tests/engine/fixture.h"

namespace accel::test {
namespace {

/// What moves to the kernel, where nobody has sockets above the engine.
void see_to(Engine& engine, const Housekeeping::Events& events) {
  if (!events.port_lost && !events.hand_backs_due) return;
  Pass pass{engine, Pass::Polling::kNo};
  if (events.port_lost) (void)engine.end_lost_ports(pass);
  if (events.hand_backs_due) engine.finish_hand_backs(pass);
}

/// The least that a control thread is: housekeeping needs no more than poll(2).
[[noreturn]] void control(Engine& engine) {
  Housekeeping& housekeeping = engine.housekeeping();
  Housekeeping::Ready ready;
  for (;;) {
    see_to(engine, housekeeping.step(ready));
    pollfd watched[] = {{housekeeping.requests_fd(), POLLIN, 0},
                        {housekeeping.network_fd(), POLLIN, 0},
                        {housekeeping.ports_fd(), POLLIN, 0}};
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(housekeeping.next_deadline() - clock_now());
    poll(watched, 3, static_cast<int>(std::max<int64_t>(left.count(), 0)));
    // libev takes a descriptor that is closed for a mistake of its user's, and aborts.
    for (const pollfd& p : watched)
      if ((p.revents & POLLNVAL) != 0) abort();
    const auto is_ready = [&](int i) { return watched[i].revents != 0; };
    ready = {.requests = is_ready(0), .network = is_ready(1), .ports = is_ready(2)};
  }
}

Result<void> start_control(Engine& engine) {
  const AllSignalsBlocked inherited;
  std::thread([&engine] { control(engine); }).detach();
  return {};
}

}  // namespace

void run_handler(int number, siginfo_t* info, void* context, bool restarts) {
  if (signal_brackets.inside() && put_off_signal(number, info, context)) return;
  Engine::signal_ran(restarts);
}

World& world() {
  static World* w = [] {
    auto* made = new World;
    static World* self = made;
    open_port = [](const Link& link, uint32_t, FramePool& pool) {
      OpenedPort opened;
      if (link.name != "near0") {
        opened.reason = Reason::port_failed;
        return opened;
      }
      auto port = std::make_unique<MemoryPort>(pool, self->far, link.name, link.ifindex);
      self->port = port.get();
      opened.port = PortFaces(std::move(port));
      opened.kind = PathKind::kXdp;
      return opened;
    };
    setenv("ACCEL_WAIT_FOR_PORTS", "1", 1);
    Reason why{};
    static class Nobody final : public Upcalls {
    } nobody;
    made->engine = Engine::open(nobody, &start_control, &why);
    if (!made->engine) ADD_FAILURE() << reason_text(why);
    return made;
  }();
  return *w;
}

Connected connect(uint16_t port) {
  static std::atomic<uint16_t> next_local{20000};
  static int owner;
  World& w = world();
  Connected c;
  TcpListener* listener = nullptr;
  w.far.call([&](Stack& s, Instant) {
    auto l = s.tcp().listen({kFar, port}, false, false, 8, {}, &owner);
    if (l) listener = *l;
  });
  EXPECT_TRUE(listener);
  c.local = {kNear, next_local++};
  {
    Pass pass{*w.engine};
    FlowRequest request;
    request.remote = {kFar, port};
    PathChoice choice = w.engine->choose(pass, request);
    EXPECT_TRUE(choice.accelerated()) << reason_text(choice.reason);
    auto conn = w.engine->connect(pass, choice, c.local, request.remote, {}, &owner);
    EXPECT_TRUE(conn.ok());
    if (conn) c.near = *conn;
  }
  if (!c.near) return c;
  EXPECT_TRUE(wait_for([&] { return (w.engine->stack().tcp().readiness(*c.near) & kWritable) != 0; }));
  w.far.call([&](Stack& s, Instant) {
    c.far = s.tcp().accept(*listener);
    s.tcp().close_listener(listener);
  });
  EXPECT_TRUE(c.far);
  return c;
}

}  // namespace accel::test

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  using accel::test::sh;
  if (unshare(CLONE_NEWNET) != 0) return perror("unshare"), 1;
  // near0's other end stays silent: the port in memory is the wire.
  const bool made =
      sh("ip link set lo up && ip link add near0 address 02:00:00:00:00:01 type veth peer name silent0") &&
      sh("sysctl -qw net.ipv6.conf.near0.accept_dad=0 net.ipv6.conf.silent0.disable_ipv6=1") &&
      sh("ip link set near0 up && ip link set silent0 up && ip addr add 10.99.0.1/24 dev near0") &&
      sh("ip addr add 2001:db8:99::1/64 dev near0 nodad") &&
      sh("ip neigh add 10.99.0.2 lladdr 02:00:00:00:00:02 dev near0 nud permanent");
  if (!made) return 1;
  return RUN_ALL_TESTS();
}
