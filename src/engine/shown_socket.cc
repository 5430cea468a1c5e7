#include "engine/shown_socket.h"

#include "engine/worker.h"

namespace accel {

ShownSocket::ShownSocket(Engine& engine, int shadow) : engine_(engine) { engine.worker().shown = shadow; }
ShownSocket::~ShownSocket() { engine_.worker().shown = -1; }
bool ShownSocket::is_needed(Engine& engine) { return engine.worker().sealed; }
void ShownSocket::move(BoundFlow& flow, int shadow) { flow.shadow = shadow; }

}  // namespace accel
