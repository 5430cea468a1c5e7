// The queues with a device of the test's own behind them, which follows the rings step by step.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <tuple>

#include "mlx5/cyclic_queue.h"
#include "mlx5/send_queue.h"
#include "mlx5/striding_queue.h"
#include "tests/mlx5/rings.h"

namespace accel::mlx5 {
namespace {

using test::CompletionMemory;
using test::SendMemory;

struct Pool {
  explicit Pool(uint32_t frames, uint32_t size = 2048)
      : memory(static_cast<uint8_t*>(std::aligned_alloc(4096, size_t{frames} * size))),
        pool({memory, size_t{frames} * size}, size) {}
  ~Pool() { std::free(memory); }
  Pool(const Pool&) = delete;
  Packet* frame(uint32_t length, uint8_t fill = 0) {
    Packet* p = pool.take();
    if (!p) return nullptr;
    p->length = length;
    std::memset(p->data(), fill, length);
    return p;
  }
  uint8_t* memory;
  FramePool pool;
};

/// A send queue, and the device's look at it: WQEs announced, by their control segments.
struct Sender {
  explicit Sender(SendOptions how, uint32_t blocks = 64) : memory(blocks), cq(64) {
    queue = SendQueue(memory.ring, {DoorbellRecord(record), BlueField(page, 0)}, cq.reader(),
                      DoorbellRecord(consumed), how);
  }
  struct Wqe {
    uint8_t opcode;
    uint32_t octowords;
    bool signalled;
    uint16_t index;
  };
  /// What has been announced since the last look.
  std::vector<Wqe> look() {
    std::vector<Wqe> out;
    const uint16_t upto = static_cast<uint16_t>(be32toh(record[1]));
    while (seen != upto) {
      const uint8_t* c = memory.ring.block(seen);
      EXPECT_EQ(c[1] << 8 | c[2], seen) << "index in the control segment";
      const Wqe wqe{c[3], c[7] & 63u, (c[11] & 8) != 0, seen};
      out.push_back(wqe);
      seen = static_cast<uint16_t>(seen + blocks_of(wqe.octowords));
    }
    return out;
  }
  void complete(uint16_t index, uint8_t opcode = MLX5_CQE_REQ, uint8_t syndrome = 0) {
    mlx5_cqe64& cqe = cq.write(produced++, opcode);
    cqe.wqe_counter = htobe16(index);
    if (syndrome) reinterpret_cast<uint8_t*>(&cqe)[55] = syndrome;
  }
  SendMemory memory;
  CompletionMemory cq;
  alignas(64) uint8_t page[64] = {};
  uint32_t record[2] = {}, consumed[2] = {};
  uint16_t seen = 0;
  uint32_t produced = 0;
  SendQueue queue;
};

SendOptions plain() {
  SendOptions how;
  how.batch = 4;
  how.most = 64;
  return how;
}

TEST(SendQueue, SignalsEveryBatchAndFreesThrough) {
  Pool pool(64);
  Sender device(plain());
  for (int i = 0; i < 10; ++i) {
    Packet* p = pool.frame(100);
    ASSERT_EQ(device.queue.post({&p, 1}), 1u);
  }
  const auto wqes = device.look();
  ASSERT_EQ(wqes.size(), 10u);
  for (size_t i = 0; i < wqes.size(); ++i) EXPECT_EQ(wqes[i].signalled, i % 4 == 3) << i;
  EXPECT_EQ(pool.pool.available(), 54u);
  device.complete(wqes[3].index);
  device.queue.reclaim();
  EXPECT_EQ(pool.pool.available(), 58u) << "the four up to the signalled one";
  device.complete(wqes[7].index);
  device.queue.reclaim();
  EXPECT_EQ(pool.pool.available(), 62u);
  EXPECT_EQ(be32toh(device.consumed[0]), 2u);
}

TEST(SendQueue, InlineFramesAreFreeAtOnce) {
  Pool pool(8);
  SendOptions how = plain();
  how.inline_max = 204;
  Sender device(how);
  Packet* p = pool.frame(204);
  ASSERT_EQ(device.queue.post({&p, 1}), 1u);
  EXPECT_EQ(pool.pool.available(), 8u);
  p = pool.frame(205);
  ASSERT_EQ(device.queue.post({&p, 1}), 1u);
  EXPECT_EQ(pool.pool.available(), 7u);
  EXPECT_EQ(device.look()[0].octowords, 15u) << "204 bytes and their headers are four blocks";
}

TEST(SendQueue, NeverFillsWithoutACompletionAsked) {
  // Long descriptors: the ring is full before `batch` of them.
  Pool pool(256);
  SendOptions how = plain();
  how.batch = 64;
  how.inline_max = 924;
  Sender device(how, 64);
  uint32_t posted = 0;
  bool signalled = false;
  for (;; ++posted) {
    Packet* p = pool.frame(900);
    if (device.queue.post({&p, 1}) == 0) {
      FramePool::release(p);
      break;
    }
  }
  for (const auto& wqe : device.look()) signalled |= wqe.signalled;
  EXPECT_GT(posted, 2u);
  EXPECT_TRUE(signalled);
}

TEST(SendQueue, RunsOverTheIndexsEnd) {
  Pool pool(16);
  Sender device(plain(), 16);
  for (int i = 0; i < 70000; ++i) {  // 2^16 and more
    Packet* p = pool.frame(100);
    ASSERT_NE(p, nullptr) << i;
    ASSERT_EQ(device.queue.post({&p, 1}), 1u) << i;
    for (const auto& wqe : device.look())
      if (wqe.signalled) device.complete(wqe.index);
  }
  device.queue.reclaim();
  EXPECT_GE(pool.pool.available(), 13u);
}

TEST(SendQueue, OffersAgainWhatHadNoRoom) {
  Pool pool(64);
  SendOptions how = plain();
  Sender device(how, 16);
  std::vector<Packet*> frames;
  for (int i = 0; i < 40; ++i) frames.push_back(pool.frame(100));
  EXPECT_EQ(device.queue.post(frames), 16u);
  EXPECT_EQ(device.queue.post(std::span(frames).subspan(16)), 0u);
  device.complete(device.look()[7].index);
  EXPECT_EQ(device.queue.post(std::span(frames).subspan(16)), 8u);
  device.queue.reset();
  for (size_t i = 24; i < frames.size(); ++i) FramePool::release(frames[i]);
  EXPECT_EQ(pool.pool.available(), 64u);
}

TEST(SendQueue, MultiPacketSharesDescriptors) {
  Pool pool(64);
  SendOptions how = plain();
  how.multi_packet = true;
  how.inline_max = 100;
  how.header = 0;
  Sender device(how, 256);
  std::vector<Packet*> frames;
  for (int i = 0; i < 20; ++i) {
    frames.push_back(pool.frame(i % 2 ? 60 : 1000));
    frames.back()->checksum_offload = i < 15;  // another flag ends the sharing
  }
  EXPECT_EQ(device.queue.post(frames), 20u);
  const auto wqes = device.look();
  ASSERT_EQ(wqes.size(), 2u);
  EXPECT_EQ(wqes[0].opcode, kOpMultiPacket);
  EXPECT_EQ(wqes[0].octowords, 2 + 8 + 7 * 4u) << "eight pointers, seven of 60 bytes inline";
  EXPECT_EQ(wqes[1].octowords, 2 + 2 + 3 * 4u);
  EXPECT_EQ(pool.pool.available(), 64 - 10u) << "the pointed ones";
  device.complete(wqes[1].index);
  device.queue.reclaim();
  EXPECT_EQ(pool.pool.available(), 64u);
  // One alone, a chain, and one to be cut do not share.
  Packet* chain = pool.frame(1000);
  chain->more = pool.frame(500);
  Packet* large = pool.frame(1400);
  large->tso_size = 500;
  large->header_length = 54;
  Packet* mixed[] = {chain, large, pool.frame(60)};
  EXPECT_EQ(device.queue.post(mixed), 3u);
  const auto single = device.look();
  ASSERT_EQ(single.size(), 3u);
  EXPECT_EQ(single[0].opcode, kOpSend);
  EXPECT_EQ(single[1].opcode, kOpTso);
  EXPECT_EQ(single[2].opcode, kOpSend);
}

TEST(SendQueue, AnErrorStopsItUntilReset) {
  Pool pool(16);
  Sender device(plain());
  Packet* frames[] = {pool.frame(100), pool.frame(100)};
  EXPECT_EQ(device.queue.post(frames), 2u);
  device.complete(0, MLX5_CQE_REQ_ERR, 4);
  device.complete(1, MLX5_CQE_REQ_ERR, 5);
  device.queue.reclaim();
  ASSERT_TRUE(device.queue.error());
  EXPECT_EQ(device.queue.error()->syndrome, 4) << "the first cause, not the flushing";
  Packet* later = pool.frame(100);
  EXPECT_EQ(device.queue.post({&later, 1}), 0u);
  device.queue.reset();
  EXPECT_EQ(pool.pool.available(), 15u);
  EXPECT_FALSE(device.queue.error());
  device.seen = 0;
  device.record[1] = 0;
  EXPECT_EQ(device.queue.post({&later, 1}), 1u);
  EXPECT_EQ(device.look().size(), 1u);
}

TEST(SendQueue, AnErrorFoundWhilePostingTakesNoFrame) {
  Pool pool(16);
  Sender device(plain());
  std::vector<Packet*> frames;
  for (int i = 0; i < 4; ++i) frames.push_back(pool.frame(100));
  ASSERT_EQ(device.queue.post(frames), 4u);
  ASSERT_EQ(device.look().size(), 4u);
  device.complete(3, MLX5_CQE_REQ_ERR, 2);
  Packet* later[] = {pool.frame(100), pool.frame(100)};
  EXPECT_EQ(device.queue.post(later), 0u);
  EXPECT_TRUE(device.queue.error());
  EXPECT_EQ(device.look().size(), 0u);
  device.queue.reset();
  EXPECT_EQ(pool.pool.available(), 14u);
  device.seen = 0;
  device.record[1] = 0;
  EXPECT_EQ(device.queue.post(later), 2u);
  EXPECT_EQ(device.look().size(), 2u);
}

TEST(SendQueue, TellsWhetherItHasSentSinceTheReset) {
  Pool pool(16);
  Sender device(plain());
  auto post = [&](int count) {
    device.seen = 0;
    device.record[1] = 0;
    while (count-- > 0) {
      Packet* p = pool.frame(100);
      ASSERT_EQ(device.queue.post({&p, 1}), 1u);
    }
  };
  post(2);
  device.complete(0, MLX5_CQE_REQ_ERR, 2);
  device.queue.reclaim();
  EXPECT_FALSE(device.queue.works());
  device.queue.reset();
  post(2);
  device.complete(1, MLX5_CQE_REQ_ERR, 2);  // the first one asked for no completion
  device.queue.reclaim();
  EXPECT_TRUE(device.queue.works());
  device.queue.reset();
  EXPECT_FALSE(device.queue.works());
  post(4);
  device.complete(3);
  device.queue.reclaim();
  EXPECT_TRUE(device.queue.works());
}

TEST(SendQueue, HeadersAreDemandedByTheFirstDescriptorOnly) {
  Pool pool(32);
  SendOptions how = plain();
  how.header = 0;
  Sender device(how);
  auto fail = [&](uint16_t index, uint8_t syndrome) {
    device.seen = 0;
    device.record[1] = 0;
    for (int i = 0; i < 2; ++i) {
      Packet* p = pool.frame(100);
      ASSERT_EQ(device.queue.post({&p, 1}), 1u);
    }
    device.complete(index, MLX5_CQE_REQ_ERR, syndrome);
    device.queue.reclaim();
  };
  for (const auto& [index, syndrome, wants] : {std::tuple{1, MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR, false},
                                               {0, MLX5_CQE_SYNDROME_LOCAL_PROT_ERR, false},
                                               {0, MLX5_CQE_SYNDROME_WR_FLUSH_ERR, false},
                                               {0, MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR, true},
                                               {0, MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR, false}}) {
    fail(static_cast<uint16_t>(index), static_cast<uint8_t>(syndrome));
    EXPECT_EQ(device.queue.demand_headers(), wants) << index << " " << syndrome;
    device.queue.reset();
  }
}

TEST(SendQueue, ACompletionOfNothingIsAnError) {
  Pool pool(4);
  Sender device(plain());
  device.complete(77);
  device.queue.reclaim();
  EXPECT_TRUE(device.queue.error());
}

TEST(SendQueue, RefusesWhatNoDescriptorHolds) {
  Pool pool(64);
  Sender device(plain());
  Packet* chain = nullptr;
  for (int i = 0; i < 40; ++i) {
    Packet* p = pool.frame(60);
    p->more = chain;
    chain = p;
  }
  Packet* cut = pool.frame(60);
  cut->tso_size = 500;
  cut->header_length = 61;  // beyond the buffer
  Packet* frames[] = {chain, cut, pool.frame(4)};
  EXPECT_EQ(device.queue.post(frames), 3u);
  EXPECT_EQ(device.queue.refused(), 3u);
  EXPECT_EQ(device.look().size(), 0u);
  EXPECT_EQ(pool.pool.available(), 64u);
}

// ---- receiving ----

struct Receiver {
  explicit Receiver(FramePool& pool, uint32_t segments = 1, uint32_t entries = 16, uint32_t target = 16)
      : memory(size_t{entries} * 64),
        cq(entries),
        ring{memory.data(), entries, 64, 0x77},
        queue(ring, DoorbellRecord(record), cq.reader(), DoorbellRecord(consumed), pool, segments, target,
              entries, 4) {}
  mlx5_cqe64& arrive(uint32_t length) {
    mlx5_cqe64& cqe = cq.write(produced, MLX5_CQE_RESP_SEND);
    cqe.wqe_counter = htobe16(static_cast<uint16_t>(produced++));
    cqe.byte_cnt = htobe32(length);
    cqe.hds_ip_ext = 7;
    cqe.l4_hdr_type_etc = 2 << 2;
    cqe.sop_drop_qpn = htobe32(5);
    return cqe;
  }
  void fail(uint8_t syndrome) {
    mlx5_cqe64& cqe = cq.write(produced, MLX5_CQE_RESP_ERR);
    cqe.wqe_counter = htobe16(static_cast<uint16_t>(produced++));
    reinterpret_cast<uint8_t*>(&cqe)[offsetof(mlx5_err_cqe, syndrome)] = syndrome;
  }
  std::vector<uint8_t> memory;
  CompletionMemory cq;
  uint32_t record[2] = {}, consumed[2] = {};
  uint32_t produced = 0;
  ReceiveRing ring;
  CyclicQueue queue;
};

TEST(CyclicQueue, GivesFramesAndPostsMore) {
  Pool pool(32);
  Receiver device(pool.pool);
  device.queue.refill(1);
  EXPECT_EQ(be32toh(device.record[0]), 16u);
  EXPECT_EQ(pool.pool.available(), 16u);
  Received got[64];
  for (int i = 0; i < 1000; ++i) {
    device.arrive(60 + i % 1000);
    ASSERT_EQ(device.queue.receive(got), 1u);
    EXPECT_EQ(got[0].frame->length, 60u + i % 1000);
    EXPECT_TRUE(got[0].frame->checksum_good);
    EXPECT_EQ(got[0].flow_tag, 5u);
    const uint64_t address = be64toh(device.ring.entry(static_cast<uint32_t>(i))->addr);
    EXPECT_EQ(reinterpret_cast<uint8_t*>(address), got[0].frame->buffer)
        << "the buffer that the device filled";
    FramePool::release(got[0].frame);
    device.queue.refill(4);
  }
  EXPECT_EQ(device.consumed[0], htobe32(1000));
}

/// Buffers that no burst needs stay in the pool, and those that are used in the caches.
TEST(CyclicQueue, GrowsWithWhatCameWhileNobodyPolled) {
  Pool pool(256);
  Receiver device(pool.pool, 1, 128, 16);
  Received got[4];
  const auto burst = [&](int frames) {
    for (int i = 0; i < frames; ++i) device.arrive(60);
    for (size_t n = 1; n != 0;) {
      n = device.queue.receive(got);
      for (size_t i = 0; i < n; ++i) FramePool::release(got[i].frame);
      device.queue.refill(1);
    }
    return device.queue.posted();
  };
  device.queue.refill(1);
  for (int i = 0; i < 100; ++i) ASSERT_EQ(burst(7), 16u) << "less than half of it waited";
  EXPECT_EQ(burst(13), 32u);
  for (int i = 0; i < 100; ++i) ASSERT_EQ(burst(15), 32u);
  EXPECT_EQ(burst(32), 64u);
  device.arrive(60).sop_drop_qpn = htobe32(3 << 24 | 5);
  EXPECT_EQ(burst(0), 128u) << "the device had none for three frames";
  EXPECT_EQ(device.queue.dropped(), 3u);
  EXPECT_EQ(burst(128), 128u);
}

TEST(CyclicQueue, LeavesTheReserveToSending) {
  Pool pool(10);
  Receiver device(pool.pool);
  device.queue.refill(1);
  EXPECT_EQ(pool.pool.available(), 4u);
  EXPECT_EQ(device.queue.posted(), 6u);
  device.queue.refill(1);
  EXPECT_EQ(device.queue.empty(), 1u);
}

TEST(CyclicQueue, LongFramesAreChains) {
  Pool pool(64);
  Receiver device(pool.pool, 3);
  device.queue.refill(1);
  EXPECT_EQ(be32toh(device.ring.entry(0)[3].lkey), 0x100u) << "the list ends";
  const uint32_t before = pool.pool.available();
  Received got[4];
  device.arrive(5000);
  device.arrive(2048);
  device.arrive(60);
  ASSERT_EQ(device.queue.receive(got), 3u);
  EXPECT_EQ(got[0].frame->total(), 5000u);
  EXPECT_EQ(got[0].frame->length, 2048u);
  ASSERT_NE(got[0].frame->more, nullptr);
  EXPECT_EQ(got[0].frame->more->more->length, 904u);
  EXPECT_EQ(got[1].frame->more, nullptr);
  EXPECT_EQ(pool.pool.available(), before + 4) << "what the short ones did not fill";
  for (int i = 0; i < 3; ++i) FramePool::release(got[i].frame);
}

TEST(CyclicQueue, ImpossibleLengthsAreDropped) {
  Pool pool(32);
  Receiver device(pool.pool);
  device.queue.refill(1);
  for (uint32_t length : {0u, 13u, 2049u, 0xffffffffu}) device.arrive(length);
  device.arrive(60);
  Received got[8];
  ASSERT_EQ(device.queue.receive(got), 1u);
  EXPECT_EQ(device.queue.refused(), 4u);
  FramePool::release(got[0].frame);
}

TEST(CyclicQueue, AFrameTooLongForItsBuffersIsRefusedAndTheQueueGoesOn) {
  Pool pool(32);
  Receiver device(pool.pool);
  device.queue.refill(1);
  device.fail(MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR);
  device.arrive(60);
  Received got[8];
  ASSERT_EQ(device.queue.receive(got), 1u);
  EXPECT_FALSE(device.queue.error());
  EXPECT_EQ(device.queue.refused(), 1u);
  FramePool::release(got[0].frame);
  EXPECT_EQ(pool.pool.available(), 18u);
  device.queue.refill(1);
  EXPECT_EQ(be32toh(device.record[0]), 18u);
}

TEST(CyclicQueue, ErrorsAndStrayCompletionsStopItUntilReset) {
  Pool pool(32);
  for (bool stray : {false, true}) {
    Receiver device(pool.pool);
    device.queue.refill(1);
    Received got[8];
    if (stray) {
      device.arrive(60);
      ASSERT_EQ(device.queue.receive(got), 1u);
      FramePool::release(got[0].frame);
      device.arrive(60).wqe_counter = 0;  // that one again
    } else {
      device.fail(MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR);
    }
    EXPECT_EQ(device.queue.receive(got), 0u);
    EXPECT_TRUE(device.queue.error());
    device.queue.reset();
    EXPECT_FALSE(device.queue.error());
    EXPECT_EQ(pool.pool.available(), 32u);
    device.queue.refill(1);
    EXPECT_EQ(be32toh(device.record[0]), 16u);
    device.queue.reset();
  }
}

// ---- receiving into strides ----

/// The device's side too: it fills buffers as the PRM says, by what the ring and its record hold.
struct Strider {
  static constexpr uint32_t kStride = 256, kStrides = 8, kEntries = 4;
  explicit Strider(FramePool& pool)
      : ring_memory(kEntries * 32),
        strides(size_t{kEntries} * kStrides * kStride),
        cq(64),
        ring{ring_memory.data(), kEntries, 32, 0x77},
        queue(ring, DoorbellRecord(record),
              CompletionReader(cq.cqes.data(), 64, kCqeSize, CompletionReader::Queue::kStriding),
              DoorbellRecord(consumed), pool, {strides.data(), kStride, kStrides}, 2) {
    queue.refill(1);
  }
  mlx5_cqe64& complete(uint32_t index, uint32_t word) {
    mlx5_cqe64& cqe = cq.write(produced++, MLX5_CQE_RESP_SEND);
    cqe.wqe_id = htobe16(static_cast<uint16_t>(entry));
    cqe.wqe_counter = htobe16(static_cast<uint16_t>(index));
    cqe.byte_cnt = htobe32(word);
    cqe.hds_ip_ext = 7;
    cqe.l4_hdr_type_etc = 2 << 2;
    cqe.sop_drop_qpn = htobe32(5);
    cqe.timestamp = htobe64(99);
    return cqe;
  }
  /// False: nothing is posted. Filler first, where the frame does not fit the buffer.
  bool arrive(uint32_t length, uint8_t fill) {
    const uint32_t need = (length + kStride - 1) / kStride;
    if (!posted()) return false;
    if (used + need > kStrides) {
      complete(used, 1u << 31 | (kStrides - used) << 16);
      ++entry;
      used = 0;
      if (!posted()) return false;
    }
    const mlx5_wqe_data_seg* buffer = ring.entry(entry) + 1;
    EXPECT_EQ(be32toh(buffer->lkey), 0x77u);
    EXPECT_EQ(be32toh(buffer->byte_count), kStride * kStrides);
    std::memset(reinterpret_cast<uint8_t*>(be64toh(buffer->addr)) + size_t{used} * kStride, fill, length);
    complete(used, need << 16 | length);
    used += need;
    if (used == kStrides) {
      used = 0;
      ++entry;
    }
    return true;
  }
  bool posted() const { return static_cast<uint16_t>(be32toh(record[0]) - entry) != 0; }

  std::vector<uint8_t> ring_memory, strides;
  CompletionMemory cq;
  uint32_t record[2] = {}, consumed[2] = {};
  uint32_t produced = 0, entry = 0, used = 0;
  ReceiveRing ring;
  StridingQueue queue;
};

TEST(StridingQueue, CopiesFramesAndGivesBuffersBack) {
  Pool pool(64);
  Strider device(pool.pool);
  EXPECT_EQ(be32toh(device.record[0]), Strider::kEntries);
  Received got[8];
  Packet* held = nullptr;                  // one that the stack keeps: its buffer goes back all the same
  for (uint32_t i = 0; i < 100000; ++i) {  // over the end of 16 bits of entries
    const uint32_t length = 60 + i * 37 % 1454;
    ASSERT_TRUE(device.arrive(length, static_cast<uint8_t>(i))) << i;
    ASSERT_EQ(device.queue.receive(got), 1u) << i;
    Packet* frame = got[0].frame;
    ASSERT_EQ(frame->total(), length);
    ASSERT_EQ(frame->data()[0], static_cast<uint8_t>(i));
    ASSERT_EQ(frame->data()[length - 1], static_cast<uint8_t>(i));
    EXPECT_TRUE(frame->checksum_good);
    EXPECT_EQ(frame->timestamp, 99u);
    EXPECT_EQ(got[0].flow_tag, 5u);
    if (i == 0)
      held = frame;
    else
      FramePool::release(frame);
    device.queue.refill(16);
  }
  EXPECT_EQ(held->data()[59], 0);
  FramePool::release(held);
  EXPECT_EQ(pool.pool.available(), 64u);
  EXPECT_EQ(be32toh(device.consumed[0]), device.produced & 0xffffff);
}

TEST(StridingQueue, TakesABurstOverFillersAndEntries) {
  Pool pool(64);
  Strider device(pool.pool);
  uint32_t sent = 0;
  while (device.arrive(700, static_cast<uint8_t>(sent))) ++sent;  // two frames and a filler an entry
  EXPECT_EQ(sent, 8u);
  Received got[16];
  ASSERT_EQ(device.queue.receive(got), sent);
  for (uint32_t i = 0; i < sent; ++i) {
    EXPECT_EQ(got[i].frame->data()[699], i);
    FramePool::release(got[i].frame);
  }
  EXPECT_FALSE(device.arrive(60, 1));
  device.queue.refill(1);
  EXPECT_TRUE(device.arrive(60, 1));
  ASSERT_EQ(device.queue.receive(got), 1u);
  FramePool::release(got[0].frame);
}

TEST(StridingQueue, LongFramesAreChains) {
  Pool pool(64, 512);
  Strider device(pool.pool);
  ASSERT_TRUE(device.arrive(1300, 7));
  Received got[1];
  ASSERT_EQ(device.queue.receive(got), 1u);
  EXPECT_EQ(got[0].frame->total(), 1300u);
  EXPECT_EQ(got[0].frame->more->more->length, 276u);
  FramePool::release(got[0].frame);
  EXPECT_EQ(pool.pool.available(), 64u);
}

TEST(StridingQueue, DropsWhenThePoolHasOnlyItsReserve) {
  Pool pool(4);
  Strider device(pool.pool);
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(device.arrive(60, 1));
  Received got[8];
  ASSERT_EQ(device.queue.receive(got), 2u);
  EXPECT_EQ(device.queue.empty(), 2u);
  for (int i = 0; i < 2; ++i) FramePool::release(got[i].frame);
  ASSERT_TRUE(device.arrive(60, 1));
  ASSERT_EQ(device.queue.receive(got), 1u) << "what was dropped has used its strides";
  FramePool::release(got[0].frame);
}

TEST(StridingQueue, CompressedCompletionsSayTheirStride) {
  Pool pool(64);
  Strider device(pool.pool);
  const uint32_t lengths[] = {60, 600, 256, 300};
  uint32_t words[4], indices[4], at = 0;
  for (uint32_t i = 0; i < 4; ++i) {
    const uint32_t need = (lengths[i] + 255) / 256;
    std::memset(device.strides.data() + at * 256, static_cast<int>(i + 1), lengths[i]);
    words[i] = need << 16 | lengths[i];
    indices[i] = at;
    at += need;
  }
  mlx5_cqe64& title = device.cq.write(0, MLX5_CQE_RESP_SEND, kFormatCompressed);
  title.byte_cnt = htobe32(4);
  auto* minis = reinterpret_cast<MiniCqe*>(&device.cq.cqes[1]);
  for (uint32_t i = 0; i < 4; ++i) {
    minis[i].stride_index = htobe16(static_cast<uint16_t>(indices[i]));
    minis[i].byte_cnt = htobe32(words[i]);
  }
  Received got[8];
  ASSERT_EQ(device.queue.receive(got), 4u);
  for (uint32_t i = 0; i < 4; ++i) {
    EXPECT_EQ(got[i].frame->length, lengths[i]);
    EXPECT_EQ(got[i].frame->data()[lengths[i] - 1], i + 1);
    EXPECT_EQ(got[i].frame->timestamp, 0u);
    FramePool::release(got[i].frame);
  }
}

TEST(StridingQueue, WhatCannotBeNextStopsItUntilReset) {
  Pool pool(64);
  const std::function<void(Strider&)> wrong[] = {
      [](Strider& d) { d.complete(1, 1u << 16 | 60); },                      // a hole
      [](Strider& d) { d.complete(0, 60); },                                 // no strides
      [](Strider& d) { d.complete(0, 9u << 16 | 60); },                      // beyond the buffer
      [](Strider& d) { d.complete(0, 1u << 16 | 60).wqe_id = htobe16(1); },  // another buffer
      [](Strider& d) { d.cq.write(d.produced++, MLX5_CQE_RESP_ERR); },
  };
  Received got[8];
  for (const auto& event : wrong) {
    Strider device(pool.pool);
    event(device);
    EXPECT_EQ(device.queue.receive(got), 0u);
    EXPECT_TRUE(device.queue.error());
    device.queue.reset();
    EXPECT_FALSE(device.queue.error());
    EXPECT_EQ(device.queue.posted(), 0u);
    device.queue.refill(1);
    EXPECT_EQ(be32toh(device.record[0]), Strider::kEntries);
  }
  Strider device(pool.pool);
  device.complete(0, 1u << 16 | 257);  // longer than its strides
  EXPECT_EQ(device.queue.receive(got), 0u);
  EXPECT_FALSE(device.queue.error());
  EXPECT_EQ(device.queue.refused(), 1u);
}

}  // namespace
}  // namespace accel::mlx5
