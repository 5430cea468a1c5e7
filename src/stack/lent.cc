#include "stack/lent.h"

#include "stack/tcp/context.h"

namespace accel {

Lent::~Lent() {
  while (Packet* p = packets_.pop_front()) tcp::release_packet(p);
}

}  // namespace accel
