#include "engine/shown_socket.h"

#include "engine/worker.h"

namespace accel {

ShownSocket::ShownSocket(Engine& engine, int shadow) : engine_(engine) {
  Engine::Impl::of(engine).shown = shadow;
}
ShownSocket::~ShownSocket() { Engine::Impl::of(engine_).shown = -1; }
bool ShownSocket::is_needed(Engine& engine) { return Engine::Impl::of(engine).sealed; }
void ShownSocket::move(BoundFlow& flow, int shadow) { flow.shadow = shadow; }

}  // namespace accel
