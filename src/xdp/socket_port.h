// The port itself: received descriptors into packets, packets into descriptors.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "xdp/flow_map.h"
#include "xdp/program.h"
#include "xdp/segment_socket.h"
#include "xdp/socket.h"
#include "xdp/xdp_port.h"

namespace accel::xdp {

class SocketPort final : public XdpPort {
 public:
  static Result<std::unique_ptr<XdpPort>> open(const XdpOptions& options, FramePool& pool, std::string* why);
  ~SocketPort() override;

  size_t rx_burst(std::span<Packet*> out) override;
  size_t tx_burst(std::span<Packet* const> frames) override;
  void defer_telling(bool on) override { deferring_ = on && !info_.zero_copy; }
  bool begin_telling() override;
  bool tell() override;
  std::span<const int> poll_fds() const override { return fds_; }
  bool arm() override;
  bool alive() const override { return failure_.empty(); }
  std::string failure() const override { return failure_; }
  const PortInfo& info() const override { return info_; }
  Result<void> steer(const FlowKey& key) override;
  void unsteer(const FlowKey& key) override;
  void pause(const FlowKey& key) override;
  void enter_time_wait(const FlowKey& key) override;
  void take_acks(const FlowKey& key, bool on) override;
  bool has_misdirected() override;
  std::optional<MisdirectedSegment> misdirected(const FlowKey& key) const override;
  Result<void> take_queues(std::string* why) override;
  void abandon_in_child() override;
  uint32_t mtu_most() const override;
  bool is_passed_by() override;
  bool may_be_passed_by() const override { return may_be_passed_by_; }
  bool native() const override { return program_->native(); }
  XdpStats stats() const override;
  void count(Counters& to) override;
  Result<PortRights> entrust(std::string* why) override;
  void seal() override;
  bool has_rights() const override { return !flows_ || !flows_->sealed(); }

 private:
  SocketPort(const XdpOptions& options, FramePool& pool) : options_(options), pool_(pool) {}
  Result<void> set_up(std::string* why);
  Result<void> plan(std::string* why);
  uint32_t one_buffer() const;
  bool all_queues_in_use() const;
  Errno no_queue(std::string* why) const;
  RingSizes ring_sizes() const;
  void divide(uint32_t queues);
  Result<void> register_frames(std::string* why);
  void release_frames();
  Result<void> bind_queues(std::string* why);
  Result<void> bind_one(Queue& queue, std::string* why);
  void allow_sends(int fd);
  Result<void> claim(const Queue& queue);

  size_t receive(Queue& queue, std::span<Packet*> out);
  void fit_fill_level(Queue& queue, uint32_t waiting, uint32_t used);
  void refill(Queue& queue);
  void reclaim(Queue& queue);
  bool put(Queue& queue, Packet* frame);
  Packet* move_out(Packet* buffer);
  Packet* move_in(Packet* frame);
  bool put_for_cutting(Packet* frame);
  void tell_kernel(Queue& queue);
  bool tell_kernel_unlocked(const Queue& queue);
  void take_back_untold();
  Queue& tx_queue(const Packet& frame);
  Packet* from_address(uint64_t address);
  uint64_t address_of(const Packet& p) const;
  void check_device();
  XdpStats ring_stats() const;  ///< what the kernel counts for this port's sockets

  XdpOptions options_;
  FramePool& pool_;
  PortInfo info_;
  uint16_t bind_flags_ = 0;
  uint32_t fill_target_ = 0;   ///< buffers a queue's receive side holds at most
  uint32_t fill_least_ = 0;    ///< and at least, where the kernel copies
  uint32_t tx_limit_ = 0;      ///< buffers of a queue that may wait for completion
  uint32_t reserve_ = 0;       ///< buffers that receiving leaves to sending
  uint32_t queue_frames_ = 0;  ///< of the UMEM for each queue, where the kernel copies
  FrameRange frames_;          ///< the UMEM: this port's own part of the pool, or all of it
  bool has_frames_ = false;    ///< the part has been given to this port
  uint32_t move_below_ = 0;    ///< with fewer of its own free, received frames are moved out of the UMEM
  Umem umem_;
  std::shared_ptr<Program> program_;
  std::optional<FlowMap> flows_;
  std::vector<std::unique_ptr<Queue>> queues_;
  std::unique_ptr<Queue> next_;  ///< not bound yet; the first has the UMEM's own socket
  std::vector<uint32_t> queue_ids_;
  std::vector<int> fds_;
  SegmentSocket segments_;  ///< open: info_.tso
  uint64_t tx_dropped_ = 0;
  XdpStats counted_;
  bool may_be_passed_by_ = false;  ///< until the program has seen a frame
  Fd device_table_;                ///< meanwhile
  uint64_t received_before_ = 0;   ///< by the device, when the port was opened
  uint64_t passed_before_ = 0;     ///< by the program
  uint64_t misdirected_seen_ = 0;  ///< ACCEL_XDP_DROPPED_OTHER_QUEUE by then
  bool deferring_ = false;         ///< the kernel is told by tell()
  bool deferred_ = false;          ///< begin_telling() has something to do
  enum : uint32_t { kNobody, kTelling, kAgain };
  /// One thread tells for all. kAgain: there is more since it looked.
  std::atomic<uint32_t> telling_{kNobody};
  std::atomic<uint32_t> tellers_{0};  ///< threads between begin_telling() and the end of tell()
  std::atomic<bool> untold_{false};   ///< the kernel did not take what tell() was called for
  std::vector<bool> lent_;            ///< by buffer number: in one of the kernel's rings
  size_t next_queue_ = 0;             ///< where the next rx_burst begins
  bool received_ = false;             ///< since arm()
  std::string failure_;
};

}  // namespace accel::xdp
