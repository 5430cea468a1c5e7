// The kernel's answers of RDMA devices and their ports, whole and broken.
#include "mlx5/rdma_ports.h"

#include <gtest/gtest.h>
#include <linux/netlink.h>
#include <rdma/rdma_netlink.h>

#include <cstring>
#include <utility>
#include <vector>

namespace accel::mlx5 {
namespace {

struct Answer {
  void message() {
    end();
    start = bytes.size();
    bytes.resize(start + NLMSG_HDRLEN);
  }
  void put(uint16_t type, const void* value, size_t size) {
    const nlattr attribute{static_cast<uint16_t>(NLA_HDRLEN + size), type};
    const size_t at = bytes.size();
    bytes.resize(at + NLA_ALIGN(NLA_HDRLEN + size));
    std::memcpy(&bytes[at], &attribute, sizeof attribute);
    std::memcpy(&bytes[at + NLA_HDRLEN], value, size);
    end();
  }
  void number(uint16_t type, uint32_t value) { put(type, &value, sizeof value); }
  void text(uint16_t type, const char* value) { put(type, value, std::strlen(value) + 1); }
  void end() {
    if (bytes.empty()) return;
    nlmsghdr header{};
    header.nlmsg_len = static_cast<uint32_t>(bytes.size() - start);
    std::memcpy(&bytes[start], &header, sizeof header);
  }
  std::vector<uint8_t> bytes;
  size_t start = 0;
};

Answer devices() {
  Answer a;
  for (const auto& [index, name] : {std::pair{3u, "mlx5_0"}, {4u, "mlx5_1"}, {9u, "mlx5_10"}}) {
    a.message();
    a.number(RDMA_NLDEV_ATTR_DEV_INDEX, index);
    a.text(RDMA_NLDEV_ATTR_DEV_NAME, name);
    a.number(RDMA_NLDEV_ATTR_PORT_INDEX, 4);
  }
  return a;
}

Answer ports() {
  Answer a;
  for (uint32_t port = 1; port <= 4; ++port) {
    a.message();
    a.number(RDMA_NLDEV_ATTR_DEV_INDEX, 4);
    a.text(RDMA_NLDEV_ATTR_DEV_NAME, "mlx5_1");
    a.number(RDMA_NLDEV_ATTR_PORT_INDEX, port);
    if (port != 3) a.number(RDMA_NLDEV_ATTR_NDEV_INDEX, 20 + port);
  }
  return a;
}

TEST(RdmaPorts, ADevicesNumber) {
  EXPECT_EQ(device_number(devices().bytes, "mlx5_1"), 4);
  EXPECT_EQ(device_number(devices().bytes, "mlx5_10"), 9);
  EXPECT_EQ(device_number(devices().bytes, "mlx5_2"), -1);
  EXPECT_EQ(device_number({}, "mlx5_0"), -1);
}

TEST(RdmaPorts, ARepresentorsPort) {
  EXPECT_EQ(port_with(ports().bytes, 21), 1);
  EXPECT_EQ(port_with(ports().bytes, 24), 4);
  EXPECT_EQ(port_with(ports().bytes, 23), 0) << "that port has no netdev";
  EXPECT_EQ(port_with(ports().bytes, 3), 0);
}

/// Nothing is read that is not there, and nothing loops.
TEST(RdmaPorts, AnswersCutShortAndWrong) {
  const auto whole = ports().bytes;
  for (size_t n = 0; n < whole.size(); ++n) {
    const std::vector<uint8_t> part(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(n));
    EXPECT_LE(port_with(part, 24), 4);
    EXPECT_EQ(device_number(part, "mlx5_0"), -1);
    for (const uint8_t wrong : {0x00, 0x01, 0xff}) {
      auto bent = whole;
      bent[n] = wrong;
      (void)port_with(bent, 24);
      (void)device_number(bent, "mlx5_1");
    }
  }
}

TEST(RdmaPorts, AHostWithoutSuchADevice) { EXPECT_EQ(ask_for_port("mlx5_none", 1), 0); }

}  // namespace
}  // namespace accel::mlx5
