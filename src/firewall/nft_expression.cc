#include "firewall/nft_expression.h"

#include <linux/netfilter.h>
#include <linux/netfilter/nf_tables.h>
#include <linux/netfilter/nf_tables_compat.h>

#include <array>
#include <string_view>

namespace accel::firewall {
namespace {

using Kind = Expression::Kind;

Expression refusing(std::string what) {
  Expression e;
  e.kind = Kind::kRefuse;
  e.name = std::move(what);
  return e;
}

Expression not_understood(std::string_view name) {
  return refusing("has an expression that is not understood (" + std::string(name) + ")");
}

/// The offset of a register, NFT_REG_1.. (16 bytes each) or NFT_REG32_00.. (4 bytes each), both over the same
/// 64 bytes (nft_parse_register()).
uint8_t reg(View number) {
  const uint32_t n = be32(number);
  if (n >= NFT_REG_1 && n <= NFT_REG_4) return static_cast<uint8_t>((n - NFT_REG_1) * NFT_REG_SIZE);
  if (n >= NFT_REG32_00 && n <= NFT_REG32_15)
    return static_cast<uint8_t>((n - NFT_REG32_00) * NFT_REG32_SIZE);
  return kVerdictRegister;
}

Bytes value(View data) {
  const View bytes = attribute(data, NFTA_DATA_VALUE);
  return {bytes.begin(), bytes.end()};
}

Expression payload(View d) {
  Expression e;
  if (attribute(d, NFTA_PAYLOAD_SREG).data() != nullptr) return refusing("changes the packet");
  constexpr Header kHeaders[] = {Header::kLink, Header::kNetwork, Header::kTransport};
  const uint32_t base = be32(attribute(d, NFTA_PAYLOAD_BASE));
  e.kind = Kind::kPayload;
  e.header = base < std::size(kHeaders) ? kHeaders[base] : Header::kOther;
  e.offset = be32(attribute(d, NFTA_PAYLOAD_OFFSET));
  e.length = be32(attribute(d, NFTA_PAYLOAD_LEN));
  e.dest = reg(attribute(d, NFTA_PAYLOAD_DREG));
  return e;
}

Expression meta(View d) {
  Expression e;
  e.key = be32(attribute(d, NFTA_META_KEY));
  if (attribute(d, NFTA_META_SREG).data() == nullptr) {
    e.kind = Kind::kMeta;
    e.dest = reg(attribute(d, NFTA_META_DREG));
    return e;
  }
  e.source = reg(attribute(d, NFTA_META_SREG));
  if (e.key == NFT_META_NFTRACE) return {};
  if (e.key != NFT_META_MARK) return refusing("changes what the kernel notes of the packet (meta set)");
  e.kind = Kind::kMark;
  return e;
}

/// Setting a connection's mark, label or event mask is for other rules, whose reading it is unknown.
Expression conntrack(View d) {
  Expression e;
  e.key = be32(attribute(d, NFTA_CT_KEY));
  if (attribute(d, NFTA_CT_SREG).data() != nullptr) {
    if (e.key == NFT_CT_MARK || e.key == NFT_CT_LABELS || e.key == NFT_CT_EVENTMASK) return {};
    return refusing("sets up connection tracking (ct set)");
  }
  e.kind = Kind::kConntrack;
  e.dest = reg(attribute(d, NFTA_CT_DREG));
  return e;
}

Expression fib(View d) {
  Expression e;
  e.kind = Kind::kFib;
  e.dest = reg(attribute(d, NFTA_FIB_DREG));
  e.key = be32(attribute(d, NFTA_FIB_RESULT));
  e.flags = be32(attribute(d, NFTA_FIB_FLAGS));
  return e;
}

Expression immediate(View d) {
  Expression e;
  const View data = attribute(d, NFTA_IMMEDIATE_DATA);
  if (const View verdict = attribute(data, NFTA_DATA_VERDICT); verdict.data() != nullptr) {
    e.kind = Kind::kVerdict;
    e.verdict = verdict_of(verdict);
    return e;
  }
  e.kind = Kind::kImmediate;
  e.dest = reg(attribute(d, NFTA_IMMEDIATE_DREG));
  e.data = value(data);
  return e;
}

Expression comparison(View d) {
  Expression e;
  e.kind = Kind::kCompare;
  e.source = reg(attribute(d, NFTA_CMP_SREG));
  const uint32_t how = be32(attribute(d, NFTA_CMP_OP));  // enum nft_cmp_ops has this order
  if (how > NFT_CMP_GTE) return not_understood("cmp");
  constexpr Comparison kHow[] = {Comparison::kEqual,   Comparison::kNotEqual,
                                 Comparison::kLess,    Comparison::kLessOrEqual,
                                 Comparison::kGreater, Comparison::kGreaterOrEqual};
  e.comparison = kHow[how];
  e.data = value(attribute(d, NFTA_CMP_DATA));
  return e;
}

Expression range(View d) {
  Expression e;
  e.kind = Kind::kRange;
  e.source = reg(attribute(d, NFTA_RANGE_SREG));
  e.invert = be32(attribute(d, NFTA_RANGE_OP)) == NFT_RANGE_NEQ;
  e.data = value(attribute(d, NFTA_RANGE_FROM_DATA));
  e.data2 = value(attribute(d, NFTA_RANGE_TO_DATA));
  return e;
}

Expression bitwise(View d) {
  Expression e;
  e.kind = Kind::kBitwise;
  e.source = reg(attribute(d, NFTA_BITWISE_SREG));
  e.dest = reg(attribute(d, NFTA_BITWISE_DREG));
  e.length = be32(attribute(d, NFTA_BITWISE_LEN));
  if (be32(attribute(d, NFTA_BITWISE_OP)) != NFT_BITWISE_BOOL) return e;  // its result is not known
  e.data = value(attribute(d, NFTA_BITWISE_MASK));
  e.data2 = value(attribute(d, NFTA_BITWISE_XOR));
  return e;
}

Expression byte_order(View d) {
  Expression e;
  e.kind = Kind::kByteOrder;
  e.source = reg(attribute(d, NFTA_BYTEORDER_SREG));
  e.dest = reg(attribute(d, NFTA_BYTEORDER_DREG));
  e.length = be32(attribute(d, NFTA_BYTEORDER_LEN));
  e.length2 = be32(attribute(d, NFTA_BYTEORDER_SIZE));
  return e;
}

Expression lookup(View d) {
  Expression e;
  e.kind = Kind::kLookup;
  e.name = text(attribute(d, NFTA_LOOKUP_SET));
  e.source = reg(attribute(d, NFTA_LOOKUP_SREG));
  const View dest = attribute(d, NFTA_LOOKUP_DREG);
  e.dest = dest.data() == nullptr ? kVerdictRegister : reg(dest);
  e.invert = be32(attribute(d, NFTA_LOOKUP_FLAGS)) & NFT_LOOKUP_F_INV;
  return e;
}

/// IPv6 extension headers and IP options: our packets have none. TCP's options: unknown.
Expression extension_header(View d) {
  Expression e;
  if (attribute(d, NFTA_EXTHDR_SREG).data() != nullptr) return refusing("changes the packet");
  const uint32_t op = be32(attribute(d, NFTA_EXTHDR_OP));
  e.dest = reg(attribute(d, NFTA_EXTHDR_DREG));
  if (op != NFT_EXTHDR_OP_IPV6 && op != NFT_EXTHDR_OP_IPV4) {
    if (attribute(d, NFTA_EXTHDR_DREG).data() == nullptr) return refusing("changes the packet");  // reset
    e.kind = Kind::kUnknown;
    return e;
  }
  if (!(be32(attribute(d, NFTA_EXTHDR_FLAGS)) & NFT_EXTHDR_F_PRESENT)) {
    e.kind = Kind::kNoMatch;
    return e;
  }
  e.kind = Kind::kImmediate;  // "exists" gives 0
  e.data = {0, 0, 0, 0};
  return e;
}

/// An expression that reads something into a register that cannot be known beforehand.
Expression unknown(View dest) {
  Expression e;
  e.kind = Kind::kUnknown;
  e.dest = reg(dest);
  return e;
}

Expression extension(Kind kind, View d) {  // NFTA_MATCH_* and NFTA_TARGET_* have the same numbers
  static_assert(NFTA_MATCH_NAME == int{NFTA_TARGET_NAME} && NFTA_MATCH_REV == int{NFTA_TARGET_REV} &&
                NFTA_MATCH_INFO == int{NFTA_TARGET_INFO});
  Expression e;
  e.kind = kind;
  e.name = text(attribute(d, NFTA_MATCH_NAME));
  e.revision = be32(attribute(d, NFTA_MATCH_REV));
  const View info = attribute(d, NFTA_MATCH_INFO);
  e.data.assign(info.begin(), info.end());
  return extension_effect(std::move(e));
}

Expression of_kind(Kind kind) {
  Expression e;
  e.kind = kind;
  return e;
}

Expression object_reference(View d) {
  return be32(attribute(d, NFTA_OBJREF_IMM_TYPE)) == NFT_OBJECT_COUNTER
             ? Expression{}
             : refusing("refers to an object that only the kernel can apply");
}

bool in_bounds(const Expression& e) {
  const bool reads = e.kind == Kind::kCompare || e.kind == Kind::kRange || e.kind == Kind::kBitwise ||
                     e.kind == Kind::kByteOrder || e.kind == Kind::kLookup || e.kind == Kind::kMark;
  const bool writes = e.kind == Kind::kPayload || e.kind == Kind::kMeta || e.kind == Kind::kConntrack ||
                      e.kind == Kind::kFib || e.kind == Kind::kImmediate || e.kind == Kind::kUnknown ||
                      e.kind == Kind::kBitwise || e.kind == Kind::kByteOrder;
  const auto inside = [&](uint8_t at, size_t size) {
    return at < kRegisterBytes && size <= kRegisterBytes - at;
  };
  if (reads && !inside(e.source, std::max(e.length, 4u))) return false;
  if (writes && !inside(e.dest, std::max(e.length, 4u))) return false;
  if (e.kind == Kind::kLookup && e.dest != kVerdictRegister && e.dest >= kRegisterBytes) return false;
  return e.data.size() <= kRegisterBytes || e.kind == Kind::kMatch || e.kind == Kind::kTarget;
}

Expression parse(std::string_view name, View d) {
  if (name == "payload") return payload(d);
  if (name == "meta") return meta(d);
  if (name == "ct") return conntrack(d);
  if (name == "fib") return fib(d);
  if (name == "immediate") return immediate(d);
  if (name == "cmp") return comparison(d);
  if (name == "range") return range(d);
  if (name == "bitwise") return bitwise(d);
  if (name == "byteorder") return byte_order(d);
  if (name == "lookup") return lookup(d);
  if (name == "exthdr") return extension_header(d);
  if (name == "match") return extension(Kind::kMatch, d);
  if (name == "target") return extension(Kind::kTarget, d);
  if (name == "objref") return object_reference(d);
  if (name == "counter" || name == "last") return {};
  if (name == "limit" || name == "connlimit") return of_kind(Kind::kMaybe);
  if (name == "notrack") return of_kind(Kind::kNoTracking);
  if (name == "numgen") return unknown(attribute(d, NFTA_NG_DREG));
  if (name == "hash") return unknown(attribute(d, NFTA_HASH_DREG));
  if (name == "rt") return unknown(attribute(d, NFTA_RT_DREG));
  if (name == "socket") return unknown(attribute(d, NFTA_SOCKET_DREG));
  if (name == "osf") return unknown(attribute(d, NFTA_OSF_DREG));
  if (name == "xfrm") return unknown(attribute(d, NFTA_XFRM_DREG));
  if (name == "log") return refusing("logs");
  if (name == "reject") return refusing("rejects");
  if (name == "queue") return refusing("queues to a program");
  if (name == "nat" || name == "masq" || name == "redir") return refusing("translates addresses");
  if (name == "tproxy" || name == "synproxy") return refusing("hands the connection to a proxy");
  if (name == "dup" || name == "fwd") return refusing("sends the packet elsewhere");
  if (name == "dynset") return refusing("notes the packet in a set");
  if (name == "quota") return refusing("counts against a quota");
  return not_understood(name);
}

}  // namespace

Expression expression_of(const std::string& name, View data) {
  Expression e = parse(name, data);
  return in_bounds(e) ? e : not_understood(name);
}

/// Matches that keep a state which other rules read.
Expression extension_effect(Expression e) {
  if (e.kind == Kind::kMatch && (e.name == "recent" || e.name == "quota" || e.name == "nfacct"))
    return refusing("counts the packet (" + e.name + ")");
  return e;
}

Verdict verdict_of(View attributes) {
  Verdict v;
  v.chain = text(attribute(attributes, NFTA_VERDICT_CHAIN));
  switch (static_cast<int32_t>(be32(attribute(attributes, NFTA_VERDICT_CODE)))) {
    case NF_DROP:
      v.code = Verdict::Code::kDrop;
      break;
    case NF_ACCEPT:
      v.code = Verdict::Code::kAccept;
      break;
    case NF_QUEUE:
      v.code = Verdict::Code::kQueue;
      break;
    case NFT_CONTINUE:
    case NFT_BREAK:
      v.code = Verdict::Code::kContinue;
      break;
    case NFT_JUMP:
      v.code = Verdict::Code::kJump;
      break;
    case NFT_GOTO:
      v.code = Verdict::Code::kGoto;
      break;
    case NFT_RETURN:
      v.code = Verdict::Code::kReturn;
      break;
    default:
      v.code = Verdict::Code::kUnknown;
      break;
  }
  return v;
}

}  // namespace accel::firewall
