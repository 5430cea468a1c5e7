// Socket options by table. Every option is first set on the shadow, so the kernel checks it and answers for
// it; the table says what our side has to do besides. An option that is not in the table has an effect we do
// not know: the socket goes to the kernel.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <span>

#include "posix/socket.h"
#include "stack/stack.h"

// Younger than glibc 2.36's headers (include/uapi/asm-generic/socket.h, include/uapi/linux/in.h).
#ifndef SO_BUF_LOCK
#define SO_BUF_LOCK 72
#endif
#ifndef IP_LOCAL_PORT_RANGE
#define IP_LOCAL_PORT_RANGE 51
#endif

namespace accel::posix {

enum class OptionEffect : uint8_t {
  kShadow,  ///< the shadow's value is all there is to it (the kernel's own, or without effect on what we do)
  kMirror,  ///< `apply` copies an int into TcpSettings
  kKeep,    ///< the socket's class keeps it (timeouts, linger, ...)
  kRoute,   ///< concerns path selection: fine before it, a reason for the kernel afterwards
  kKernel,  ///< only the kernel does this; harmless when set to its default, bytes of `off`
};

struct Option {
  int level;
  int name;
  OptionEffect effect;
  bool inherited;  ///< by the connections of a listener
  void (*apply)(TcpSettings&, int) = nullptr;
  char off = 0;
  bool (*served)(const Socket&) = nullptr;  ///< whether we do what the shadow's value says
};

std::span<const Option> udp_options();  ///< posix/udp_options.cc

/// The row, or nullptr.
const Option* find_option(std::span<const Option> table, int level, int name);

/// Whether what `name` was set to decides an undecided path: only the kernel does it.
bool vetoes(std::span<const Option> table, int level, int name, const void* value, socklen_t length);

/// Copies an answer as getsockopt(2) does: cut at *length, which becomes what was copied. A negative *length
/// is EINVAL, but do_ipv6_getsockopt() takes it for a large one.
enum class NegativeSize : uint8_t { kIsInvalid, kIsLarge };
Result<int> put_option(const void* answer, size_t size, void* value, socklen_t* length,
                       NegativeSize negative = NegativeSize::kIsInvalid);

}  // namespace accel::posix
