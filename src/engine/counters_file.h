// Counters that outlive the process: the setting `counters_to` names a folder, in which each process has a
// file in Prometheus' text format. It is left behind where a signal ends the process.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "base/counters.h"
#include "base/instant.h"
#include "base/mutex.h"

namespace accel {

class CountersFile {
 public:
  using Values = std::array<uint64_t, static_cast<size_t>(Counter::kCount)>;

  /// `folder`: an absolute path; "": nothing is written.
  explicit CountersFile(const std::string& folder);
  ~CountersFile() { remove(kNever); }
  CountersFile(const CountersFile&) = delete;
  CountersFile& operator=(const CountersFile&) = delete;

  /// A second has passed since the last time, and there is a folder. The control thread's.
  bool due(Instant now) const { return !path_.empty() && now >= next_; }
  /// FOLDER/PROGRAM.PID.prom has these values, and the time. A message says once why that cannot be.
  void write(const Values& values, Instant now);
  /// The process ends in good order, or becomes another program: until that has failed there is no new file.
  void remove(Instant not_before);
  /// In a forked child: the file is the parent's. A descriptor is closed, nothing else.
  void abandon_in_child();

 private:
  bool open() ACCEL_REQUIRES(lock_);

  Mutex lock_;        ///< between the control thread and who removes the file
  std::string path_;  ///< "": none, or it could not be made
  std::string labels_;
  std::string text_;  ///< the last one, whose memory is used again
  Instant next_{};
  Instant not_before_ ACCEL_GUARDED_BY(lock_){};
  int fd_ ACCEL_GUARDED_BY(lock_) = -1;
  uint64_t device_ ACCEL_GUARDED_BY(lock_) = 0, inode_ ACCEL_GUARDED_BY(lock_) = 0;
};

}  // namespace accel
