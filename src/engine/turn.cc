#include "engine/turn.h"

#include <algorithm>
#include <utility>

namespace accel {
namespace {

/// Of the calling thread.
struct Turn {
  uint32_t unanswered = 0;
  const void* answered_last = nullptr;
  Instant began{};
};
thread_local Turn turn [[gnu::tls_model("initial-exec")]];

}  // namespace

void Turns::begin(size_t sockets, Instant now) {
  turn = {0, nullptr, now};
  if (sockets < 2) return;
  if (barred_ > 0)
    --barred_;
  else
    turn.unanswered = static_cast<uint32_t>(sockets);
}

void Turns::over() { turn.unanswered = 0; }

void Turns::answered(const void* socket) {
  if (turn.unanswered > 0 && std::exchange(turn.answered_last, socket) != socket) --turn.unanswered;
}

bool Turns::keep(Instant now) {
  if (turn.unanswered == 0 || now - turn.began > kLongestTurn) return false;
  if (since_ == kNever) since_ = now;
  return now - since_ < kLongest;
}

void Turns::end(Instant now) {
  if (now - std::exchange(since_, kNever) <= kLate) {
    doubt_ -= doubt_ > 0;
    if (++in_time_ == kTrusted) penalty_ = kFirstPenalty;
  } else if (doubt_ += kDoubt; doubt_ >= kMostDoubt) {
    barred_ = penalty_;
    penalty_ = std::min(2 * penalty_, kLastPenalty);
    doubt_ = in_time_ = 0;
  }
}

}  // namespace accel
