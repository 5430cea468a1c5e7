// Our WQEs are libmlx5's, byte for byte that the device reads: compared with the recording, without a device.
#include "tests/mlx5/golden.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

namespace accel::mlx5 {
namespace {

using namespace test;  // NOLINT

void compare_with(const std::string& recording) {
  std::ifstream file(recording);
  ASSERT_TRUE(file) << recording;
  std::string line, word;
  std::getline(file, line);
  SendRing like;
  uint32_t header = 0;
  file >> word >> like.blocks >> like.qpn >> like.lkey >> header;
  std::getline(file, line);
  ASSERT_EQ(word, "ring");
  static uint8_t* const memory = golden_memory();
  ASSERT_NE(memory, MAP_FAILED);
  for (const GoldenRequest& request : golden_requests()) {
    ASSERT_TRUE(std::getline(file, line)) << "recorded before " << request.name;
    std::istringstream fields(line);
    std::string name, index, bytes;
    std::getline(fields, name, '\t');
    std::getline(fields, index, '\t');
    std::getline(fields, bytes);
    ASSERT_EQ(name, request.name);
    uint32_t count = 0;
    EXPECT_EQ(our_bytes(like, static_cast<uint16_t>(std::stoul(index)), memory, request, header, &count),
              bytes)
        << name;
  }
  EXPECT_FALSE(std::getline(file, line)) << "recorded and no longer asked: " << line;
}

TEST(Golden, EveryRequestIsAsLibmlx5WritesIt) { compare_with(ACCEL_GOLDEN "/golden.txt"); }

TEST(Golden, EveryRequestWithHeadersInlineIsAsLibmlx5WritesIt) {
  compare_with(ACCEL_GOLDEN "/golden_headers.txt");
}

}  // namespace
}  // namespace accel::mlx5
