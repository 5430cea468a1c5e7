#include "engine/upcalls.h"

#include "engine/engine.h"

namespace accel {

void Upcalls::notify(Pass&, void*, uint32_t) {}
void Upcalls::abandoned(Pass&, void*) {}
void Upcalls::publish(Pass&, stats::Writer&, Instant) {}
void Upcalls::after_unlock() {}
void Upcalls::ports_opened() {}

void Upcalls::port_lost(Engine& engine) {
  Pass pass{engine, Pass::Polling::kNo};
  engine.let_go_of_lost(pass);
}

void Upcalls::strays_found(Engine& engine) {
  Pass pass{engine, Pass::Polling::kNo};
  engine.let_go_of_strays(pass);
}

Upcalls::Offered Upcalls::unaccepted() { return Offered::kNobodyElses; }
void Upcalls::each_tick(bool) {}

}  // namespace accel
