// Requests of calls to the pass that they are in.
#include "engine/engine.h"
#include "engine/worker.h"

namespace accel {

void Engine::touch() {
  worker_->held();
  worker_->untold.add_any();
}

Instant Engine::pass_began() const {
  worker_->held();
  return worker_->pass_now;
}

bool Engine::has_rest(Pass& pass) const { return Worker::of(pass).cut_short; }

void Engine::take_rest(Pass& pass) {
  Worker& w = Worker::of(pass);
  for (int i = 0; i < Worker::kPollsForRest && w.cut_short; ++i) w.poll(clock_now());
  pass.now_ = w.pass_now;
  catch_up(pass);
}

void Engine::catch_up(Pass& pass) {
  Worker& w = Worker::of(pass);
  if (w.channels) w.channels->poll(pass.now());
  if (w.shm_links) w.shm_links->ask(pass.now(), w.sleepers.any_asleep());
  w.notify_edges();
}

void Engine::begin_turn(Pass& pass, size_t sockets) {
  Worker& w = Worker::of(pass);
  w.turns.begin(w.bursts_pay() ? sockets : 0, pass.now());
}

void Engine::send_kept(Pass& pass) {
  Worker& w = Worker::of(pass);
  if (w.turns.keeping()) w.send(pass.now());
}

}  // namespace accel
