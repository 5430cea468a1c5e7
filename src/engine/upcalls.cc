#include "engine/upcalls.h"

namespace accel {

void Upcalls::notify(Pass&, void*, uint32_t) {}
void Upcalls::abandoned(Pass&, void*) {}

}  // namespace accel
