// One open device file: the device behind it, its port, its doorbell pages and the thread that is the
// hardware. Every context is a device of its own (own objects, own steering, own tap on the netdev), as
// several processes on one NIC are.
#pragma once

#include <atomic>
#include <csignal>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "model/core/device.h"
#include "model/front/claims.h"
#include "model/front/clock.h"
#include "model/front/control.h"
#include "model/front/netdev.h"
#include "model/front/nftables.h"
#include "model/front/packet_port.h"
#include "model/front/raw.h"
#include "model/front/report.h"
#include "model/front/shared_rules.h"
#include "model/front/steal.h"

struct ib_uverbs_ioctl_hdr;

namespace model {

struct Request;

/// A doorbell page: mapped here and, from the same memory, by the driver.
struct UarPage {
  uint8_t* mine = nullptr;
  bool used = false;
  // By register: what its last doorbell announced.
  std::array<std::array<uint8_t, kBlueFieldBytes>, 4> before{};
};

/// A completion channel: the driver reads `read`, we write `write`.
struct Channel {
  int read = -1, write = -1;
  std::map<uint32_t, uint32_t> written;  // events by CQ number
};

class Context final : private Surroundings {
 public:
  static constexpr size_t kUars = 64;
  static constexpr size_t kPage = 4096;
  /// As many as the tap's queue may hold, so that looking for them ends.
  static constexpr unsigned kFramesHeld = 4096;

  Context();
  ~Context() override;

  /// One command of the write() interface; 0 or an errno.
  int command(std::span<const uint8_t> bytes);
  /// One ioctl; 0 or an errno.
  int ioctl(unsigned long request, void* argument);
  /// A command by ioctl instead of write(): rules, which a process may have another one make. Attributes'
  /// pointers are this process's.
  int invoke(ib_uverbs_ioctl_hdr* header, bool has_net_raw);
  /// Maps the driver's side of what an offset names; as mmap.
  void* map(size_t size, int protection, off_t offset);
  /// A descriptor that may be one of our channels is closed by the driver.
  void closed(int fd);
  /// It has another number from now on.
  void renumbered(int from, int to);
  /// The hardware does all that there is to do: doorbells that were rung, frames that have come.
  void settle();
  /// In a forked child nothing of the parent's device may be touched; descriptors are given up.
  void abandon();
  bool abandoned() const { return abandoned_; }
  /// False in a forked child, also one of _Fork(), which runs no handlers.
  bool owned() const { return !abandoned_ && raw::call(SYS_getpid) == process_; }

 private:
  friend struct Commands;
  struct Cq {
    uint64_t user_handle = 0;
    int channel = -1;
  };

  // Surroundings
  void transmit(std::span<const uint8_t> frame) override;
  void completion_event(const CompletionQueue& cq) override;

  int start();  // the device, at the first GET_CONTEXT
  void run();
  /// Of all registers. A command that changes a queue does it first: the bus keeps the order of what a
  /// program writes, so the hardware has had every doorbell that was rung before the command.
  bool take_writes();
  bool scan(uint32_t uar);
  bool turn();
  void look_around();
  void publish();
  void follow_others();
  bool receive(unsigned most);
  /// A frame that was still on its way to us when its rule went.
  void give_to_kernel(std::span<const uint8_t> frame);
  void follow_control();
  void async_event(uint32_t type, uint64_t element);
  void take_doorbell(uint32_t uar, size_t at);
  int allocate_uar(uint32_t& index);
  struct Taken {
    uint64_t steal_rule;
    uint16_t order;
    uint32_t claim;
  };
  /// Has the kernel give us what a rule takes; 0 where there is no privilege to: nothing comes in then.
  accel::Result<uint64_t> steal(const Stolen& what);
  void give_back(const Taken& taken);
  static uint32_t take_back(Channel& channel, const Cq& cq);

  /// A call from the program, one at a time. As in a system call no signal's handler runs meanwhile: it might
  /// leave by longjmp(), and the locks would stay taken.
  class Call {
   public:
    explicit Call(Context& c) : context_(c) {
      const uint64_t all = ~uint64_t{0};
      mask(SIG_BLOCK, &all, &before_);
      context_.commands_.lock();
    }
    ~Call() {
      context_.commands_.unlock();
      mask(SIG_SETMASK, &before_, nullptr);
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    static void mask(int how, const uint64_t* set, uint64_t* before) {
      raw::call(SYS_rt_sigprocmask, how, raw::word(set), raw::word(before), sizeof *set);
    }
    Context& context_;
    uint64_t before_ = 0;
  };

  /// Control calls stop the hardware thread between two turns.
  class Quiet {
   public:
    explicit Quiet(Context& c) : context_(c) {
      context_.waiting_.fetch_add(1);
      context_.mutex_.lock();
    }
    ~Quiet() {
      context_.mutex_.unlock();
      context_.waiting_.fetch_sub(1);
    }
    Quiet(const Quiet&) = delete;
    Quiet& operator=(const Quiet&) = delete;

   private:
    Context& context_;
  };

  std::mutex commands_;  // one command at a time; taken before mutex_
  std::mutex mutex_;     // the device and what the hardware thread uses
  std::atomic<int> waiting_{0};
  Checker checker_;
  Device device_;
  Report report_;
  PacketPort port_;
  std::mutex steals_mutex_;  // steals_; taken last
  StealTable steals_;
  bool steals_open_ = false;
  std::map<uint32_t, Taken> stolen_;  // by flow handle
  Claims claims_;
  SharedRules shared_;
  unsigned sharing_contexts_ = 0;  // other contexts that steer on this NIC; the hardware thread's
  uint32_t next_claim_ = 1;
  std::map<uint32_t, Cq> cqs_;
  std::map<int, Channel> channels_;
  int uar_memory_ = -1;
  std::array<UarPage, kUars> uars_;
  // Behind the doorbell pages in the same memory.
  static constexpr size_t kClockInfoPage = kUars, kCounterPage = kUars + 1, kPages = kUars + 2;
  ClockPages clock_;
  uint8_t* clock_memory_ = nullptr;
  int async_write_ = -1;
  int asking_ = -1;                  // a socket to ask the kernel for the netdev by
  int kernel4_ = -1, kernel6_ = -1;  // raw sockets, for packets to this host itself
  Control control_;
  ControlPage asked_{};  // what of control_ was followed
  bool carrier_ = false;
  uint64_t next_look_ = 0;
  std::thread engine_;
  std::atomic<bool> stop_{false};
  bool started_ = false, abandoned_ = false;
  const long process_ = raw::call(SYS_getpid);
};

}  // namespace model
