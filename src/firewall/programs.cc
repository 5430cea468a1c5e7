#include "firewall/programs.h"

#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/magic.h>
#include <linux/pkt_sched.h>
#include <linux/rtnetlink.h>
#include <sys/syscall.h>
#include <sys/vfs.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>

#include "base/own_table.h"
#include "base/proc.h"
#include "base/real.h"

namespace accel::firewall {
namespace {

/// Attach types that headers of before Linux 6.6 do not have.
constexpr uint32_t kTcxIngress = 46, kTcxEgress = 47;

/// How many programs hang on the hook of a cgroup (`target` is its descriptor) or of a device (its ifindex).
Result<uint32_t> programs_at(uint32_t target, uint32_t type, uint32_t flags) {
  bpf_attr attr{};
  attr.query.target_fd = target;
  attr.query.attach_type = type;
  attr.query.query_flags = flags;
  // With room for none ENOSPC says that there are some.
  if (real.syscall(SYS_bpf, long{BPF_PROG_QUERY}, &attr, sizeof attr.query) == 0 || errno == ENOSPC)
    return attr.query.prog_cnt;
  return err(errno);
}

/// The path of the process's cgroup in the hierarchy of version 2: the line "0::/path" (cgroups(7)).
std::string cgroup_path() {
  const std::string all = read_proc("/proc/self/cgroup");
  const size_t at = all.starts_with("0::") ? 0 : all.find("\n0::");
  if (at == std::string::npos) return "/";
  const size_t begin = all.find("::", at) + 2;
  return all.substr(begin, all.find('\n', begin) - begin);
}

int open_cgroup() {
  const std::string path = cgroup_path();
  for (const char* mount : {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}) {
    const int fd = real.open((mount + path).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0);
    struct statfs facts;
    if (fd >= 0 && fstatfs(fd, &facts) == 0 && facts.f_type == CGROUP2_SUPER_MAGIC) return fd;
    if (fd >= 0) real.close(fd);
  }
  return -1;
}

/// Error{}: none.
Errno find_programs(CgroupPrograms& found) {
  const int saved = errno;
  const int fd = open_cgroup();
  Errno error{};
  auto ask = [&](bool& into, std::initializer_list<uint32_t> types) {
    for (const uint32_t type : types) {
      const auto count = programs_at(static_cast<uint32_t>(fd), type, BPF_F_QUERY_EFFECTIVE);
      if (count && *count > 0) into = true;
      if (count.is(EPERM) || count.is(EACCES)) error = count.error();  // others: the kernel has no such hook
    }
  };
  if (fd >= 0) {
    ask(found.packets, {BPF_CGROUP_INET_INGRESS, BPF_CGROUP_INET_EGRESS});
    ask(found.connect,
        {BPF_CGROUP_INET4_CONNECT, BPF_CGROUP_INET6_CONNECT, BPF_CGROUP_INET4_GETPEERNAME,
         BPF_CGROUP_INET6_GETPEERNAME, BPF_CGROUP_INET4_GETSOCKNAME, BPF_CGROUP_INET6_GETSOCKNAME});
    ask(found.datagrams,
        {BPF_CGROUP_UDP4_SENDMSG, BPF_CGROUP_UDP6_SENDMSG, BPF_CGROUP_UDP4_RECVMSG, BPF_CGROUP_UDP6_RECVMSG});
    ask(found.tcp_events, {BPF_CGROUP_SOCK_OPS});
    ask(found.options, {BPF_CGROUP_GETSOCKOPT, BPF_CGROUP_SETSOCKOPT});
    real.close(fd);
  }
  errno = saved;
  return error;
}

}  // namespace

Result<CgroupPrograms> cgroup_programs() {
  CgroupPrograms found;
  Errno error{};
  in_own_table([&] { error = find_programs(found); });
  if (error != Errno{}) return error;
  return found;
}

const char* cgroup_hook_for(const CgroupPrograms& p, const Question& q) {
  const bool tcp = q.protocol == Protocol::kTcp;
  const bool connects = tcp ? q.active : !q.remote.address.is_any();
  if (p.packets) return "a cgroup's program sees each packet (ingress, egress)";
  if (connects && p.connect) return "a cgroup's program decides where connect() leads";
  if (!tcp && p.datagrams) return "a cgroup's program sees each datagram (sendmsg, recvmsg)";
  if (tcp && p.tcp_events) return "a cgroup's program follows TCP connections (sock_ops)";
  return p.options ? "a cgroup's program sees socket options" : nullptr;
}

namespace {

/// Those that only order frames, spread them over queues, or drop what their queue cannot hold: a queue of a
/// device does no less for accelerated frames.
constexpr std::array<std::string_view, 17> kOrderOnly = {
    "noqueue", "pfifo",  "bfifo",  "pfifo_fast", "pfifo_head_drop", "mq",       "mqprio",
    "multiq",  "prio",   "fq",     "sfq",        "codel",           "fq_codel", "pie",
    "fq_pie",  "clsact", "ingress"};

bool shapes(View attributes) {
  const std::string kind = text(attribute(attributes, TCA_KIND));
  return std::find(kOrderOnly.begin(), kOrderOnly.end(), kind) == kOrderOnly.end();
}

bool has_shaping_qdisc(NetlinkSocket& route, int ifindex) {
  Bytes answer;
  // The kernel tells of all devices' whatever the request names (net/sched/sch_api.c, tc_dump_qdisc()).
  if (!route.dump(RTM_GETQDISC, Payload{tcmsg{}}.view(), answer)) return false;
  bool found = false;
  each_message(answer, [&](uint16_t type, View body) {
    tcmsg head;
    if (type != RTM_NEWQDISC || body.size() < sizeof head) return;
    std::memcpy(&head, body.data(), sizeof head);
    if (head.tcm_ifindex == ifindex) found |= shapes(body.subspan(NLMSG_ALIGN(sizeof head)));
  });
  return found;
}

bool has_filter(NetlinkSocket& route, int ifindex) {
  for (const uint32_t parent :
       {TC_H_MAKE(TC_H_CLSACT, TC_H_MIN_INGRESS), TC_H_MAKE(TC_H_CLSACT, TC_H_MIN_EGRESS)}) {
    tcmsg head{};
    head.tcm_ifindex = ifindex;
    head.tcm_parent = parent;
    Bytes answer;
    const auto asked = route.dump(RTM_GETTFILTER, Payload{head}.view(), answer);
    if (asked.is(EAGAIN) || !answer.empty()) return true;
  }
  return false;
}

}  // namespace

Result<TrafficControl> traffic_control(NetlinkSocket& route, int ifindex) {
  TrafficControl found{has_filter(route, ifindex), has_shaping_qdisc(route, ifindex)};
  if (found.filters) return found;
  const int saved = errno;
  Errno error{};
  for (const uint32_t type : {kTcxIngress, kTcxEgress}) {
    const auto count = programs_at(static_cast<uint32_t>(ifindex), type, 0);
    if (count && *count > 0) found.filters = true;
    if (count.is(EPERM) || count.is(EACCES)) error = count.error();  // others: the kernel has no such hook
  }
  errno = saved;
  if (error != Errno{} && !found.any()) return error;
  return found;
}

}  // namespace accel::firewall
