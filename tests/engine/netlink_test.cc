#include "engine/netlink.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "base/kernel_tcp.h"
#include "tests/engine/fixture.h"

namespace accel::test {
namespace {

int near_index(const Network& n) {
  for (const auto& [index, link] : n.links)
    if (link.name == "near0") return index;
  return 0;
}

struct Open {
  Open() {
    auto opened = Netlink::open();
    EXPECT_TRUE(opened.ok());
    netlink = std::move(*opened);
    EXPECT_TRUE(netlink->read_all(network).ok());
  }
  /// Reads events until one of the wanted kind is there.
  template <class F>
  bool event(F wanted) {
    for (;;) {
      NetworkChanges c = netlink->read_changes();
      if (wanted(c)) return true;
      pollfd p{netlink->event_fd(), POLLIN, 0};
      if (poll(&p, 1, 20000) <= 0) return false;
    }
  }
  std::unique_ptr<Netlink> netlink;
  Network network;
};

/// A listener of a group, at `port` of the loopback address.
int listen_in_group(int family, uint16_t port) {
  const int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int on = 1;
  EXPECT_EQ(setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on), 0);
  sockaddr_in6 v6{};
  v6.sin6_family = AF_INET6;
  v6.sin6_port = htons(port);
  v6.sin6_addr = in6addr_loopback;
  sockaddr_in v4{};
  v4.sin_family = AF_INET;
  v4.sin_port = htons(port);
  v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const bool is_v6 = family == AF_INET6;
  const auto* name = is_v6 ? reinterpret_cast<const sockaddr*>(&v6) : reinterpret_cast<const sockaddr*>(&v4);
  EXPECT_EQ(bind(fd, name, is_v6 ? sizeof v6 : sizeof v4), 0);
  EXPECT_EQ(listen(fd, 8), 0);
  return fd;
}

TEST(Netlink, ListenersOfAPort) {
  constexpr uint16_t kPort = 7001;
  EXPECT_EQ(*tcp_listeners_at(kPort), 0u);
  const int first = listen_in_group(AF_INET, kPort);
  EXPECT_EQ(*tcp_listeners_at(kPort), 1u);
  const int second = listen_in_group(AF_INET, kPort), third = listen_in_group(AF_INET6, kPort),
            other = listen_in_group(AF_INET, kPort + 1);
  EXPECT_EQ(*tcp_listeners_at(kPort), 3u);
  sockaddr_in name{};
  socklen_t length = sizeof name;
  EXPECT_EQ(getsockname(first, reinterpret_cast<sockaddr*>(&name), &length), 0);
  const int connection = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  EXPECT_EQ(connect(connection, reinterpret_cast<sockaddr*>(&name), length), 0);
  EXPECT_EQ(*tcp_listeners_at(kPort), 3u);
  close(second);
  EXPECT_EQ(*tcp_listeners_at(kPort), 2u);
  for (const int fd : {first, third, other, connection}) close(fd);
  EXPECT_EQ(*tcp_listeners_at(kPort), 0u);
}

TEST(Netlink, ConnectionOfATuple) {
  constexpr uint16_t kPort = 7003;
  for (const int family : {AF_INET, AF_INET6}) {
    const int listener = listen_in_group(family, kPort);
    sockaddr_storage name{}, own{};
    socklen_t length = sizeof name;
    EXPECT_EQ(getsockname(listener, reinterpret_cast<sockaddr*>(&name), &length), 0);
    const int connection = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(connect(connection, reinterpret_cast<sockaddr*>(&name), length), 0);
    EXPECT_EQ(getsockname(connection, reinterpret_cast<sockaddr*>(&own), &length), 0);
    const IpAddress loopback =
        family == AF_INET ? IpAddress::v4(INADDR_LOOPBACK) : IpAddress::from_v6_bytes(&in6addr_loopback);
    const uint16_t port = ntohs(family == AF_INET ? reinterpret_cast<sockaddr_in&>(own).sin_port
                                                  : reinterpret_cast<sockaddr_in6&>(own).sin6_port);
    const Endpoint local{loopback, port}, remote{loopback, kPort};
    EXPECT_EQ(kernel_tcp_state(local, remote), TCP_ESTABLISHED);
    EXPECT_EQ(kernel_tcp_state(remote, local), TCP_ESTABLISHED);
    // The listener is there, a connection of that tuple is not.
    EXPECT_FALSE(kernel_tcp_state(remote, {loopback, static_cast<uint16_t>(port ^ 1)}));
    linger reset{1, 0};
    EXPECT_EQ(setsockopt(connection, SOL_SOCKET, SO_LINGER, &reset, sizeof reset), 0);
    for (const int fd : {connection, listener}) close(fd);
    EXPECT_FALSE(kernel_tcp_state(local, remote));
  }
}

TEST(Netlink, Snapshot) {
  Open o;
  const Link* link = o.network.link(near_index(o.network));
  ASSERT_TRUE(link);
  EXPECT_EQ(link->kind, "veth");
  EXPECT_EQ(link->mac, kNearMac);
  EXPECT_EQ(link->mtu, 1500u);
  EXPECT_TRUE(link->up && link->ethernet && !link->loopback);
  auto has = [&](const IpAddress& a) {
    return std::any_of(o.network.addresses.begin(), o.network.addresses.end(), [&](const auto& l) {
      return l.address == a && l.ifindex == link->ifindex && l.usable;
    });
  };
  EXPECT_TRUE(has(kNear));
  auto known = o.network.neighbours.find({link->ifindex, kFar});
  ASSERT_NE(known, o.network.neighbours.end());
  EXPECT_EQ(known->second.mac, kFarMac);
  EXPECT_TRUE(std::any_of(o.network.routes.begin(), o.network.routes.end(), [&](const KernelRoute& r) {
    return r.prefix == v4(10, 99, 0, 0) && r.prefix_length == 120 && r.ifindex == link->ifindex &&
           r.gateway.is_any();
  }));
  EXPECT_FALSE(o.network.policy_routing);
}

TEST(Netlink, Questions) {
  Open o;
  const int index = near_index(o.network);
  auto on_link = o.netlink->ask_route({kFar, {}, 0, 0, 0});
  ASSERT_TRUE(on_link.ok());
  EXPECT_EQ(on_link->type, RouteType::kUnicast);
  EXPECT_EQ(on_link->ifindex, index);
  EXPECT_EQ(on_link->source, kNear);
  EXPECT_TRUE(on_link->gateway.is_any());
  EXPECT_EQ(o.netlink->ask_route({kNear, {}, 0, 0, 0})->type, RouteType::kLocal);
  EXPECT_EQ(o.netlink->ask_route({v4(10, 99, 0, 255), {}, 0, 0, 0})->type, RouteType::kBroadcast);
  EXPECT_TRUE(o.netlink->ask_route({v4(192, 0, 2, 1), {}, 0, 0, 0}).is(ENETUNREACH));

  ASSERT_TRUE(sh("ip route add 192.0.2.0/25 via 10.99.0.2 mtu 1300"));
  auto routed = o.netlink->ask_route({v4(192, 0, 2, 1), {}, 0, 0, 0});
  ASSERT_TRUE(routed.ok());
  EXPECT_EQ(routed->gateway, kFar);
  EXPECT_EQ(routed->mtu, 1300u);
  ASSERT_TRUE(sh("ip route add 192.0.2.128/25 nexthop via 10.99.0.2 nexthop via 10.99.0.3"));
  EXPECT_EQ(o.netlink->ask_route({v4(192, 0, 2, 200), {}, 0, 0, 0})->type, RouteType::kUnusual);
  ASSERT_TRUE(sh("ip route del 192.0.2.0/25 && ip route del 192.0.2.128/25"));

  IpAddress six{};
  six.bytes = {0x20, 0x01, 0x0d, 0xb8, 0, 0x99, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2};
  auto v6 = o.netlink->ask_route({six, {}, 0, 0, 0});
  ASSERT_TRUE(v6.ok());
  EXPECT_EQ(v6->ifindex, index);
  EXPECT_EQ(v6->source.bytes[15], 1);
}

TEST(Netlink, Changes) {
  Open o;
  ASSERT_TRUE(sh("ip neigh add 10.99.0.77 lladdr 02:00:00:00:00:77 dev near0"));
  EXPECT_TRUE(o.event([](const NetworkChanges& c) {
    return std::any_of(c.events.begin(), c.events.end(), [](const NeighbourEvent& e) {
      return e.address == v4(10, 99, 0, 77) && e.now.mac && e.now.mac->at(5) == 0x77;
    });
  }));
  ASSERT_TRUE(sh("ip addr add 10.99.0.50/24 dev near0"));
  EXPECT_TRUE(o.event([](const NetworkChanges& c) { return c.addresses; }));
  ASSERT_TRUE(sh("ip route add 198.51.100.0/24 via 10.99.0.2"));
  EXPECT_TRUE(o.event([](const NetworkChanges& c) { return c.routes; }));
  ASSERT_TRUE(
      sh("ip route del 198.51.100.0/24 && ip addr del 10.99.0.50/24 dev near0 && ip neigh del 10.99.0.77 dev "
         "near0"));
}

TEST(Netlink, PolicyRoutingIsSeen) {
  ASSERT_TRUE(sh("ip rule add fwmark 7 table 77"));
  Open o;
  EXPECT_TRUE(o.network.policy_routing);
  ASSERT_TRUE(sh("ip rule del fwmark 7 table 77"));
}

TEST(Netlink, ResolveAsksTheKernel) {
  Open o;
  const int index = near_index(o.network);
  o.netlink->resolve(index, v4(10, 99, 0, 66));
  // Nobody answers ARP: the kernel gives up, which shows that it tried.
  EXPECT_TRUE(o.event([](const NetworkChanges& c) {
    return std::any_of(c.events.begin(), c.events.end(),
                       [](const NeighbourEvent& e) { return e.address == v4(10, 99, 0, 66) && e.failed; });
  }));
}

}  // namespace
}  // namespace accel::test
