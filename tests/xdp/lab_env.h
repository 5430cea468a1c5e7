// The two ends of the lab (tests/xdp/run.py) as a test program meets them.
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <net/if.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>

#include "base/ip.h"
#include "stack/port.h"

namespace accel::test {

struct LabEnd {
  std::string ns, dev, ipv4, ipv6;
  MacAddress mac{};

  static LabEnd from_environment(const std::string& name) {
    auto get = [&](const char* what) {
      const char* value = getenv(("ACCEL_LAB_" + name + "_" + what).c_str());
      return std::string(value ? value : "");
    };
    LabEnd end{get("NS"), get("DEV"), get("IPV4"), get("IPV6"), {}};
    unsigned m[6] = {};
    std::sscanf(get("MAC").c_str(), "%x:%x:%x:%x:%x:%x", &m[0], &m[1], &m[2], &m[3], &m[4], &m[5]);
    for (int i = 0; i < 6; ++i) end.mac[i] = static_cast<uint8_t>(m[i]);
    return end;
  }

  /// Runs `work` on a thread that lives in this end's namespace.
  template <class Work>
  void inside(Work work) const {
    std::thread([&] {
      enter();
      work();
    }).join();
  }
  /// Moves the calling thread into the namespace.
  bool enter() const {
    const int fd = ::open(("/run/netns/" + ns).c_str(), O_RDONLY | O_CLOEXEC);
    const bool entered = fd >= 0 && setns(fd, CLONE_NEWNET) == 0;
    ::close(fd);
    return entered;
  }

  IpAddress address4() const {
    in_addr a{};
    inet_pton(AF_INET, ipv4.c_str(), &a);
    return IpAddress::from_v4_bytes(&a);
  }
  IpAddress address6() const {
    in6_addr a{};
    inet_pton(AF_INET6, ipv6.c_str(), &a);
    return IpAddress::from_v6_bytes(&a);
  }

  /// A kernel socket in this namespace, bound to this end's IPv4 address and `port`.
  int kernel_socket(int type, uint16_t port) const {
    int fd = -1;
    inside([&] {
      fd = ::socket(AF_INET, type | SOCK_CLOEXEC, 0);
      const int one = 1;
      setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
      sockaddr_in address = at(port);
      if (bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) perror("bind");
    });
    return fd;
  }
  sockaddr_in at(uint16_t port) const {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    inet_pton(AF_INET, ipv4.c_str(), &address.sin_addr);
    return address;
  }

  /// Open AF_XDP sockets of this namespace.
  int xdp_sockets() const {
    int sockets = -1;
    inside([&] {
      std::ifstream table("/proc/thread-self/net/protocols");
      for (std::string line; std::getline(table, line);) {
        std::istringstream words(line);
        std::string name;
        int size = 0;
        if (words >> name && name == "XDP") words >> size >> sockets;
      }
    });
    return sockets;
  }
};

}  // namespace accel::test
