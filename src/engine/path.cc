#include "engine/path.h"

namespace accel {

const char* reason_text(Reason r) {
  switch (r) {
#define REASON(name, text) \
  case Reason::name:       \
    return text;
#include "engine/reasons.def"
#undef REASON
  }
  return "";
}

const char* reason_name(Reason r) {
  switch (r) {
#define REASON(name, text) \
  case Reason::name:       \
    return #name;
#include "engine/reasons.def"
#undef REASON
  }
  return "";
}

const char* path_name(PathKind p) {
  switch (p) {
    case PathKind::kUndecided:
      return "undecided";
    case PathKind::kKernel:
      return "kernel";
    case PathKind::kXdp:
      return "xdp";
    case PathKind::kMlx5:
      return "mlx5";
    case PathKind::kIwarp:
      return "iwarp";
    case PathKind::kShm:
      return "shm";
  }
  return "";
}

}  // namespace accel
