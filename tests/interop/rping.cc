// What rdma-core's rping does, as server and as client: the client lends a buffer that the server reads, then
// another that the server writes the same bytes into.
#include "rping.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "verbs.h"

namespace accel::interop {
namespace {

constexpr uint32_t kStartTag = 0x5a17'0001, kSinkTag = 0x5a17'0102;
constexpr uint64_t kStartAt = 0x7f00'0000'1000, kSinkAt = 0x7f00'0010'0000;

/// What the two tell each other about a buffer; the size of every message.
struct Loan {
  uint64_t address = 0;
  uint32_t tag = 0, size = 0;
};
constexpr size_t kLoanSize = 16;

std::array<uint8_t, kLoanSize> pack(const Loan& l) {
  std::array<uint8_t, kLoanSize> out;
  siw::store_be(siw::MutableBytes(out), 0, l.address);
  siw::store_be(siw::MutableBytes(out), 8, l.tag);
  siw::store_be(siw::MutableBytes(out), 12, l.size);
  return out;
}

std::string receive_loan(QueuePair& qp, Loan& l) {
  std::vector<uint8_t> m;
  if (auto e = qp.receive(m); !e.empty()) return e;
  if (m.size() != kLoanSize) return "message of " + std::to_string(m.size()) + " bytes";
  l = {siw::load_be<uint64_t>(m, 0), siw::load_be<uint32_t>(m, 8), siw::load_be<uint32_t>(m, 12)};
  return {};
}

/// rping's text: a head, then letters that go round, and a final zero.
std::vector<uint8_t> ping_text(size_t ping, size_t size) {
  const std::string head = "rdma-ping-" + std::to_string(ping) + ": ";
  std::vector<uint8_t> out(size);
  for (size_t i = 0; i < size; i++) {
    out[i] = i < head.size() ? static_cast<uint8_t>(head[i])
                             : static_cast<uint8_t>(65 + (ping + i - head.size()) % 58);
  }
  out[size - 1] = 0;
  return out;
}

}  // namespace

std::string rping_client(const PeerOptions& options, QueuePair& qp) {
  std::vector<uint8_t> start(options.size), sink(options.size);
  if (auto e = qp.open(); !e.empty()) return e;
  qp.add_region(kStartTag, kStartAt, start);
  qp.add_region(kSinkTag, kSinkAt, sink);
  const auto size = static_cast<uint32_t>(options.size);
  for (size_t ping = 0; ping < options.count; ping++) {
    start = ping_text(ping, size);
    std::fill(sink.begin(), sink.end(), uint8_t{0});
    std::vector<uint8_t> go_ahead;
    for (const Loan& loan : {Loan{kStartAt, kStartTag, size}, Loan{kSinkAt, kSinkTag, size}}) {
      qp.send(pack(loan));
      if (auto e = qp.receive(go_ahead); !e.empty()) return "ping " + std::to_string(ping) + ": " + e;
    }
    if (sink != start) return "ping " + std::to_string(ping) + ": what came back differs";
  }
  return qp.finish(false);
}

std::string rping_server(const PeerOptions& options, QueuePair& qp) {
  std::vector<uint8_t> memory(options.size);
  if (auto e = qp.open(); !e.empty()) return e;
  qp.add_region(kSinkTag, kSinkAt, memory);
  const std::array<uint8_t, kLoanSize> go_ahead{};
  for (size_t ping = 0; ping < options.count; ping++) {
    Loan from, to;
    if (auto e = receive_loan(qp, from); !e.empty()) return e;
    if (from.size != options.size) return "buffer of " + std::to_string(from.size) + " bytes";
    if (auto e = qp.read({kSinkTag, kSinkAt, from.size, from.tag, from.address}); !e.empty())
      return "Read: " + e;
    if (memory != ping_text(ping, options.size))
      return "ping " + std::to_string(ping) + ": not the text of rping";
    qp.send(go_ahead);
    if (auto e = receive_loan(qp, to); !e.empty()) return e;
    qp.write(to.tag, to.address, memory);
    qp.send(go_ahead);
  }
  return qp.finish(true);
}

}  // namespace accel::interop
