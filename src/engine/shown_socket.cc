#include "engine/shown_socket.h"

#include "engine/process.h"

namespace accel {

ShownSocket::ShownSocket(Engine& engine, int shadow) : engine_(engine) { engine.process().shown = shadow; }
ShownSocket::~ShownSocket() { engine_.process().shown = -1; }
bool ShownSocket::is_needed(Engine& engine) { return engine.process().sealed; }
void ShownSocket::move(BoundFlow& flow, int shadow) { flow.shadow = shadow; }

}  // namespace accel
