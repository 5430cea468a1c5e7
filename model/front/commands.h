// The kernel's side of the uverbs commands (rdma/ib_user_verbs.h, rdma/mlx5-abi.h).
#pragma once

#include <cstring>
#include <span>

#include "model/front/context.h"

namespace model {

/// Of moderation, in microseconds: the queue's context has 12 bits for it.
inline constexpr uint16_t kMostPeriod = 4095;

/// Completion vectors: interrupts of the device.
inline constexpr uint32_t kVectors = 4;

/// A command taken apart: what the core and the driver sent, and where their answers go.
struct Request {
  bool extended = false;
  bool has_net_raw = false;  ///< who asks
  std::span<const uint8_t> core, driver;
  std::span<uint8_t> core_answer, driver_answer;

  /// The core's part from `skip` on as T; what was not sent is zero.
  template <class T>
  T get(size_t skip = 0) const {
    return read<T>(core, skip);
  }
  template <class T>
  T get_driver() const {
    return read<T>(driver, 0);
  }
  template <class T>
  void put(const T& answer) {
    write(core_answer, &answer, sizeof answer);
  }
  template <class T>
  void put_driver(const T& answer) {
    write(driver_answer, &answer, sizeof answer);
  }

 private:
  template <class T>
  static T read(std::span<const uint8_t> from, size_t skip) {
    T value{};
    if (from.size() > skip) memcpy(&value, from.data() + skip, std::min(sizeof value, from.size() - skip));
    return value;
  }
  static void write(std::span<uint8_t> to, const void* from, size_t size) {
    memcpy(to.data(), from, std::min(size, to.size()));
  }
};

/// Each returns 0 or an errno. Gathered in a struct so that Context has one friend.
struct Commands {
  using Run = int (*)(Context&, Request&);
  struct Entry {
    uint32_t number;
    bool extended;
    size_t in,
        out;  // sizes of the core's parts of a legacy command; its answer's address is the first word of `in`
    const char* name;  // for refuse.h
    Run run;
  };
  static const Entry* find(uint32_t number, bool extended);
  static int execute(Context&, const Entry&, Request&);

  // query.cc
  static int get_context(Context&, Request&);
  static int query_device(Context&, Request&);
  static int query_port(Context&, Request&);
  // objects.cc
  static int alloc_pd(Context&, Request&);
  static int dealloc_pd(Context&, Request&);
  static int reg_mr(Context&, Request&);
  static int dereg_mr(Context&, Request&);
  static int create_channel(Context&, Request&);
  static int create_cq(Context&, Request&);
  static int modify_cq(Context&, Request&);
  static int destroy_cq(Context&, Request&);
  // queues.cc
  static int create_qp(Context&, Request&);
  static int query_qp(Context&, Request&);
  static int modify_qp(Context&, Request&);
  static int destroy_qp(Context&, Request&);
  static int create_wq(Context&, Request&);
  static int modify_wq(Context&, Request&);
  static int destroy_wq(Context&, Request&);
  static int create_table(Context&, Request&);
  static int destroy_table(Context&, Request&);
  static int create_flow(Context&, Request&);
  static int destroy_flow(Context&, Request&);

  static int create_rss_qp(Context&, Request&);
  template <class Queue>
  static bool move(Context&, Queue&, QueueState& now, QueueState to);
  static int error(const accel::Result<void>& r) { return r ? 0 : static_cast<int>(r.error()); }
};

}  // namespace model
