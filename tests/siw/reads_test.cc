// RDMA Reads at the endpoint: events with EndpointOptions::reads, which only the interoperability tests set;
// refused without it.
#include <gtest/gtest.h>

#include "siw_fallback/endpoint.h"

namespace accel::siw {
namespace {

constexpr ReadRequest kRequest{
    .sink_stag = 0x11, .sink_offset = 0x1000, .size = 300, .source_stag = 0x22, .source_offset = 0x2000};

/// All that `from` has to say, and the events it makes at `to` (payloads copied).
struct Seen {
  Event event;
  std::vector<uint8_t> payload;
};

std::vector<Seen> move(Endpoint& from, Endpoint& to, Violation expected = Violation::none) {
  const std::vector<uint8_t> wire(from.pending().begin(), from.pending().end());
  from.sent(wire.size());
  std::vector<Seen> seen;
  for (Bytes in = wire;;) {
    Event e;
    const Violation v = to.take(in, e);
    if (v != Violation::none || e.kind == Event::Kind::kNone) {
      EXPECT_EQ(v, expected);
      return seen;
    }
    seen.push_back({e, {e.payload.begin(), e.payload.end()}});
  }
}

struct Pair {
  explicit Pair(bool reads)
      : client({.role = Role::kInitiator, .max_fpdu = 128, .reads = reads}),
        server({.role = Role::kResponder, .max_fpdu = 128, .reads = reads}) {
    client.connect({});
    move(client, server);
    server.accept({});
    move(server, client);
    move(client, server);  // the RTR
  }
  Endpoint client, server;
};

TEST(Reads, AreAnsweredInSegments) {
  Pair p(true);
  ASSERT_TRUE(p.server.may_send());
  p.client.read(kRequest);
  const auto asked = move(p.client, p.server);
  ASSERT_EQ(asked.size(), 1u);
  ASSERT_EQ(asked[0].event.kind, Event::Kind::kRead);
  ReadRequest got;
  ASSERT_EQ(parse_read_request(asked[0].payload, got), Violation::none);
  EXPECT_EQ(got, kRequest);

  std::vector<uint8_t> data(kRequest.size), sink(kRequest.size);
  for (size_t i = 0; i < data.size(); i++) data[i] = static_cast<uint8_t>(i * 7);
  p.server.respond(got, data);
  const auto answers = move(p.server, p.client);
  EXPECT_EQ(answers.size(), 3u);  // 108 bytes fit a frame
  for (const Seen& s : answers) {
    ASSERT_EQ(s.event.kind, Event::Kind::kReadData);
    EXPECT_EQ(s.event.stag, kRequest.sink_stag);
    std::copy(s.payload.begin(), s.payload.end(),
              sink.begin() + static_cast<ptrdiff_t>(s.event.offset - kRequest.sink_offset));
  }
  EXPECT_EQ(sink, data);
  // The next is a message of its own, after the last has ended.
  p.client.read(kRequest);
  EXPECT_EQ(move(p.client, p.server).size(), 1u);
}

TEST(Reads, AnswerWithoutQuestion) {
  Pair p(true);
  p.server.respond(kRequest, std::vector<uint8_t>(kRequest.size));
  move(p.server, p.client, Violation::rdmap_opcode);
}

TEST(Reads, OfTheLibraryAreRefused) {
  Pair p(false);
  p.client.read(kRequest);
  EXPECT_TRUE(move(p.client, p.server, Violation::rdmap_read_stag).empty());
  EXPECT_EQ(p.server.violation(), Violation::rdmap_read_stag);
}

TEST(Reads, DataForTheLibraryIsRefused) {
  Pair p(false);
  p.client.read(kRequest);
  p.client.sent(p.client.pending().size());
  p.server.respond(kRequest, std::vector<uint8_t>(kRequest.size));
  EXPECT_TRUE(move(p.server, p.client, Violation::rdmap_read_size).empty());
}

}  // namespace
}  // namespace accel::siw
