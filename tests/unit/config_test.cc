// The configuration: what is read, what wins, and what a broken file does.
#include "base/config.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <thread>

namespace accel {
namespace {

Endpoint at(const char* address, uint16_t port) {
  uint8_t bytes[16];
  if (inet_pton(AF_INET, address, bytes) == 1) return {IpAddress::from_v4_bytes(bytes), port};
  EXPECT_EQ(inet_pton(AF_INET6, address, bytes), 1) << address;
  return {IpAddress::from_v6_bytes(bytes), port};
}

class ConfigTest : public ::testing::Test {
 protected:
  ConfigTest() {
    char name[] = "/tmp/accel-config-XXXXXX";
    int fd = mkstemp(name);
    close(fd);
    file_ = name;
    source_.programs = {"redis-check-rdb", "redis-server"};
    source_.file = file_;
    source_.file_must_exist = true;
    source_.env = [this](const char* variable) -> const char* {
      auto found = env_.find(variable);
      return found == env_.end() ? nullptr : found->second.c_str();
    };
  }
  ~ConfigTest() override {
    chmod(file_.c_str(), 0600);
    unlink(file_.c_str());
    rmdir(file_.c_str());
    for (const std::string& name : added_) unlink(name.c_str());
  }

  Config load(const std::string& text) {
    std::ofstream(file_) << text;
    problems_.clear();
    return load_config(source_, problems_);
  }

  /// One line, with file, line and column, that says `what` and what is allowed.
  Config expect_line(const std::string& text, int line, const std::string& what) {
    Config c = load(text);
    EXPECT_EQ(problems_.size(), 1u) << text;
    if (problems_.empty()) return c;
    std::string where = file_ + ":" + std::to_string(line) + ":";
    EXPECT_EQ(problems_[0].substr(0, where.size()), where) << problems_[0];
    EXPECT_GT(std::atoi(problems_[0].c_str() + where.size()), 0) << problems_[0];
    EXPECT_EQ(c.first_problem, problems_[0]);
    EXPECT_NE(problems_[0].find(what), std::string::npos) << problems_[0];
    EXPECT_NE(problems_[0].find("allowed: "), std::string::npos) << problems_[0];
    EXPECT_EQ(problems_[0].find('\n'), std::string::npos);
    return c;
  }
  /// And the kernel's path.
  void expect_problem(const std::string& text, int line, const std::string& what) {
    Config c = expect_line(text, line, what);
    EXPECT_TRUE(c.misread) << text;
    EXPECT_EQ(c.path_for(Role::kTcpServer, at("10.0.0.1", 6379)), Path::kKernel);
  }
  /// Of a setting that decides no path: its default serves.
  void expect_default(const std::string& text, int line, const std::string& what) {
    Config c = expect_line(text, line, what);
    EXPECT_FALSE(c.misread) << text;
    EXPECT_EQ(c.settings.spin, Settings{}.spin);
    EXPECT_EQ(c.path_for(Role::kTcpServer, at("10.0.0.1", 6379)), Path::kAuto);
  }
  std::string add_file(const std::string& name, const std::string& text) {
    std::ofstream(file_ + name) << text;
    added_.push_back(file_ + name);
    return added_.back().substr(added_.back().rfind('/') + 1);
  }

  std::string file_;
  std::vector<std::string> added_;
  std::map<std::string, std::string> env_;
  ConfigSource source_;
  std::vector<std::string> problems_;
};

TEST_F(ConfigTest, EmptyFileGivesDefaults) {
  Config c = load("");
  EXPECT_TRUE(problems_.empty());
  EXPECT_EQ(c.settings.path, Path::kAuto);
  EXPECT_EQ(c.settings.rx_ring, Settings{}.rx_ring);
  EXPECT_EQ(c.file, file_);
}

TEST_F(ConfigTest, CommentsInAnyLanguage) {
  Config c = load(
      "# l\xc3\xa4rm\n[default]\ndevices = \"e'#\\\"t\\u0068\"# \xc3\xa4 \"\n# '\xc3\xa4\nspin = 3 # \xff\n");
  EXPECT_TRUE(problems_.empty()) << problems_[0];
  EXPECT_EQ(c.settings.devices, "e'#\"th");
  EXPECT_EQ(c.settings.spin, 3u);
}

TEST_F(ConfigTest, MissingFileIsAProblemOnlyWhenNamed) {
  unlink(file_.c_str());
  Config c = load_config(source_, problems_);
  EXPECT_EQ(problems_.size(), 1u);
  EXPECT_EQ(c.settings.path, Path::kKernel);
  problems_.clear();
  source_.file_must_exist = false;
  c = load_config(source_, problems_);
  EXPECT_TRUE(problems_.empty());
  EXPECT_EQ(c.settings.path, Path::kAuto);
}

TEST_F(ConfigTest, ApplicationsByNameAndId) {
  const char* text = R"([default]
spin = 7
[[application]]
name = "nginx*"
spin = 8
[[application]]
name = "redis-*"
user_id = "cache"
spin = 9
[[application]]
name = "redis-server"
spin = 10
[[application]]
name = "*"
spin = 11
)";
  EXPECT_EQ(load(text).settings.spin, 10u);
  EXPECT_EQ(load(text).application, "redis-server");
  source_.user_id = "cache";
  EXPECT_EQ(load(text).settings.spin, 9u);
  source_.programs = {"nginx"};
  EXPECT_EQ(load(text).settings.spin, 8u);
  source_.programs = {"curl"};
  EXPECT_EQ(load(text).settings.spin, 11u);
  EXPECT_TRUE(problems_.empty());
}

TEST_F(ConfigTest, FirstMatchingRuleWins) {
  Config c = load(R"(
[[application]]
name = "redis-server"
[[application.rule]]
role = "tcp_server"
address = "10.0.0.0/8"
ports = "6379-6380"
path = "stack"
[[application.rule]]
role = "tcp_client"
address = "[2001:db8::/32]"
path = "kernel"
[[application.rule]]
address = "192.168.1.0/25"
path = "stack"
[[application.rule]]
ports = 53
path = "kernel"
[[application.rule]]
role = "udp_sender"
iwarp = "off"
[[application.rule]]
role = "udp_sender"
path = "kernel"
)");
  ASSERT_TRUE(problems_.empty()) << problems_[0];
  EXPECT_EQ(c.path_for(Role::kTcpServer, at("10.1.2.3", 6380)), Path::kStack);
  EXPECT_EQ(c.path_for(Role::kTcpServer, at("10.1.2.3", 6381)), Path::kAuto);
  EXPECT_EQ(c.path_for(Role::kTcpServer, at("11.1.2.3", 6379)), Path::kAuto);
  EXPECT_EQ(c.path_for(Role::kTcpClient, at("10.1.2.3", 6379)), Path::kAuto);
  EXPECT_EQ(c.path_for(Role::kTcpClient, at("2001:db8:1::1", 80)), Path::kKernel);
  EXPECT_EQ(c.path_for(Role::kTcpClient, at("2001:db9::1", 80)), Path::kAuto);
  EXPECT_EQ(c.path_for(Role::kUdpConnect, at("192.168.1.127", 53)), Path::kStack);
  EXPECT_EQ(c.path_for(Role::kUdpConnect, at("192.168.1.128", 53)), Path::kKernel);
  EXPECT_EQ(c.path_for(Role::kUdpSender, at("1.2.3.4", 9)), Path::kKernel);
}

TEST_F(ConfigTest, EveryIpv4AddressIsNotEveryAddress) {
  Config c = load("[[application]]\nname='*'\n[[application.rule]]\naddress='0.0.0.0/0'\npath='kernel'\n");
  EXPECT_EQ(c.path_for(Role::kTcpServer, at("1.2.3.4", 1)), Path::kKernel);
  EXPECT_EQ(c.path_for(Role::kTcpServer, at("2001:db8::1", 1)), Path::kAuto);
  c = load("[[application]]\nname='*'\n[[application.rule]]\naddress='::/0'\npath='kernel'\n");
  EXPECT_EQ(c.path_for(Role::kTcpServer, at("1.2.3.4", 1)), Path::kAuto);
  EXPECT_EQ(c.path_for(Role::kTcpServer, at("2001:db8::1", 1)), Path::kKernel);
}

TEST_F(ConfigTest, LaterLayersWin) {
  const char* text = R"([default]
profile = "throughput"
rx_ring = 100
[[application]]
name = "redis-server"
spin = 33
profile = "latency"
)";
  Config c = load(text);
  EXPECT_EQ(c.settings.profile, Profile::kLatency);
  EXPECT_EQ(c.settings.spin, 33u) << "what a section says wins over its profile, in any order";
  EXPECT_EQ(c.settings.rx_ring, 100u);
  EXPECT_EQ(c.settings.tx_ring, 4096u) << "from default's profile";
  env_["ACCEL_PROFILE"] = "frugal";
  c = load(text);
  EXPECT_EQ(c.settings.spin, 0u);
  EXPECT_EQ(c.settings.rx_ring, 512u);
  env_["ACCEL_SPIN"] = "5";
  EXPECT_EQ(load(text).settings.spin, 5u);
  EXPECT_TRUE(problems_.empty());
}

TEST_F(ConfigTest, EnvironmentAndItsMistakes) {
  env_["ACCEL_REQUIRE"] = "1";
  env_["ACCEL_SEND_BUFFER"] = "2MB";
  env_["ACCEL_HUGE_PAGES"] = "off";
  env_["ACCEL_LOG"] = "";
  Config c = load("[default]\nsend_buffer = '64K'\n");
  EXPECT_TRUE(problems_.empty());
  EXPECT_EQ(c.settings.require, Require::kAny);
  EXPECT_EQ(c.settings.send_buffer, 2u << 20);
  EXPECT_FALSE(c.settings.huge_pages);
  env_["ACCEL_QUEUES"] = "257";
  c = load("");
  ASSERT_EQ(problems_.size(), 1u);
  EXPECT_EQ(problems_[0], "ACCEL_QUEUES: \"257\" is not a value of it; allowed: 0-256");
  EXPECT_EQ(c.settings.path, Path::kAuto) << "the number of queues decides no path";
  EXPECT_EQ(c.settings.queues, 0u);
  env_ = {{"ACCEL_PATH", "stak"}};
  c = load("");
  ASSERT_EQ(problems_.size(), 1u);
  EXPECT_EQ(problems_[0],
            "ACCEL_PATH: \"stak\" is not a value of it; meant is perhaps \"stack\"; allowed: auto | stack | "
            "kernel");
  EXPECT_EQ(c.settings.path, Path::kKernel);
  env_.clear();
  source_.env_names = {"ACCEL_REQIRE", "ACCEL_SPIN", "ACCEL_BUILD", "ACCEL_X"};
  c = load("");
  ASSERT_EQ(problems_.size(), 1u);
  EXPECT_EQ(problems_[0].find("ACCEL_REQIRE: no such setting; meant is perhaps ACCEL_REQUIRE"), 0u);
  EXPECT_EQ(c.settings.path, Path::kAuto) << "nothing was asked that we know of";
}

TEST_F(ConfigTest, Disable) {
  env_["ACCEL_DISABLE"] = "1";
  Config c = load("[[application]]\nname='*'\n[[application.rule]]\npath='stack'\n");
  EXPECT_TRUE(c.disabled);
  EXPECT_EQ(c.path_for(Role::kTcpClient, at("1.2.3.4", 1)), Path::kKernel);
  env_["ACCEL_DISABLE"] = "0";
  EXPECT_FALSE(load("").disabled);
}

TEST_F(ConfigTest, MistakesAreExplained) {
  expect_problem("[default]\n\nspinn = 1\n", 3, "unknown key \"spinn\"");
  expect_default("[default]\nspin = -1\n", 2, "0-1000000");
  expect_default("[default]\nspin = true\n", 2, "0-1000000");
  expect_default("[default]\nspin = 1.5\n", 2, "0-1000000");
  expect_default("[default]\nspin = [1]\n", 2, "0-1000000");
  expect_problem("[default]\npath = \"fast\"\n", 2, "auto | stack | kernel");
  expect_problem("[default]\npath = 1\n", 2, "auto | stack | kernel");
  expect_default("[default]\nhuge_pages = \"maybe\"\n", 2, "true | false");
  expect_problem("[defaults]\nspin = 1\n", 1, "unknown key \"defaults\"");
  expect_problem("default = 1\n", 1, "default is not a section");
  expect_problem("application = 1\n", 1, "application is not a list");
  expect_problem("[application]\nname='*'\n", 1, "application is not a list");
  expect_problem("[[application]]\nspin = 3\n", 1, "application without name");
  expect_problem("[[application]]\nname = 3\n", 2, "name is not a string");
  expect_problem("[default]\nspin = \n", 2, "");
  expect_problem("\xff\xfe\n", 1, "");
  expect_problem("[%default]\n", 1, "");
  expect_problem("[default]\nl\xc3\xa4rm = 1\n", 2, "not ASCII");
  expect_problem("[default]\ndevices = '''\n#\xc3\xa4'''\n", 3, "not ASCII");
  const std::string rule = "[[application]]\nname = \"redis*\"\n[[application.rule]]\npath = \"stack\"\n";
  expect_problem(rule + "role = \"server\"\n", 5,
                 "tcp_server | tcp_client | udp_receiver | udp_sender | udp_connect");
  expect_problem(rule + "address = \"10.0.0.0/33\"\n", 5, "10.0.0.0/8");
  expect_problem(rule + "address = 10\n", 5, "10.0.0.0/8");
  expect_problem(rule + "ports = \"80-79\"\n", 5, "6379-6380");
  expect_problem(rule + "ports = 65536\n", 5, "6379-6380");
  expect_problem(rule + "colour = 1\n", 5, "unknown key \"colour\"");
  expect_problem(rule + "iwarp = \"yes\"\n", 5, "off | prefer | require");
  expect_problem("[[application]]\nname='*'\n[[application.rule]]\nrole='tcp_server'\n", 3,
                 "decides nothing");
}

TEST_F(ConfigTest, SuggestsWhatIsMeant) {
  expect_problem("[default]\nspinn = 1\n", 2, ":2:1: unknown key \"spinn\"; meant is perhaps \"spin\"; ");
  expect_problem("[default]\n  path = 'kernal'\n", 2,
                 ":2:10: path = kernal is not a value of it; meant is perhaps \"kernel\"; ");
  expect_problem("[defualt]\nspin = 1\n", 1, "meant is perhaps \"default\"");
  expect_default("[default]\nlog = 'warnin'\n", 2, "meant is perhaps \"warning\"");
  expect_problem("[[application]]\nname='*'\n[[application.rule]]\nrole='tcp_servr'\npath='stack'\n", 4,
                 "meant is perhaps \"tcp_server\"");
  load("[default]\nzzzzzz = 1\n");
  EXPECT_EQ(problems_[0].find("perhaps"), std::string::npos) << problems_[0];
}

TEST_F(ConfigTest, Include) {
  const std::string more =
      add_file(".more",
               "[default]\nspin = 1\nrx_ring = 128\n[[application]]\nname = '*'\nspin = 9\n"
               "tx_ring = 256\n");
  Config c = load("include = '" + more + "'\n[default]\nspin = 2\n");
  EXPECT_TRUE(problems_.empty()) << problems_[0];
  EXPECT_EQ(c.settings.rx_ring, 128u);
  EXPECT_EQ(c.settings.spin, 9u) << "an application of the included file";
  EXPECT_EQ(c.application, "*");
  EXPECT_EQ(c.file, file_);
  c = load("include = ['" + more + "']\n[default]\nspin = 2\n[[application]]\nname = 'redis*'\n");
  EXPECT_EQ(c.settings.spin, 2u) << "the file itself wins over what it includes";
  EXPECT_EQ(c.settings.tx_ring, Settings{}.tx_ring) << "its application is the first that matches";
  c = load("include = '" + file_ + ".more'\n");
  EXPECT_TRUE(problems_.empty());
  EXPECT_EQ(c.settings.rx_ring, 128u);
}

TEST_F(ConfigTest, IncludeThatFails) {
  expect_problem("include = 3\n", 1, "include is not the name of a file");
  expect_problem("include = ['']\n", 1, "include is not the name of a file");
  const std::string self = file_.substr(file_.rfind('/') + 1);
  expect_problem("include = '" + self + "'\n", 1, "in a circle");
  EXPECT_TRUE(load("include = ['" + self + "', '" + self + "']\n").misread);
  EXPECT_LE(problems_.size(), 20u);
  EXPECT_TRUE(load("include = 'not-there'\n").misread);
  ASSERT_EQ(problems_.size(), 1u);
  EXPECT_EQ(problems_[0].find("/tmp/not-there: cannot be read: No such file"), 0u) << problems_[0];
  const std::string bad = add_file(".bad", "[default]\n\npath = 'x'\n");
  EXPECT_TRUE(load("include = '" + bad + "'\n").misread);
  ASSERT_EQ(problems_.size(), 1u);
  EXPECT_EQ(problems_[0].find(file_ + ".bad:3:8: "), 0u) << problems_[0];
}

TEST_F(ConfigTest, AnothersMistakeIsReportedButConcernsOnlyIt) {
  Config c = load("[default]\npath='stack'\n[[application]]\nname = 'nginx'\nspin = 'x'\n");
  EXPECT_EQ(problems_.size(), 1u);
  EXPECT_FALSE(c.misread);
  EXPECT_EQ(c.settings.path, Path::kStack);
}

TEST_F(ConfigTest, FilesThatAreNoFiles) {
  unlink(file_.c_str());
  ASSERT_EQ(mkfifo(file_.c_str(), 0600), 0);
  EXPECT_TRUE(load_config(source_, problems_).misread);
  unlink(file_.c_str());
  ASSERT_EQ(mkdir(file_.c_str(), 0700), 0);
  EXPECT_TRUE(load_config(source_, problems_).misread);
  source_.file = "/dev/zero";
  EXPECT_TRUE(load_config(source_, problems_).misread);
  EXPECT_EQ(problems_.size(), 3u);
}

TEST_F(ConfigTest, HostileFiles) {
  std::string dots = "a";
  for (int i = 0; i < 200000; ++i) dots += ".a";
  std::string nested = "a = ";
  for (int i = 0; i < 200000; ++i) nested += "[";
  std::string tables = "a = ";
  for (int i = 0; i < 100000; ++i) tables += "{a=";
  std::string combined;
  for (int i = 0; i < 5000; ++i) combined += "a = [\n{a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a.a = [\n";
  std::string many;
  for (int i = 0; i < 30000; ++i) many += "[[application]]\nname='*'\nx=1\n";
  for (const std::string& text :
       {dots + "=1\n", "[" + dots + "]\n", "[[" + dots + "]]\n", nested, tables, combined,
        std::string(2 << 20, 'a'), std::string(1 << 20, '"'), std::string("a\0b=1", 5),
        "[default]\npath = \"" + std::string(500000, 'x') + "\"\n"}) {
    // A thread with a small stack, as some programs' are.
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 512 << 10);
    std::function<void()> work = [&] { EXPECT_TRUE(load(text).misread) << text.substr(0, 20); };
    auto run = [](void* f) -> void* {
      (*static_cast<std::function<void()>*>(f))();
      return nullptr;
    };
    pthread_t thread;
    ASSERT_EQ(pthread_create(&thread, &attributes, run, &work), 0);
    pthread_join(thread, nullptr);
    pthread_attr_destroy(&attributes);
    EXPECT_EQ(problems_.size(), 1u);
    EXPECT_LT(problems_[0].size(), 1500u);
  }
  EXPECT_TRUE(load(many).misread);
  EXPECT_LE(problems_.size(), 20u) << "a broken file does not flood stderr";
}

TEST_F(ConfigTest, Devices) {
  Config c = load("[default]\ndevices = 'eth*, ens1,!eth3'\n");
  EXPECT_TRUE(c.device_allowed("eth0"));
  EXPECT_TRUE(c.device_allowed("ens1"));
  EXPECT_FALSE(c.device_allowed("eth3"));
  EXPECT_FALSE(c.device_allowed("lo"));
  c = load("[default]\ndevices = '!wlan*'\n");
  EXPECT_TRUE(c.device_allowed("eth0"));
  EXPECT_FALSE(c.device_allowed("wlan0"));
}

TEST(Settings, EveryDefaultIsAllowedAndReadsBack) {
  Settings settings;
  auto rows = setting_texts();
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(setting_value(settings, i), rows[i].default_value) << rows[i].name;
    EXPECT_TRUE(set_setting(settings, i, rows[i].default_value)) << rows[i].name;
    EXPECT_EQ(rows[i].env.substr(0, 6), "ACCEL_");
  }
  for (size_t p = 0; p < kWords<Profile>.size(); ++p) {
    Settings changed;
    apply_profile(changed, static_cast<Profile>(p));
    for (size_t i = 0; i < rows.size(); ++i)
      EXPECT_TRUE(set_setting(settings, i, setting_value(changed, i))) << rows[i].name << " of profile " << p;
  }
}

TEST(Settings, Sizes) {
  Settings s;
  size_t row = 0;
  while (setting_texts()[row].name != "send_buffer") ++row;
  EXPECT_TRUE(set_setting(s, row, "64K"));
  EXPECT_EQ(s.send_buffer, 65536u);
  EXPECT_TRUE(set_setting(s, row, "1GB"));
  for (const char* bad :
       {"", "K", "1T", "2G", "-1", "1KK", "1KBB", "99999999999999999999", "18446744073709551615G", " 65536"})
    EXPECT_FALSE(set_setting(s, row, bad)) << bad;
}

}  // namespace
}  // namespace accel
