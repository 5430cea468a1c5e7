#include "posix/option_name.h"

#include <linux/tcp.h>
#include <linux/udp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdio>
#include <iterator>

namespace accel::posix {
namespace {

struct Known {
  int level, name;
  const char* text;
};

constexpr Known kKnown[] = {
#define OPTION(level, name) {level, name, #name},
#include "posix/option_names.def"
#undef OPTION
};

}  // namespace

OptionName::OptionName(int level, int name) {
  const auto* const known = std::find_if(std::begin(kKnown), std::end(kKnown), [&](const Known& each) {
    return each.level == level && each.name == name;
  });
  if (known != std::end(kKnown))
    std::snprintf(text, sizeof text, "%s", known->text);
  else
    std::snprintf(text, sizeof text, "level %d, option %d", level, name);
}

}  // namespace accel::posix
