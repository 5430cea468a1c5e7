// Finding the RDMA device of a netdev in a sysfs of our own making.
#include "mlx5/device.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <tuple>

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

/// As devlink calls it, for the commands that a user is told to give.
TEST_F(Sysfs, TheFunctionIsNamed) {
  const auto function = [this](const std::string& netdev, const std::string& bus, const std::string& name) {
    fs::create_directories(root_ + "/bus/" + bus);
    fs::create_directories(root_ + "/devices/" + name);
    fs::create_directories(root_ + "/class/net/" + netdev);
    fs::create_symlink("../../../devices/" + name, root_ + "/class/net/" + netdev + "/device");
    fs::create_symlink("../../bus/" + bus, root_ + "/devices/" + name + "/subsystem");
    fs::create_directories(root_ + "/drivers/mlx5_core");
    fs::create_symlink("../../drivers/mlx5_core", root_ + "/devices/" + name + "/driver");
  };
  using enum Evidence::Function;
  function("eth0", "pci", "0000:03:00.0");
  function("eth1", "pci", "0000:03:00.2");
  fs::create_directories(root_ + "/devices/0000:03:00.2/physfn");
  function("eth2", "auxiliary", "mlx5_core.sf.4");
  EXPECT_EQ(look("eth0", 2, root_).bus, "pci/0000:03:00.0");
  EXPECT_EQ(look("eth0", 2, root_).function, kPhysical);
  EXPECT_EQ(look("eth1", 3, root_).bus, "pci/0000:03:00.2");
  EXPECT_EQ(look("eth1", 3, root_).function, kVirtual);
  EXPECT_EQ(look("eth2", 4, root_).bus, "auxiliary/mlx5_core.sf.4");
  EXPECT_EQ(look("eth2", 4, root_).function, kSub);
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

TEST_F(Sysfs, VirtualFunctionHasADeviceOfItsOwn) {
  netdev("eth0", "mlx5_core");
  netdev("eth0v3", "mlx5_core");
  rdma("mlx5_0", "0x15b3", "eth0", 4);
  rdma("mlx5_7", "0x15b3", "eth0v3", 12);
  EXPECT_EQ(look("eth0v3", 12, root_).device, "mlx5_7");
  EXPECT_EQ(look("eth0", 4, root_).device, "mlx5_0");
}

TEST_F(Sysfs, OneDeviceOfManyPortsIsServedOnTheNetdevsOwn) {
  for (const auto& [netdev, ifindex, port] :
       {std::tuple{"eth0", 4, "1"}, {"eth0r1", 7, "2"}, {"eth0r2", 8, "3"}, {"eth0r3", 9, "4"}}) {
    this->netdev(netdev, "mlx5_core");
    rdma("mlx5_0", "0x15b3", netdev, ifindex);
    const std::string names = std::string("/class/infiniband/mlx5_0/ports/") + port + "/gid_attrs/ndevs/";
    file(names + "0", ifindex == 9 ? "" : netdev);
    file(names + "1", "eth0.5");
  }
  EXPECT_EQ(look("eth0", 4, root_).port, 1);
  EXPECT_EQ(look("eth0r2", 8, root_).port, 3);
  EXPECT_EQ(look("eth0r2", 8, root_).device, "mlx5_0");
  EXPECT_EQ(look("eth0r3", 9, root_).device, "") << "which port is not known";
}

struct Bond : Sysfs {
  /// Members eth0 and eth1; the second one's driver may be another's.
  void bond(const std::string& second_driver) {
    netdev("eth0", "mlx5_core");
    netdev("eth1", second_driver);
    file("/class/net/bond0/bonding/slaves", "eth0 eth1");
  }
  void names_bond(const std::string& device) {
    file("/class/infiniband/" + device + "/ports/1/gid_attrs/ndevs/0", "bond0");
  }
};

TEST_F(Bond, OneRdmaDeviceOfBothMembers) {
  bond("mlx5_core");
  rdma("mlx5_bond_0", "0x15b3", "eth0", 4);
  names_bond("mlx5_bond_0");
  EXPECT_EQ(look("bond0", 9, root_).device, "mlx5_bond_0");
}

TEST_F(Bond, MembersWithDevicesOfTheirOwnAreNotServed) {
  bond("mlx5_core");
  rdma("mlx5_0", "0x15b3", "eth0", 4);
  rdma("mlx5_1", "0x15b3", "eth1", 5);
  names_bond("mlx5_0");  // the active member's
  EXPECT_FALSE(is_candidate(look("bond0", 9, root_)));
}

TEST_F(Bond, WithAnothersNic) {
  bond("ice");
  rdma("mlx5_0", "0x15b3", "eth0", 4);
  names_bond("mlx5_0");
  EXPECT_FALSE(is_candidate(look("bond0", 9, root_)));
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
