// Requests of calls to the pass that they are in.
#include "engine/engine.h"
#include "engine/process.h"

namespace accel {

void Engine::touch() {
  process_->held();
  process_->worker.untold.add_any();
}

Instant Engine::pass_began() const {
  process_->held();
  return process_->pass_now();
}

bool Engine::has_rest(Pass& pass) const { return Process::of(pass).worker.cut_short; }

void Engine::take_rest(Pass& pass) {
  Process& p = Process::of(pass);
  for (int i = 0; i < Process::kPollsForRest && p.worker.cut_short; ++i) p.poll(clock_now());
  pass.now_ = p.pass_now();
  catch_up(pass);
}

void Engine::catch_up(Pass& pass) {
  Process& p = Process::of(pass);
  if (p.channels) p.channels->poll(pass.now());
  if (p.shm_links) p.shm_links->ask(pass.now(), p.sleepers.any_asleep());
  p.notify_edges();
}

void Engine::begin_turn(Pass& pass, size_t sockets) {
  Process& p = Process::of(pass);
  p.worker.stack->note_look();
  p.worker.turns.begin(p.worker.bursts_pay() ? sockets : 0, pass.now());
}

void Engine::send_kept(Pass& pass) {
  Process& p = Process::of(pass);
  if (p.worker.turns.keeping()) p.send(pass.now());
}

}  // namespace accel
