// Frames as they come, valid or not: [length 2][flags 1][bytes]... Checksums count as verified so that the
// deep paths are met.
#include <algorithm>
#include <cstring>

#include "world.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace accel;
  fuzz::World w;
  while (size >= 3) {
    const size_t n = std::min<size_t>(size - 3, data[0] | (data[1] & 0x0f) << 8);
    w.receive(data + 3, n, data[2] & 1);
    if (data[2] & 2) w.pass(Duration(data[2]) * 10'000'000);
    data += 3 + n;
    size -= 3 + n;
  }
  w.pass(1s);
  return 0;
}
