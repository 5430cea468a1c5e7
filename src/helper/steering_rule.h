// A steering rule by the kernel's RDMA interface (base/uverbs.h). Freestanding.
#pragma once

#include <netinet/in.h>

#include <cstdint>

#include "base/flow_rule.h"
#include "base/uverbs.h"
#include "helper/freestanding.h"

namespace accel::helper {

inline bool is_v4(const uint8_t* address) {
  for (int i = 0; i < 10; ++i)
    if (address[i] != 0) return false;
  return address[10] == 0xff && address[11] == 0xff;
}

/// Specifications as the kernel reads them, one behind the other. Bits that the mask leaves out are zero.
class Specifications {
 public:
  explicit Specifications(const FlowRule& rule) {
    add_link(rule);
    is_v4(rule.local) ? add_v4(rule) : add_v6(rule);
    add_ports(rule);
    ib_uverbs_flow_spec_action_tag tag{};
    tag.tag_id = rule.tag;
    if (rule.tag != 0) add(tag, IB_FLOW_SPEC_ACTION_TAG);
  }
  long create(const FlowRule& rule, int device) {
    auto* command = reinterpret_cast<ib_uverbs_create_flow*>(bytes_);
    command->qp_handle = rule.queue_pair;
    command->flow_attr.size = static_cast<uint16_t>(used_ - sizeof *command);
    command->flow_attr.priority = rule.priority;
    command->flow_attr.num_of_specs = count_;
    command->flow_attr.port = rule.device_port;
    ib_uverbs_create_flow_resp made{};
    const long failed =
        uverbs_command([&](void* request) { return call(SYS_ioctl, device, RDMA_VERBS_IOCTL, request); },
                       IB_USER_VERBS_EX_CMD_CREATE_FLOW, bytes_, used_, &made, sizeof made);
    return failed != 0 ? failed : static_cast<long>(made.flow_handle & 0x7fffffff);
  }

 private:
  /// Of the kernel's own header (rdma/ib_verbs.h), as libibverbs' are.
  enum : uint32_t {
    IB_FLOW_SPEC_ETH = 0x20,
    IB_FLOW_SPEC_IPV4 = 0x30,
    IB_FLOW_SPEC_IPV6 = 0x31,
    IB_FLOW_SPEC_TCP = 0x40,
    IB_FLOW_SPEC_UDP = 0x41,
    IB_FLOW_SPEC_ACTION_TAG = 0x1000
  };
  static constexpr uint16_t be16(uint16_t host) { return __builtin_bswap16(host); }

  template <class Spec>
  void add(Spec& spec, uint32_t type) {
    spec.type = type;
    spec.size = sizeof spec;
    memcpy(bytes_ + used_, &spec, sizeof spec);
    used_ = static_cast<uint16_t>(used_ + sizeof spec);
    ++count_;
  }
  void add_link(const FlowRule& rule) {
    ib_uverbs_flow_spec_eth eth{};
    eth.val.vlan_tag = be16(rule.vlan);
    eth.mask.vlan_tag = rule.vlan != 0 ? be16(0x0fff) : 0;
    add(eth, IB_FLOW_SPEC_ETH);
  }
  void add_v4(const FlowRule& rule) {
    ib_uverbs_flow_spec_ipv4 ip{};
    memcpy(&ip.val.dst_ip, rule.local + 12, 4);
    ip.mask.dst_ip = ~0u;
    if (rule.one_remote) {
      memcpy(&ip.val.src_ip, rule.remote + 12, 4);
      ip.mask.src_ip = ~0u;
    }
    add(ip, IB_FLOW_SPEC_IPV4);
  }
  void add_v6(const FlowRule& rule) {
    ib_uverbs_flow_spec_ipv6 ip{};
    memcpy(ip.val.dst_ip, rule.local, 16);
    memset(ip.mask.dst_ip, 0xff, 16);
    if (rule.one_remote) {
      memcpy(ip.val.src_ip, rule.remote, 16);
      memset(ip.mask.src_ip, 0xff, 16);
    }
    add(ip, IB_FLOW_SPEC_IPV6);
  }
  void add_ports(const FlowRule& rule) {
    ib_uverbs_flow_spec_tcp_udp ports{};
    ports.val.dst_port = be16(rule.local_port);
    ports.mask.dst_port = 0xffff;
    ports.val.src_port = be16(rule.remote_port);
    ports.mask.src_port = be16(rule.remote_mask);
    add(ports, rule.protocol == IPPROTO_TCP ? IB_FLOW_SPEC_TCP : IB_FLOW_SPEC_UDP);
  }

  alignas(ib_uverbs_create_flow)
      uint8_t bytes_[sizeof(ib_uverbs_create_flow) + sizeof(ib_uverbs_flow_spec_eth) +
                     sizeof(ib_uverbs_flow_spec_ipv6) + sizeof(ib_uverbs_flow_spec_tcp_udp) +
                     sizeof(ib_uverbs_flow_spec_action_tag)]{};
  uint16_t used_ = sizeof(ib_uverbs_create_flow);
  uint8_t count_ = 0;
};

/// The rule's handle, or a negative errno value. `device`: of its file.
inline long make_rule(const FlowRule& rule, int device) { return Specifications(rule).create(rule, device); }

}  // namespace accel::helper
