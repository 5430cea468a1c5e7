// Which of the threads that wait watches the ports, and whose wait is looked at (engine/sleepers.h).
#include "engine/sleepers.h"

#include <gtest/gtest.h>

#include <array>

#include "engine/wait_request.h"

namespace accel {
namespace {

constexpr Instant kNow{1s};

class Charge : public testing::Test {
 protected:
  Charge() {
    sleepers_.set_cpus(2);
    for (size_t i = 0; i < threads_.size(); ++i) {
      requests_[i].condition = [](void* ready) { return *static_cast<bool*>(ready); };
      requests_[i].context = &ready_[i];
      requests_[i].subject = &ready_[i];
      sleepers_.enlist(threads_[i]);
    }
  }
  ~Charge() override {
    for (Sleeper& s : threads_) s.close_descriptors();
  }

  void sleep(size_t i) {
    sleepers_.take_charge_asleep(threads_[i], kNow);
    sleepers_.fall_asleep(threads_[i], requests_[i]);
  }
  /// A frame for the thread has come, and others are awake or asleep: it ends its wait.
  void wake(size_t i) {
    ready_[i] = true;
    Changes changes;
    changes.add(&ready_[i]);
    sleepers_.wake_ready(changes, kNow);
    ready_[i] = false;
    EXPECT_TRUE(threads_[i].woken);
    sleepers_.leave_sleep(threads_[i]);
    sleepers_.give_charge(threads_[i], kNow);
  }
  /// All sleep, and frames come for all but the first in turn.
  void frames_for_others() {
    for (size_t i = 0; i < threads_.size(); ++i) sleep(i);
    for (size_t i = 0; i < 100; ++i) {
      const size_t next = 1 + i % (threads_.size() - 1);
      wake(next);
      sleep(next);
    }
  }

  PortSlots ports_;
  Notices notices_;
  Sleepers sleepers_{ports_, notices_};
  std::array<Sleeper, 8> threads_;
  std::array<WaitRequest, 8> requests_;
  std::array<bool, 8> ready_{};
};

TEST_F(Charge, IsTheLatestOnesWhereFramesAreForThat) {
  sleep(0);
  for (int i = 0; i < 100; ++i) {
    sleep(1);
    EXPECT_TRUE(sleepers_.is_in_charge(threads_[1]));
    wake(1);
  }
  EXPECT_FALSE(sleepers_.charge_stays());
}

TEST_F(Charge, StaysWhereFramesAreForOthers) {
  frames_for_others();
  ASSERT_TRUE(sleepers_.charge_stays());
  size_t in_charge = 0;
  while (!sleepers_.is_in_charge(threads_[in_charge])) ++in_charge;
  const size_t other = in_charge == 0 ? 1 : 0;
  wake(other);
  sleep(other);
  EXPECT_TRUE(sleepers_.is_in_charge(threads_[in_charge]));
  EXPECT_TRUE(sleepers_.is_cared_for(threads_[other]));
  // Its own wait ends: another one has the ports.
  wake(in_charge);
  EXPECT_FALSE(sleepers_.is_in_charge(threads_[in_charge]));
  EXPECT_FALSE(sleepers_.nobody_in_charge());
}

TEST_F(Charge, GoesToTheLatestAgain) {
  frames_for_others();
  ASSERT_TRUE(sleepers_.charge_stays());
  for (int i = 0; i < 100; ++i) {
    wake(3);
    sleep(3);
  }
  EXPECT_FALSE(sleepers_.charge_stays());
  EXPECT_TRUE(sleepers_.is_in_charge(threads_[3]));
}

TEST_F(Charge, OnlyThoseWhomAChangeConcernsAreLookedAt) {
  for (size_t i = 0; i < threads_.size(); ++i) sleep(i);
  ready_.fill(true);
  requests_[2].subject = nullptr;
  sleepers_.leave_sleep(threads_[2]);
  sleep(2);
  Changes one;
  one.add(&ready_[1]);
  sleepers_.wake_ready(one, kNow);
  for (size_t i = 0; i < threads_.size(); ++i) EXPECT_EQ(threads_[i].woken, i == 1 || i == 2) << i;
  Changes any;
  any.add_any();
  sleepers_.wake_ready(any, kNow);
  for (const Sleeper& s : threads_) EXPECT_TRUE(s.woken);
}

TEST(ChangesOfMany, ConcernAll) {
  std::array<char, 40> owners{};
  const char stranger = 0;
  Changes changes;
  EXPECT_TRUE(changes.empty());
  for (size_t i = 0; i < 16; ++i) changes.add(&owners[i]);
  EXPECT_FALSE(changes.concern(&stranger));
  EXPECT_TRUE(changes.concern(&owners[15]));
  for (const char& owner : owners) changes.add(&owner);
  EXPECT_TRUE(changes.concern(&stranger));
}

}  // namespace
}  // namespace accel
