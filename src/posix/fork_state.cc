#include "posix/fork_state.h"

#include <algorithm>

namespace accel::posix {

ForkState& fork_state() {
  static ForkState* const f = new ForkState;
  return *f;
}

bool inherited_elsewhere(const File* file) {
  return std::any_of(fork_state().own_forks.begin(), fork_state().own_forks.end(),
                     [&](const auto& h) { return h->has_descendants(file); });
}

bool others_have(const File* file) {
  return inherited_elsewhere(file) ||
         std::any_of(fork_state().parents_forks.begin(), fork_state().parents_forks.end(),
                     [&](const auto& h) { return h->others_have(file); });
}

void settle_descendants(const File* file, bool in_kernel) {
  for (auto& h : fork_state().own_forks)
    h->settle(file, in_kernel ? SharedState::kKernel : SharedState::kLost);
  for (auto& h : fork_state().parents_forks) h->give_up(file);
}

void learn_of_descendants_programs(File* file) {
  file->has_program |= std::any_of(fork_state().own_forks.begin(), fork_state().own_forks.end(),
                                   [&](const auto& h) { return h->has_program(file); });
  fork_state().programs_have_listeners |= file->has_program && file->kind() == FileKind::kTcp;
}

/// No descendant of these forks is left, but their programs may be.
void forget_ended_forks() {
  ForkSharings& own_forks = fork_state().own_forks;
  const auto has_ended = [](const auto& h) { return h->has_ended(); };
  if (std::none_of(own_forks.begin(), own_forks.end(), has_ended)) return;
  fds.for_each(0, fds.limit(), [](int, File* file) { learn_of_descendants_programs(file); });
  std::erase_if(own_forks, has_ended);
}

}  // namespace accel::posix
