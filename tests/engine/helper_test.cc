// What the helper does for its process: what that had while it was privileged, or has by itself, and nothing
// else. Each test asks as somebody would who has broken into the process.
#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>

#include <cstring>
#include <fstream>

#include "tests/engine/fixture.h"
#include "xdp/flow_abi.h"

namespace accel::test {
namespace {

using helper::RequestType;

FlowRule rule_for(const Endpoint& local, Protocol protocol = Protocol::kTcp, uint16_t vlan = 0) {
  FlowRule rule;
  rule.protocol = static_cast<uint8_t>(protocol);
  rule.local_port = local.port;
  rule.vlan = vlan;
  std::memcpy(rule.local, local.address.bytes.data(), sizeof rule.local);
  return rule;
}

int tcp_socket() { return socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0); }

sockaddr_in to_sockaddr(const Endpoint& end) {
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_port = htons(end.port);
  std::memcpy(&name.sin_addr, end.address.v4_bytes(), 4);
  return name;
}

uint16_t port_of(int fd) {
  sockaddr_in name{};
  socklen_t length = sizeof name;
  return getsockname(fd, reinterpret_cast<sockaddr*>(&name), &length) == 0 ? ntohs(name.sin_port) : 0;
}

int option(int fd, int level, int name) {
  int value = 0;
  socklen_t length = sizeof value;
  return getsockopt(fd, level, name, &value, &length) == 0 ? value : -1;
}

/// A helper, and a socket for it to work on. Answers are errno values.
struct Asked {
  Asked() {
    helper.begin();
    EXPECT_TRUE(helper.running());
  }
  ~Asked() { close(fd); }
  int ask(RequestType type, int value) {
    return static_cast<int>(helper.run({type, value, 0, {}, {}}, fd).error());
  }
  int bind(const Endpoint& end, int listener = -1) {
    helper::PrivilegedRequest request{RequestType::kBind, 0, sizeof(sockaddr_in), {}, {}};
    const sockaddr_in name = to_sockaddr(end);
    std::memcpy(request.address, &name, sizeof name);
    return static_cast<int>(helper.run(request, fd, listener).error());
  }
  int add(const Endpoint& end) {
    return static_cast<int>(helper.run({RequestType::kLocalEnd, 0, 0, {}, rule_for(end)}, -1).error());
  }
  void renew() {
    close(fd);
    fd = tcp_socket();
  }
  Counters counters;
  HelperClient helper{counters};
  int fd = tcp_socket();
};

const IpAddress kLoopback = v4(127, 0, 0, 1);

TEST(Helper, RepairsSocketsAtTheLocalEndsOfBeforeAlone) {
  Asked a;
  EXPECT_EQ(a.add({kNear, 80}), 0);
  EXPECT_EQ(a.ask(RequestType::kSeal, 0), 0);
  EXPECT_EQ(a.ask(RequestType::kRepair, TCP_REPAIR_ON), EPERM)
      << "without a name the socket could be anybody's";
  for (const Endpoint& strange :
       {Endpoint{kNear, 22}, Endpoint{kLoopback, 80}, Endpoint{IpAddress::any_v4(), 80},
        Endpoint{kLoopback, 40000}, Endpoint{kNear, 0}})
    EXPECT_EQ(a.bind(strange), EPERM);
  EXPECT_EQ(option(a.fd, IPPROTO_TCP, TCP_REPAIR), 0);
  EXPECT_EQ(port_of(a.fd), 0);
  EXPECT_EQ(a.bind({kNear, 80}), 0);
  EXPECT_EQ(option(a.fd, IPPROTO_TCP, TCP_REPAIR), 1);
  EXPECT_EQ(port_of(a.fd), 80);
  EXPECT_EQ(a.bind({kNear, 80}), EPERM) << "it has a name";
  EXPECT_EQ(a.ask(RequestType::kRepair, TCP_REPAIR_OFF_NO_WP), 0);
  EXPECT_EQ(option(a.fd, IPPROTO_TCP, TCP_REPAIR), 0);
  EXPECT_EQ(a.ask(RequestType::kRepair, TCP_REPAIR_ON), EPERM);
}

TEST(Helper, AWildcardCoversItsPort) {
  Asked a;
  EXPECT_EQ(a.add({IpAddress::any_v4(), 443}), 0);
  EXPECT_EQ(a.bind({kNear, 443}), 0);
  a.renew();
  EXPECT_EQ(a.bind({kNear, 444}), EPERM);
}

// A connection that the process opened itself: as bind() would, so beside nobody.
TEST(Helper, BindsToAFreePortAsAnybodyMay) {
  Asked a;
  const int other = tcp_socket();
  const sockaddr_in name = to_sockaddr({kNear, 45000});
  ASSERT_EQ(::bind(other, reinterpret_cast<const sockaddr*>(&name), sizeof name), 0);
  ASSERT_EQ(listen(other, 1), 0);
  EXPECT_EQ(a.bind({kNear, 45000}), EADDRINUSE);
  EXPECT_EQ(option(a.fd, IPPROTO_TCP, TCP_REPAIR), 0);
  EXPECT_EQ(a.bind({kNear, 45001}), 0);
  EXPECT_EQ(option(a.fd, IPPROTO_TCP, TCP_REPAIR), 1);
  close(other);
}

// SK_FORCE_REUSE must not outlive the name: a port that the kernel chose goes with a disconnect, and the next
// bind() would find no other's port taken.
TEST(Helper, TheNameIsForGood) {
  Asked a;
  EXPECT_EQ(a.bind({kNear, 45002}), 0);
  const sockaddr_in peer = to_sockaddr({kFar, 1});
  EXPECT_EQ(connect(a.fd, reinterpret_cast<const sockaddr*>(&peer), sizeof peer), 0);
  sockaddr none{};
  EXPECT_EQ(connect(a.fd, &none, sizeof none), 0);
  EXPECT_EQ(port_of(a.fd), 45002);
}

// connect() has the kernel choose a port; a socket gives that back when it stops listening, and getsockname()
// tells it still.
TEST(Helper, BindsAgainWhatWasGivenBack) {
  Asked a;
  const sockaddr_in any_port = to_sockaddr({kNear, 0});
  ASSERT_EQ(::bind(a.fd, reinterpret_cast<const sockaddr*>(&any_port), sizeof any_port), 0);
  const uint16_t port = port_of(a.fd);
  EXPECT_EQ(a.bind({kNear, port}), EINVAL) << "it is bound";
  EXPECT_EQ(option(a.fd, IPPROTO_TCP, TCP_REPAIR), 0);
  const sockaddr none{};
  ASSERT_EQ(listen(a.fd, 0), 0);
  ASSERT_EQ(connect(a.fd, &none, sizeof none), 0);
  EXPECT_EQ(a.bind({kNear, port}), 0);
  EXPECT_EQ(option(a.fd, IPPROTO_TCP, TCP_REPAIR), 1);
}

TEST(Helper, WhoListensThereHasTheEnd) {
  Asked a;
  const int listener = tcp_socket();
  const sockaddr_in name = to_sockaddr({IpAddress::any_v4(), 45010});
  ASSERT_EQ(::bind(listener, reinterpret_cast<const sockaddr*>(&name), sizeof name), 0);
  EXPECT_EQ(a.bind({kLoopback, 45010}, listener), EPERM) << "bound is not listening";
  ASSERT_EQ(listen(listener, 1), 0);
  EXPECT_EQ(a.bind({kNear, 45011}, listener), 0) << "a free port";
  a.renew();
  EXPECT_EQ(a.bind({kNear, 45010}, listener), 0);
  EXPECT_EQ(port_of(a.fd), 45010);
  close(listener);
}

TEST(Helper, BuffersAreBounded) {
  Asked a;
  const int before = option(a.fd, SOL_SOCKET, SO_RCVBUF);
  EXPECT_EQ(a.ask(RequestType::kReceiveBuffer, 1 << 30), EPERM) << "not in repair mode";
  EXPECT_EQ(a.ask(RequestType::kSendBuffer, 1 << 30), EPERM);
  EXPECT_EQ(option(a.fd, SOL_SOCKET, SO_RCVBUF), before);
  ASSERT_EQ(a.bind({kNear, 45020}), 0);
  std::ifstream sent("/proc/sys/net/ipv4/tcp_wmem"), received("/proc/sys/net/ipv4/tcp_rmem");
  int least = 0, usual = 0, most = 0;
  sent >> least >> usual >> most;
  EXPECT_EQ(a.ask(RequestType::kSendBuffer, 1 << 30), 0);
  EXPECT_LE(option(a.fd, SOL_SOCKET, SO_SNDBUF), 4 * most + (1 << 18));
  received >> least >> usual >> most;
  EXPECT_EQ(a.ask(RequestType::kReceiveBuffer, 1 << 30), 0);
  EXPECT_LE(option(a.fd, SOL_SOCKET, SO_RCVBUF), 4 * most + (1 << 18));
}

// Without a word of kSeal: setuid() may have come past us.
TEST(Helper, AProcessWithoutPrivilegeAddsNoLocalEnd) {
  Asked a;
  const auto as_another = [&](bool in_user_namespace) {
    const pid_t child = fork();
    if (child == 0) {
      const bool less =
          setresuid(65534, 65534, 65534) == 0 && (!in_user_namespace || unshare(CLONE_NEWUSER) == 0);
      _exit(!less ? 77 : a.add({kNear, 22}));
    }
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    return WEXITSTATUS(status);
  };
  EXPECT_EQ(as_another(false), EPERM);
  const int with_all_capabilities = as_another(true);
  EXPECT_TRUE(with_all_capabilities == EPERM || with_all_capabilities == 77) << with_all_capabilities;
  EXPECT_EQ(a.bind({kNear, 22}), EPERM);
  EXPECT_EQ(a.add({kNear, 22}), 0);
}

/// Processes of that name that stand by this one.
std::set<pid_t> helpers() {
  std::set<pid_t> found;
  DIR* all = opendir("/proc");
  while (const dirent* entry = readdir(all)) {
    std::ifstream file(std::string("/proc/") + entry->d_name + "/cmdline", std::ios::binary);
    std::string name, process;
    if (std::getline(file, name, '\0') && name == "accel-guard" && std::getline(file, process, '\0') &&
        process == std::to_string(getpid()))
      found.insert(std::atoi(entry->d_name));
  }
  closedir(all);
  return found;
}

/// The one that has begun since `before`, 0: none, or several.
pid_t begun_since(const std::set<pid_t>& before) {
  std::set<pid_t> now = helpers();
  for (const pid_t pid : before) now.erase(pid);
  return now.size() == 1 ? *now.begin() : 0;
}

TEST(Helper, ItsTableKeepsItsSize) {
  const std::set<pid_t> before = helpers();
  Asked a;
  ASSERT_EQ(a.add({kNear, 81}), 0);  // so it has begun
  const std::string path = "/proc/" + std::to_string(begun_since(before)) + "/fd/0";
  const int table = open(path.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(table, 0) << path;
  EXPECT_EQ(ftruncate(table, 0), -1) << "a helper that reads beyond the end dies of SIGBUS";
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(ftruncate(table, off_t{1} << 40), -1) << "it copies the rows that are in use";
  EXPECT_EQ(errno, EPERM);
  close(table);
}

TEST(Helper, OneThatIsStoppedIsGivenUp) {
  const std::set<pid_t> before = helpers();
  Asked a;
  ASSERT_EQ(a.add({kNear, 81}), 0);  // so it has begun
  const pid_t helper = begun_since(before);
  ASSERT_NE(helper, 0);
  ASSERT_EQ(kill(helper, SIGSTOP), 0);
  EXPECT_EQ(a.bind({kNear, 81}), EPERM);
  EXPECT_FALSE(a.helper.running());
  EXPECT_EQ(a.counters.get(Counter::helper_silent), 1u);
  EXPECT_EQ(a.bind({kNear, 81}), EPERM);
  EXPECT_EQ(a.counters.get(Counter::helper_silent), 1u) << "once";
  EXPECT_EQ(kill(helper, SIGKILL), 0);
}

TEST(Helper, MakesRulesForTheLocalEndsOfBeforeAlone) {
  Counters counters;
  HelperClient helper(counters);
  helper.begin();
  ASSERT_TRUE(helper.running());
  const int no_device = open("/dev/null", O_RDWR | O_CLOEXEC);
  const auto ask = [&](RequestType type, const FlowRule& rule) {
    return static_cast<int>(helper.run({type, 0, 0, {}, rule}, no_device).error());
  };
  const FlowRule ours = rule_for({kNear, 80}), other_port = rule_for({kNear, 22});
  EXPECT_EQ(ask(RequestType::kLocalEnd, ours), 0);
  EXPECT_EQ(ask(RequestType::kRule, ours), EPERM) << "not yet: the process may make it";
  EXPECT_EQ(ask(RequestType::kSeal, {}), 0);
  EXPECT_EQ(ask(RequestType::kLocalEnd, other_port), EPERM) << "too late";
  EXPECT_EQ(ask(RequestType::kRule, ours), ENOTTY) << "the device is asked";
  for (const FlowRule& strange : {other_port, rule_for({kFar, 80}), rule_for({kNear, 80}, Protocol::kUdp),
                                  rule_for({kNear, 80}, Protocol::kTcp, 5), rule_for({kNear, 0}), FlowRule{}})
    EXPECT_EQ(ask(RequestType::kRule, strange), EPERM);
  FlowRule connection = ours;
  connection.one_remote = true;
  connection.remote_mask = 0xffff;
  EXPECT_EQ(ask(RequestType::kRule, connection), ENOTTY);
  EXPECT_TRUE(helper.run({RequestType::kRule, 0, 0, {}, ours}, -1).is(EBADF));
  close(no_device);
}

long bpf(int command, bpf_attr& attributes) {
  return syscall(SYS_bpf, command, &attributes, sizeof attributes);
}

int make_map(bpf_map_type type, uint32_t key, uint32_t value) {
  bpf_attr a{};
  a.map_type = type;
  a.key_size = key;
  a.value_size = value;
  a.max_entries = 64;
  return static_cast<int>(bpf(BPF_MAP_CREATE, a));
}

bool has(int map, const void* key) {
  uint64_t value[8];
  bpf_attr a{};
  a.map_fd = static_cast<uint32_t>(map);
  a.key = reinterpret_cast<uintptr_t>(key);
  a.value = reinterpret_cast<uintptr_t>(value);
  return bpf(BPF_MAP_LOOKUP_ELEM, a) == 0;
}

constexpr uint32_t kMark = 77;

/// A port's maps, entrusted to a helper whose process has no privilege any more.
struct Entrusted : Asked {
  Entrusted() {
    EXPECT_EQ(add_port(kMark), 0);
    EXPECT_EQ(ask(RequestType::kSeal, 0), 0);
  }
  ~Entrusted() {
    for (int map : maps) close(map);
  }
  int add_port(uint32_t mark) {
    helper::PrivilegedRequest request{RequestType::kPort, static_cast<int>(if_nametoindex("lo")), 0, {}, {}};
    request.rule.tag = mark;
    return static_cast<int>(helper.run(request, maps).error());
  }
  /// kEnd for the local end, or for its connection to kFar.
  int prove(int socket, const Endpoint& end, Protocol protocol = Protocol::kTcp, uint16_t remote = 0,
            uint32_t mark = kMark) {
    helper::PrivilegedRequest request{RequestType::kEnd, 0, 0, {}, rule_for(end, protocol)};
    request.rule.tag = mark;
    request.rule.remote_port = remote;
    if (remote != 0) std::memcpy(request.rule.remote, kFar.bytes.data(), sizeof request.rule.remote);
    return static_cast<int>(helper.run(request, socket).error());
  }
  bool has_end(const Endpoint& end, Protocol protocol = Protocol::kTcp, uint16_t remote = 0) const {
    accel_flow_key key{};
    key.protocol = static_cast<uint8_t>(protocol);
    key.local_port = htons(end.port);
    key.remote_port = htons(remote);
    std::memcpy(key.local, end.address.bytes.data(), sizeof key.local);
    if (remote != 0) std::memcpy(key.remote, kFar.bytes.data(), sizeof key.remote);
    return test::has(maps[3], &key);
  }
  int maps[helper::kMostDescriptors] = {make_map(BPF_MAP_TYPE_ARRAY, 4, 4), make_map(BPF_MAP_TYPE_HASH, 4, 4),
                                        make_map(BPF_MAP_TYPE_ARRAY, 4, 4),
                                        make_map(BPF_MAP_TYPE_HASH, sizeof(accel_flow_key), 4)};
};

int bound_socket(int type, const Endpoint& end) {
  const int fd = socket(AF_INET, type | SOCK_CLOEXEC, 0);
  const sockaddr_in name = to_sockaddr(end);
  EXPECT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&name), sizeof name), 0) << strerror(errno);
  return fd;
}

TEST(Helper, ASocketProvesItsLocalEnd) {
  Entrusted e;
  const int listener = bound_socket(SOCK_STREAM, {IpAddress::any_v4(), 5000});
  EXPECT_EQ(e.prove(listener, {kNear, 5000}), EPERM) << "another user may listen there beside it";
  EXPECT_EQ(e.prove(listener, {kNear, 5000}, Protocol::kTcp, 9), 0) << "a connection it may open";
  EXPECT_TRUE(e.has_end({kNear, 5000}, Protocol::kTcp, 9));
  ASSERT_EQ(listen(listener, 1), 0);
  EXPECT_EQ(e.prove(listener, {kNear, 5000}), 0);
  EXPECT_TRUE(e.has_end({kNear, 5000}));
  for (const Endpoint& strange : {Endpoint{kNear, 22}, Endpoint{kNear, 0}, Endpoint{kFar, 5000},
                                  Endpoint{kLoopback, 5000}, Endpoint{IpAddress::any_v4(), 5000}})
    EXPECT_EQ(e.prove(listener, strange), EPERM);
  EXPECT_EQ(e.prove(listener, {kNear, 5000}, Protocol::kUdp), EPERM);
  EXPECT_EQ(e.prove(listener, {kNear, 5000}, Protocol::kTcp, 0, kMark + 1), EPERM) << "another's port";
  EXPECT_EQ(e.prove(-1, {kNear, 5000}), EPERM);
  EXPECT_EQ(e.prove(e.maps[3], {kNear, 5000}), EPERM);
  const int datagrams = bound_socket(SOCK_DGRAM, {kNear, 5001});
  EXPECT_EQ(e.prove(datagrams, {kNear, 5001}, Protocol::kUdp), 0);
  EXPECT_EQ(e.prove(datagrams, {kNear, 5001}), EPERM);
  EXPECT_EQ(e.add_port(kMark + 1), EPERM) << "too late";
  close(listener);
  close(datagrams);
}

TEST(Helper, ASocketOfAnotherDeviceProvesNothing) {
  Entrusted e;
  const int fd = tcp_socket();
  ASSERT_EQ(setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, "near0", 5), 0) << strerror(errno);
  const sockaddr_in name = to_sockaddr({IpAddress::any_v4(), 5002});
  ASSERT_EQ(bind(fd, reinterpret_cast<const sockaddr*>(&name), sizeof name), 0);
  ASSERT_EQ(listen(fd, 1), 0);
  EXPECT_EQ(e.prove(fd, {kNear, 5002}), EPERM);
  close(fd);
}

// connect() finds a port, and its end gives the port back: the socket goes on naming it.
TEST(Helper, ANameThatWasGivenBackProvesNothing) {
  Entrusted e;
  const int fd = tcp_socket();
  const sockaddr_in any = to_sockaddr({kNear, 0});
  const int listener = bound_socket(SOCK_STREAM, {kNear, 5003});
  ASSERT_EQ(listen(listener, 1), 0);
  const sockaddr_in peer = to_sockaddr({kNear, 5003});
  ASSERT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&peer), sizeof peer), 0);
  const uint16_t port = port_of(fd);
  ASSERT_NE(port, 0);
  EXPECT_EQ(e.prove(fd, {kNear, port}, Protocol::kTcp, 9), EPERM) << "others' connections may share it";
  const linger at_once{1, 0};
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  sockaddr none{};
  ASSERT_EQ(connect(fd, &none, sizeof none), 0);
  EXPECT_EQ(e.prove(fd, {kNear, port}, Protocol::kTcp, 9), EPERM);
  (void)any;
  close(listener);
  close(fd);
}

/// In a child in a network namespace of its own, where it listens at port 22; 77: it may have none.
template <class F>
int elsewhere(F ask) {
  const pid_t child = fork();
  if (child == 0) {
    if (unshare(CLONE_NEWNET) != 0) _exit(77);
    const int fd = bound_socket(SOCK_STREAM, {IpAddress::any_v4(), 22});
    _exit(listen(fd, 1) != 0 ? 77 : ask(fd));
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WEXITSTATUS(status);
}

TEST(Helper, AnotherNetworkNamespaceProvesNothing) {
  Entrusted e;
  EXPECT_EQ(elsewhere([&](int fd) { return e.prove(fd, {kNear, 22}); }), EPERM);
  EXPECT_FALSE(e.has_end({kNear, 22}));
  EXPECT_EQ(elsewhere([&](int fd) { return e.bind({kNear, 22}, fd); }), EPERM);
  EXPECT_EQ(port_of(e.fd), 0);
}

TEST(Helper, AQueueThatAPortHasIsNotGiven) {
  Entrusted e;
  const uint32_t taken = 1, free = 2;
  bpf_attr a{};
  a.map_fd = static_cast<uint32_t>(e.maps[1]);
  a.key = a.value = reinterpret_cast<uintptr_t>(&taken);
  ASSERT_EQ(bpf(BPF_MAP_UPDATE_ELEM, a), 0);
  const auto claim = [&](uint32_t queue, uint32_t mark) {
    helper::PrivilegedRequest request{RequestType::kQueue, static_cast<int32_t>(queue), 0, {}, {}};
    request.rule.tag = mark;
    return static_cast<int>(e.helper.run(request, e.fd).error());
  };
  EXPECT_EQ(claim(taken, kMark), EBUSY);
  EXPECT_EQ(claim(free, kMark + 1), EPERM);
  EXPECT_FALSE(has(e.maps[1], &free));
  EXPECT_EQ(claim(free, kMark), 0);
  EXPECT_TRUE(has(e.maps[1], &free));
}

}  // namespace
}  // namespace accel::test
