// Steering rules by ibv_create_flow: VLAN, IP, ports, and the tag that their frames bear. Not the MAC
// address: the netdev's may change, and until rules for the new one were made the kernel would reset
// connections. It takes CAP_NET_RAW; a process that has given that up has its helper make them
// (base/flow_rule.h), and of those there is no more than the kernel's handle.
#include <sys/ioctl.h>

#include <cerrno>
#include <cstddef>
#include <cstring>

#include "base/uverbs.h"
#include "mlx5/direct_port.h"

namespace accel::mlx5 {
namespace {

/// The request as the library wants it: a header, and specifications right behind.
class Request {
 public:
  template <class Spec>
  void add(Spec spec, ibv_flow_spec_type type) {
    spec.type = type;
    spec.size = sizeof(spec);
    std::memcpy(body_.specs + used_, &spec, sizeof(spec));
    used_ += sizeof(spec);
    last_ = sizeof(spec);
    ++body_.attr.num_of_specs;
  }
  void drop_last() {
    used_ -= last_;
    --body_.attr.num_of_specs;
  }
  ibv_flow* create(ibv_qp* qp, uint8_t port, uint16_t priority) {
    body_.attr.type = IBV_FLOW_ATTR_NORMAL;
    body_.attr.priority = priority;
    body_.attr.port = port;
    body_.attr.size = static_cast<uint16_t>(sizeof(body_.attr) + used_);
    return ibv_create_flow(qp, &body_.attr);
  }

 private:
  struct Body {
    ibv_flow_attr attr{};
    uint8_t specs[sizeof(ibv_flow_spec_eth) + sizeof(ibv_flow_spec_ipv6) + sizeof(ibv_flow_spec_tcp_udp) +
                  sizeof(ibv_flow_spec_action_tag)] = {};
  };
  static_assert(offsetof(Body, specs) == sizeof(ibv_flow_attr));
  Body body_;
  size_t used_ = 0, last_ = 0;
};

void add_ipv4(Request& request, const FlowKey& key) {
  ibv_flow_spec_ipv4 ip{};
  std::memcpy(&ip.val.dst_ip, key.local.address.v4_bytes(), 4);
  ip.mask.dst_ip = ~0u;
  if (key.is_connected()) {
    std::memcpy(&ip.val.src_ip, key.remote.address.v4_bytes(), 4);
    ip.mask.src_ip = ~0u;
  }
  request.add(ip, IBV_FLOW_SPEC_IPV4);
}

void add_ipv6(Request& request, const FlowKey& key) {
  ibv_flow_spec_ipv6 ip{};
  std::memcpy(ip.val.dst_ip, key.local.address.bytes.data(), 16);
  std::memset(ip.mask.dst_ip, 0xff, 16);
  if (key.is_connected()) {
    std::memcpy(ip.val.src_ip, key.remote.address.bytes.data(), 16);
    std::memset(ip.mask.src_ip, 0xff, 16);
  }
  request.add(ip, IBV_FLOW_SPEC_IPV6);
}

/// A rule is a pointer to libibverbs' object or, made odd, a handle.
void* of_handle(int handle) {
  return reinterpret_cast<void*>(static_cast<uintptr_t>(handle) << 1 | 1);  // NOLINT
}
bool is_handle(const void* rule) { return (reinterpret_cast<uintptr_t>(rule) & 1) != 0; }

}  // namespace

Result<void*> VerbsRules::create(const Match& match) {
  const FlowKey& key = match.key;
  Request request;
  ibv_flow_spec_eth eth{};
  if (key.vlan != 0) {
    eth.val.vlan_tag = htobe16(key.vlan);
    eth.mask.vlan_tag = htobe16(kVlanId);
  }
  request.add(eth, IBV_FLOW_SPEC_ETH);
  key.local.address.is_v4() ? add_ipv4(request, key) : add_ipv6(request, key);
  ibv_flow_spec_tcp_udp ports{};
  if (!match.any_local_port) {
    ports.val.dst_port = htobe16(key.local.port);
    ports.mask.dst_port = 0xffff;
  }
  if (key.is_connected()) {
    ports.val.src_port = htobe16(key.remote.port);
    ports.mask.src_port = 0xffff;
  } else {
    ports.val.src_port = htobe16(match.remote_bits);
    ports.mask.src_port = htobe16(match.remote_mask);
  }
  request.add(ports, key.protocol == Protocol::kTcp ? IBV_FLOW_SPEC_TCP : IBV_FLOW_SPEC_UDP);
  if (tags) {
    ibv_flow_spec_action_tag tag{};
    tag.tag_id = match.tag;
    request.add(tag, IBV_FLOW_SPEC_ACTION_TAG);
  }

  ibv_flow* made = request.create(qp_, port_, match.priority);
  if (!made && tags && (errno == EOPNOTSUPP || errno == EINVAL)) {
    request.drop_last();
    made = request.create(qp_, port_, match.priority);
    if (made) tags = false;
  }
  if (!made && errno == EPERM && others_ != nullptr) return create_by_others(match);
  if (!made) return err(errno != 0 ? errno : EIO);
  return static_cast<void*>(made);
}

Result<void*> VerbsRules::create_by_others(const Match& match) {
  const FlowKey& key = match.key;
  FlowRule rule;
  rule.queue_pair = qp_->handle;
  rule.tag = tags ? match.tag : 0;
  rule.priority = match.priority;
  rule.device_port = port_;
  rule.protocol = static_cast<uint8_t>(key.protocol);
  rule.vlan = key.vlan;
  rule.local_port = match.any_local_port ? uint16_t{0} : key.local.port;
  rule.remote_port = key.is_connected() ? key.remote.port : match.remote_bits;
  rule.remote_mask = key.is_connected() ? uint16_t{0xffff} : match.remote_mask;
  rule.one_remote = key.is_connected();
  std::memcpy(rule.local, key.local.address.bytes.data(), sizeof(rule.local));
  std::memcpy(rule.remote, key.remote.address.bytes.data(), sizeof(rule.remote));
  const Result<int> made = others_(rule, qp_->context->cmd_fd);
  if (!made) return made.error();
  return of_handle(*made);
}

void VerbsRules::destroy(void* rule) {
  if (!is_handle(rule)) return (void)ibv_destroy_flow(static_cast<ibv_flow*>(rule));
  const ib_uverbs_destroy_flow command{0, static_cast<uint32_t>(reinterpret_cast<uintptr_t>(rule) >> 1)};
  uverbs_command([&](void* request) { return ioctl(qp_->context->cmd_fd, RDMA_VERBS_IOCTL, request); },
                 IB_USER_VERBS_EX_CMD_DESTROY_FLOW, &command, sizeof(command), nullptr, 0);
}

}  // namespace accel::mlx5
