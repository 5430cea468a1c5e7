// Which calls of an event loop keep their frames (engine/turn.h).
#include "engine/turn.h"

#include <gtest/gtest.h>

namespace accel {
namespace {

constexpr Instant kBegin{1s};
const int first = 0, second = 0, third = 0;

TEST(Turns, EveryAnswerButTheLastIsKept) {
  Turns turns;
  turns.begin(3, kBegin);
  Turns::answered(&first);
  EXPECT_TRUE(turns.keep(kBegin));
  Turns::answered(&first);  // the same answer, in two calls
  EXPECT_TRUE(turns.keep(kBegin + 1us));
  Turns::answered(&second);
  EXPECT_TRUE(turns.keep(kBegin + 2us));
  Turns::answered(&third);
  EXPECT_FALSE(turns.keep(kBegin + 3us));
  turns.let_go(kBegin + 3us);
  EXPECT_FALSE(turns.keeping());
}

TEST(Turns, OneSocketKeepsNothing) {
  Turns turns;
  for (size_t sockets : {0, 1}) {
    turns.begin(sockets, kBegin);
    EXPECT_FALSE(turns.keep(kBegin));
  }
}

TEST(Turns, AWaitEndsTheTurn) {
  Turns turns;
  turns.begin(4, kBegin);
  Turns::over();
  EXPECT_FALSE(turns.keep(kBegin));
}

TEST(Turns, NothingIsKeptLongByACall) {
  Turns turns;
  turns.begin(4, kBegin);
  EXPECT_TRUE(turns.keep(kBegin));
  EXPECT_EQ(turns.overdue(), kBegin + Turns::kLate);
  EXPECT_FALSE(turns.keep(kBegin + Turns::kLongest));
  turns.let_go(kBegin + Turns::kLongest);
  EXPECT_TRUE(turns.keep(kBegin + Turns::kLongest));  // the next frames
}

TEST(Turns, ALongTurnIsNone) {
  Turns turns;
  turns.begin(4, kBegin);
  EXPECT_FALSE(turns.keep(kBegin + Turns::kLongestTurn + 1us));
}

/// So many turns keep their frames until `late` after the first.
int kept(Turns& turns, int count, Duration late) {
  int kept = 0;
  for (Instant now = kBegin; count-- > 0; now += 1s) {
    turns.begin(2, now);
    kept += turns.keep(now);
    turns.let_go(now + late);
  }
  return kept;
}

TEST(Turns, AProgramThatStopsInItsTurnsIsFoundOut) {
  Turns turns;
  EXPECT_EQ(kept(turns, 1000, 10us), 1000);
  const int of_late = kept(turns, 10000, 1ms);
  EXPECT_GT(of_late, 0);
  EXPECT_LT(of_late, 100);
  EXPECT_GT(kept(turns, 100000, 10us), 50000);  // it may have changed
}

TEST(Turns, AFewLateEndsAreAnothersDoing) {
  Turns turns;
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(kept(turns, 1, 1ms), 1);
    EXPECT_EQ(kept(turns, 20, 10us), 20);
  }
}

}  // namespace
}  // namespace accel
