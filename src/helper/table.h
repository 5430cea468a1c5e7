// What the helper (main.cc) and its program (engine/helper_client.cc) have in common: the table of the
// process's live accelerated TCP connections, in a memfd.
//
// Only the process writes, and it may be killed between any two stores; the helper reads once it is dead.
#pragma once

#include <cstdint>

#include "stack/wire/tcp.h"

namespace accel::helper {

struct Row {
  uint32_t used;                     ///< 1: written last when the connection opens, 0 first when it closes
  uint32_t ifindex;                  ///< scope of link-local addresses
  uint8_t local[16], remote[16];     ///< IPv4 in its mapped form
  uint16_t local_port, remote_port;  ///< network byte order
  TcpNumbers numbers;                ///< kept by the stack
};
static_assert(sizeof(Row) == 52);

struct Table {
  uint32_t touched;  ///< rows from this one on were never used
  Row row[];
};

/// The helper's name at its end: this and eight hexadecimal digits, seconds of CLOCK_BOOTTIME. A zombie has
/// it still (engine/orphans.cc).
constexpr char kEndName[] = "guard-";

/// The helper's descriptors when its program begins; it has no others.
enum Descriptor : int {
  kTable,
  kProcess,   ///< pidfd
  kLifeline,  ///< of a pipe whose other end only the process holds, close-on-exec
  kRequests   ///< of a pair whose other end only the process holds, close-on-exec (privileged_request.h)
};

}  // namespace accel::helper
