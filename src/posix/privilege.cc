#include "posix/privilege.h"

#include <netinet/in.h>

#include <utility>
#include <vector>

#include "base/config.h"
#include "posix/calls.h"
#include "posix/engine_events.h"
#include "posix/process.h"
#include "posix/same_host.h"
#include "posix/socket.h"

namespace accel::posix {
namespace {

bool going = false;  ///< under the lock

/// Its path is decided at its first use, which may come when the privilege has gone.
bool bound_and_unused(const File& file) {
  const bool internet = file.kind() == FileKind::kTcp || file.kind() == FileKind::kUdp;
  if (!internet || file.inherited != File::Inherited::kNo) return false;
  const auto& socket = static_cast<const Socket&>(file);
  return socket.choice.reason == Reason::not_decided && socket.shadow_name().port != 0;
}

/// The socket will need it. It takes nothing yet: a worker has its siblings' listeners too (SO_REUSEPORT, a
/// listener for each), and waits on its own only.
void open_device_of(Pass& pass, const Socket& socket) {
  const Role role = socket.kind() == FileKind::kTcp ? Role::kTcpServer : Role::kUdpReceiver;
  const bool v6_only = socket.v6() && socket.shadow_option(IPPROTO_IPV6, IPV6_V6ONLY) != 0;
  (void)pass.engine().covers(pass, socket.flow_request(role, socket.shadow_name(), {}), v6_only);
}

/// Of TCP sockets: what hands a connection back needs the helper later.
void tell_helper_of_names(Pass& pass) {
  fds.for_each(0, fds.limit(), [&](int fd, File* file) {
    if (fds.first_of(file) != fd || file->kind() != FileKind::kTcp) return;
    const auto& socket = *static_cast<const Socket*>(file);
    const Endpoint name = socket.shadow_name();
    const bool v6_only = socket.v6() && socket.shadow_option(IPPROTO_IPV6, IPV6_V6ONLY) != 0;
    if (name.port != 0) pass.engine().tell_helper(pass, name, v6_only);
  });
}

}  // namespace

void before_privileges_go(bool may_return) {
  if (!Engine::privileged() || !Engine::ports_outlive_privilege()) return;
  const bool early = config().settings.early_ports;
  // Some programs take from themselves the means to make a thread as well (HAProxy, RLIMIT_NPROC):
  // connections within the host would find no engine later.
  const bool on_host = candidates.any();
  if (!active() && !early && !on_host) return;
  if (Engine* engine = Engine::get();
      engine != nullptr && !Engine::inside() && engine->open_requested_ports())
    tell_ports_opened();
  Guard guard(Pass::Polling::kNo);
  if (!guard.ok()) return;
  std::vector<File*> files;
  fds.for_each(0, fds.limit(), [&](int fd, File* file) {
    if (fds.first_of(file) != fd) return;
    if (!file->revivable() && (may_return || !bound_and_unused(*file))) return;
    file->retain();
    files.push_back(file);
  });
  const bool for_ports = !files.empty() || early || guard.pass() != nullptr;
  if (!for_ports && !on_host) return;
  Reason why{};
  Pass* pass = for_ports ? guard.open_engine(&why) : nullptr;
  if (pass == nullptr && on_host) pass = guard.open_engine(&why, Engine::Opening::kForLinks);
  going = true;
  if (for_ports && pass != nullptr && pass->engine().begin_keeping_ready(*pass)) {
    for (File* file : files) {
      if (file->kind() == FileKind::kIwarp)
        (void)settle_inherited(guard, file);
      else
        open_device_of(*pass, *static_cast<Socket*>(file));
    }
    if (early) pass->engine().open_all_ports(*pass);
    tell_helper_of_names(*pass);
    pass->engine().done_keeping_ready(*pass);
  }
  for (File* file : files) file->release(guard.pass());
}

void after_privileges_changed() {
  Engine::privileges_changed();
  if (Engine::get() == nullptr) return;
  Guard guard(Pass::Polling::kNo);
  if (!guard.ok() || !std::exchange(going, false)) return;
  guard.pass()->engine().user_changed(*guard.pass());
  fds.for_each(0, fds.limit(), [](int fd, File* file) {
    if (fds.first_of(file) == fd) file->user_changed();
  });
}

bool privileges_are_going() { return going; }

}  // namespace accel::posix
