// A hostile other end of a connection in shared memory: it writes any bytes over the indices and states
// between this end's steps. This end reads and writes nothing outside of the rings, and each of its steps
// ends.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "shm/receiver.h"
#include "shm/sender.h"

namespace {

using namespace accel::shm;

constexpr size_t kRing = 4096;

struct World {
  Direction direction{};
  // On the heap, so that the sanitizer sees what lies outside of it.
  std::unique_ptr<uint8_t[]> memory = std::make_unique<uint8_t[]>(kRing);
  std::span<uint8_t> ring{memory.get(), kRing};
  Sender sender{direction, ring};
  Receiver receiver{direction, ring, 0};
};

void scribble(Direction& d, uint8_t what, uint64_t value) {
  switch (what % 8) {
    case 0:
      return d.tail.store(value);
    case 1:
      return d.head.store(value);
    case 2:
      return d.by_kernel.store(value);
    case 3:
      return d.carrier.store(static_cast<Carrier>(value % 7));
    case 4:
      return d.reader_asleep.store(static_cast<uint32_t>(value));
    case 6:
      return d.base.store(value);
    case 5:
      return d.receive_buffer.store(static_cast<uint32_t>(value));
    default:
      return d.writer_asleep.store(static_cast<uint32_t>(value));
  }
}

void step(World& w, uint8_t what, uint64_t value) {
  uint8_t bytes[300] = {};
  const std::span some(bytes, value % sizeof bytes);
  switch (what % 18) {
    case 0:
      (void)w.sender.look();
      break;
    case 1:
      (void)w.sender.begin(value);
      break;
    case 2:
      if (w.sender.put(some) > some.size()) abort();
      break;
    case 3:
      (void)w.sender.publish();
      break;
    case 4:
      (void)w.sender.leave();
      break;
    case 5:
      (void)w.sender.end();
      break;
    case 6:
      w.sender.ask_to_be_told();
      break;
    case 7: {
      const auto rest = w.sender.unreturned();
      if (!rest.empty() && (rest.data() < w.ring.data() || rest.data() + rest.size() > w.ring.data() + kRing))
        abort();
      w.sender.returned(rest.size());
      break;
    }
    case 8:
      (void)w.receiver.look();
      break;
    case 9:
      if (w.receiver.copy(some, value % 5000) > some.size()) abort();
      break;
    case 10:
      (void)w.receiver.consume(value % 5000);
      break;
    case 11:
      w.receiver.ask_to_be_told();
      break;
    case 12:
      (void)w.receiver.decline();
      break;
    case 13:
      w.sender.expect_room();
      break;
    case 14:
      w.sender.note_told();
      if (w.sender.way() == Sender::Way::kBroken && w.sender.changed()) abort();  // it would be told for ever
      break;
    case 15:
      w.receiver.note_told();
      if (w.receiver.way() == Receiver::Way::kBroken && w.receiver.changed()) abort();
      break;
    case 16:
      (void)(w.sender.changed() && w.receiver.changed());
      break;
    default:
      w.receiver.took_from_kernel(std::min<uint64_t>(value % 5000, w.receiver.kernel_limit()));
      break;
  }
  if (w.sender.used() > kRing || w.receiver.available() > kRing) abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  World w;
  for (; size >= 4; data += 4, size -= 4) {
    uint64_t value = data[1] | uint64_t{data[2]} << 8;
    if ((data[3] & 1) != 0) value = 0 - value;
    if ((data[3] & 2) != 0) value = w.direction.tail + value;
    if ((data[0] & 0x80) != 0)
      scribble(w.direction, data[0] & 0x7f, value);
    else
      step(w, data[0], value);
  }
  return 0;
}
