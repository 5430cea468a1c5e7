// Both ends of a direction against a model of the kernel's connection: whatever the order of their steps, the
// receiver gets the sender's bytes, each once and in order, and its end.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <deque>
#include <optional>
#include <random>
#include <semaphore>
#include <thread>
#include <vector>

#include "shm/receiver.h"
#include "shm/sender.h"

namespace {

using namespace accel;
using namespace accel::shm;

constexpr size_t kRing = 4096;

uint8_t byte_at(uint64_t position) { return static_cast<uint8_t>((position * 2654435761u) >> 7); }

/// False: there is something to see to first.
template <class End>
bool sleeps(End& end) {
  end.ask_to_be_told();
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return !end.changed();
}

/// A direction with both its ends, over a kernel's connection that loses nothing.
struct Pair {
  Direction direction{};
  std::vector<uint8_t> ring = std::vector<uint8_t>(kRing);
  Sender sender{direction, ring};
  Receiver receiver{direction, ring, 0};
  std::deque<uint8_t> kernel;
  bool fin = false;
  uint64_t sent = 0, by_kernel = 0, received = 0;
  bool ended = false, got_end = false, wrong = false;

  uint8_t next() { return byte_at(sent++); }

  /// What the caller owes before it may send by the kernel. False: the kernel takes no more now.
  void return_all() {
    while (sender.look() == Sender::Way::kReturning) {
      const auto part = sender.unreturned();
      kernel.insert(kernel.end(), part.begin(), part.end());
      sender.returned(part.size());
    }
  }
  void send(size_t size) {
    if (ended) return;
    return_all();
    if (sender.look() == Sender::Way::kRing) {
      std::vector<uint8_t> bytes;
      size = std::min(size, sender.room());
      for (size_t i = 0; i < size; ++i) bytes.push_back(next());
      EXPECT_EQ(sender.put(bytes), size);
      (void)sender.publish();
    } else {
      for (size_t i = 0; i < size; ++i) kernel.push_back(next());
      by_kernel += size;
    }
  }
  void begin() {
    if (!ended) (void)sender.begin(by_kernel);
  }
  void leave() {
    if (!ended) (void)sender.leave();
  }
  void end() {
    if (std::exchange(ended, true)) return;
    sender.look();
    if (!sender.end()) return_all();
    fin = true;
  }
  void take(uint8_t byte) { wrong |= byte != byte_at(received++); }
  void receive(size_t size) {
    if (got_end) return;
    const size_t there = kernel.size();  // before the look, as the receiver's contract says
    const bool fin_there = fin;
    switch (receiver.look()) {
      case Receiver::Way::kKernel: {
        const auto limit = std::min<uint64_t>({size, there, receiver.kernel_limit()});
        for (uint64_t i = 0; i < limit; ++i) {
          take(kernel.front());
          kernel.pop_front();
        }
        receiver.took_from_kernel(limit);
        if (limit == 0 && there == 0 && fin_there && receiver.kernel_limit() == UINT64_MAX) got_end = true;
        break;
      }
      case Receiver::Way::kRing: {
        std::vector<uint8_t> bytes(size);
        bytes.resize(receiver.copy(bytes, 0));
        for (uint8_t b : bytes) take(b);
        (void)receiver.consume(bytes.size());
        break;
      }
      case Receiver::Way::kEnd:
        got_end = true;
        break;
      case Receiver::Way::kBroken:
        wrong = true;
        break;
    }
  }
  void decline() {
    if (!got_end) (void)receiver.decline();
  }
  /// Everything that is under way arrives.
  void settle() {
    end();
    for (int i = 0; i < 64 && !got_end; ++i) {
      return_all();
      receive(kRing);
    }
  }
  bool complete() const { return !wrong && got_end && received == sent && kernel.empty(); }
};

enum class Step { kSend, kSendMuch, kBegin, kLeave, kEnd, kReceive, kReceiveOne, kDecline, kReturn };

void make(Pair& pair, Step step) {
  switch (step) {
    case Step::kSend:
      return pair.send(3);
    case Step::kSendMuch:
      return pair.send(kRing - 100);
    case Step::kBegin:
      return pair.begin();
    case Step::kLeave:
      return pair.leave();
    case Step::kEnd:
      return pair.end();
    case Step::kReceive:
      return pair.receive(kRing);
    case Step::kReceiveOne:
      return pair.receive(1);
    case Step::kDecline:
      return pair.decline();
    case Step::kReturn:
      return pair.return_all();
  }
}

/// Calls visit(order) for every order of the two scripts' steps in which each keeps its own.
template <class F>
void interleave(std::span<const Step> one, std::span<const Step> other, std::vector<Step>& order, F& visit) {
  if (one.empty() && other.empty()) return visit(order);
  for (auto* script : {&one, &other}) {
    if (script->empty()) continue;
    order.push_back(script->front());
    const auto rest = script->subspan(1);
    script == &one ? interleave(rest, other, order, visit) : interleave(one, rest, order, visit);
    order.pop_back();
  }
}

using enum Step;

TEST(Direction, EveryOrderOfTwoScriptsLosesNothing) {
  const std::vector<std::vector<Step>> senders{
      {kSend, kBegin, kSend, kSendMuch, kLeave, kSend, kEnd},
      {kBegin, kSend, kSend, kEnd},
      {kSend, kBegin, kLeave, kSend, kSend, kEnd},
      {kSendMuch, kSend, kBegin, kSendMuch, kSend, kReturn, kSend},
      {kSend, kSend, kBegin, kEnd},
  };
  const std::vector<std::vector<Step>> receivers{
      {kReceiveOne, kReceive, kReceiveOne, kReceive, kReceive, kReceive},
      {kReceiveOne, kReceive, kDecline, kReceive, kReceiveOne, kReceive},
      {kDecline, kReceive, kReceive},
      {kReceive, kReceive, kReceiveOne, kDecline},
  };
  size_t orders = 0, failures = 0;
  for (const auto& sender : senders)
    for (const auto& receiver : receivers) {
      std::vector<Step> order;
      auto visit = [&](const std::vector<Step>& steps) {
        Pair pair;
        for (Step step : steps) make(pair, step);
        pair.settle();
        ++orders;
        failures += !pair.complete();
      };
      interleave(sender, receiver, order, visit);
    }
  EXPECT_EQ(failures, 0u);
  EXPECT_GT(orders, 10'000u);
}

TEST(Direction, AnyStepsInAnyOrderLoseNothing) {
  size_t by_ring = 0, returned = 0;
  for (uint32_t seed = 0; seed < 20'000; ++seed) {
    std::mt19937 random(seed);
    Pair pair;
    for (int i = 0; i < 40; ++i) make(pair, static_cast<Step>(random() % 9));
    by_ring += pair.sender.bytes() > 0;
    returned += pair.direction.carrier == Carrier::kReturned;
    pair.settle();
    ASSERT_TRUE(pair.complete()) << "seed " << seed << ": " << pair.received << " of " << pair.sent;
  }
  EXPECT_GT(by_ring, 1000u);
  EXPECT_GT(returned, 1000u);
}

TEST(Direction, AReceiverMayNotDeclineWhatOnlyItCanTake) {
  Pair pair;
  pair.begin();
  pair.send(10);
  pair.leave();
  EXPECT_FALSE(pair.receiver.decline());
  pair.receive(10);
  EXPECT_TRUE(pair.receiver.decline());
}

TEST(Sender, AFullRingTakesNothing) {
  Pair pair;
  pair.begin();
  const std::vector<uint8_t> much(2 * kRing);
  EXPECT_EQ(pair.sender.put(much), kRing);
  EXPECT_EQ(pair.sender.put(much), 0u);
  EXPECT_FALSE(pair.sender.writable());
}

TEST(Sender, ShortMessagesTouchTheRingsBeginningAlone) {
  Pair pair;
  ASSERT_TRUE(pair.sender.begin(0));
  for (int i = 0; i < 1000; ++i) {
    pair.send(100);
    pair.receive(100);
    pair.sender.look();
  }
  EXPECT_FALSE(pair.wrong);
  EXPECT_EQ(pair.received, 100000u);
  EXPECT_TRUE(std::all_of(pair.ring.begin() + 100, pair.ring.end(), [](uint8_t b) { return b == 0; }));
}

TEST(Sender, TheRingTakesWhatBothBuffersWould) {
  Pair pair;
  ASSERT_TRUE(pair.sender.begin(0));
  pair.sender.set_buffer(1000);
  pair.sender.look();
  EXPECT_EQ(pair.sender.room(), kRing);  // the other end has said nothing
  pair.receiver.set_buffer(500);
  pair.sender.look();
  EXPECT_EQ(pair.sender.room(), 1500u);
  pair.send(2000);
  EXPECT_EQ(pair.sender.used(), 1500u);
  EXPECT_EQ(pair.sender.room(), 0u);
  EXPECT_FALSE(pair.sender.writable());
  pair.receive(501);
  pair.sender.look();
  EXPECT_TRUE(pair.sender.writable());
  pair.receiver.set_buffer(10);  // less than there is
  pair.sender.set_buffer(0);
  pair.sender.look();
  EXPECT_EQ(pair.sender.room(), 0u);
  EXPECT_FALSE(pair.sender.writable());
  pair.receiver.set_buffer(UINT32_MAX);
  pair.sender.look();
  EXPECT_EQ(pair.sender.room(), kRing - 999);
}

TEST(Sender, ALyingReceiverBreaksIt) {
  for (const uint64_t head : {uint64_t{11}, UINT64_MAX, uint64_t{1} << 40}) {
    Pair pair;
    pair.begin();
    pair.send(10);
    pair.direction.head = head;
    EXPECT_EQ(pair.sender.look(), Sender::Way::kBroken);
  }
  for (const auto carrier : {Carrier::kKernel, Carrier::kLeft, static_cast<Carrier>(77)}) {
    Pair pair;
    pair.begin();
    pair.direction.carrier = carrier;
    EXPECT_EQ(pair.sender.look(), Sender::Way::kBroken);
  }
}

TEST(Receiver, ALyingSenderBreaksIt) {
  for (const uint64_t tail : {uint64_t{kRing + 6}, UINT64_MAX, uint64_t{3}}) {
    Pair pair;
    pair.begin();
    pair.send(10);
    pair.receive(5);
    pair.direction.tail = tail;
    EXPECT_EQ(pair.receiver.look(), Receiver::Way::kBroken) << tail;
  }
  for (const auto carrier : {Carrier::kKernel, Carrier::kReturned, static_cast<Carrier>(5)}) {
    Pair pair;
    pair.begin();
    pair.receive(1);
    pair.direction.carrier = carrier;
    EXPECT_EQ(pair.receiver.look(), Receiver::Way::kBroken);
  }
  Pair pair;
  pair.send(10);
  pair.receive(10);
  (void)pair.sender.begin(9);  // of which the receiver has had ten
  EXPECT_EQ(pair.receiver.look(), Receiver::Way::kBroken);
}

/// How often one end slept, and a way for the other to wait until it has slept once more.
class Sleeps {
 public:
  void count() {
    ++n_;
    n_.notify_one();
  }
  /// Returns once the end has slept since the last return.
  void await_another() {
    n_.wait(seen_);
    seen_ = n_;
  }

 private:
  std::atomic<uint64_t> n_{0};
  uint64_t seen_ = 0;
};

/// Two threads that sleep whenever they have nothing to do: a wake-up that is lost would leave both asleep.
/// The writer halts in the first half until the reader sleeps, the reader in the second until the writer
/// does.
TEST(Direction, NoWakeUpIsLost) {
  Pair pair;
  ASSERT_TRUE(pair.sender.begin(0));
  std::counting_semaphore<> reader(0), writer(0);
  Sleeps reader_sleeps, writer_sleeps;
  constexpr uint64_t kBytes = 8 << 20, kBetweenHalts = 16 * kRing;
  std::thread sends([&] {
    std::mt19937 random(1);
    std::vector<uint8_t> bytes;
    uint64_t halt = kBetweenHalts;
    for (uint64_t sent = 0; sent < kBytes;) {
      if (sent >= halt && halt <= kBytes / 2) {
        reader_sleeps.await_another();
        halt += kBetweenHalts;
      }
      pair.sender.look();
      bytes.clear();
      const uint64_t size = std::min<uint64_t>(1 + random() % 3000, kBytes - sent);
      for (uint64_t i = 0; i < size; ++i) bytes.push_back(byte_at(sent + i));
      const size_t put = pair.sender.put(bytes);
      sent += put;
      if (put > 0 && pair.sender.publish()) reader.release();
      pair.sender.note_told();
      if (put > 0) continue;
      pair.sender.expect_room();
      if (!sleeps(pair.sender)) continue;
      writer_sleeps.count();
      writer.acquire();
    }
  });
  uint64_t received = 0, halt = kBytes / 2 + kBetweenHalts;
  bool wrong = false;
  std::vector<uint8_t> bytes(1500);
  while (received < kBytes) {
    if (received >= halt && halt + kBetweenHalts <= kBytes) {
      writer_sleeps.await_another();
      halt += kBetweenHalts;
    }
    ASSERT_EQ(pair.receiver.look(), Receiver::Way::kRing);
    const size_t n = pair.receiver.copy(bytes, 0);
    for (size_t i = 0; i < n; ++i) wrong |= bytes[i] != byte_at(received + i);
    received += n;
    if (n > 0 && pair.receiver.consume(n)) writer.release();
    pair.receiver.note_told();
    if (n > 0 || !sleeps(pair.receiver)) continue;
    reader_sleeps.count();
    reader.acquire();
  }
  sends.join();
  EXPECT_FALSE(wrong);
}

/// Any call looks. What it finds by the way is news to a set that waits: else its thread sleeps over it.
TEST(Direction, WhatALookHasFoundIsNewsUntilItHasBeenTold) {
  Pair pair;
  ASSERT_TRUE(pair.sender.begin(0));
  pair.receiver.look();
  pair.receiver.note_told();
  EXPECT_TRUE(sleeps(pair.receiver));
  pair.send(10);
  pair.receiver.look();  // by a call that sends, say
  EXPECT_TRUE(pair.receiver.changed());
  EXPECT_FALSE(sleeps(pair.receiver));
  pair.receiver.note_told();
  EXPECT_TRUE(sleeps(pair.receiver));
  ASSERT_TRUE(pair.sender.end());
  pair.receiver.look();
  EXPECT_FALSE(sleeps(pair.receiver));
}

TEST(Direction, RoomThatALookHasFoundIsNewsUntilItHasBeenTold) {
  Pair pair;
  ASSERT_TRUE(pair.sender.begin(0));
  pair.send(kRing);
  pair.sender.note_told();
  EXPECT_TRUE(sleeps(pair.sender));
  pair.receive(kRing / 4);
  EXPECT_FALSE(pair.sender.changed());  // too little to tell of
  pair.receive(kRing / 4);
  pair.sender.look();
  EXPECT_TRUE(pair.sender.changed());
  EXPECT_FALSE(sleeps(pair.sender));
  pair.sender.note_told();
  EXPECT_FALSE(pair.sender.changed());
  pair.receive(kRing);
  EXPECT_FALSE(pair.sender.changed());  // nobody expects more
}

/// The ring may be fuller than the receiver's last look has found it.
TEST(Receiver, TellsOfRoomByWhatTheRingHolds) {
  Pair pair;
  ASSERT_TRUE(pair.sender.begin(0));
  pair.send(kRing / 3 - 10);
  pair.receiver.look();
  pair.send(kRing / 2 - 10);
  EXPECT_FALSE(pair.sender.writable());
  pair.sender.expect_room();
  EXPECT_FALSE(sleeps(pair.sender));  // that the way is the ring is news
  pair.sender.note_told();
  EXPECT_TRUE(sleeps(pair.sender));
  EXPECT_TRUE(pair.receiver.consume(kRing / 3 - 10));
  EXPECT_TRUE(pair.sender.changed());
}

TEST(Receiver, HavingDeclinedItHasNothingAndMayDeclineAgain) {
  Pair pair;
  ASSERT_TRUE(pair.sender.begin(0));
  pair.send(10);
  EXPECT_TRUE(pair.receiver.decline());
  EXPECT_EQ(pair.receiver.available(), 0u);
  EXPECT_TRUE(pair.receiver.declined());
  EXPECT_FALSE(pair.receiver.bounded());
  EXPECT_TRUE(pair.receiver.decline());
}

/// The sending end of memory that this process has made, and the other end's view of it.
struct Memory {
  explicit Memory(size_t ring) : fd(mapping.make(ring)) {
    EXPECT_TRUE(fd.ok());
    sender.emplace(mapping.direction(0), mapping.ring(0));
    receiver.emplace(mapping.direction(0), mapping.ring(0), 0);
    EXPECT_TRUE(sender->begin(0));
  }
  ~Memory() { close(*fd); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  size_t allocated() const {
    struct stat file {};
    EXPECT_EQ(fstat(*fd, &file), 0);
    return static_cast<size_t>(file.st_blocks) * 512;
  }
  void put(const std::vector<uint8_t>& bytes) {
    sender->look();
    EXPECT_EQ(sender->put(bytes), bytes.size());
    (void)sender->publish();
  }
  std::vector<uint8_t> take(size_t size) {
    std::vector<uint8_t> bytes(size);
    receiver->look();
    EXPECT_EQ(receiver->copy(bytes, 0), size);
    (void)receiver->consume(size);
    return bytes;
  }

  Mapping mapping;
  const Result<int> fd;
  std::optional<Sender> sender;
  std::optional<Receiver> receiver;
};

TEST(Sender, ARingAtRestHasNoMoreMemoryThanAtFirst) {
  constexpr size_t kBytes = 200 << 10, kAll = 256 << 10;
  Memory m(kAll);
  const std::vector<uint8_t> bytes = [] {
    std::vector<uint8_t> all;
    for (size_t i = 0; i < kBytes; ++i) all.push_back(byte_at(i));
    return all;
  }();
  for (int i = 0; i < 3; ++i) {
    m.put(bytes);
    EXPECT_TRUE(m.sender->has_grown());
    EXPECT_TRUE(m.sender->take_spare().empty());  // nobody has read them
    EXPECT_EQ(m.take(kBytes), bytes);
    m.sender->look();
    EXPECT_GE(m.allocated(), kBytes);
    Mapping::give_back(m.sender->take_spare());
    EXPECT_LE(m.allocated(), Sender::kKept + kHeader);
    EXPECT_FALSE(m.sender->has_grown());
  }
  m.put({1, 2, 3});
  EXPECT_FALSE(m.sender->has_grown());
}

TEST(Sender, ARingThatHasWrappedGivesBackItsEnd) {
  constexpr size_t kAll = 256 << 10;
  Memory m(kAll);
  const std::vector<uint8_t> most(kAll - 10, 7), few(20, 8);
  m.put(most);
  (void)m.take(kAll - 20);
  m.put(few);  // ten bytes of it at the ring's beginning
  EXPECT_EQ(m.take(10), std::vector<uint8_t>(10, 7));
  EXPECT_EQ(m.take(20), few);
  m.sender->look();
  EXPECT_EQ(m.sender->take_spare().size(), kAll - Sender::kKept);
}

/// Memory as another end may offer it.
int memory(size_t size, int seals) {
  const int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  EXPECT_EQ(ftruncate(fd, static_cast<off_t>(size)), 0);
  EXPECT_EQ(fcntl(fd, F_ADD_SEALS, seals), 0);
  return fd;
}

bool takes(int fd) {
  Mapping mapping;
  const bool taken = mapping.take(fd, size_t{1} << 20).ok();
  if (taken) mapping.ring(1).back() = 1;  // the last byte that may be touched
  close(fd);
  return taken;
}

TEST(Mapping, TakesOnlyMemoryThatCannotBeCutOff) {
  constexpr int kAll = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  constexpr size_t kGood = kHeader + 2 * kRing;
  EXPECT_TRUE(takes(memory(kGood, kAll)));
  EXPECT_FALSE(takes(memory(kGood, F_SEAL_SHRINK | F_SEAL_GROW)));
  EXPECT_FALSE(takes(memory(kGood, F_SEAL_GROW | F_SEAL_SEAL)));
  EXPECT_FALSE(takes(memory(kGood, kAll | F_SEAL_WRITE)));
  for (const size_t size :
       {size_t{0}, kHeader, kGood - 1, kGood + 1, kHeader + 3 * kRing, kHeader + (size_t{4} << 20)})
    EXPECT_FALSE(takes(memory(size, kAll))) << size;
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  EXPECT_FALSE(takes(ends[0]));
  close(ends[1]);
  EXPECT_FALSE(takes(open("/proc/self/exe", O_RDONLY | O_CLOEXEC)));
  EXPECT_FALSE(takes(-1));
}

TEST(Mapping, BothEndsSeeTheSameBytes) {
  Mapping one, other;
  const Result<int> fd = one.make(kRing);
  ASSERT_TRUE(fd);
  ASSERT_TRUE(other.take(*fd, kRing));
  close(*fd);
  one.ring(0)[kRing - 1] = 7;
  one.direction(1).tail = 9;
  EXPECT_EQ(other.ring(0)[kRing - 1], 7);
  EXPECT_EQ(other.direction(1).tail, 9u);
}

}  // namespace
