// What a packet costs the CPU in the mlx5 queues: post and poll, the device's part excluded. Ours on plain
// memory; beside it libmlx5, when there is a device to make its objects (the model: model/verbs/run.py
// mlx5_cost), by both of its interfaces: ibv_post_send and ibv_poll_cq, and the newer ibv_wr_* with
// ibv_start_poll on a completion queue of one thread. Receive descriptors have ibv_post_recv alone. The
// doorbell page is then replaced by plain memory and the hardware's thread has not come along with fork(), so
// nobody answers: completions are written by hand for all.
//
// User-space instructions and cycles by perf; without it (virtual machines) instructions are counted by being
// stepped through, and cycles are not told. Times are the least of many rounds, so caches are hot, and the
// doorbell is a store to memory that is written back. Says nothing of a NIC's speed.
#include <infiniband/mlx5dv.h>
#include <linux/perf_event.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "mlx5/cyclic_queue.h"
#include "mlx5/send_queue.h"
#include "mlx5/striding_queue.h"
#include "stack/egress.h"
#include "stack/wire/tcp.h"

namespace {

using namespace accel;        // NOLINT
using namespace accel::mlx5;  // NOLINT

constexpr uint32_t kEntries = 256, kBatch = 64, kRounds = 2000;

/// Instructions and cycles of this thread, and the time.
class Meter {
 public:
  Meter() {
    for (size_t i = 0; i < 2; ++i) {
      perf_event_attr attr{};
      attr.size = sizeof(attr);
      attr.type = PERF_TYPE_HARDWARE;
      attr.config = i == 0 ? PERF_COUNT_HW_INSTRUCTIONS : PERF_COUNT_HW_CPU_CYCLES;
      attr.exclude_kernel = attr.exclude_hv = 1;
      fds_[i] = static_cast<int>(syscall(SYS_perf_event_open, &attr, 0, -1, -1, 0));
    }
  }
  bool has_instructions() const { return fds_[0] >= 0; }
  bool has_cycles() const { return fds_[1] >= 0; }
  using Reading = std::array<double, 3>;
  Reading read_all() const {
    Reading r{};
    for (size_t i = 0; i < 2; ++i) {
      uint64_t value = 0;
      if (fds_[i] >= 0 && ::read(fds_[i], &value, sizeof(value)) == sizeof(value))
        r[i] = static_cast<double>(value);
    }
    timespec t{};
    clock_gettime(CLOCK_MONOTONIC, &t);
    r[2] = static_cast<double>(t.tv_sec) * 1e9 + static_cast<double>(t.tv_nsec);
    return r;
  }

 private:
  std::array<int, 2> fds_{};
};

const Meter meter;
Meter::Reading overhead{1e9, 1e9, 1e9};

Meter::Reading cost_of(const std::function<void()>& work) {
  const auto before = meter.read_all();
  work();
  const auto after = meter.read_all();
  Meter::Reading cost{};
  for (size_t i = 0; i < cost.size(); ++i) cost[i] = after[i] - before[i];
  return cost;
}

#if defined(__x86_64__)
volatile uint64_t steps = 0;
void step(int) { steps = steps + 1; }
/// The trap flag (SDM volume 3, 18.3.1.4): SIGTRAP after each instruction. Below the red zone.
void trace(bool on) {
  if (on)
    asm volatile("lea -128(%%rsp), %%rsp; pushfq; orq $0x100, (%%rsp); popfq; lea 128(%%rsp), %%rsp" ::
                     : "memory", "cc");
  else
    asm volatile("lea -128(%%rsp), %%rsp; pushfq; andq $~0x100, (%%rsp); popfq; lea 128(%%rsp), %%rsp" ::
                     : "memory", "cc");
}
/// Instructions of one go, less those of a go that does nothing.
double stepped(const std::function<void()>& work) {
  signal(SIGTRAP, step);
  uint64_t counts[2];
  const std::function<void()> nothing = [] {};
  for (const auto* each : {&nothing, &work}) {
    steps = 0;
    trace(true);
    (*each)();
    trace(false);
    counts[each == &work] = steps;
  }
  return static_cast<double>(counts[1] - counts[0]);
}
#else
double stepped(const std::function<void()>& work) { return work(), 0; }
#endif

/// `work` handles kBatch packets; `between` is the device's part.
void report(const char* name, const std::function<void()>& work, const std::function<void()>& between) {
  Meter::Reading least{1e18, 1e18, 1e18};
  for (uint32_t round = 0; round < kRounds; ++round) {
    const auto cost = cost_of(work);
    between();
    for (size_t i = 0; i < cost.size(); ++i) least[i] = std::min(least[i], cost[i] - overhead[i]);
  }
  if (!meter.has_instructions()) {
    least[0] = stepped(work);
    between();
  }
  std::printf("%-50s %7.1f ns", name, least[2] / kBatch);
  if (least[0] > 0) std::printf(" %7.0f instructions", least[0] / kBatch);
  if (meter.has_cycles()) std::printf(" %7.0f cycles", least[1] / kBatch);
  std::printf("\n");
}

struct Completions {
  Completions(void* start, uint32_t entries, uint32_t at, mlx5_cqe64 like)
      : ring(static_cast<mlx5_cqe64*>(start)), count(entries), next(at), pattern(like) {}
  void write(uint8_t opcode, uint16_t counter, uint32_t length, uint16_t wqe_id = 0) {
    mlx5_cqe64 cqe = pattern;
    cqe.wqe_id = htobe16(wqe_id);
    cqe.wqe_counter = htobe16(counter);
    cqe.byte_cnt = htobe32(length);
    cqe.hds_ip_ext = 7;
    cqe.l4_hdr_type_etc = 2 << 2;
    cqe.op_own = static_cast<uint8_t>(opcode << 4 | ((next & count) != 0));
    ring[next++ & (count - 1)] = cqe;
  }
  mlx5_cqe64* ring;
  uint32_t count, next;
  mlx5_cqe64 pattern;
};

uint8_t* pages(size_t size) {
  return static_cast<uint8_t*>(
      mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0));
}

// ---- ours ----

struct Ours {
  static constexpr uint32_t kBlocks = 1024, kFrames = 1024;
  Ours() : pool({pages(size_t{kFrames} * 2048), size_t{kFrames} * 2048}, 2048) {
    for (auto* cqes : {&send_cqes, &receive_cqes}) {
      cqes->resize(kEntries);
      for (auto& cqe : *cqes) cqe.op_own = kUnwritten;
    }
  }
  SendQueue make_send(bool multi_packet) {
    for (auto& cqe : send_cqes) cqe.op_own = kUnwritten;
    ring = {pages(size_t{kBlocks} * kBlock), kBlocks, 0x1000, 7};
    SendOptions how;
    how.inline_max = 204;
    how.multi_packet = multi_packet;
    how.header = 0;  // ConnectX-5 and later, as libmlx5 there
    how.most = kEntries;
    return {ring,
            {DoorbellRecord(record), BlueField(page, 256)},
            CompletionReader(send_cqes.data(), kEntries, kCqeSize),
            DoorbellRecord(consumed),
            how};
  }
  /// The last WQE announced that asked for a completion has it.
  void answer(Completions& completions) {
    for (const auto upto = static_cast<uint16_t>(be32toh(record[1])); seen != upto;) {
      const auto& control = control_of(ring, seen);
      if (control.fm_ce_se & MLX5_WQE_CTRL_CQ_UPDATE) completions.write(MLX5_CQE_REQ, seen, 0);
      seen = static_cast<uint16_t>(seen + blocks_of(be32toh(control.qpn_ds) & 63));
    }
  }
  void send(const char* name, uint32_t length, uint32_t burst, bool multi_packet) {
    send(name, length, burst, multi_packet, [](Packet&) {});
  }
  /// As the stack sends 10 bytes: Ethernet, IPv4 and TCP headers from their template, TCP's checksum the
  /// device's.
  void send_segments(const char* name, uint32_t burst) {
    constexpr uint32_t kPayload = 10, kLength = 64;
    const char payload[kPayload] = "123456789";
    uint32_t sequence = 1;
    send(name, kLength, burst, false, [&](Packet& frame) {
      const uint32_t l4 = sizeof(TcpHeader) + kPayload;
      uint8_t* at = frame.data() + put_headers(frame.data(), headers, l4, 0);
      auto& tcp = wire_at<TcpHeader>(at);
      tcp.source = 6379;
      tcp.destination = 40000;
      tcp.sequence = sequence += kPayload;
      tcp.acknowledgment = sequence;
      tcp.data_offset = 5 << 4;
      tcp.flags = TH_ACK | TH_PUSH;
      tcp.window = 65535;
      tcp.urgent = 0;
      store_checksum(&at[offsetof(TcpHeader, checksum)], fold_sum(pseudo_sum(headers, l4)));
      std::memcpy(at + sizeof(TcpHeader), payload, kPayload);
    });
  }
  template <class Fill>
  void send(const char* name, uint32_t length, uint32_t burst, bool multi_packet, Fill fill) {
    SendQueue queue = make_send(multi_packet);
    Completions completions(send_cqes.data(), kEntries, 0, {});
    seen = 0;
    record[1] = 0;
    report(
        name,
        [&] {
          Packet* frames[kBatch];
          for (uint32_t done = 0; done < kBatch; done += burst) {
            for (uint32_t i = 0; i < burst; ++i) {
              frames[i] = pool.take();
              frames[i]->length = length;
              frames[i]->checksum_offload = true;
              fill(*frames[i]);
            }
            if (queue.post({frames, burst}) != burst) std::abort();
          }
        },
        [&] { answer(completions); });
    queue.reset();
  }
  void cyclic() {
    std::vector<uint8_t> memory(size_t{kEntries} * 16);
    CyclicQueue queue({memory.data(), kEntries, 16, 7}, DoorbellRecord(record),
                      CompletionReader(receive_cqes.data(), kEntries, kCqeSize), DoorbellRecord(consumed),
                      pool, 1, kEntries, kEntries, 0);
    uint16_t counter = 0;
    receive(queue, "ours: receive 64 B, poll of 32, refill",
            [&](Completions& completions) { completions.write(MLX5_CQE_RESP_SEND, counter++, 64); });
  }
  void striding(const char* name, uint32_t length) {
    constexpr uint32_t kRing = 16, kStride = 256, kStrides = 512;
    std::vector<uint8_t> memory(size_t{kRing} * 32);
    const StrideMemory strides{pages(size_t{kRing} * kStride * kStrides), kStride, kStrides};
    using Reader = CompletionReader;
    StridingQueue queue({memory.data(), kRing, 32, 7}, DoorbellRecord(record),
                        Reader(receive_cqes.data(), kEntries, kCqeSize, Reader::Queue::kStriding),
                        DoorbellRecord(consumed), pool, strides, 0);
    uint32_t entry = 0, at = 0;
    const uint32_t need = (length + kStride - 1) / kStride;
    receive(queue, name, [&](Completions& completions) {
      if (at + need > kStrides) {
        completions.write(MLX5_CQE_RESP_SEND, static_cast<uint16_t>(at), 1u << 31 | (kStrides - at) << 16,
                          static_cast<uint16_t>(entry++));
        at = 0;
      }
      std::memset(strides.at(entry % kRing, at), 1, length);
      completions.write(MLX5_CQE_RESP_SEND, static_cast<uint16_t>(at), need << 16 | length,
                        static_cast<uint16_t>(entry));
      at += need;
      if (at == kStrides) {
        at = 0;
        ++entry;
      }
    });
  }
  template <class Queue>
  void receive(Queue& queue, const char* name, const std::function<void(Completions&)>& write) {
    for (auto& cqe : receive_cqes) cqe.op_own = kUnwritten;
    queue.refill(1);
    Completions completions(receive_cqes.data(), kEntries, 0, {});
    auto arrive = [&] {
      for (uint32_t i = 0; i < kBatch; ++i) write(completions);
    };
    arrive();
    report(
        name,
        [&] {
          Received got[32];
          for (uint32_t done = 0; done < kBatch; done += 32) {
            if (static_cast<ReceiveQueue&>(queue).receive(got) != 32) std::abort();
            for (auto& each : got) FramePool::release(each.frame);
            static_cast<ReceiveQueue&>(queue).refill(16);
          }
        },
        arrive);
    queue.reset();
  }
  static constexpr HeaderTemplate headers = [] {
    HeaderTemplate t{};
    t.length = 34;
    t.ip_offset = 14;
    t.bytes[14] = 0x45;
    return t;
  }();
  FramePool pool;
  SendRing ring;
  std::vector<mlx5_cqe64> send_cqes, receive_cqes;
  alignas(64) uint8_t page[512] = {};
  uint32_t record[2] = {}, consumed[2] = {};
  uint16_t seen = 0;
};

// ---- libmlx5 ----

/// kNewer: by ibv_wr_* and ibv_start_poll.
template <bool kNewer>
struct Theirs {
  bool open() {
    int count = 0;
    ibv_device** list = ibv_get_device_list(&count);
    if (count == 0) return false;
    context = ibv_open_device(list[0]);
    if (!context) return false;
    ibv_pd* pd = ibv_alloc_pd(context);
    memory = pages(1 << 20);
    mr = ibv_reg_mr(pd, memory, 1 << 20, IBV_ACCESS_LOCAL_WRITE);
    for (auto* cq : {&send_cq, &receive_cq})
      if (!(*cq = make_cq())) return false;
    ibv_qp_init_attr_ex wanted{};
    wanted.qp_type = IBV_QPT_RAW_PACKET;
    wanted.send_cq = send_cq;
    wanted.recv_cq = receive_cq;
    wanted.cap = {kEntries, kEntries, 4, 1, 204};
    wanted.comp_mask = IBV_QP_INIT_ATTR_PD | (kNewer ? unsigned{IBV_QP_INIT_ATTR_SEND_OPS_FLAGS} : 0u);
    wanted.pd = pd;
    wanted.send_ops_flags = kNewer ? IBV_QP_EX_WITH_SEND : 0;
    qp = ibv_create_qp_ex(context, &wanted);
    if (!mr || !qp) return false;
    if (kNewer) calls = ibv_qp_to_qp_ex(qp);
    ibv_qp_attr attr{};
    attr.port_num = 1;
    attr.qp_state = IBV_QPS_INIT;
    ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT);
    for (auto state : {IBV_QPS_RTR, IBV_QPS_RTS}) {
      attr.qp_state = state;
      ibv_modify_qp(qp, &attr, IBV_QP_STATE);
    }
    mlx5dv_obj first{}, second{};
    first.qp = {qp, &layout};
    first.cq = {send_cq, &sends};
    second.cq = {receive_cq, &receives};
    mlx5dv_init_obj(&first, MLX5DV_OBJ_QP | MLX5DV_OBJ_CQ);
    mlx5dv_init_obj(&second, MLX5DV_OBJ_CQ);
    return learn();
  }
  ibv_cq* make_cq() const {
    if (!kNewer) return ibv_create_cq(context, kEntries - 1, nullptr, nullptr, 0);
    ibv_cq_init_attr_ex wanted{};
    wanted.cqe = kEntries - 1;
    wanted.wc_flags = IBV_WC_EX_WITH_BYTE_LEN;
    wanted.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS;
    wanted.flags = IBV_CREATE_CQ_ATTR_SINGLE_THREADED;
    ibv_cq_ex* cq = ibv_create_cq_ex(context, &wanted);
    return cq != nullptr ? ibv_cq_ex_to_cq(cq) : nullptr;
  }
  /// One real completion shows what the device writes for this queue.
  bool learn() {
    memset(memory, 2, 64);
    memcpy(memory + 12, "\x08\x06", 2);
    post(64, 1, false, true);
    while (poll(send_cq, 1) == 0) {
    }
    pattern = *static_cast<mlx5_cqe64*>(sends.buf);
    index = 1;
    return true;
  }
  /// In the child.
  bool cut_off() const {
    auto* page =
        reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(layout.bf.reg) & ~uintptr_t{4095});  // NOLINT
    return mmap(page, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == page;
  }
  void post(uint32_t length, uint32_t n, bool inlined, bool signal) const {
    if constexpr (kNewer)
      post_by_calls(length, n, inlined, signal);
    else
      post_list(length, n, inlined, signal);
  }
  void post_by_calls(uint32_t length, uint32_t n, bool inlined, bool signal) const {
    ibv_wr_start(calls);
    for (uint32_t i = 0; i < n; ++i) {
      calls->wr_id = 0;
      calls->wr_flags = IBV_SEND_IP_CSUM | (signal && i + 1 == n ? unsigned{IBV_SEND_SIGNALED} : 0u);
      ibv_wr_send(calls);
      uint8_t* frame = memory + size_t{i} * 2048;
      if (inlined)
        ibv_wr_set_inline_data(calls, frame, length);
      else
        ibv_wr_set_sge(calls, mr->lkey, reinterpret_cast<uintptr_t>(frame), length);
    }
    if (const int error = ibv_wr_complete(calls)) {
      std::printf("ibv_wr_complete: %s\n", std::strerror(error));
      std::exit(1);
    }
  }
  void post_list(uint32_t length, uint32_t n, bool inlined, bool signal) const {
    ibv_sge parts[kBatch];
    ibv_send_wr requests[kBatch], *bad = nullptr;
    for (uint32_t i = 0; i < n; ++i) {
      parts[i] = {reinterpret_cast<uintptr_t>(memory) + i * 2048, length, mr->lkey};
      requests[i] = {};
      requests[i].next = i + 1 < n ? &requests[i + 1] : nullptr;
      requests[i].sg_list = &parts[i];
      requests[i].num_sge = 1;
      requests[i].opcode = IBV_WR_SEND;
      requests[i].send_flags = IBV_SEND_IP_CSUM | (inlined ? unsigned{IBV_SEND_INLINE} : 0u) |
                               (signal && i + 1 == n ? unsigned{IBV_SEND_SIGNALED} : 0u);
    }
    if (const int error = ibv_post_send(qp, requests, &bad)) {
      std::printf("ibv_post_send: %s\n", std::strerror(error));
      std::exit(1);
    }
  }
  /// How many were there, of `most` at most; the length of each is asked for, as who receives does.
  static uint32_t poll(ibv_cq* cq, uint32_t most) {
    uint32_t n = 0;
    uint32_t bytes = 0;
    if constexpr (kNewer) {
      ibv_cq_ex* queue = reinterpret_cast<ibv_cq_ex*>(cq);  // ibv_cq_ex_to_cq() backwards
      ibv_poll_cq_attr none{};
      if (ibv_start_poll(queue, &none) != 0) return 0;
      do {
        if (queue->status != IBV_WC_SUCCESS) std::abort();
        bytes += ibv_wc_read_byte_len(queue);
      } while (++n < most && ibv_next_poll(queue) == 0);
      ibv_end_poll(queue);
    } else {
      ibv_wc done[32];
      const int got = ibv_poll_cq(cq, static_cast<int>(most), done);
      for (; static_cast<int>(n) < got; ++n) {
        if (done[n].status != IBV_WC_SUCCESS) std::abort();
        bytes += done[n].byte_len;
      }
    }
    asm volatile("" ::"r"(bytes));
    return n;
  }
  void send(const char* name, uint32_t length, uint32_t burst) {
    if (sent.empty()) sent.emplace_back(sends.buf, sends.cqe_cnt, 1, pattern);
    const uint32_t blocks = length <= 204 ? blocks_of(inline_octowords(length, 0)) : 1;
    report(
        name,
        [&] {
          for (uint32_t done = 0; done < kBatch; done += burst)
            post(length, burst, length <= 204, done + burst == kBatch);
          poll(send_cq, 1);  // the last round's
        },
        [&] {
          index = static_cast<uint16_t>(index + kBatch * blocks);
          sent.front().write(MLX5_CQE_REQ, static_cast<uint16_t>(index - blocks), 0);
        });
    poll(send_cq, 1);
  }
  void receive(const char* name) {
    Completions completions(receives.buf, receives.cqe_cnt, 0, pattern);
    uint16_t counter = 0;
    auto arrive = [&] {
      for (uint32_t i = 0; i < kBatch; ++i) completions.write(MLX5_CQE_RESP_SEND, counter++, 64);
    };
    auto refill = [&](uint32_t n) {
      ibv_sge parts[32];
      ibv_recv_wr requests[32], *bad = nullptr;
      for (uint32_t i = 0; i < n; ++i) {
        parts[i] = {reinterpret_cast<uintptr_t>(memory) + i * 2048, 2048, mr->lkey};
        requests[i] = {i, i + 1 < n ? &requests[i + 1] : nullptr, &parts[i], 1};
      }
      if (ibv_post_recv(qp, requests, &bad) != 0) std::abort();
    };
    for (int i = 0; i < 4; ++i) refill(32);
    arrive();
    report(
        name,
        [&] {
          for (uint32_t at = 0; at < kBatch; at += 32) {
            if (poll(receive_cq, 32) != 32) std::abort();
            refill(32);
          }
        },
        arrive);
  }
  void measure() {
    const std::string who = kNewer ? "libmlx5, ibv_wr_*: " : "libmlx5: ";
    send((who + "send 64 B, one a doorbell").c_str(), 64, 1);
    send((who + "send 64 B, bursts of 32").c_str(), 64, 32);
    send((who + "send 1500 B, one a doorbell").c_str(), 1500, 1);
    send((who + "send 1500 B, bursts of 32").c_str(), 1500, 32);
    receive(kNewer ? "libmlx5, ibv_start_poll: receive 64 B, 32, refill"
                   : "libmlx5: receive 64 B, poll of 32, refill");
  }
  ibv_context* context = nullptr;
  ibv_cq *send_cq = nullptr, *receive_cq = nullptr;
  ibv_qp* qp = nullptr;
  ibv_qp_ex* calls = nullptr;
  ibv_mr* mr = nullptr;
  uint8_t* memory = nullptr;
  mlx5dv_qp layout{};
  mlx5dv_cq sends{}, receives{};
  mlx5_cqe64 pattern{};
  std::vector<Completions> sent;
  uint16_t index = 0;
};

/// Status of the child that measures.
template <bool kNewer>
int measure_theirs() {
  Theirs<kNewer> theirs;
  if (!theirs.open()) {
    std::printf("no device for %s: libmlx5 is not measured\n", kNewer ? "ibv_wr_*" : "ibv_post_send");
    return 0;
  }
  const pid_t child = fork();
  if (child == 0) {
    if (theirs.cut_off()) theirs.measure();
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return status;
}

}  // namespace

int main() {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  if (!meter.has_instructions())
    std::printf("perf counters are not to be had: times, and instructions by stepping\n");
  for (int i = 0; i < 1000; ++i) {
    const auto nothing = cost_of([] {});
    for (size_t k = 0; k < nothing.size(); ++k) overhead[k] = std::min(overhead[k], nothing[k]);
  }
  std::printf("a packet, with frame from and to the pool (ours), every 64th descriptor completed\n");
  Ours ours;
  ours.send("ours: send 64 B, one a doorbell", 64, 1, false);
  ours.send("ours: send 64 B, bursts of 32", 64, 32, false);
  ours.send("ours: send 64 B, bursts of 32, multi-packet", 64, 32, true);
  ours.send_segments("ours: send 64 B with headers, one a doorbell", 1);
  ours.send_segments("ours: send 64 B with headers, bursts of 32", 32);
  ours.send("ours: send 1500 B, one a doorbell", 1500, 1, false);
  ours.send("ours: send 1500 B, bursts of 32", 1500, 32, false);
  ours.cyclic();
  ours.striding("ours: receive 64 B, striding, copied", 64);
  ours.striding("ours: receive 1500 B, striding, copied", 1500);
  const int older = measure_theirs<false>();
  const int newer = measure_theirs<true>();
  return older != 0 || newer != 0 ? 1 : 0;
}
