// The open device files of this process (interpose.cc).
#pragma once

#include <functional>

namespace model {

class Context;
void for_each_device(const std::function<void(int fd, Context*)>& see);

}  // namespace model
