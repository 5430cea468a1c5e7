#include "model/front/report.h"

#include <sys/mman.h>

#include <cstring>

#include "model/front/environment.h"
#include "model/front/raw.h"

namespace model {
namespace {

constexpr size_t kRecord = 32, kName = 24;
constexpr const char* kNames[] = {
#define COUNTER(name) #name,
#include "model/core/counters.def"
#undef COUNTER
};

std::string file(const char* kind, unsigned number) {
  return environment().report + "/" + kind + "." + std::to_string(raw::call(SYS_getpid)) + "." +
         std::to_string(number);
}

}  // namespace

Report::Report(unsigned number) {
  if (environment().report.empty()) return;
  violations_ =
      raw::openat(file("violations", number).c_str(), O_CREAT | O_WRONLY | O_APPEND | O_CLOEXEC, 0644);
  const int fd = raw::openat(file("counters", number).c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0644);
  if (fd < 0) return;
  size_ = std::size(kNames) * kRecord;
  raw::call(SYS_ftruncate, fd, static_cast<long>(size_));
  void* mapped = raw::mmap(size_, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  raw::close(fd);
  if (raw::failed(mapped)) return;
  counters_ = static_cast<uint8_t*>(mapped);
  for (size_t i = 0; i < std::size(kNames); ++i) {
    strncpy(reinterpret_cast<char*>(counters_ + i * kRecord), kNames[i], kName);
  }
}

Report::~Report() {
  if (violations_ >= 0) raw::close(violations_);
  if (counters_ != nullptr) raw::munmap(counters_, size_);
}

void Report::violation(const Violation& v) {
  std::string line = v.rule + ": " + v.found;
  if (!v.bytes.empty()) line += " [" + v.bytes + "]";
  line += '\n';
  // Without a folder to write to it is said where a person sees it: a violation is never silent.
  raw::write(violations_ >= 0 ? violations_ : 2, line.data(), line.size());
}

void Report::publish(const Counters& counters) {
  if (counters_ == nullptr) return;
  const auto* values = reinterpret_cast<const uint64_t*>(&counters);
  static_assert(sizeof(Counters) == std::size(kNames) * sizeof(uint64_t));
  for (size_t i = 0; i < std::size(kNames); ++i) memcpy(counters_ + i * kRecord + kName, &values[i], 8);
}

}  // namespace model
