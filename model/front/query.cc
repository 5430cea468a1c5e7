// GET_CONTEXT, QUERY_DEVICE, QUERY_PORT: what the NIC says of itself. Only what the model does is offered.
#include <infiniband/verbs.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/mlx5-abi.h>

#include "model/front/commands.h"
#include "model/front/environment.h"
#include "model/front/netdev.h"
#include "model/front/raw.h"

namespace model {
namespace {

constexpr uint64_t kFirmware = 16ull << 32 | 35 << 16 | 2000;  // as sysfs.py's fw_ver
constexpr uint64_t kGuid = 0x506b4b0300a1b200;
uint32_t part() {
  const std::string& given = environment().part;
  return given.empty() ? 0x1017 : static_cast<uint32_t>(strtoul(given.c_str(), nullptr, 16));
}
constexpr uint32_t kRawPacket = 1u << IBV_QPT_RAW_PACKET;

ib_uverbs_query_device_resp attributes() {
  ib_uverbs_query_device_resp a{};
  a.fw_ver = kFirmware;
  a.node_guid = a.sys_image_guid = htobe64(kGuid);
  a.max_mr_size = ~0ull;
  a.page_size_cap = 0xfffffffffffff000;
  a.vendor_id = 0x15b3;
  a.vendor_part_id = part();
  a.max_qp = 1024;
  a.max_qp_wr = 32768;
  a.device_cap_flags = IBV_DEVICE_MANAGED_FLOW_STEERING | IBV_DEVICE_RAW_IP_CSUM;
  a.max_sge = 30;
  a.max_sge_rd = 30;
  a.max_cq = 4096;
  a.max_cqe = 4194303;
  a.max_mr = 65536;
  a.max_pd = 4096;
  a.max_raw_ethy_qp = 1024;
  a.max_pkeys = 128;
  a.local_ca_ack_delay = 16;
  a.phys_port_cnt = 1;
  return a;
}

}  // namespace

int Commands::get_context(Context& c, Request& r) {
  const auto in = r.get_driver<mlx5_ib_alloc_ucontext_req_v2>();
  if (in.flags != 0) return EINVAL;  // DevX: the library asks again without
  if ((in.lib_caps & MLX5_LIB_CAP_DYN_UAR) == 0 || in.max_cqe_version < 1) return EOPNOTSUPP;
  if (const int bad = c.start(); bad != 0) return bad;
  int events[2];
  if (const int bad = raw::pipe(events, O_CLOEXEC | O_NONBLOCK); bad < 0) return -bad;
  // libibverbs reads asynchronous events blocking, unless its user asks otherwise.
  raw::call(SYS_fcntl, events[0], F_SETFL, 0);
  c.async_write_ = raw::keep(events[1]);

  ib_uverbs_get_context_resp out{};
  out.async_fd = static_cast<uint32_t>(events[0]);
  out.num_comp_vectors = kVectors;
  memcpy(r.core_answer.data(), &out, sizeof out);
  mlx5_ib_alloc_ucontext_resp d{};
  d.qp_tab_size = 1024;
  d.bf_reg_size = 512;
  d.tot_bfregs = 0;  // dynamic UARs, by ioctl
  d.cache_line_size = 64;
  d.max_sq_desc_sz = static_cast<uint16_t>(c.device_.limits().max_send_bytes);
  d.max_rq_desc_sz = 512;
  d.max_send_wqebb = 32768;
  d.max_recv_wr = 32768;
  d.max_srq_recv_wr = 32767;
  d.num_ports = 1;
  d.response_length = sizeof d;
  d.cqe_version = 1;
  d.cmds_supp_uhw = MLX5_USER_CMDS_SUPP_UHW_QUERY_DEVICE | MLX5_USER_CMDS_SUPP_UHW_CREATE_AH;
  const bool wants_headers = c.device_.limits().min_inline != 0;
  d.eth_min_inline = wants_headers ? MLX5_USER_INLINE_MODE_L2 : MLX5_USER_INLINE_MODE_NONE;
  d.clock_info_versions = 1 << MLX5_IB_CLOCK_INFO_V1;
  d.comp_mask = MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_CORE_CLOCK_OFFSET;
  if (c.device_.limits().real_time) d.comp_mask |= MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_REAL_TIME_TS;
  d.hca_core_clock_offset = ClockPages::kCounterAt;
  d.log_uar_size = 12;
  d.num_uars_per_page = 1;
  r.put_driver(d);
  return 0;
}

int Commands::query_device(Context& c, Request& r) {
  if (!r.extended) {
    r.put(attributes());
    return 0;
  }
  ib_uverbs_ex_query_device_resp out{};
  out.base = attributes();
  out.response_length = static_cast<uint32_t>(std::min(sizeof out, r.core_answer.size()));
  out.timestamp_mask = ~0ull;
  out.hca_core_clock = 156250;  // kHz, Device::ticks
  out.rss_caps = {kRawPacket, 64, 512, 0};
  out.max_wq_type_rq = 256;
  out.raw_packet_caps = IB_UVERBS_RAW_PACKET_CAP_IP_CSUM;
  out.cq_moderation_caps = {65535, kMostPeriod, 0};
  r.put(out);
  mlx5_ib_query_device_resp d{};
  d.response_length = static_cast<uint32_t>(std::min(sizeof d, r.driver_answer.size()));
  d.tso_caps = {c.device_.limits().max_tso, kRawPacket};
  d.rss_caps.rx_hash_fields_mask = 0xff;
  d.rss_caps.rx_hash_function = MLX5_RX_HASH_FUNC_TOEPLITZ;
  d.cqe_comp_caps = {
      64, MLX5_IB_CQE_RES_FORMAT_HASH | MLX5_IB_CQE_RES_FORMAT_CSUM | MLX5_IB_CQE_RES_FORMAT_CSUM_STRIDX};
  if (c.device_.limits().min_inline == 0)
    d.mlx5_ib_support_multi_pkt_send_wqes = MLX5_IB_ALLOW_MPW | MLX5_IB_SUPPORT_EMPW;
  d.striding_rq_caps = {6, 13, 9, 16, kRawPacket, 0};
  r.put_driver(d);
  return 0;
}

int Commands::query_port(Context& c, Request& r) {
  const auto in = r.get<ib_uverbs_query_port>();
  if (in.port_num != 1) return EINVAL;
  const Netdev dev = ask_netdev(c.asking_);
  ib_uverbs_query_port_resp out{};
  out.port_cap_flags = IBV_PORT_IP_BASED_GIDS;
  out.max_msg_sz = 0x40000000;
  out.gid_tbl_len = 2;
  out.pkey_tbl_len = 1;
  out.state = dev.running ? IBV_PORT_ACTIVE : IBV_PORT_DOWN;
  out.max_mtu = IBV_MTU_4096;
  out.active_mtu = dev.mtu >= 4096 + 70 ? IBV_MTU_4096 : dev.mtu >= 2048 + 70 ? IBV_MTU_2048 : IBV_MTU_1024;
  out.max_vl_num = 1;
  out.active_width = 2;   // 4x
  out.active_speed = 32;  // EDR: 100 Gb/s
  out.phys_state = dev.running ? 5 : 3;
  out.link_layer = IBV_LINK_LAYER_ETHERNET;
  r.put(out);
  return 0;
}

}  // namespace model
