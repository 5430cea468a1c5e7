// Multicast: groups are joined by the kernel socket below. What comes to them comes by the device's queues,
// as the socket's own datagrams do, while no other socket of the host has the port (posix/udp_groups.h).
#include <ifaddrs.h>
#include <net/if.h>
#include <poll.h>
#include <sys/epoll.h>

#include "posix/far.h"

using namespace posix_test;  // NOLINT: a test program

namespace {

const Address kGroup4 = address("239.77.0.5", 0), kGroup6 = address("ff15::7705", 0);

Address group(int family, uint16_t port) {
  Address a = family == AF_INET6 ? kGroup6 : kGroup4;
  if (family == AF_INET6)
    reinterpret_cast<sockaddr_in6*>(&a.storage)->sin6_port = htons(port);
  else
    reinterpret_cast<sockaddr_in*>(&a.storage)->sin_port = htons(port);
  return a;
}

/// The device that has this end's address.
unsigned device() {
  const Address mine = here();
  const auto wanted = reinterpret_cast<const sockaddr_in*>(&mine.storage)->sin_addr.s_addr;
  ifaddrs* all = nullptr;
  unsigned found = 0;
  getifaddrs(&all);
  for (ifaddrs* a = all; a; a = a->ifa_next)
    if (a->ifa_addr && a->ifa_addr->sa_family == AF_INET &&
        reinterpret_cast<sockaddr_in*>(a->ifa_addr)->sin_addr.s_addr == wanted)
      found = if_nametoindex(a->ifa_name);
  freeifaddrs(all);
  return found;
}

/// MCAST_JOIN_GROUP or MCAST_LEAVE_GROUP.
int membership(int fd, int family, int option) {
  group_req request{};
  request.gr_interface = device();
  memcpy(&request.gr_group, group(family, 0).raw(), sizeof(sockaddr_in6));
  return setsockopt(fd, family == AF_INET6 ? IPPROTO_IPV6 : IPPROTO_IP, option, &request, sizeof request);
}

int source(int fd, int option, const Address& from) {
  group_source_req request{};
  request.gsr_interface = device();
  memcpy(&request.gsr_group, kGroup4.raw(), sizeof(sockaddr_in));
  memcpy(&request.gsr_source, from.raw(), sizeof(sockaddr_in));
  return setsockopt(fd, IPPROTO_IP, option, &request, sizeof request);
}

void leave_by_device(int fd, int family) {
  if (family == AF_INET6) return set_option(fd, IPPROTO_IPV6, IPV6_MULTICAST_IF, static_cast<int>(device()));
  ip_mreqn by{};
  by.imr_ifindex = static_cast<int>(device());
  if (setsockopt(fd, IPPROTO_IP, IP_MULTICAST_IF, &by, sizeof by) != 0) ADD_FAILURE() << strerror(errno);
}

Fd member(int family, uint16_t port = 0) {
  Fd fd = udp_socket(family);
  set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1);
  const Address a = any(port, family);
  EXPECT_EQ(bind(fd, a.raw(), a.size), 0) << strerror(errno);
  EXPECT_EQ(membership(fd, family, MCAST_JOIN_GROUP), 0) << strerror(errno);
  return fd;
}

std::string next(int fd, int timeout_ms = 20000) {
  char buffer[2048];
  if (wait_for(fd, POLLIN, timeout_ms) == 0) return "nothing";
  const ssize_t n = recv(fd, buffer, sizeof buffer, MSG_DONTWAIT);
  return n < 0 ? strerror(errno) : std::string(buffer, static_cast<size_t>(n));
}

// Sends what it is told: "g TEXT" to the group, "u TEXT" to near itself; until "end".
FAR(speaker) {
  const int family = std::stoi(args[0]);
  const auto port = static_cast<uint16_t>(std::stoi(args[1]));
  Fd fd = udp_at(here(0, family));
  leave_by_device(fd, family);
  near.say("ready");
  for (std::string line; (line = near.word()) != "end";) {
    const Address to = line[0] == 'g' ? group(family, port) : there(port, family);
    if (sendto(fd, line.data() + 2, line.size() - 2, 0, to.raw(), to.size) < 0)
      throw std::runtime_error(strerror(errno));
  }
}

// Joins, and says what comes to the group.
FAR(listener) {
  Fd fd = member(AF_INET);
  near.say(port_of(fd));
  for (std::string got; (got = next(fd)) != "end";) near.say(got);
}

class Multicast : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Family, Multicast, testing::Values(AF_INET, AF_INET6),
                         [](const auto& i) { return i.param == AF_INET ? "v4" : "v6"; });

TEST_P(Multicast, ComesBesideTheSocketsOwn) {
  Fd fd = member(GetParam());
  Far far("speaker", {std::to_string(GetParam()), std::to_string(port_of(fd))});
  ASSERT_EQ(far.word(), "ready");
  for (int i = 0; i < 20; ++i) {
    const std::string number = std::to_string(i);
    far.say("g group " + number);
    EXPECT_EQ(next(fd), "group " + number);
    far.say("u own " + number);
    EXPECT_EQ(next(fd), "own " + number);
  }
  far.say("end");
  far.finish();
}

TEST_P(Multicast, WakesWhoSleeps) {
  Fd fd = member(GetParam());
  Far far("speaker", {std::to_string(GetParam()), std::to_string(port_of(fd))});
  ASSERT_EQ(far.word(), "ready");
  Fd set(epoll_create1(EPOLL_CLOEXEC));
  epoll_event e{};
  e.events = EPOLLIN | EPOLLET;
  ASSERT_EQ(epoll_ctl(set, EPOLL_CTL_ADD, fd, &e), 0);
  char buffer[64];
  for (const char* word : {"g one", "u two", "g three", "g four", "u five"}) {
    usleep(3000);  // most likely asleep by then
    far.say(word);
    ASSERT_EQ(epoll_wait(set, &e, 1, 20000), 1) << word;
    EXPECT_EQ(recv(fd, buffer, sizeof buffer, MSG_DONTWAIT), static_cast<ssize_t>(strlen(word) - 2)) << word;
  }
  for (int i = 0; i < 20; ++i) {
    far.say("u x");
    ASSERT_EQ(recv(fd, buffer, sizeof buffer, 0), 1);  // blocks
    far.say("g yy");
    ASSERT_EQ(recv(fd, buffer, sizeof buffer, 0), 2);
  }
  far.say("end");
  far.finish();
}

TEST_P(Multicast, NoneAfterLeaving) {
  Fd fd = member(GetParam());
  Far far("speaker", {std::to_string(GetParam()), std::to_string(port_of(fd))});
  ASSERT_EQ(far.word(), "ready");
  far.say("g before");
  EXPECT_EQ(next(fd), "before");
  ASSERT_EQ(membership(fd, GetParam(), MCAST_LEAVE_GROUP), 0);
  EXPECT_EQ(membership(fd, GetParam(), MCAST_LEAVE_GROUP), -1);
  EXPECT_EQ(errno, EADDRNOTAVAIL);
  far.say("g after");
  for (int i = 0; i < 20; ++i) {
    far.say("u still here");
    EXPECT_EQ(next(fd), "still here");
  }
  EXPECT_EQ(next(fd, 0), "nothing");
  far.say("end");
  far.finish();
}

// Every member has each datagram; a socket's own comes to one.
TEST_P(Multicast, EveryMemberHasItsCopy) {
  Fd first = member(GetParam());
  Fd second = member(GetParam(), port_of(first));
  Far far("speaker", {std::to_string(GetParam()), std::to_string(port_of(first))});
  ASSERT_EQ(far.word(), "ready");
  for (const char* word : {"one", "two"}) {
    far.say(std::string("g ") + word);
    EXPECT_EQ(next(first), word);
    EXPECT_EQ(next(second), word);
  }
  ASSERT_EQ(membership(first, GetParam(), MCAST_LEAVE_GROUP), 0);
  far.say("g three");
  EXPECT_EQ(next(second), "three");
  far.say("end");
  far.finish();
}

TEST_P(Multicast, ComesToWhoIsBoundToTheGroup) {
  Fd fd = udp_socket(GetParam());
  Address name = group(GetParam(), 0);
  ASSERT_EQ(bind(fd, name.raw(), name.size), 0) << strerror(errno);
  Far far("speaker", {std::to_string(GetParam()), std::to_string(port_of(fd))});
  ASSERT_EQ(far.word(), "ready");
  EXPECT_EQ(next(fd, 0), "nothing");
  ASSERT_EQ(membership(fd, GetParam(), MCAST_JOIN_GROUP), 0) << strerror(errno);
  for (int i = 0; i < 20; ++i) {
    const std::string number = std::to_string(i);
    far.say("u not for it");
    far.say("g " + number);
    EXPECT_EQ(next(fd), number);
  }
  ASSERT_EQ(membership(fd, GetParam(), MCAST_LEAVE_GROUP), 0);
  ASSERT_EQ(membership(fd, GetParam(), MCAST_JOIN_GROUP), 0);
  far.say("g again");
  EXPECT_EQ(next(fd), "again");
  far.say("end");
  far.finish();
}

TEST_P(Multicast, ComesToWhoJoinedBeforeBinding) {
  Fd fd = udp_socket(GetParam());
  ASSERT_EQ(membership(fd, GetParam(), MCAST_JOIN_GROUP), 0) << strerror(errno);
  const Address name = any(0, GetParam());
  ASSERT_EQ(bind(fd, name.raw(), name.size), 0) << strerror(errno);
  Far far("speaker", {std::to_string(GetParam()), std::to_string(port_of(fd))});
  ASSERT_EQ(far.word(), "ready");
  for (int i = 0; i < 20; ++i) {
    const std::string number = std::to_string(i);
    far.say("g " + number);
    EXPECT_EQ(next(fd), number);
  }
  far.say("end");
  far.finish();
}

// What is sent once the call has returned comes, or does not.
TEST_P(Multicast, FollowsEachJoinAndLeave) {
  Fd fd = member(GetParam());
  Far far("speaker", {std::to_string(GetParam()), std::to_string(port_of(fd))});
  ASSERT_EQ(far.word(), "ready");
  for (int i = 0; i < 50; ++i) {
    const std::string number = std::to_string(i);
    far.say("g in " + number);
    EXPECT_EQ(next(fd), "in " + number);
    ASSERT_EQ(membership(fd, GetParam(), MCAST_LEAVE_GROUP), 0);
    far.say("g out " + number);
    far.say("u own " + number);
    EXPECT_EQ(next(fd), "own " + number);
    ASSERT_EQ(membership(fd, GetParam(), MCAST_JOIN_GROUP), 0);
  }
  far.say("end");
  far.finish();
}

TEST_P(Multicast, EightSocketsHaveEachACopy) {
  std::vector<Fd> members;
  members.push_back(member(GetParam()));
  for (int i = 1; i < 8; ++i) members.push_back(member(GetParam(), port_of(members[0])));
  Far far("speaker", {std::to_string(GetParam()), std::to_string(port_of(members[0]))});
  ASSERT_EQ(far.word(), "ready");
  for (int i = 0; i < 20; ++i) {
    const std::string number = std::to_string(i);
    far.say("g " + number);
    for (const Fd& m : members) EXPECT_EQ(next(m), number);
  }
  members.resize(3);
  far.say("g for three");
  for (const Fd& m : members) EXPECT_EQ(next(m), "for three");
  far.say("end");
  far.finish();
}

// A socket that libaccel leaves to the kernel (IP_RECVOPTS) is another that has the port.
TEST_P(Multicast, ComesToTheKernelsSocketBeside) {
  Fd fd = member(GetParam());
  Far far("speaker", {std::to_string(GetParam()), std::to_string(port_of(fd))});
  ASSERT_EQ(far.word(), "ready");
  far.say("g for one");
  EXPECT_EQ(next(fd), "for one");
  {
    Fd beside = udp_socket(GetParam());
    set_option(beside, SOL_SOCKET, SO_REUSEADDR, 1);
    set_option(beside, SOL_SOCKET, SO_NO_CHECK, 1);
    const Address name = any(port_of(fd), GetParam());
    ASSERT_EQ(bind(beside, name.raw(), name.size), 0) << strerror(errno);
    ASSERT_EQ(membership(beside, GetParam(), MCAST_JOIN_GROUP), 0) << strerror(errno);
    far.say("g for two");
    EXPECT_EQ(next(fd), "for two");
    EXPECT_EQ(next(beside), "for two");
  }
  far.say("g for one again");
  EXPECT_EQ(next(fd), "for one again");
  far.say("end");
  far.finish();
}

// Parent and child have one queue.
TEST_P(Multicast, ComesToParentOrChild) {
  Fd fd = member(GetParam());
  Far far("speaker", {std::to_string(GetParam()), std::to_string(port_of(fd))});
  ASSERT_EQ(far.word(), "ready");
  far.say("g before");
  EXPECT_EQ(next(fd), "before");
  int told[2];
  ASSERT_EQ(pipe(told), 0);
  const pid_t child = fork();
  if (child == 0) {
    const std::string got = next(fd);
    (void)!write(told[1], got.data(), got.size());
    _exit(0);
  }
  far.say("g for the child");  // which alone reads
  char text[64];
  const ssize_t n = read(told[0], text, sizeof text);
  ASSERT_GT(n, 0);
  EXPECT_EQ(std::string(text, static_cast<size_t>(n)), "for the child");
  waitpid(child, nullptr, 0);
  close(told[0]);
  close(told[1]);
  far.say("g for the parent");
  EXPECT_EQ(next(fd), "for the parent");
  far.say("end");
  far.finish();
}

TEST(MulticastSending, ReachesTheOthersAndOneself) {
  Far far("listener");
  const auto port = static_cast<uint16_t>(far.number());
  Fd own = member(AF_INET, port), sender = udp_at(here());
  leave_by_device(sender, AF_INET);
  const Address to = group(AF_INET, port);
  ASSERT_EQ(sendto(sender, "looped", 6, 0, to.raw(), to.size), 6);
  EXPECT_EQ(far.word(), "looped");
  EXPECT_EQ(next(own), "looped");
  set_option(sender, IPPROTO_IP, IP_MULTICAST_LOOP, 0);
  ASSERT_EQ(sendto(sender, "out", 3, 0, to.raw(), to.size), 3);
  EXPECT_EQ(far.word(), "out");
  EXPECT_EQ(next(own, 0), "nothing");
  set_option(sender, IPPROTO_IP, IP_MULTICAST_TTL, 0);  // stays on this host
  set_option(sender, IPPROTO_IP, IP_MULTICAST_LOOP, 1);
  ASSERT_EQ(sendto(sender, "in", 2, 0, to.raw(), to.size), 2);
  EXPECT_EQ(next(own), "in");
  set_option(sender, IPPROTO_IP, IP_MULTICAST_TTL, 1);
  ASSERT_EQ(sendto(sender, "end", 3, 0, to.raw(), to.size), 3);
  far.finish();
}

TEST(MulticastSources, AreChosenAndBlocked) {
  Fd fd = udp_at(any());
  Far far("speaker", {std::to_string(AF_INET), std::to_string(port_of(fd))});
  ASSERT_EQ(far.word(), "ready");
  ASSERT_EQ(source(fd, MCAST_JOIN_SOURCE_GROUP, there(0)), 0) << strerror(errno);
  far.say("g chosen");
  EXPECT_EQ(next(fd), "chosen");
  ASSERT_EQ(source(fd, MCAST_LEAVE_SOURCE_GROUP, there(0)), 0);
  ASSERT_EQ(membership(fd, AF_INET, MCAST_JOIN_GROUP), 0);
  ASSERT_EQ(source(fd, MCAST_BLOCK_SOURCE, there(0)), 0);
  far.say("g blocked");
  far.say("u own");
  EXPECT_EQ(next(fd), "own");
  EXPECT_EQ(next(fd, 0), "nothing");
  ASSERT_EQ(source(fd, MCAST_UNBLOCK_SOURCE, there(0)), 0);
  far.say("g again");
  EXPECT_EQ(next(fd), "again");
  far.say("end");
  far.finish();
}

// A list of sources is set as a whole, and grows and shrinks.
TEST(MulticastSources, AreAList) {
  Fd fd = member(AF_INET);
  Far far("speaker", {std::to_string(AF_INET), std::to_string(port_of(fd))});
  ASSERT_EQ(far.word(), "ready");
  const auto set = [&](uint32_t mode, std::vector<Address> sources) {
    std::vector<char> memory(GROUP_FILTER_SIZE(sources.size() + 1));
    auto& filter = *reinterpret_cast<group_filter*>(memory.data());
    filter.gf_interface = device();
    memcpy(&filter.gf_group, kGroup4.raw(), sizeof(sockaddr_in));
    filter.gf_fmode = mode;
    filter.gf_numsrc = static_cast<uint32_t>(sources.size());
    for (size_t i = 0; i < sources.size(); ++i)
      memcpy(&filter.gf_slist[i], sources[i].raw(), sizeof(sockaddr_in));
    ASSERT_EQ(setsockopt(fd, IPPROTO_IP, MCAST_MSFILTER, &filter,
                         static_cast<socklen_t>(GROUP_FILTER_SIZE(sources.size()))),
              0)
        << strerror(errno);
  };
  const Address other = address("192.0.2.1", 0);
  const auto comes = [&](const std::string& word, bool wanted) {
    far.say("g " + word);
    far.say("u own");
    if (wanted) {
      EXPECT_EQ(next(fd), word);
    }
    EXPECT_EQ(next(fd), "own");
  };
  comes("any source", true);
  set(MCAST_EXCLUDE, {other, there(0)});
  comes("excluded", false);
  set(MCAST_EXCLUDE, {other});
  comes("not excluded", true);
  set(MCAST_INCLUDE, {other});
  comes("not included", false);
  set(MCAST_INCLUDE, {other, there(0)});
  comes("included", true);
  far.say("end");
  far.finish();
}

TEST(MulticastAll, WithoutJoining) {
  Fd fd = udp_at(any());
  Fd joined = udp_at(any());
  ASSERT_EQ(membership(joined, AF_INET, MCAST_JOIN_GROUP),
            0);  // by another port: it is the host that is a member
  Far far("speaker", {std::to_string(AF_INET), std::to_string(port_of(fd))});
  ASSERT_EQ(far.word(), "ready");
  far.say("g to all");
  EXPECT_EQ(next(fd), "to all");
  set_option(fd, IPPROTO_IP, IP_MULTICAST_ALL, 0);
  far.say("g to members");
  far.say("u own");
  EXPECT_EQ(next(fd), "own");
  EXPECT_EQ(next(fd, 0), "nothing");
  far.say("end");
  far.finish();
}

// The address that it was sent to, and the socket's TTL option.
TEST(MulticastInfo, TellsTheGroup) {
  Fd fd = member(AF_INET);
  set_option(fd, IPPROTO_IP, IP_PKTINFO, 1);
  Far far("speaker", {std::to_string(AF_INET), std::to_string(port_of(fd))});
  ASSERT_EQ(far.word(), "ready");
  for (const bool to_group : {true, false, true}) {
    far.say(to_group ? "g x" : "u x");
    ASSERT_EQ(wait_for(fd, POLLIN), POLLIN);
    Address from;
    Message m;
    m.msg_name = from.raw();
    m.msg_namelen = from.size;
    ASSERT_EQ(recvmsg(fd, &m, 0), 1);
    ASSERT_NE(CMSG_FIRSTHDR(&m), nullptr);
    in_pktinfo info;
    memcpy(&info, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof info);
    const Address wanted = to_group ? kGroup4 : here();
    EXPECT_EQ(info.ipi_addr.s_addr, reinterpret_cast<const sockaddr_in*>(&wanted.storage)->sin_addr.s_addr);
    EXPECT_EQ(info.ipi_ifindex, static_cast<int>(device()));
    const Address mine = here();
    EXPECT_EQ(info.ipi_spec_dst.s_addr, reinterpret_cast<const sockaddr_in*>(&mine.storage)->sin_addr.s_addr);
    const Address peer = there(0);
    EXPECT_EQ(reinterpret_cast<sockaddr_in*>(&from.storage)->sin_addr.s_addr,
              reinterpret_cast<const sockaddr_in*>(&peer.storage)->sin_addr.s_addr);
  }
  far.say("end");
  far.finish();
}

}  // namespace
