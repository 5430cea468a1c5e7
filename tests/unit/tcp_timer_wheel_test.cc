#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <random>
#include <vector>

#include "stack/timer_wheel.h"

namespace accel {
namespace {

constexpr Duration kTick{int64_t{1} << TimerWheel::kTickShift};
Instant at(Duration d) { return Instant(d); }

TEST(TimerWheel, NeverEarlyHardlyLate) {
  TimerWheel wheel;
  TimerNode node;
  for (Duration d : {Duration{1us}, Duration{1ms}, Duration{40ms}, Duration{200ms}, Duration{3s},
                     Duration{7200s}, Duration{24h * 400}}) {
    Instant start = at(24h * 3);
    wheel.advance(start, [](TimerNode&) { FAIL(); });
    wheel.arm(node, start + d);
    Instant now = start;
    bool fired = false;
    for (int i = 0; i < 100 && !fired; ++i) {
      ASSERT_NE(wheel.next(), kNever);
      now = std::max(now, wheel.next());
      wheel.advance(now, [&](TimerNode&) { fired = true; });
    }
    ASSERT_TRUE(fired);
    EXPECT_GE(now, start + d);
    EXPECT_LE(now, start + d + 2 * kTick);
    EXPECT_FALSE(node.armed());
    wheel = TimerWheel();
  }
}

TEST(TimerWheel, AgreesWithAMap) {
  std::mt19937_64 random(7);
  TimerWheel wheel;
  struct Timer {
    TimerNode node;
    Instant when = kNever;
  };
  std::vector<std::unique_ptr<Timer>> timers;
  for (int i = 0; i < 300; ++i) timers.push_back(std::make_unique<Timer>());
  Instant now = at(1h);
  wheel.advance(now, [](TimerNode&) {});
  for (int step = 0; step < 100000; ++step) {
    Timer& t = *timers[random() % timers.size()];
    switch (random() % 4) {
      case 0:
        wheel.cancel(t.node);
        t.when = kNever;
        break;
      case 1:
      case 2:
        t.when = now + Duration{static_cast<int64_t>(random() % (uint64_t{1} << (10 + random() % 34)))};
        wheel.arm(t.node, t.when);
        break;
      case 3:
        now += Duration{static_cast<int64_t>(random() % (uint64_t{1} << (10 + random() % 26)))};
        wheel.advance(now, [&](TimerNode& node) {
          auto& fired = *reinterpret_cast<Timer*>(&node);
          EXPECT_LE(fired.when, now);
          fired.when = kNever;
          if (random() % 8 == 0) {  // arming from within
            fired.when = now + 5ms;
            wheel.arm(node, fired.when);
          }
        });
        break;
    }
    if (step % 64 == 0)
      for (auto& p : timers) {
        ASSERT_EQ(p->node.armed(), p->when != kNever);
        ASSERT_TRUE(p->when > now - 2 * kTick);
        ASSERT_TRUE(p->when == kNever || wheel.next() <= p->when + 2 * kTick);
      }
  }
}

TEST(TimerWheel, CancelFromWithin) {
  TimerWheel wheel;
  TimerNode a, b;
  wheel.arm(a, at(1ms));
  wheel.arm(b, at(1ms));
  int fired = 0;
  wheel.advance(at(5ms), [&](TimerNode& node) {
    ++fired;
    wheel.cancel(&node == &a ? b : a);
  });
  EXPECT_EQ(fired, 1);
  EXPECT_EQ(wheel.next(), kNever);
}

}  // namespace
}  // namespace accel
