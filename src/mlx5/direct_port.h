// The port itself, on queues that libibverbs made and that we drive ourselves.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "mlx5/cyclic_queue.h"
#include "mlx5/flow_table.h"
#include "mlx5/handles.h"
#include "mlx5/icmp_tap.h"
#include "mlx5/kernel_inlet.h"
#include "mlx5/mlx5_port.h"
#include "mlx5/provider.h"
#include "mlx5/send_queue.h"
#include "mlx5/standing_rules.h"
#include "mlx5/striding_queue.h"

namespace accel::mlx5 {

/// Steering by ibv_create_flow; by `others` where the process may not.
class VerbsRules final : public RuleMaker {
 public:
  using MakeRule = decltype(Mlx5Options::make_rule);
  VerbsRules(ibv_qp* qp, uint8_t port, MakeRule others) : qp_(qp), port_(port), others_(others) {}
  Result<void*> create(const Match& match) override;
  void destroy(void* rule) override;
  bool tags = true;  ///< the device can tag; found out at the first rule

 private:
  Result<void*> create_by_others(const Match& match);

  ibv_qp* qp_;
  uint8_t port_;
  MakeRule others_;
};

/// Of the strides: a mapping of their own.
struct Unmap {
  size_t size = 0;
  void operator()(uint8_t* memory) const;
};

class DirectPort final : public Mlx5Port {
 public:
  static Result<std::unique_ptr<Mlx5Port>> open(const Mlx5Options& options, FramePool& pool,
                                                std::unique_ptr<ListenerSharing> sharing, Evidence& seen);
  ~DirectPort() override;

  size_t rx_burst(std::span<Packet*> out) override;
  size_t tx_burst(std::span<Packet* const> frames) override;
  std::span<const int> poll_fds() const override { return fds_; }
  bool arm() override;
  int64_t time_of(uint64_t stamp) const override;
  bool alive() const override { return failure_.empty(); }
  std::string failure() const override { return failure_; }
  const PortInfo& info() const override { return info_; }
  Result<void> steer(const FlowKey& key) override { return steer(key, false); }
  Result<void> steer_shared(const FlowKey& key) override { return steer(key, true); }
  void unsteer(const FlowKey& key) override;
  void take_acks(const FlowKey& key, bool on) override;
  bool by_device_rules() const override { return true; }
  void abandon_in_child() override;
  void user_changed() override;
  void address_changed(const MacAddress& mac) override { info_.mac = mac; }
  uint32_t mtu_most() const override;
  Mlx5Stats stats() const override;
  void count(Counters& to) override;

 private:
  DirectPort(const Mlx5Options& options, FramePool& pool) : options_(options), pool_(pool) {}
  // open.cc; each sets seen.stage and seen.error when it fails
  bool open_device(Evidence& seen);
  bool make_queues(Evidence& seen);
  bool make_completions(Evidence& seen, const mlx5dv_context& abilities);
  void moderate(const ibv_cq_moderation_caps& can);
  bool make_send_queue();
  bool adopt_queues(const ibv_device_attr_ex& limits, const mlx5dv_context& abilities);
  int start_sending();
  int stop_sending();
  void describe(const ibv_device_attr_ex& limits);
  // open_receive.cc
  void choose_strides(const mlx5dv_context& abilities);
  uint32_t striding_entries() const;
  uint32_t receive_segments() const;
  uint32_t ring_entries() const;
  bool make_receive_queue();
  bool take_receive_queue(const mlx5dv_cq& cq);
  void take_cyclic_queue(const mlx5dv_rwq& wq, const mlx5dv_cq& cq);
  bool take_striding_queue(const mlx5dv_rwq& wq, const mlx5dv_cq& cq);
  int move_receive_queue(ibv_wq_state to, ibv_wq_state from);
  int start_receiving();
  int stop_receiving();

  Result<void> steer(const FlowKey& key, bool shared);
  size_t keep_ours(std::span<const Received> got, std::span<Packet*> out);
  bool rules_barred() const { return options_.rules_barred && options_.rules_barred(); }
  void serve_sharing();
  void recover();
  void recover_sending();
  void recover_receiving();
  size_t take_icmp(std::span<Packet*> out);
  void note_descriptors(bool open) const;
  void take_events();
  void read_device_events();
  void report(const std::string& text) const;
  std::string text_of(const char* what, const Completion& cause) const;
  void fail(const std::string& why);

  Mlx5Options options_;
  FramePool& pool_;
  PortInfo info_;
  Provider provider_;
  std::unique_ptr<uint8_t, Unmap> stride_memory_;
  StrideMemory strides_;  ///< of a striding queue; stride 0: the queue is cyclic
  Objects verbs_;
  std::unique_ptr<ListenerSharing> sharing_;
  std::optional<VerbsRules> rules_;
  std::optional<StandingRules> standing_;
  std::optional<FlowTable> flows_;
  SendQueue send_;
  std::unique_ptr<ReceiveQueue> receive_;
  uint8_t port_ = 1;  ///< of the device
  KernelInlet inlet_;
  IcmpTap icmp_;
  DoorbellRecord receive_cq_record_;
  void* cq_uar_ = nullptr;
  uint32_t cqn_ = 0;
  uint32_t arm_sequence_ = 0;
  uint32_t refill_batch_ = 16;
  uint32_t polls_ = 0;  ///< since the last look
  uint32_t send_errors_in_row_ = 0, receive_errors_in_row_ = 0;
  bool compressed_ = false;  ///< receive completions: the short ones have no time
  bool real_time_ = false;   ///< completions tell the time of day: seconds << 32 | nanoseconds
  bool has_clock_ = false;   ///< completions tell times, and what they mean is known
  std::vector<int> fds_;
  Mlx5Stats stats_;
  Mlx5Stats counted_;  ///< what count() has given
  std::string failure_;
};

}  // namespace accel::mlx5
