// The library's own calls (include/accel.h) as their tests see them.
#pragma once

#include <accel.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace posix_test {

#define NEEDS_LIBRARY() \
  if (!accel_is_present()) GTEST_SKIP() << "without libaccel"

inline accel_info query(int fd) {
  accel_info info{};
  info.size = sizeof info;
  EXPECT_EQ(accel_query(fd, &info), 0) << strerror(errno);
  EXPECT_EQ(info.size, sizeof info);
  return info;
}

/// The path of connections in this run.
inline uint32_t expected_path() {
  if (getenv("ACCEL_SAME_HOST") != nullptr) return ACCEL_PATH_SHM;
  const char* config = getenv("ACCEL_CONFIG");
  return config != nullptr && strstr(config, "siw.toml") != nullptr ? ACCEL_PATH_IWARP : ACCEL_PATH_XDP;
}

/// The run is over a device, not over shared memory or iWARP.
inline bool on_device() { return expected_path() == ACCEL_PATH_XDP; }

}  // namespace posix_test
