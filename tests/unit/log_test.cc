// Where messages go: the files and loggers of setting log_to, and how many.
#include "base/log.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>
#include <string>

#include "base/log_target.h"

namespace accel {
namespace {

class Log : public testing::Test {
 protected:
  void SetUp() override {
    char name[] = "/tmp/log_test.XXXXXX";
    directory_ = mkdtemp(name);
    set_log_level(LogLevel::kInfo);
    set_log_rate(100'000);
  }
  void TearDown() override {
    open_log_target("stderr");
    std::filesystem::remove_all(directory_);
  }
  std::string path(const std::string& name) const { return directory_ + "/" + name; }
  static std::string content(const std::string& path) {
    std::ifstream file(path);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  }
  /// A logger's socket.
  int bind_logger(const std::string& at) const {
    const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0);
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    std::snprintf(name.sun_path, sizeof name.sun_path, "%s", at.c_str());
    unlink(name.sun_path);
    EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&name), sizeof name), 0);
    return fd;
  }
  static std::string received(int fd) {
    char text[2000];
    const ssize_t n = recv(fd, text, sizeof text, 0);
    return n < 0 ? "nothing" : std::string(text, static_cast<size_t>(n));
  }

 private:
  std::string directory_;
};

TEST_F(Log, AFileHasEachMessageOnceWithItsTimeProcessAndLevel) {
  ASSERT_EQ(open_log_target(path("log")), "");
  log(LogLevel::kError, "file: %d", 1);
  log(LogLevel::kError, "file: %d", 1);
  log(LogLevel::kInfo, "file: two\nlines");
  log(LogLevel::kDebug, "file: not shown");
  const std::string start =
      "[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}\\.[0-9]{3}Z log_test\\[" + std::to_string(getpid()) + "\\] ";
  EXPECT_TRUE(std::regex_match(content(path("log")), std::regex(start + "error: libaccel: file: 1\n" + start +
                                                                "info: libaccel: file: two\\?lines\n")))
      << content(path("log"));
  struct stat facts {};
  ASSERT_EQ(stat(path("log").c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 07, 0u);
}

TEST_F(Log, AFileIsOpenedAnewBehindItsRotation) {
  ASSERT_EQ(open_log_target(path("log")), "");
  log(LogLevel::kError, "rotation: before");
  std::filesystem::rename(path("log"), path("log.1"));
  log(LogLevel::kError, "rotation: between");
  ASSERT_EQ(open_log_target(path("log")), "");
  log(LogLevel::kError, "rotation: after");
  EXPECT_NE(content(path("log.1")).find("rotation: between"), std::string::npos);
  EXPECT_EQ(content(path("log.1")).find("rotation: after"), std::string::npos);
  EXPECT_NE(content(path("log")).find("rotation: after"), std::string::npos);
}

TEST_F(Log, WhatCannotBeOpenedIsToldAndStderrHasTheMessages) {
  EXPECT_NE(open_log_target(path("missing/log")).find("No such file"), std::string::npos);
  EXPECT_FALSE(has_log_target());
  ASSERT_EQ(open_log_target(path("log")), "");
  EXPECT_NE(open_log_target(path("missing/log")).find("; messages go where they went"), std::string::npos);
  log(LogLevel::kError, "kept: text");
  EXPECT_NE(content(path("log")).find("kept: text"), std::string::npos);
  ASSERT_EQ(open_log_target("stderr"), "");
  EXPECT_NE(open_log_target("jornal").find("neither stderr, syslog, journal"), std::string::npos);
  EXPECT_EQ(open_log_target("journal", {.journal = "/nonexistent"}),
            "journal: No such file or directory; messages go to stderr");
  EXPECT_FALSE(has_log_target());
}

TEST_F(Log, SyslogHasPriorityProgramAndProcess) {
  const int logger = bind_logger(path("syslog"));
  ASSERT_EQ(open_log_target("syslog", {.syslog = path("syslog").c_str()}), "");
  log(LogLevel::kWarning, "syslog: text");
  EXPECT_EQ(received(logger), "<12>log_test[" + std::to_string(getpid()) + "]: libaccel: syslog: text");
  close(logger);
}

TEST_F(Log, JournaldHasFieldsOfItsOwn) {
  const int logger = bind_logger(path("journal"));
  ASSERT_EQ(open_log_target("journal", {.journal = path("journal").c_str()}), "");
  log(LogLevel::kError, "journal: text");
  EXPECT_EQ(received(logger), "PRIORITY=3\nSYSLOG_IDENTIFIER=log_test\nMESSAGE=libaccel: journal: text\n");
  close(logger);
}

TEST_F(Log, ALoggerThatWasStartedAgainIsFound) {
  int logger = bind_logger(path("syslog"));
  ASSERT_EQ(open_log_target("syslog", {.syslog = path("syslog").c_str()}), "");
  close(logger);
  logger = bind_logger(path("syslog"));
  log(LogLevel::kError, "again: text");
  EXPECT_NE(received(logger).find("again: text"), std::string::npos);
  close(logger);
}

TEST_F(Log, ADescriptorThatTheProgramHasTakenIsNotWrittenTo) {
  ASSERT_EQ(open_log_target(path("log")), "");
  int number = -1;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    if (std::filesystem::read_symlink(entry) == path("log")) number = std::stoi(entry.path().filename());
  ASSERT_GE(number, 0);
  FILE* const data = std::fopen(path("data").c_str(), "w");
  ASSERT_EQ(dup2(fileno(data), number), number);
  log(LogLevel::kError, "taken: text");
  EXPECT_EQ(content(path("data")), "");
  std::fclose(data);
}

TEST_F(Log, MessagesBeyondTheRateAreCounted) {
  ASSERT_EQ(open_log_target(path("log")), "");
  set_log_rate(1);
  for (int i = 0; i < 60; ++i) log(LogLevel::kError, "rate: %d", i);
  set_log_rate(100'000);
  log(LogLevel::kError, "rate: behind");
  size_t shown = 0, left_out = 0;
  std::ifstream lines(path("log"));
  for (std::string line; std::getline(lines, line);) {
    const size_t text = line.find("libaccel: ") + std::string("libaccel: ").size();
    if (line.compare(text, 6, "rate: ") == 0)
      ++shown;
    else
      left_out += std::stoul(line.substr(text));
  }
  EXPECT_EQ(shown + left_out, 61u);
  EXPECT_GT(left_out, 0u);
}

}  // namespace
}  // namespace accel
