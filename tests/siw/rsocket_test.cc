// The rsocket stream: its bytes on the wire, two of it talking, and what is refused.
#include "siw_fallback/rsocket.h"

#include <gtest/gtest.h>

#include <deque>
#include <random>

#include "hex.h"

namespace accel::siw {
namespace {

using test::copy;
using test::hex;

constexpr RsIdentity kId{0x11111111, 0x22222222, 0x100000, 0x200000};
constexpr RsIdentity kPeerId{0x33333333, 0x44444444, 0x300000, 0x400000};

static_assert([] {
  RsConnectionData d;
  return parse_connection_data({}, d);
}() == Violation::rs_connection_data);

std::vector<uint8_t> word(uint32_t w) {
  std::vector<uint8_t> out(4);
  store_le(out, 0, w);
  return out;
}

TEST(Rsocket, ConnectionDataGolden) {
  const RsStream s(kId, 131072, 384);
  const auto wire =
      hex("01 00 0180 010000 00 0000000000200000 22222222 00000002 0000000000100000 11111111 00010000");
  EXPECT_EQ(copy(s.connection_data()), wire);
  RsConnectionData d;
  ASSERT_EQ(parse_connection_data(wire, d), Violation::none);
  EXPECT_EQ(copy(build_connection_data(d)), wire);
}

TEST(Rsocket, MessagesGolden) {
  EXPECT_EQ(word(rs_message(RsOp::kEntry, 384)), hex("80010080"));
  EXPECT_EQ(word(rs_message(RsOp::kData, 5)), hex("05000000"));
  EXPECT_EQ(word(rs_message(RsOp::kControl, 0)), hex("000000e0"));
  EXPECT_EQ(word(rs_message(RsOp::kControl, 2)), hex("020000e0"));
}

TEST(Rsocket, ConnectionDataRefused) {
  const auto good = copy(RsStream(kPeerId, 8192, 10).connection_data());
  const auto start = [&](size_t at, uint8_t value, size_t size = kRsConnectionData) {
    auto data = good;
    data[at] = value;
    return RsStream(kId, 8192, 10).start(Bytes(data).first(size));
  };
  EXPECT_EQ(start(0, 1), Violation::none);
  EXPECT_EQ(start(0, 1, 39), Violation::rs_connection_data);
  EXPECT_EQ(start(0, 2), Violation::rs_connection_data);
  EXPECT_EQ(start(1, 1), Violation::rs_connection_data);
  EXPECT_EQ(start(1, 2), Violation::none);  // the peer would allow iomap; we do not use it
  EXPECT_EQ(start(23, 0), Violation::rs_target);
  EXPECT_EQ(start(20, 1), Violation::rs_target);
  EXPECT_EQ(start(36, 0x80), Violation::rs_target);
}

TEST(Rsocket, IdentityIsUsable) {
  std::mt19937 rng(7);
  for (int i = 0; i < 1000; i++) {
    std::array<uint8_t, 24> random;
    for (auto& b : random) b = i == 0 ? 0 : i == 1 ? 0xff : static_cast<uint8_t>(rng());
    const RsIdentity id = make_identity(random);
    EXPECT_GE(id.data_key, 2u);
    EXPECT_GE(id.entries_key, 2u);
    EXPECT_NE(id.data_key, id.entries_key);
    EXPECT_NE(id.data_address, 0u);
    EXPECT_GT(id.data_address + (32 << 20), id.data_address);
  }
}

/// Two streams; transfers reach the other at once.
struct Pair {
  explicit Pair(size_t ring = 8192, uint16_t credits = 16)
      : a(kId, ring, credits), b(kPeerId, ring, credits) {
    EXPECT_EQ(a.start(b.connection_data()), Violation::none);
    EXPECT_EQ(b.start(a.connection_data()), Violation::none);
  }
  static void apply(RsStream& to, const RsTransfer& t, Bytes payload) {
    if (t.write) {
      ASSERT_EQ(name_of(to.on_write(t.stag, t.offset, payload)), "none");
    }
    if (t.message) {
      ASSERT_EQ(name_of(to.on_message(word(*t.message))), "none");
    }
  }
  static void pump_control(RsStream& from, RsStream& to) {
    while (auto t = from.send_control()) apply(to, *t, Bytes(t->control).first(t->length));
  }
  void control() { pump_control(a, b), pump_control(b, a); }
  static size_t send(RsStream& from, RsStream& to, Bytes data) {
    size_t sent = 0;
    while (auto t = from.send_data(data.size() - sent)) {
      apply(to, *t, data.subspan(sent, t->length));
      sent += t->length;
    }
    return sent;
  }
  RsStream a, b;
};

TEST(Rsocket, FirstGrantGoesToEntryOneWithTheSecondHalf) {
  RsStream a(kId, 131072, 384), b(kPeerId, 131072, 384);
  ASSERT_EQ(a.start(b.connection_data()), Violation::none);
  const auto t = a.send_control();
  ASSERT_TRUE(t && t->write);
  EXPECT_EQ(t->stag, kPeerId.entries_key);
  EXPECT_EQ(t->offset, kPeerId.entries_address + 16);
  EXPECT_EQ(copy(Bytes(t->control)), hex("0000110000000000 11111111 00000100"));
  EXPECT_EQ(*t->message, 0x80000180u);
  EXPECT_FALSE(a.send_control());
}

TEST(Rsocket, SendsUntilTheRingIsFullAndResumes) {
  Pair p;
  p.control();
  const std::vector<uint8_t> data(20000, 0x5a);
  EXPECT_EQ(Pair::send(p.a, p.b, data), 8192u);
  EXPECT_FALSE(p.a.can_send());
  std::vector<uint8_t> out(4095);
  EXPECT_EQ(p.b.read(out), 4095u);
  p.control();
  EXPECT_FALSE(p.a.can_send());
  EXPECT_EQ(p.b.read(MutableBytes(out).first(1)), 1u);  // half of the ring is drained
  p.control();
  EXPECT_EQ(Pair::send(p.a, p.b, data), 4096u);
}

TEST(Rsocket, CreditsLimitMessages) {
  Pair p(8192, 8);
  p.control();
  const uint8_t byte[1] = {1};
  int sent = 0;
  while (Pair::send(p.a, p.b, byte)) sent++;
  EXPECT_EQ(sent, 8);
  std::vector<uint8_t> out(3);
  p.b.read(out);
  p.control();
  EXPECT_FALSE(p.a.can_send());
  p.b.read(out);
  p.control();
  EXPECT_TRUE(p.a.can_send());
}

// A peer that closes without having used up its credits never hears of new ones.
TEST(Rsocket, LateGrantsComeWhenThePeerCannotGoOn) {
  Pair p(8192, 8);
  p.b.grant_late();
  EXPECT_FALSE(p.b.send_control());
  std::vector<uint8_t> data(20000, 0x5a), out(20000);
  EXPECT_EQ(Pair::send(p.a, p.b, Bytes(data).first(4095)), 4095u);
  EXPECT_EQ(p.b.read(out), 4095u);
  EXPECT_FALSE(p.b.send_control());
  size_t sent = 4095;
  for (int round = 0; round < 3; round++) {  // half by half
    sent += Pair::send(p.a, p.b, Bytes(data).first(data.size() - sent));
    EXPECT_FALSE(p.a.can_send());
    EXPECT_EQ(sent, 4096u * static_cast<unsigned>(round + 1));
    p.b.read(out);
    p.control();
    EXPECT_TRUE(p.a.can_send());
  }
  for (int i = 0; i < 40; i++) {  // messages are used up as well
    ASSERT_EQ(Pair::send(p.a, p.b, Bytes(data).first(1)), 1u);
    p.b.read(out);
    p.control();
  }
}

TEST(Rsocket, RandomStreamBothWaysPastEveryWrap) {
  std::mt19937 rng(11);
  Pair p(4096, 6);
  struct Way {
    RsStream &from, &to;
    std::mt19937 out, in;
    size_t sent = 0, got = 0;
  };
  Way ways[] = {{p.a, p.b, std::mt19937(1), std::mt19937(1)}, {p.b, p.a, std::mt19937(2), std::mt19937(2)}};
  std::deque<uint8_t> flight[2];
  for (int step = 0; step < 150000; step++) {  // sequence numbers of 16 bits wrap
    for (int w = 0; w < 2; w++) {
      std::vector<uint8_t> data(1 + rng() % (step % 100 == 0 ? 5000 : 40));
      for (auto& b : data) b = static_cast<uint8_t>(rng());
      const size_t n = Pair::send(ways[w].from, ways[w].to, data);
      flight[w].insert(flight[w].end(), data.begin(), data.begin() + static_cast<ptrdiff_t>(n));
      ways[w].sent += n;
      std::vector<uint8_t> out(1 + rng() % 200), peeked(out.size());
      const size_t m = ways[w].to.read(peeked, true);
      ASSERT_EQ(ways[w].to.read(out), m);
      ASSERT_EQ(out, peeked);
      ASSERT_TRUE(std::equal(out.begin(), out.begin() + static_cast<ptrdiff_t>(m), flight[w].begin()));
      flight[w].erase(flight[w].begin(), flight[w].begin() + static_cast<ptrdiff_t>(m));
    }
    if (rng() % 3 == 0) p.control();
  }
  EXPECT_GT(ways[0].sent, 1u << 20);
}

TEST(Rsocket, HalfClose) {
  Pair p;
  p.control();
  Pair::send(p.a, p.b, hex("'last words'"));
  p.a.shutdown_write();
  EXPECT_FALSE(p.a.can_send());
  p.control();
  EXPECT_TRUE(p.b.peer_finished());
  EXPECT_FALSE(p.b.peer_disconnected());
  EXPECT_EQ(p.b.readable(), 10u);
  EXPECT_EQ(Pair::send(p.b, p.a, hex("'answer'")), 6u);  // the other direction goes on
  p.b.shutdown_write();
  p.control();
  EXPECT_EQ(p.a.readable(), 6u);
  EXPECT_TRUE(p.a.peer_finished());
}

TEST(Rsocket, Disconnect) {
  Pair p;
  p.control();
  p.a.disconnect();
  p.control();
  EXPECT_TRUE(p.a.disconnected());
  EXPECT_TRUE(p.b.peer_disconnected());
  EXPECT_FALSE(p.b.can_send());
  EXPECT_FALSE(p.a.send_control());
}

TEST(Rsocket, ShutdownOfBothDirectionsDisconnects) {
  Pair p;
  p.a.shutdown_read();
  p.control();
  EXPECT_FALSE(p.b.peer_finished());
  EXPECT_EQ(Pair::send(p.b, p.a, hex("'kept'")), 4u);
  EXPECT_EQ(p.a.readable(), 4u);
  p.a.shutdown_write();
  p.control();
  EXPECT_TRUE(p.b.peer_disconnected());
}

TEST(Rsocket, KeepaliveIsAnEmptyWrite) {
  Pair p;
  p.control();
  p.a.keepalive();
  const auto t = p.a.send_control();
  ASSERT_TRUE(t);
  EXPECT_TRUE(t->write && t->length == 0 && t->stag == 0 && !t->message);
  EXPECT_EQ(p.b.on_write(t->stag, t->offset, {}), Violation::none);
}

TEST(Rsocket, WritesOutsideOfWhatWasGranted) {
  const std::vector<uint8_t> byte(1), half(4096), more(4097), entry(16), entries(33);
  const auto write = [](uint32_t stag, uint64_t offset, Bytes payload) {
    RsStream s(kId, 8192, 16);  // one half is granted: 0x100000 .. 0x101000
    EXPECT_EQ(s.start(RsStream(kPeerId, 8192, 16).connection_data()), Violation::none);
    return s.on_write(stag, offset, payload);
  };
  EXPECT_EQ(write(kId.data_key, 0x100000, half), Violation::none);
  EXPECT_EQ(write(kId.data_key, 0x100000, more), Violation::ddp_bounds);
  EXPECT_EQ(write(kId.data_key, 0x100001, byte), Violation::ddp_bounds);  // not from front to back
  EXPECT_EQ(write(kId.data_key, 0x101000, byte), Violation::ddp_bounds);
  EXPECT_EQ(write(kId.data_key, 0xfffff, byte), Violation::ddp_bounds);
  EXPECT_EQ(write(kId.data_key, 0, byte), Violation::ddp_bounds);
  EXPECT_EQ(write(kId.data_key, ~0ull, byte), Violation::ddp_bounds);
  EXPECT_EQ(write(kId.data_key, ~0ull - 4095, half), Violation::ddp_bounds);
  EXPECT_EQ(write(kId.data_key ^ 1, 0x100000, byte), Violation::ddp_stag);
  EXPECT_EQ(write(0, 0, byte), Violation::ddp_stag);
  EXPECT_EQ(write(kId.entries_key, 0x200000, entry), Violation::none);
  EXPECT_EQ(write(kId.entries_key, 0x200010, entry), Violation::none);
  EXPECT_EQ(write(kId.entries_key, 0x200011, entry), Violation::ddp_bounds);
  EXPECT_EQ(write(kId.entries_key, 0x200000, entries), Violation::ddp_bounds);
  EXPECT_EQ(write(kId.entries_key, 0x1fffff, entry), Violation::ddp_bounds);
  EXPECT_EQ(write(kId.entries_key, ~0ull - 3, entry), Violation::ddp_bounds);
  EXPECT_EQ(write(12345, 99, {}), Violation::none);  // empty: tag and offset are not looked at
}

TEST(Rsocket, MessagesRefused) {
  const auto messages = [](std::initializer_list<std::vector<uint8_t>> all, size_t placed = 0) {
    RsStream s(kId, 8192, 4);
    EXPECT_EQ(s.start(RsStream(kPeerId, 8192, 16).connection_data()), Violation::none);
    const std::vector<uint8_t> data(placed);
    EXPECT_EQ(s.on_write(kId.data_key, kId.data_address, data), Violation::none);
    Violation v = Violation::none;
    for (const auto& m : all) v = s.on_message(m);
    return v;
  };
  const auto one = word(1), shutdown = word(rs_message(RsOp::kControl, 2)),
             disconnect = word(rs_message(RsOp::kControl, 0));
  const auto entry = word(rs_message(RsOp::kEntry, 4)), keepalive = word(rs_message(RsOp::kControl, 1));
  EXPECT_EQ(messages({{}}), Violation::rs_message_size);
  EXPECT_EQ(messages({hex("000000")}), Violation::rs_message_size);
  EXPECT_EQ(messages({hex("0000000000")}), Violation::rs_message_size);
  EXPECT_EQ(messages({word(0)}, 4), Violation::rs_data_length);
  EXPECT_EQ(messages({one}), Violation::rs_data_length);
  EXPECT_EQ(messages({word(4)}, 4), Violation::none);
  EXPECT_EQ(messages({word(5)}, 4), Violation::rs_data_length);
  EXPECT_EQ(messages({one, one, one, one}, 9), Violation::none);
  EXPECT_EQ(messages({one, one, one, one, one}, 9), Violation::rs_credits);
  EXPECT_EQ(messages({shutdown, one}, 9), Violation::rs_after_shutdown);
  EXPECT_EQ(messages({disconnect, one}, 9), Violation::rs_after_shutdown);
  for (uint32_t op : {1u, 2u, 3u, 5u}) EXPECT_EQ(messages({word(op << 29)}), Violation::rs_message) << op;
  EXPECT_EQ(messages({word(rs_message(RsOp::kIomap, 0))}), Violation::rs_iomap);
  EXPECT_EQ(messages({word(rs_message(RsOp::kControl, 3))}), Violation::rs_message);
  EXPECT_EQ(messages({keepalive, entry, entry, entry, entry, entry, entry, entry}), Violation::none);
  EXPECT_EQ(messages({keepalive, entry, entry, entry, entry, entry, entry, entry, entry}),
            Violation::rs_control_flood);
}

TEST(Rsocket, ImpossibleGrants) {
  const auto grant = [](const char* entry) {
    RsStream s(kId, 8192, 4);
    EXPECT_EQ(s.start(RsStream(kPeerId, 8192, 16).connection_data()), Violation::none);
    EXPECT_EQ(s.on_write(kId.entries_key, kId.entries_address, hex(entry)), Violation::none);
    EXPECT_EQ(s.can_send(), s.send_data(100).has_value());
    return s.on_message(word(rs_message(RsOp::kEntry, 4)));
  };
  EXPECT_EQ(grant("0010000000000000 01000000 00100000"), Violation::none);
  EXPECT_EQ(grant("0010000000000000 01000000 00100080"), Violation::rs_target);
  EXPECT_EQ(grant("f0ffffffffffffff 01000000 00100000"), Violation::rs_target);
}

TEST(Rsocket, LimitBeyondSixteenBitsIsCut) {  // rseq_no + rq_size as upstream sends it
  RsStream s(kId, 8192, 4);
  EXPECT_EQ(s.start(RsStream(kPeerId, 8192, 4).connection_data()), Violation::none);
  EXPECT_EQ(s.on_message(word(rs_message(RsOp::kEntry, 0x10000))), Violation::none);
  EXPECT_FALSE(s.can_send());  // limit 0 is where we stand
}

}  // namespace
}  // namespace accel::siw
