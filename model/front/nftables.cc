#include "model/front/nftables.h"

#include <linux/netfilter.h>
#include <linux/netfilter/nf_tables.h>
#include <linux/netfilter/nfnetlink.h>
#include <linux/netlink.h>
#include <net/if.h>
#include <sys/ioctl.h>

#include <atomic>
#include <cstring>

#include "model/core/bytes.h"
#include "model/front/privileged.h"
#include "model/front/raw.h"

namespace model {
namespace {

constexpr char kLoopback[] = "lo", kEndChain[] = "taken";
constexpr uint16_t kNftables = NFNL_SUBSYS_NFTABLES << 8;
constexpr int32_t kFirst = -500;

std::string chain_of(uint16_t order) { return "order" + std::to_string(order); }

/// The loopback device's number while it is up; 0: it is not.
uint32_t loopback() {
  ifreq request{};
  strcpy(request.ifr_name, kLoopback);
  const int fd = raw::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return 0;
  const bool up =
      raw::call(SYS_ioctl, fd, SIOCGIFFLAGS, raw::word(&request)) == 0 && (request.ifr_flags & IFF_UP) != 0;
  const bool known = up && raw::call(SYS_ioctl, fd, SIOCGIFINDEX, raw::word(&request)) == 0;
  raw::close(fd);
  return known ? static_cast<uint32_t>(request.ifr_ifindex) : 0;
}

/// One expression of a rule: name, then what `fill` puts into its data.
template <class F>
void expression(NetlinkMessage& m, const char* name, F fill) {
  const size_t element = m.begin(NFTA_LIST_ELEM);
  m.text(NFTA_EXPR_NAME, name);
  const size_t data = m.begin(NFTA_EXPR_DATA);
  fill();
  m.end(data);
  m.end(element);
}

void data(NetlinkMessage& m, uint16_t type, const void* value, size_t size) {
  const size_t at = m.begin(type);
  m.put(NFTA_DATA_VALUE, value, size);
  m.end(at);
}

void compare(NetlinkMessage& m, uint32_t op, const void* value, size_t size) {
  expression(m, "cmp", [&] {
    m.be32(NFTA_CMP_SREG, NFT_REG_1).be32(NFTA_CMP_OP, op);
    data(m, NFTA_CMP_DATA, value, size);
  });
}

void compare_bytes(NetlinkMessage& m, const StealTable::Compare& c) {
  const auto size = static_cast<uint32_t>(c.value.size());
  expression(m, "payload", [&] {
    m.be32(NFTA_PAYLOAD_DREG, NFT_REG_1).be32(NFTA_PAYLOAD_BASE, c.base);
    m.be32(NFTA_PAYLOAD_OFFSET, c.offset).be32(NFTA_PAYLOAD_LEN, size);
  });
  expression(m, "bitwise", [&] {
    m.be32(NFTA_BITWISE_SREG, NFT_REG_1).be32(NFTA_BITWISE_DREG, NFT_REG_1).be32(NFTA_BITWISE_LEN, size);
    data(m, NFTA_BITWISE_MASK, c.mask.data(), size);
    data(m, NFTA_BITWISE_XOR, std::vector<uint8_t>(size).data(), size);
  });
  std::vector<uint8_t> wanted(c.value);
  for (size_t i = 0; i < wanted.size(); ++i) wanted[i] &= c.mask[i];
  compare(m, c.negate ? NFT_CMP_NEQ : NFT_CMP_EQ, wanted.data(), size);
}

void load(NetlinkMessage& m, uint32_t value) {
  expression(m, "immediate", [&] {
    m.be32(NFTA_IMMEDIATE_DREG, NFT_REG_1);
    data(m, NFTA_IMMEDIATE_DATA, &value, sizeof value);
  });
}

void set_mark(NetlinkMessage& m, uint32_t mark) {
  load(m, mark);
  expression(m, "meta", [&] { m.be32(NFTA_META_KEY, NFT_META_MARK).be32(NFTA_META_SREG, NFT_REG_1); });
}

/// A copy, and the frame is dropped behind it. Sent on itself (fwd) it would still be its sender's, where
/// that is a host of the same machine, whose program would have a second SCM_TSTAMP_SND of it.
void copy_to(NetlinkMessage& m, uint32_t ifindex) {
  load(m, ifindex);
  expression(m, "dup", [&] { m.be32(NFTA_DUP_SREG_DEV, NFT_REG_1); });
}

void compare_meta(NetlinkMessage& m, uint32_t key, const void* value, size_t size) {
  expression(m, "meta", [&] { m.be32(NFTA_META_DREG, NFT_REG_1).be32(NFTA_META_KEY, key); });
  compare(m, NFT_CMP_EQ, value, size);
}

void drop(NetlinkMessage& m) {
  expression(m, "immediate", [&] {
    m.be32(NFTA_IMMEDIATE_DREG, NFT_REG_VERDICT);
    const size_t at = m.begin(NFTA_IMMEDIATE_DATA), verdict = m.begin(NFTA_DATA_VERDICT);
    m.be32(NFTA_VERDICT_CODE, NF_DROP);
    m.end(verdict);
    m.end(at);
  });
}

}  // namespace

NetlinkMessage::NetlinkMessage(uint16_t type, uint16_t flags, uint32_t serial, uint8_t family,
                               uint16_t resource) {
  bytes_.resize(NLMSG_HDRLEN + sizeof(nfgenmsg));
  auto* header = reinterpret_cast<nlmsghdr*>(bytes_.data());
  header->nlmsg_type = type;
  header->nlmsg_flags = static_cast<uint16_t>(NLM_F_REQUEST | flags);
  header->nlmsg_seq = serial;
  auto* generic = reinterpret_cast<nfgenmsg*>(bytes_.data() + NLMSG_HDRLEN);
  generic->nfgen_family = family;
  generic->version = NFNETLINK_V0;
  generic->res_id = htobe16(resource);
}

NetlinkMessage& NetlinkMessage::put(uint16_t type, const void* value, size_t size) {
  const nlattr header{static_cast<uint16_t>(NLA_HDRLEN + size), type};
  const size_t at = bytes_.size();
  bytes_.resize(at + NLA_HDRLEN + NLA_ALIGN(size));
  memcpy(bytes_.data() + at, &header, sizeof header);
  memcpy(bytes_.data() + at + NLA_HDRLEN, value, size);
  return *this;
}

NetlinkMessage& NetlinkMessage::be32(uint16_t type, uint32_t value) {
  uint8_t bytes[4];
  store32(bytes, value);
  return put(type, bytes, sizeof bytes);
}

NetlinkMessage& NetlinkMessage::be64(uint16_t type, uint64_t value) {
  uint8_t bytes[8];
  store64(bytes, value);
  return put(type, bytes, sizeof bytes);
}

size_t NetlinkMessage::begin(uint16_t type) {
  const size_t at = bytes_.size();
  put(static_cast<uint16_t>(type | NLA_F_NESTED), nullptr, 0);
  return at;
}

void NetlinkMessage::end(size_t at) {
  const auto size = static_cast<uint16_t>(bytes_.size() - at);
  memcpy(bytes_.data() + at, &size, sizeof size);
}

std::span<const uint8_t> NetlinkMessage::finish() {
  reinterpret_cast<nlmsghdr*>(bytes_.data())->nlmsg_len = static_cast<uint32_t>(bytes_.size());
  return bytes_;
}

StealTable::~StealTable() { close(); }

void StealTable::close() {
  if (fd_ >= 0) raw::close(fd_);
  fd_ = -1;
}

NetlinkMessage StealTable::new_chain(const std::string& name, const char* netdev, int32_t priority) {
  NetlinkMessage chain(kNftables | NFT_MSG_NEWCHAIN, NLM_F_CREATE | NLM_F_ACK, ++serial_, NFPROTO_NETDEV, 0);
  chain.text(NFTA_CHAIN_TABLE, name_).text(NFTA_CHAIN_NAME, name);
  const size_t hook = chain.begin(NFTA_CHAIN_HOOK);
  chain.be32(NFTA_HOOK_HOOKNUM, NF_NETDEV_INGRESS);
  chain.be32(NFTA_HOOK_PRIORITY, static_cast<uint32_t>(priority)).text(NFTA_HOOK_DEV, netdev);
  chain.end(hook);
  chain.be32(NFTA_CHAIN_POLICY, NF_ACCEPT).text(NFTA_CHAIN_TYPE, "filter");
  return chain;
}

NetlinkMessage StealTable::new_rule(const std::string& chain) {
  NetlinkMessage rule(kNftables | NFT_MSG_NEWRULE, NLM_F_CREATE | NLM_F_APPEND | NLM_F_ECHO | NLM_F_ACK,
                      ++serial_, NFPROTO_NETDEV, 0);
  rule.text(NFTA_RULE_TABLE, name_).text(NFTA_RULE_CHAIN, chain);
  return rule;
}

accel::Result<void> StealTable::open(const std::string& netdev) {
  static std::atomic<uint32_t> opened{0};
  const auto process = static_cast<uint32_t>(raw::call(SYS_getpid));
  const uint32_t serial = ++opened;
  name_ = "mlx5model" + std::to_string(process) + "x" + std::to_string(serial);
  mark_ = process << 8 | (serial & 0xff);  // process numbers have 22 bits
  netdev_ = netdev;
  fd_ = raw::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_NETFILTER);
  if (fd_ < 0) return accel::err(-fd_);
  std::vector<NetlinkMessage> batch;
  batch.emplace_back(kNftables | NFT_MSG_NEWTABLE, NLM_F_CREATE, ++serial_, NFPROTO_NETDEV, 0);
  batch.back().text(NFTA_TABLE_NAME, name_).be32(NFTA_TABLE_FLAGS, NFT_TABLE_F_OWNER);
  batch.push_back(new_chain(kEndChain, kLoopback, kFirst));
  // Multicast would else be the loopback device's.
  NetlinkMessage& end = batch.emplace_back(new_rule(kEndChain));
  const size_t list = end.begin(NFTA_RULE_EXPRESSIONS);
  compare_meta(end, NFT_META_MARK, &mark_, sizeof mark_);
  drop(end);
  end.end(list);
  auto made = transact(batch);
  if (made) return {};
  close();
  return made.error();
}

accel::Result<uint64_t> StealTable::add(std::span<const Compare> compares, uint16_t ether_type,
                                        uint16_t order) {
  const uint32_t lo = loopback();
  if (lo == 0) return accel::err(ENETDOWN);
  std::vector<NetlinkMessage> batch;
  const bool is_new = !chains_.contains(order);
  if (is_new) batch.push_back(new_chain(chain_of(order), netdev_.c_str(), kFirst + order));
  NetlinkMessage& m = batch.emplace_back(new_rule(chain_of(order)));
  const size_t list = m.begin(NFTA_RULE_EXPRESSIONS);
  if (ether_type != 0) {
    const uint16_t wanted = htobe16(ether_type);
    compare_meta(m, NFT_META_PROTOCOL, &wanted, sizeof wanted);
  }
  for (const Compare& c : compares) compare_bytes(m, c);
  set_mark(m, mark_);
  copy_to(m, lo);
  drop(m);
  m.end(list);
  auto made = transact(batch);
  if (made) chains_.insert(order);
  return made;
}

void StealTable::remove(uint64_t handle, uint16_t order) {
  std::vector<NetlinkMessage> batch;
  batch.emplace_back(kNftables | NFT_MSG_DELRULE, NLM_F_ACK, ++serial_, NFPROTO_NETDEV, 0);
  batch.back()
      .text(NFTA_RULE_TABLE, name_)
      .text(NFTA_RULE_CHAIN, chain_of(order))
      .be64(NFTA_RULE_HANDLE, handle);
  (void)transact(batch);  // gone with the table at the latest
}

/// Sends messages as one batch and waits for the last one's acknowledgement; the result is the handle echoed,
/// or 0.
accel::Result<uint64_t> StealTable::transact(std::span<NetlinkMessage> messages) {
  if (fd_ < 0) return accel::err(EBADF);
  std::vector<uint8_t> all;
  const auto append = [&](std::span<const uint8_t> bytes) {
    all.insert(all.end(), bytes.begin(), bytes.end());
  };
  append(NetlinkMessage(NFNL_MSG_BATCH_BEGIN, 0, serial_, AF_UNSPEC, NFNL_SUBSYS_NFTABLES).finish());
  for (NetlinkMessage& m : messages) append(m.finish());
  append(NetlinkMessage(NFNL_MSG_BATCH_END, 0, serial_, AF_UNSPEC, NFNL_SUBSYS_NFTABLES).finish());
  if (const long n = privileged_call(SYS_sendto, fd_, raw::word(all.data()), raw::word(all.size())); n < 0) {
    return accel::err(static_cast<int>(-n));
  }
  uint64_t handle = 0;
  for (;;) {
    alignas(nlmsghdr) uint8_t answer[16384];
    const long n = raw::read(fd_, answer, sizeof answer);
    if (n == -EINTR) continue;
    if (n < 0) return accel::err(static_cast<int>(-n));
    auto left = static_cast<unsigned>(n);
    for (auto* m = reinterpret_cast<nlmsghdr*>(answer); NLMSG_OK(m, left); m = NLMSG_NEXT(m, left)) {
      if (m->nlmsg_type == NLMSG_ERROR) {
        const int error = reinterpret_cast<nlmsgerr*>(NLMSG_DATA(m))->error;
        if (error != 0) return accel::err(-error);
        if (m->nlmsg_seq == serial_) return handle;
      }
      if (m->nlmsg_type != (kNftables | NFT_MSG_NEWRULE)) continue;
      auto* a =
          reinterpret_cast<nlattr*>(static_cast<uint8_t*>(NLMSG_DATA(m)) + NLMSG_ALIGN(sizeof(nfgenmsg)));
      const auto* end = reinterpret_cast<uint8_t*>(m) + m->nlmsg_len;
      while (reinterpret_cast<uint8_t*>(a) + NLA_HDRLEN <= end && a->nla_len >= NLA_HDRLEN) {
        if ((a->nla_type & NLA_TYPE_MASK) == NFTA_RULE_HANDLE) {
          handle = load64(reinterpret_cast<uint8_t*>(a) + NLA_HDRLEN);
        }
        a = reinterpret_cast<nlattr*>(reinterpret_cast<uint8_t*>(a) + NLA_ALIGN(a->nla_len));
      }
    }
  }
}

}  // namespace model
