#include "firewall/sources.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/syscall.h>
// after libc's names for the same
#include <linux/netfilter.h>
#include <linux/netfilter/nf_tables.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netfilter_ipv4/ip_tables.h>
#include <linux/netfilter_ipv6/ip6_tables.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <utility>

#include "base/private_fds.h"
#include "base/proc.h"
#include "base/real.h"
#include "firewall/nft_parse.h"

namespace accel::firewall {
namespace {

constexpr int kTries = 5;

constexpr uint16_t nft(int type) { return static_cast<uint16_t>(NFNL_SUBSYS_NFTABLES << 8 | type); }

nfgenmsg head_of(uint8_t family) { return {family, NFNETLINK_V0, 0}; }

Result<void> dump_all(NetlinkSocket& socket, int type, Bytes& out) {
  return socket.dump(nft(type), Payload{head_of(NFPROTO_UNSPEC)}.view(), out);
}

/// The number of the rules' last change.
Result<uint32_t> generation(NetlinkSocket& socket) {
  Bytes answer;
  if (auto r = socket.get(nft(NFT_MSG_GETGEN), Payload{head_of(NFPROTO_UNSPEC)}.view(), answer); !r)
    return r.error();
  uint32_t id = 0;
  each_message(answer, [&](uint16_t, View payload) {
    if (payload.size() > sizeof(nfgenmsg))
      id = be32(attribute(payload.subspan(sizeof(nfgenmsg)), NFTA_GEN_ID));
  });
  return id;
}

Result<void> dump_elements(NetlinkSocket& socket, Bytes& out) {
  for (const SetName& set : sets_in(out)) {
    Payload request{head_of(set.family)};
    request.put_text(NFTA_SET_ELEM_LIST_TABLE, set.table);
    request.put_text(NFTA_SET_ELEM_LIST_SET, set.set);
    if (auto r = socket.dump(nft(NFT_MSG_GETSETELEM), request.view(), out); !r) return r;
  }
  return {};
}

Result<Bytes> read_once(NetlinkSocket& socket) {
  Bytes out;
  if (auto r = dump_all(socket, NFT_MSG_GETTABLE, out); !r) return r.error();
  if (auto r = dump_all(socket, NFT_MSG_GETCHAIN, out); !r) return r.error();
  if (!has_base_chain(out)) return Bytes{};
  if (auto r = dump_all(socket, NFT_MSG_GETSET, out); !r) return r.error();
  if (auto r = dump_elements(socket, out); !r) return r.error();
  if (auto r = dump_all(socket, NFT_MSG_GETRULE, out); !r) return r.error();
  return out;
}

/// The words of a family's calls on its tables.
struct Words {
  bool v4;
  const char* names;
  const char* modules;
  int family, level;
};
constexpr Words kWords[] = {
    {true, "/proc/thread-self/net/ip_tables_names", "/sys/module/iptable_", AF_INET, IPPROTO_IP},
    {false, "/proc/thread-self/net/ip6_tables_names", "/sys/module/ip6table_", AF_INET6, IPPROTO_IPV6}};
constexpr const char* kTables[] = {"raw", "mangle", "nat", "filter", "security"};
static_assert(IPT_SO_GET_INFO == int{IP6T_SO_GET_INFO} && IPT_SO_GET_ENTRIES == int{IP6T_SO_GET_ENTRIES} &&
              sizeof(ipt_getinfo) == sizeof(ip6t_getinfo) &&
              sizeof(ipt_get_entries) == sizeof(ip6t_get_entries));

/// They change with each packet.
template <class Raw>
void clear_counters(Bytes& entries) {
  for (size_t at = 0; at + sizeof(Raw) <= entries.size();) {
    Raw raw;
    std::memcpy(&raw, &entries[at], sizeof raw);
    raw.counters = {};
    std::memcpy(&entries[at], &raw, sizeof raw);
    if (raw.next_offset < sizeof raw) return;
    at += raw.next_offset;
  }
}

Result<LegacyTable> read_table(int fd, const Words& words, const std::string& name) {
  ipt_getinfo info{};
  if (name.size() >= sizeof info.name) return err(EINVAL);
  std::memcpy(info.name, name.c_str(), name.size());
  socklen_t length = sizeof info;
  if (real.getsockopt(fd, words.level, IPT_SO_GET_INFO, &info, &length) != 0) return err(errno);
  Bytes bytes(sizeof(ipt_get_entries) + info.size);
  ipt_get_entries head{};
  std::memcpy(head.name, info.name, sizeof head.name);
  head.size = info.size;
  std::memcpy(bytes.data(), &head, sizeof head);
  length = static_cast<socklen_t>(bytes.size());
  if (real.getsockopt(fd, words.level, IPT_SO_GET_ENTRIES, bytes.data(), &length) != 0) return err(errno);
  LegacyTable table;
  table.v4 = words.v4;
  table.name = name;
  table.hooks = info.valid_hooks;
  for (size_t i = 0; i < table.first.size(); ++i) table.first[i] = info.hook_entry[i];
  table.entries.assign(bytes.begin() + sizeof head, bytes.end());
  words.v4 ? clear_counters<ipt_entry>(table.entries) : clear_counters<ip6t_entry>(table.entries);
  return table;
}

/// A line for each table. The list is root's to read. Others with CAP_NET_ADMIN ask for each table whose
/// module is loaded: a request for another one would load its module.
Result<std::string> table_names(const Words& words) {
  const int list = real.open(words.names, O_RDONLY | O_CLOEXEC, 0);
  if (list >= 0) {
    real.close(list);
    return read_proc(words.names);
  }
  if (errno == ENOENT) return std::string{};
  if (errno != EACCES) return err(errno);
  std::string names;
  for (const char* table : kTables)
    if (access((std::string(words.modules) + table).c_str(), F_OK) == 0) names += std::string(table) + "\n";
  return names;
}

Result<void> read_family(const Words& words, std::vector<LegacyTable>& out) {
  const auto listed = table_names(words);
  if (!listed) return listed.error();
  const std::string& names = *listed;
  if (names.empty()) return {};
  const int fd = static_cast<int>(
      real.syscall(SYS_socket, static_cast<long>(words.family), long{SOCK_DGRAM | SOCK_CLOEXEC}, 0L));
  if (fd < 0) return err(errno);
  Result<void> result;
  for (size_t at = 0, end; result.ok() && (end = names.find('\n', at)) != std::string::npos; at = end + 1) {
    auto table = read_table(fd, words, names.substr(at, end - at));
    // The kernel says EAGAIN where the table grew between the two calls; the next look has it.
    if (table)
      out.push_back(std::move(*table));
    else if (!table.is(ENOENT))
      result = table.error();
  }
  real.close(fd);
  return result;
}

}  // namespace

bool netlink_protocol_exists(int protocol) {
  const int saved = errno;
  const std::string all = read_proc("/proc/thread-self/net/netlink");
  errno = saved;
  if (all.empty()) return true;  // not to be seen: asked
  // sk Eth Pid ...: the kernel's own ends have Pid 0.
  for (size_t at = all.find('\n'); at != std::string::npos; at = all.find('\n', at + 1)) {
    char* rest = nullptr;
    const size_t field = all.find(' ', at + 1);
    if (field == std::string::npos) break;
    const long eth = std::strtol(&all[field], &rest, 10);
    if (rest != nullptr && eth == protocol && std::strtoul(rest, nullptr, 10) == 0) return true;
  }
  return false;
}

Result<Bytes> read_nft(NetlinkSocket& socket) {
  Result<Bytes> read = err(EAGAIN);
  for (int i = 0; i < kTries; ++i) {  // until no change came between its parts
    const auto before = generation(socket);
    if (!before)  // a kernel without nf_tables knows no such request
      return before.is(EPERM) ? Result<Bytes>{before.error()} : Result<Bytes>{Bytes{}};
    read = read_once(socket);
    if (!read && !read.is(EAGAIN) && !read.is(ENOENT)) return read;
    const auto after = generation(socket);
    if (read && after && *after == *before) return read;
  }
  return read ? Result<Bytes>{err(EAGAIN)} : read;
}

Result<std::vector<LegacyTable>> read_legacy() {
  std::vector<LegacyTable> tables;
  const int saved = errno;
  Result<void> result;
  for (const Words& words : kWords)
    if (result) result = read_family(words, tables);
  errno = saved;
  if (!result) return result.error();
  return tables;
}

}  // namespace accel::firewall
