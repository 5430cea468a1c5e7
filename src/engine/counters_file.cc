#include "engine/counters_file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string_view>

#include "base/log.h"
#include "base/private_fds.h"
#include "base/real.h"

namespace accel {
namespace {

constexpr Duration kInterval = std::chrono::seconds(1);
constexpr mode_t kMode = 0640;

/// As a label's value: quotes, backslashes and what does not print are left out.
std::string program() {
  std::string name;
  for (const char c : std::string_view(program_invocation_short_name))
    if (c > ' ' && c < 0x7f && c != '"' && c != '\\') name += c;
  return name;
}

void append(std::string& text, const char* type, const std::string& name, const std::string& labels,
            uint64_t value) {
  char line[256];
  const int size =
      std::snprintf(line, sizeof line, "# TYPE libaccel_%s %s\nlibaccel_%s{%s} %llu\n", name.c_str(), type,
                    name.c_str(), labels.c_str(), static_cast<unsigned long long>(value));
  if (size > 0) text.append(line, std::min(static_cast<size_t>(size), sizeof line - 1));
}

}  // namespace

CountersFile::CountersFile(const std::string& folder) {
  if (folder.empty()) return;
  if (folder.front() != '/')
    log(LogLevel::kWarning, "counters_to: \"%s\" is not an absolute path; no counters are written",
        folder.c_str());
  else
    path_ = folder + "/" + program() + "." + std::to_string(getpid()) + ".prom";
  labels_ = "pid=\"" + std::to_string(getpid()) + "\",program=\"" + program() + "\"";
}

/// An earlier process of this name and number may have left a file, which is no longer wanted. A link that
/// somebody else has made there is not followed.
bool CountersFile::open() {
  if (is_file(fd_, device_, inode_)) return true;
  fd_ = -1;
  (void)::unlink(path_.c_str());
  const int fd =
      real.open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC | O_NOCTTY, kMode);
  struct stat facts {};
  if (fd < 0 || real.fstat(fd, &facts) != 0) {
    log(LogLevel::kWarning, "counters_to: %s: %s; no counters are written", path_.c_str(),
        std::strerror(errno));
    if (fd >= 0) real.close(fd);
    return false;
  }
  fd_ = keep_private(fd);
  device_ = facts.st_dev;
  inode_ = facts.st_ino;
  return true;
}

void CountersFile::write(const Values& values, Instant now) {
  next_ = now + kInterval;
  const MutexLock held(lock_);
  if (now < not_before_) return;
  if (!open()) return path_.clear();  // for good
  text_.clear();
  append(text_, "gauge", "written_seconds", labels_, static_cast<uint64_t>(time(nullptr)));
  for (size_t i = 0; i < values.size(); ++i)
    append(text_, "counter", std::string(kCounterTexts[i].name) + "_total", labels_, values[i]);
  rlimit limit{};  // beyond it the program would have a SIGXFSZ
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < text_.size()) return;
  if (real.pwrite(fd_, text_.data(), text_.size(), 0) == static_cast<ssize_t>(text_.size()))
    (void)ftruncate(fd_, static_cast<off_t>(text_.size()));
}

/// A process that has given up its rights to the folder leaves an empty file.
void CountersFile::remove(Instant not_before) {
  const MutexLock held(lock_);
  not_before_ = std::max(not_before_, not_before);
  if (!is_file(fd_, device_, inode_)) return;
  if (::unlink(path_.c_str()) != 0) (void)ftruncate(fd_, 0);
  close_private(fd_);
  fd_ = -1;
}

void CountersFile::abandon_in_child() ACCEL_LOCKS_UNCHECKED {  // its lock may have been held by a thread
  if (is_file(fd_, device_, inode_)) close_private(fd_);
  fd_ = -1;
}

}  // namespace accel
