// Every lack from what would be seen of it, each with a cure of its own.
#include "mlx5/lack.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <map>

namespace accel::mlx5 {
namespace {

Evidence healthy() {
  Evidence e;
  e.netdev = "enp1s0f0";
  e.device = "mlx5_0";
  e.node = "/dev/infiniband/uverbs0";
  e.mlx5_driver = e.verbs_class = e.ib_module = e.node_exists = true;
  e.abi_version = 6;
  e.memory = 64 << 20;
  return e;
}

TEST(Diagnose, NothingLacks) {
  const Diagnosis d = diagnose(healthy());
  EXPECT_EQ(d.lack, Lack::kNone);
  EXPECT_EQ(d.text, "");
}

struct Case {
  Lack lack;
  const char* cure;  ///< words that the text must have
  void (*spoil)(Evidence&);
};

const Case kCases[] = {
    {Lack::kNoLibrary, "apt install libibverbs1 ibverbs-providers",
     [](Evidence& e) { e.library_error = "libibverbs.so.1: cannot open shared object file"; }},
    {Lack::kNoKernelModule, "mlx5_ib is not loaded: modprobe",
     [](Evidence& e) { e.verbs_class = e.ib_module = false, e.device = ""; }},
    {Lack::kNoKernelModule, "ib_uverbs is not loaded: modprobe", [](Evidence& e) { e.verbs_class = false; }},
    {Lack::kModuleRefused, "signed",
     [](Evidence& e) { e.verbs_class = e.ib_module = false, e.device = "", e.signed_modules = true; }},
    {Lack::kAbi, "version 7", [](Evidence& e) { e.abi_version = 7; }},
    {Lack::kAbi, "version 2", [](Evidence& e) { e.abi_version = 2; }},
    {Lack::kNoRdmaDevice, "enable_roce", [](Evidence& e) { e.device = ""; }},
    {Lack::kNoRdmaDevice, "set pci/0000:03:00.0 name enable_roce value true",
     [](Evidence& e) { e.device = "", e.bus = "pci/0000:03:00.0"; }},
    {Lack::kNoRdmaDevice, "set auxiliary/mlx5_core.sf.4 name enable_rdma value true",
     [](Evidence& e) {
       e.device = "", e.bus = "auxiliary/mlx5_core.sf.4", e.function = Evidence::Function::kSub;
     }},
    {Lack::kNoRdmaDevice,
     "a virtual function needs it of its host: devlink port function set PORT roce enable",
     [](Evidence& e) { e.device = "", e.function = Evidence::Function::kVirtual; }},
    {Lack::kNoNode, "udevadm trigger", [](Evidence& e) { e.node_exists = false; }},
    {Lack::kMajorTaken, "another driver", [](Evidence& e) { e.node_is_device = false; }},
    {Lack::kNodeForbidden, "chmod 0666 /dev/infiniband/uverbs0",
     [](Evidence& e) { e.stage = Stage::kOpenNode, e.error = EACCES; }},
    {Lack::kDeviceGone, "devlink dev reload", [](Evidence& e) { e.stage = Stage::kOpenNode, e.error = EIO; }},
    {Lack::kProviderFiltered, "'rxe:siw', without mlx5",
     [](Evidence& e) { e.listed = false, e.driver_filter = "rxe:siw"; }},
    {Lack::kNoProvider, "apt install ibverbs-providers", [](Evidence& e) { e.listed = false; }},
    {Lack::kNoProvider, "apt install ibverbs-providers",
     [](Evidence& e) { e.listed = false, e.driver_filter = "/opt/rdma/libmlx5"; }},
    {Lack::kNoNetRaw, "setpriv",
     [](Evidence& e) { e.net_raw = false, e.stage = Stage::kMakeQueue, e.error = EPERM; }},
    {Lack::kNoNetRaw, "setpriv", [](Evidence& e) { e.net_raw = false, e.stage = Stage::kLook; }},
    {Lack::kNoNetRaw, "user namespace", [](Evidence& e) { e.stage = Stage::kMakeQueue, e.error = EPERM; }},
    {Lack::kMemlock, "64 KiB allowed, 65536 KiB needed: ulimit -l 65536",
     [](Evidence& e) { e.memlock = 64 << 10, e.stage = Stage::kRegisterMemory, e.error = ENOMEM; }},
    {Lack::kMemlock, "ulimit -l unlimited",
     [](Evidence& e) { e.memlock = 64 << 20, e.stage = Stage::kMakeQueue, e.error = ENOMEM; }},
    {Lack::kOther, "fewer frames", [](Evidence& e) { e.stage = Stage::kRegisterMemory, e.error = ENOMEM; }},
    {Lack::kOther, "smaller rings", [](Evidence& e) { e.stage = Stage::kMakeQueue, e.error = ENOMEM; }},
    {Lack::kOther, "ibv_devinfo", [](Evidence& e) { e.stage = Stage::kOpenDevice, e.error = EINVAL; }},
    {Lack::kNoSteering, "eswitch", [](Evidence& e) { e.stage = Stage::kSteer, e.error = EOPNOTSUPP; }},
};

TEST(Diagnose, EachLackHasItsCureInOneLine) {
  std::map<std::string, Lack> texts;
  for (const Case& each : kCases) {
    Evidence e = healthy();
    each.spoil(e);
    const Diagnosis d = diagnose(e);
    EXPECT_EQ(d.lack, each.lack) << d.text;
    EXPECT_NE(d.text.find(each.cure), std::string::npos) << d.text << "\nhas no: " << each.cure;
    EXPECT_NE(d.text.find(": "), std::string::npos) << d.text;
    EXPECT_EQ(d.text.find('\n'), std::string::npos) << d.text;
    const auto known = texts.emplace(d.text, d.lack).first;
    EXPECT_EQ(known->second, d.lack) << "one text for two lacks";
  }
}

TEST(Diagnose, MemlockDoesNotBindWithIpcLock) {
  Evidence e = healthy();
  e.memlock = 64 << 10;
  e.ipc_lock = true;
  e.stage = Stage::kRegisterMemory;
  e.error = ENOMEM;
  EXPECT_EQ(diagnose(e).lack, Lack::kOther);
}

/// What stands in the way first is named first: a missing module before a missing node before the rest.
TEST(Diagnose, TheFirstObstacleIsNamed) {
  Evidence e = healthy();
  e.net_raw = false;
  e.listed = false;
  e.node_exists = false;
  e.abi_version = 9;
  e.stage = Stage::kLook;
  EXPECT_EQ(diagnose(e).lack, Lack::kAbi);
  e.abi_version = 6;
  EXPECT_EQ(diagnose(e).lack, Lack::kNoNode);
  e.node_exists = true;
  EXPECT_EQ(diagnose(e).lack, Lack::kNoProvider);
  e.listed = true;
  EXPECT_EQ(diagnose(e).lack, Lack::kNoNetRaw);
}

}  // namespace
}  // namespace accel::mlx5
