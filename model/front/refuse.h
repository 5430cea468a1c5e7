// MLX5_MODEL_REFUSE: calls that the kernel does not grant, as
// "open:EACCES,reg_mr:ENOMEM,create_flow:ENOSPC:100": the name of a command (commands.h) or "open", the
// error, and how many times it goes well before (0 where left out).
#pragma once

namespace model {

/// 0, or the errno that this call is to fail with. Counts the call.
int refusal(const char* name);

}  // namespace model
