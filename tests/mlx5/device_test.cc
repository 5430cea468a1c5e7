// Finding the RDMA device of a netdev in a sysfs of our own making.
#include "mlx5/device.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

namespace accel::mlx5 {
namespace {

namespace fs = std::filesystem;

class Sysfs : public ::testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/accel-sysfs-XXXXXX";
    ASSERT_NE(mkdtemp(name), nullptr);
    root_ = name;
  }
  void TearDown() override { fs::remove_all(root_); }

  void file(const std::string& path, const std::string& text) {
    fs::create_directories(fs::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text << '\n';
  }
  void netdev(const std::string& name, const std::string& driver) {
    fs::create_directories(root_ + "/class/net/" + name + "/device");
    fs::create_directories(root_ + "/drivers/" + driver);
    fs::create_symlink("../../../../drivers/" + driver, root_ + "/class/net/" + name + "/device/driver");
  }
  void rdma(const std::string& name, const std::string& vendor, const std::string& netdev, int ifindex) {
    const std::string device = "/class/infiniband/" + name + "/device";
    if (!vendor.empty()) file(device + "/vendor", vendor);
    file(device + "/net/" + netdev + "/ifindex", std::to_string(ifindex));
    file("/class/infiniband_verbs/abi_version", "6");
    // A node that no machine has.
    file("/class/infiniband_verbs/uverbs98" + std::to_string(ifindex) + "/ibdev", name);
    file("/class/infiniband_verbs/uverbs98" + std::to_string(ifindex) + "/dev", "231:192");
  }
  std::string root_;
};

TEST_F(Sysfs, AnotherVendorsNicIsNoCandidate) {
  netdev("eth0", "e1000e");
  const Evidence seen = look("eth0", 2, root_);
  EXPECT_FALSE(is_candidate(seen));
}

TEST_F(Sysfs, NothingAtAll) { EXPECT_FALSE(is_candidate(look("eth0", 2, root_ + "/none"))); }

TEST_F(Sysfs, NetdevWithoutItsRdmaModule) {
  netdev("eth0", "mlx5_core");
  const Evidence seen = look("eth0", 2, root_);
  EXPECT_TRUE(is_candidate(seen));
  const Lack lack = diagnose(seen).lack;
  EXPECT_TRUE(lack == Lack::kNoKernelModule ||
              lack == Lack::kModuleRefused);  // as this machine's lockdown says
}

TEST_F(Sysfs, FoundByNumberAmongOthers) {
  netdev("eth0", "mlx5_core");
  rdma("irdma0", "0x8086", "eth0", 4);
  rdma("mlx5_1", "0x15b3", "eth1", 5);
  rdma("mlx5_0", "0x15b3", "old_name", 4);  // renamed meanwhile
  const Evidence seen = look("eth0", 4, root_);
  EXPECT_EQ(seen.device, "mlx5_0");
  EXPECT_EQ(seen.abi_version, 6);
  EXPECT_TRUE(seen.verbs_class);
}

TEST_F(Sysfs, SubfunctionHasNoVendorFile) {
  rdma("mlx5_2", "", "en3f0pf0sf88", 9);
  const Evidence seen = look("en3f0pf0sf88", 9, root_);
  EXPECT_EQ(seen.device, "mlx5_2");
  EXPECT_EQ(seen.node, "/dev/infiniband/uverbs989");
  EXPECT_FALSE(seen.node_exists);
  EXPECT_EQ(diagnose(seen).lack, Lack::kNoNode);
}

TEST_F(Sysfs, DriverFilterIsSeen) {
  rdma("mlx5_0", "0x15b3", "eth0", 3);
  setenv("RDMAV_DRIVERS", "rxe", 1);
  EXPECT_EQ(look("eth0", 3, root_).driver_filter, "rxe");
  unsetenv("RDMAV_DRIVERS");
  setenv("IBV_DRIVERS", "siw", 1);
  EXPECT_EQ(look("eth0", 3, root_).driver_filter, "siw");
  unsetenv("IBV_DRIVERS");
}

TEST(SysfsRoot, FollowsLibibverbsVariable) {
  unsetenv("SYSFS_PATH");
  EXPECT_EQ(sysfs_root(), "/sys");
  setenv("SYSFS_PATH", "/tmp/fake//", 1);
  EXPECT_EQ(sysfs_root(), "/tmp/fake");
  unsetenv("SYSFS_PATH");
}

}  // namespace
}  // namespace accel::mlx5
