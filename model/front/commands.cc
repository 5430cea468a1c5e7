#include "model/front/commands.h"

#include <rdma/ib_user_verbs.h>

#include "model/front/privileged.h"
#include "model/front/refuse.h"

namespace model {
namespace {

constexpr Commands::Entry kTable[] = {
    {IB_USER_VERBS_CMD_GET_CONTEXT, false, sizeof(ib_uverbs_get_context), sizeof(ib_uverbs_get_context_resp),
     "get_context", Commands::get_context},
    {IB_USER_VERBS_CMD_QUERY_DEVICE, false, sizeof(ib_uverbs_query_device),
     sizeof(ib_uverbs_query_device_resp), "query_device", Commands::query_device},
    {IB_USER_VERBS_CMD_QUERY_PORT, false, sizeof(ib_uverbs_query_port), sizeof(ib_uverbs_query_port_resp),
     "query_port", Commands::query_port},
    {IB_USER_VERBS_CMD_ALLOC_PD, false, sizeof(ib_uverbs_alloc_pd), sizeof(ib_uverbs_alloc_pd_resp),
     "alloc_pd", Commands::alloc_pd},
    {IB_USER_VERBS_CMD_DEALLOC_PD, false, sizeof(ib_uverbs_dealloc_pd), 0, "dealloc_pd",
     Commands::dealloc_pd},
    {IB_USER_VERBS_CMD_REG_MR, false, sizeof(ib_uverbs_reg_mr), sizeof(ib_uverbs_reg_mr_resp), "reg_mr",
     Commands::reg_mr},
    {IB_USER_VERBS_CMD_DEREG_MR, false, sizeof(ib_uverbs_dereg_mr), 0, "dereg_mr", Commands::dereg_mr},
    {IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL, false, sizeof(ib_uverbs_create_comp_channel),
     sizeof(ib_uverbs_create_comp_channel_resp), "create_channel", Commands::create_channel},
    {IB_USER_VERBS_CMD_CREATE_CQ, false, sizeof(ib_uverbs_create_cq), sizeof(ib_uverbs_create_cq_resp),
     "create_cq", Commands::create_cq},
    {IB_USER_VERBS_CMD_DESTROY_CQ, false, sizeof(ib_uverbs_destroy_cq), sizeof(ib_uverbs_destroy_cq_resp),
     "destroy_cq", Commands::destroy_cq},
    {IB_USER_VERBS_CMD_CREATE_QP, false, sizeof(ib_uverbs_create_qp), sizeof(ib_uverbs_create_qp_resp),
     "create_qp", Commands::create_qp},
    {IB_USER_VERBS_CMD_QUERY_QP, false, sizeof(ib_uverbs_query_qp), sizeof(ib_uverbs_query_qp_resp),
     "query_qp", Commands::query_qp},
    {IB_USER_VERBS_CMD_MODIFY_QP, false, sizeof(ib_uverbs_modify_qp), 0, "modify_qp", Commands::modify_qp},
    {IB_USER_VERBS_CMD_DESTROY_QP, false, sizeof(ib_uverbs_destroy_qp), sizeof(ib_uverbs_destroy_qp_resp),
     "destroy_qp", Commands::destroy_qp},
    {IB_USER_VERBS_EX_CMD_QUERY_DEVICE, true, 0, 0, "query_device", Commands::query_device},
    {IB_USER_VERBS_EX_CMD_CREATE_CQ, true, 0, 0, "create_cq", Commands::create_cq},
    {IB_USER_VERBS_EX_CMD_CREATE_QP, true, 0, 0, "create_qp", Commands::create_qp},
    {IB_USER_VERBS_EX_CMD_CREATE_FLOW, true, 0, 0, "create_flow", Commands::create_flow},
    {IB_USER_VERBS_EX_CMD_DESTROY_FLOW, true, 0, 0, "destroy_flow", Commands::destroy_flow},
    {IB_USER_VERBS_EX_CMD_CREATE_WQ, true, 0, 0, "create_wq", Commands::create_wq},
    {IB_USER_VERBS_EX_CMD_MODIFY_WQ, true, 0, 0, "modify_wq", Commands::modify_wq},
    {IB_USER_VERBS_EX_CMD_DESTROY_WQ, true, 0, 0, "destroy_wq", Commands::destroy_wq},
    {IB_USER_VERBS_EX_CMD_CREATE_RWQ_IND_TBL, true, 0, 0, "create_table", Commands::create_table},
    {IB_USER_VERBS_EX_CMD_DESTROY_RWQ_IND_TBL, true, 0, 0, "destroy_table", Commands::destroy_table},
    {IB_USER_VERBS_EX_CMD_MODIFY_CQ, true, 0, 0, "modify_cq", Commands::modify_cq},
};

uint8_t* address(std::span<const uint8_t> bytes) {
  uint64_t value;
  memcpy(&value, bytes.data(), sizeof value);
  return reinterpret_cast<uint8_t*>(value);
}

/// Legacy: header, core (answer's address first), driver. Sizes of the two parts are the command's.
int take_apart(const Commands::Entry& e, const ib_uverbs_cmd_hdr& header, std::span<const uint8_t> body,
               Request& r) {
  if (body.size() < e.in) return EINVAL;
  r.core = body.first(e.in);
  r.driver = body.subspan(e.in);
  const size_t room = header.out_words * 4u;
  if (e.out == 0) return 0;
  if (room < e.out) return ENOSPC;
  uint8_t* answer = address(body);
  r.core_answer = {answer, e.out};
  r.driver_answer = {answer + e.out, room - e.out};
  return 0;
}

/// Extended: both headers, core, driver; sizes in 8-byte words in the headers.
int take_apart_extended(const ib_uverbs_cmd_hdr& header, std::span<const uint8_t> body, Request& r) {
  ib_uverbs_ex_cmd_hdr more;
  if (body.size() < sizeof more) return EINVAL;
  memcpy(&more, body.data(), sizeof more);
  body = body.subspan(sizeof more);
  const size_t core = header.in_words * 8u, driver = more.provider_in_words * 8u;
  if (body.size() != core + driver || more.cmd_hdr_reserved != 0) return EINVAL;
  r.core = body.first(core);
  r.driver = body.subspan(core);
  auto* answer = reinterpret_cast<uint8_t*>(more.response);
  r.core_answer = {answer, header.out_words * 8u};
  r.driver_answer = {answer + r.core_answer.size(), more.provider_out_words * 8u};
  return 0;
}

}  // namespace

const Commands::Entry* Commands::find(uint32_t number, bool extended) {
  for (const Entry& e : kTable) {
    if (e.number == number && e.extended == extended) return &e;
  }
  return nullptr;
}

int Context::command(std::span<const uint8_t> bytes) {
  ib_uverbs_cmd_hdr header;
  if (abandoned_) return EIO;
  if (bytes.size() < sizeof header) return EINVAL;
  memcpy(&header, bytes.data(), sizeof header);
  Request request;
  request.extended = (header.command & IB_USER_VERBS_CMD_FLAG_EXTENDED) != 0;
  const Commands::Entry* entry =
      Commands::find(header.command & IB_USER_VERBS_CMD_COMMAND_MASK, request.extended);
  if (entry == nullptr) return EOPNOTSUPP;
  const Call one(*this);
  if (!started_ && entry->run != Commands::get_context) return EINVAL;
  const auto body = bytes.subspan(sizeof header);
  const int bad = request.extended ? take_apart_extended(header, body, request)
                                   : take_apart(*entry, header, body, request);
  request.has_net_raw = has_net_raw(0);
  return bad != 0 ? bad : Commands::execute(*this, *entry, request);
}

int Commands::execute(Context& c, const Entry& entry, Request& request) {
  if (const int no = refusal(entry.name); no != 0) return no;
  if (!c.device_.removed() || entry.run == get_context) return entry.run(c, request);
  if (entry.run == destroy_flow) entry.run(c, request);
  return EIO;
}

}  // namespace model
