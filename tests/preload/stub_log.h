// What the counting posix (stub.cc) was asked for. The tests run with libaccel-stub.so preloaded and
// ACCEL_STUB_LOG set.
#pragma once

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <string>
#include <vector>

/// The names since the last call, in order.
inline std::vector<std::string> stub_log() {
  const char* path = getenv("ACCEL_STUB_LOG");
  std::vector<std::string> names;
  if (path == nullptr) return names;
  FILE* f = fopen(path, "re");
  if (f == nullptr) return names;
  char line[128];
  while (fgets(line, sizeof line, f) != nullptr) {
    std::string name(line);
    if (!name.empty() && name.back() == '\n') name.pop_back();
    names.push_back(name);
  }
  fclose(f);
  if (truncate(path, 0) != 0) names.push_back("cannot truncate the log");
  return names;
}

using Names = std::vector<std::string>;

/// The stub was told exactly this; nothing to see when the test runs with the whole library or with none.
#define EXPECT_TOLD(...)                       \
  do {                                         \
    if (getenv("ACCEL_STUB_LOG") != nullptr) { \
      EXPECT_EQ((__VA_ARGS__), stub_log());    \
    }                                          \
  } while (0)
