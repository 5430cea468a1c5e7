// The device goes away under the port. Last in its lab: there is no device afterwards.
#include "tests/xdp/xdp_fixture.h"

namespace accel::test {
namespace {

class Removal : public XdpTest {
 protected:
  void TearDown() override {}
};

TEST_F(Removal, PortNoticesAndGoesQuietly) {
  PortAtEnd at;
  ASSERT_TRUE(at.open(a)) << at.why;
  FrameMaker a_to_b{a, b};
  EXPECT_TRUE(at.port->alive());
  ASSERT_EQ(std::system(("ip -n " + a.ns + " link del " + a.dev).c_str()), 0);
  const auto until = std::chrono::steady_clock::now() + kGuard;
  while (at.port->alive() && std::chrono::steady_clock::now() < until) {
    EXPECT_TRUE(at.receive_now().empty());
    at.port->arm();
  }
  EXPECT_FALSE(at.port->alive());
  EXPECT_NE(at.port->failure().find("is gone"), std::string::npos) << at.port->failure();
  EXPECT_TRUE(at.send(a_to_b.udp4(1, 2, "into the void")));
  at.port.reset();
  EXPECT_EQ(at.pool.available(), at.pool.size());
  EXPECT_EQ(a.xdp_sockets(), 0);
}

}  // namespace
}  // namespace accel::test
