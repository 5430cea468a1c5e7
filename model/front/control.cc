#include "model/front/control.h"

#include <sys/mman.h>

#include "model/front/environment.h"
#include "model/front/raw.h"

namespace model {
namespace {
constexpr size_t kPage = 4096;
}

Control::Control() {
  if (environment().report.empty()) return;
  const int fd = raw::openat((environment().report + "/control").c_str(), O_RDONLY | O_CLOEXEC, 0);
  if (fd < 0) return;
  void* mapped = raw::mmap(kPage, PROT_READ, MAP_SHARED, fd, 0);
  raw::close(fd);
  if (!raw::failed(mapped)) page_ = static_cast<const volatile ControlPage*>(mapped);
}

Control::~Control() {
  if (page_ != nullptr) raw::munmap(const_cast<ControlPage*>(page_), kPage);
}

ControlPage Control::read() const {
  if (page_ == nullptr) return {};
  return {page_->removed, page_->stalled, page_->send_errors, page_->receive_errors};
}

}  // namespace model
