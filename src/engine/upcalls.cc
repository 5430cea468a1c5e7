#include "engine/upcalls.h"

namespace accel {

void Upcalls::notify(Pass&, void*, uint32_t) {}
void Upcalls::abandoned(Pass&, void*) {}
void Upcalls::after_unlock() {}

}  // namespace accel
