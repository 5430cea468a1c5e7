// Whole connections over a socket pair: both roles, every way of setting up, every split, and peers that
// break the rules.
#include "siw_fallback/conn.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>

#include "frame.h"
#include "hex.h"

namespace accel::siw {
namespace {

using test::copy;
using test::hex;

ConnOptions options(Role role, MpaOffer offer = {}) {
  ConnOptions o;
  o.role = role;
  o.offer = offer;
  o.ring = 8192;
  o.credits = 16;
  o.identity = role == Role::kInitiator ? RsIdentity{0x1111, 0x2222, 0x10000, 0x20000}
                                        : RsIdentity{0x3333, 0x4444, 0x30000, 0x40000};
  return o;
}

/// A socket pair; bytes are cut where the test says (offset in the direction's stream; 0: not at all).
class Wire {
 public:
  Wire() { EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds_), 0); }
  ~Wire() { close(fds_[0]), close(fds_[1]); }
  Wire(const Wire&) = delete;
  Wire& operator=(const Wire&) = delete;

  size_t cut = 0, piece = 65536;

  /// Moves what `from` has pending; true when there was something.
  bool move(Conn& from, Conn& to, int direction) {
    const Bytes out = from.pending();
    if (out.empty()) return false;
    const ssize_t wrote = write(fds_[direction], out.data(), out.size());
    if (wrote <= 0) return ADD_FAILURE(), false;
    from.sent(static_cast<size_t>(wrote));
    std::vector<uint8_t> in(static_cast<size_t>(wrote));
    for (size_t left = in.size(); left > 0;) {
      size_t n = std::min(left, piece);
      size_t& at = at_[direction];
      if (at < cut && cut < at + n) n = cut - at;
      const ssize_t got = read(fds_[1 - direction], in.data(), n);
      if (got <= 0) return ADD_FAILURE(), false;
      to.receive(Bytes(in).first(static_cast<size_t>(got)));
      at += static_cast<size_t>(got);
      left -= static_cast<size_t>(got);
    }
    return true;
  }
  void settle(Conn& a, Conn& b) {
    for (bool moved = true; moved;) {
      moved = move(a, b, 0);
      moved = move(b, a, 1) || moved;
    }
  }
  size_t passed(int direction) const { return at_[direction]; }

 private:
  int fds_[2];
  size_t at_[2] = {0, 0};
};

std::vector<uint8_t> pattern(size_t n, unsigned seed) {
  std::vector<uint8_t> out(n);
  for (size_t i = 0; i < n; i++) out[i] = static_cast<uint8_t>(i * 131 + (i >> 8) * 7 + seed);
  return out;
}

/// Sends all of `data` while the other side reads it.
void stream(Wire& w, Conn& a, Conn& b, Conn& from, Conn& to, const std::vector<uint8_t>& data) {
  std::vector<uint8_t> got;
  size_t sent = 0;
  for (int round = 0; got.size() < data.size(); round++) {
    ASSERT_LT(round, 10000);
    if (sent < data.size()) {
      if (auto n = from.send(Bytes(data).subspan(sent)); n) sent += *n;
    }
    w.settle(a, b);
    std::vector<uint8_t> buffer(3000);
    if (auto n = to.recv(buffer); n)
      got.insert(got.end(), buffer.begin(), buffer.begin() + static_cast<ptrdiff_t>(*n));
    w.settle(a, b);
    ASSERT_FALSE(a.failed()) << name_of(a.violation());
    ASSERT_FALSE(b.failed()) << name_of(b.violation());
  }
  EXPECT_EQ(got, data);
}

/// Set-up, a little data both ways, half-close, end. Returns the bytes that passed.
std::array<size_t, 2> conversation(MpaOffer offer, MpaOffer answer, size_t cut, size_t piece = 65536) {
  Wire w;
  w.cut = cut, w.piece = piece;
  Conn a(options(Role::kInitiator, offer)), b(options(Role::kResponder, answer));
  w.settle(a, b);
  EXPECT_TRUE(a.established() && b.established()) << name_of(a.violation()) << name_of(b.violation());
  EXPECT_TRUE(a.writable() && b.writable());
  EXPECT_EQ(a.endpoint().agreement().crc, b.endpoint().agreement().crc);
  EXPECT_EQ(a.endpoint().agreement().rtr, b.endpoint().agreement().rtr);
  stream(w, a, b, b, a, pattern(50, 1));  // the responder may be first
  stream(w, a, b, a, b, pattern(70, 2));
  EXPECT_TRUE(a.shutdown(SHUT_WR).ok());
  w.settle(a, b);
  std::vector<uint8_t> out(10);
  auto end = b.recv(out);
  EXPECT_TRUE(end && *end == 0);
  EXPECT_TRUE(a.send(out).is(EPIPE));
  stream(w, a, b, b, a, pattern(30, 3));
  EXPECT_TRUE(b.shutdown(SHUT_RDWR).ok());
  w.settle(a, b);
  end = a.recv(out);
  EXPECT_TRUE(end && *end == 0);
  EXPECT_TRUE(a.wants_close() && b.wants_close());
  EXPECT_FALSE(a.failed() || b.failed());
  return {w.passed(0), w.passed(1)};
}

constexpr uint8_t kNoRtr = 0;
MpaOffer offer(bool crc, bool enhanced, uint8_t rtr) {
  return {.crc = crc, .enhanced = enhanced, .peer_to_peer = rtr != kNoRtr, .rtr = rtr};
}

TEST(Conn, EveryWayOfSettingUp) {
  for (bool crc_a : {false, true}) {
    for (bool crc_b : {false, true}) {
      conversation(offer(crc_a, false, kNoRtr), {.crc = crc_b}, 0);
      for (uint8_t rtr : {kNoRtr, uint8_t{kRtrWrite}, uint8_t{kRtrRead}, uint8_t{kRtrSend}}) {
        conversation(offer(crc_a, true, rtr), {.crc = crc_b, .rtr = kRtrAll}, 0);
      }
    }
  }
}

TEST(Conn, EverySplitPoint) {
  for (bool crc : {false, true}) {
    for (uint8_t rtr : {kNoRtr, uint8_t{kRtrWrite}, uint8_t{kRtrRead}, uint8_t{kRtrSend}}) {
      const MpaOffer o = offer(crc, true, rtr), all{.crc = crc, .rtr = kRtrAll};
      const auto passed = conversation(o, all, 0);
      for (size_t cut = 1; cut < std::max(passed[0], passed[1]); cut++) {
        EXPECT_EQ(conversation(o, all, cut), passed) << cut;
        if (testing::Test::HasFailure()) return;
      }
      EXPECT_EQ(conversation(o, all, 0, 1), passed);
      EXPECT_EQ(conversation(o, all, 0, 7), passed);
    }
  }
}

TEST(Conn, MuchDataBothWays) {
  Wire w;
  Conn a(options(Role::kInitiator)), b(options(Role::kResponder));
  w.settle(a, b);
  stream(w, a, b, a, b, pattern(300000, 1));
  stream(w, a, b, b, a, pattern(300000, 2));
}

TEST(Conn, ResponderIsSilentUntilTheFirstFpdu) {
  Conn a(options(Role::kInitiator, {.peer_to_peer = false})), b(options(Role::kResponder));
  b.receive(copy(a.pending()));
  EXPECT_TRUE(b.established());
  EXPECT_FALSE(b.writable());
  EXPECT_TRUE(b.send(hex("00")).is(EAGAIN));
  EXPECT_EQ(b.pending().size(), kMpaHeaderSize + kMpaEnhancedSize + kRsConnectionData);
}

// A kernel's siw that sleeps over its first bytes is woken by more bytes: they must find room in its window.
TEST(Conn, LittleIsSentBeforeThePeerSpoke) {
  ConnOptions o = options(Role::kResponder, {.peer_to_peer = false});
  o.ring = 256 << 10;
  Conn a(options(Role::kInitiator, {.peer_to_peer = false})), b(o);
  b.receive(copy(a.pending()));
  a.sent(a.pending().size());
  a.receive(copy(b.pending()));
  b.sent(b.pending().size());
  ASSERT_TRUE(a.established() && a.writable());
  const auto data = pattern(100000, 5);
  const auto first = a.send(data);
  ASSERT_TRUE(first);
  EXPECT_EQ(*first, size_t{16 << 10});
  EXPECT_FALSE(a.writable());
  EXPECT_TRUE(a.send(data).is(EAGAIN));
  a.sent(a.pending().size());
  EXPECT_FALSE(a.writable());

  Wire w;
  a.kick();
  w.settle(a, b);  // the kick lacks what went before it: b answers a stream that starts with an empty Write
  ASSERT_FALSE(b.failed());
  EXPECT_TRUE(a.writable());
  EXPECT_GT(*a.send(data), size_t{60000});
}

TEST(Conn, RequestIsGolden) {
  const Conn a(options(Role::kInitiator, {.crc = false, .peer_to_peer = false}));
  EXPECT_EQ(
      copy(a.pending()),
      hex("'MPA ID Req Frame' 10 02 002c 0001 0001"
          "01 00 0010 010000 00 0000000000020000 00002222 00000002 0000000000010000 00001111 00001000"));
}

// --- refusals while setting up ---

void deliver(Conn& c, const std::vector<uint8_t>& bytes) {
  c.sent(c.pending().size());
  c.receive(bytes);
}

TEST(Conn, RequestsRefused) {
  struct {
    const char* wire;
    Violation violation;
    const char* reply;
  } cases[] = {
      {"'MPA ID Req Frame' 00 01 0000", Violation::mpa_revision, "'MPA ID Rep Frame' 20 01 0000"},
      {"'MPA ID Req Frame' 00 03 0000", Violation::mpa_revision, ""},
      {"'GET / HTTP/1.1'", Violation::mpa_key, ""},
      {"'MPA ID Req Frame' 80 02 0000", Violation::mpa_markers, "'MPA ID Rep Frame' 20 02 0000"},
      {"'MPA ID Req Frame' 10 02 0000", Violation::mpa_enhanced_short, "'MPA ID Rep Frame' 20 02 0000"},
      {"'MPA ID Req Frame' 00 02 ffff", Violation::mpa_private_data, ""},
      {"'MPA ID Req Frame' 10 02 0004 8001 0001", Violation::mpa_no_rtr, "'MPA ID Rep Frame' 20 02 0000"},
      {"'MPA ID Req Frame' 10 02 0004 0001 0001", Violation::rs_connection_data,
       "'MPA ID Rep Frame' 20 02 0000"},
      {"'MPA ID Req Frame' 10 02 0004 0001 0001 00", Violation::mpa_early_data, ""},
  };
  for (const auto& c : cases) {
    Conn b(options(Role::kResponder));
    deliver(b, hex(c.wire));
    EXPECT_EQ(name_of(b.violation()), name_of(c.violation)) << c.wire;
    EXPECT_EQ(copy(b.pending()), hex(c.reply)) << c.wire;
    EXPECT_TRUE(b.wants_close());
    Conn bytewise(options(Role::kResponder));
    for (uint8_t byte : hex(c.wire)) bytewise.receive(Bytes(&byte, 1));
    if (c.violation != Violation::mpa_early_data) {
      EXPECT_EQ(bytewise.violation(), c.violation) << c.wire;
    }
  }
}

TEST(Conn, RepliesRefused) {
  struct {
    const char* wire;
    Violation violation;
    int error;
  } cases[] = {
      {"'MPA ID Rep Frame' 20 02 0000", Violation::mpa_rejected, ECONNREFUSED},
      {"'MPA ID Rep Frame' 00 01 0000", Violation::mpa_revision, ECONNRESET},
      {"'MPA ID Rep Frame' 80 02 0000", Violation::mpa_markers, ECONNRESET},
      {"'SSH-2.0-OpenSSH_9'", Violation::mpa_key, ECONNRESET},
      {"'MPA ID Rep Frame' 10 02 0004 8001 c001", Violation::mpa_no_rtr, ECONNRESET},
      {"'MPA ID Rep Frame' 40 02 0000", Violation::rs_connection_data, ECONNRESET},
  };
  for (const auto& c : cases) {
    Conn a(options(Role::kInitiator));
    deliver(a, hex(c.wire));
    EXPECT_EQ(name_of(a.violation()), name_of(c.violation)) << c.wire;
    std::vector<uint8_t> out(1);
    EXPECT_TRUE(a.recv(out).is(c.error)) << c.wire;
    EXPECT_TRUE(a.send(out).is(c.error)) << c.wire;
  }
}

/// The first MPA frame of `from`, as a peer of revision 1 would send it.
std::vector<uint8_t> of_revision_one(const Conn& from) {
  auto frame = copy(from.pending());
  frame[17] = 1;
  return frame;
}

TEST(Conn, RevisionOneIsRefusedInEveryCombination) {
  std::vector<uint8_t> out(1);
  for (bool crc : {false, true}) {
    for (uint8_t rtr : {kNoRtr, uint8_t{kRtrWrite}, uint8_t{kRtrRead}, uint8_t{kRtrSend}}) {
      Conn a(options(Role::kInitiator, offer(crc, true, rtr))),
          b(options(Role::kResponder, {.crc = crc, .rtr = kRtrAll}));
      b.receive(of_revision_one(a));
      EXPECT_EQ(name_of(b.violation()), "mpa_revision");
      EXPECT_EQ(copy(b.pending()),
                hex(crc ? "'MPA ID Rep Frame' 60 01 0000" : "'MPA ID Rep Frame' 20 01 0000"));
      EXPECT_TRUE(b.wants_close());
      a.receive(b.pending());
      EXPECT_TRUE(a.recv(out).is(ECONNREFUSED));

      Conn c(options(Role::kInitiator, offer(crc, true, rtr))),
          d(options(Role::kResponder, {.crc = crc, .rtr = kRtrAll}));
      d.receive(copy(c.pending()));
      c.sent(c.pending().size());
      c.receive(of_revision_one(d));
      EXPECT_EQ(name_of(c.violation()), "mpa_revision");
      EXPECT_TRUE(c.recv(out).is(ECONNRESET));
      EXPECT_TRUE(c.pending().empty() && c.wants_close());
    }
  }
}

// --- payloads that go straight to the ring ---

/// As Channel reads: pieces of the stream, each first to where landing() says. Returns how much went there.
size_t read_in_place(Conn& to, Bytes in, size_t piece) {
  size_t sum = 0;
  while (!in.empty()) {
    const MutableBytes place = to.landing();
    const size_t n = std::min(in.size(), piece), placed = std::min(n, place.size());
    std::copy_n(in.begin(), placed, place.begin());
    to.landed(placed);
    to.receive(in.subspan(placed, n - placed));
    in = in.subspan(n);
    sum += placed;
  }
  return sum;
}

ConnOptions long_frames(Role role, bool crc, uint8_t rtr) {
  ConnOptions o = options(role, offer(crc, true, rtr));
  o.offer.long_frames = true;
  o.ring = 256 << 10;
  return o;
}

TEST(Conn, LongPayloadsAreReadIntoTheRing) {
  const auto data = pattern(1'000'000, 5);
  for (bool crc : {false, true}) {
    for (size_t piece : {1, 17, 1000, 4096, 30001, 65552, 200000}) {
      Wire w;
      Conn a(long_frames(Role::kInitiator, crc, kNoRtr)), b(long_frames(Role::kResponder, crc, kNoRtr));
      w.settle(a, b);
      std::vector<uint8_t> got, buffer(50000);
      size_t sent = 0, placed = 0;
      for (size_t size = 1; got.size() < data.size(); size = size * 7 % 99991) {
        if (const auto n = a.send(Bytes(data).subspan(sent, std::min(size, data.size() - sent)))) sent += *n;
        placed += read_in_place(b, a.pending(), piece);
        a.sent(a.pending().size());
        if (const auto n = b.recv(buffer))
          got.insert(got.end(), buffer.begin(), buffer.begin() + static_cast<ptrdiff_t>(*n));
        w.settle(a, b);
        ASSERT_FALSE(a.failed() || b.failed()) << name_of(a.violation()) << name_of(b.violation());
      }
      EXPECT_TRUE(got == data) << piece;
      EXPECT_GE(placed, piece < 65552 ? data.size() / 4 : 0) << piece;
    }
  }
}

/// Whether its payload was placed or not, a bad frame meets the same verdict, Terminate and record.
void judge_alike(bool crc, uint8_t rtr, const std::vector<uint8_t>& wire, Violation expected,
                 const std::vector<uint8_t>& before = {}) {
  for (size_t piece : {size_t{100}, size_t{5000}, wire.size()}) {
    Conn a(long_frames(Role::kInitiator, crc, rtr)), b(long_frames(Role::kResponder, crc, kRtrAll));
    b.receive(copy(a.pending()));
    b.sent(b.pending().size());
    b.receive(before);
    read_in_place(b, wire, piece);
    EXPECT_EQ(name_of(b.violation()), name_of(expected)) << piece;
    std::vector<uint8_t> out(1);
    EXPECT_TRUE(b.recv(out).is(ECONNRESET));
    Conn whole(long_frames(Role::kResponder, crc, kRtrAll));
    whole.receive(copy(a.pending()));
    whole.sent(whole.pending().size());
    whole.receive(before);
    whole.receive(wire);
    EXPECT_EQ(copy(b.pending()), copy(whole.pending())) << piece;
    EXPECT_EQ(copy(b.endpoint().bad_frame()), copy(whole.endpoint().bad_frame())) << piece;
  }
}

TEST(Conn, ALongFrameThatIsBadIsSoInItsPlaceToo) {
  const auto payload = pattern(40'001, 6);
  const Segment good{.opcode = Opcode::kWrite, .stag = 0x3333, .offset = 0x30000};
  auto wrong_crc = test::frame(good, payload, true);
  wrong_crc[20'000] ^= 1;
  judge_alike(true, kNoRtr, wrong_crc, Violation::fpdu_crc);
  judge_alike(false, kRtrWrite, test::frame(good, payload, false), Violation::mpa_wrong_rtr);
  Segment elsewhere = good;
  elsewhere.offset += 8;
  judge_alike(true, kNoRtr, test::frame(elsewhere, payload, true), Violation::ddp_bounds);
  elsewhere.stag = 0x9999;
  judge_alike(true, kNoRtr, test::frame(elsewhere, payload, true), Violation::ddp_stag);
  Segment first = good;  // a message that goes on somewhere else
  first.last = false;
  first.offset -= 8, first.stag = 0x4444;
  judge_alike(true, kNoRtr, test::frame(good, payload, true), Violation::ddp_tagged_interleave,
              test::frame(first, {}, true));
}

// --- a peer that breaks the rules once connected ---

struct Peer {
  explicit Peer(bool crc = false, uint8_t rtr = kNoRtr)
      : conn(options(Role::kResponder, {.crc = crc, .rtr = kRtrAll})) {
    Conn a(options(Role::kInitiator, offer(crc, true, rtr)));
    conn.receive(copy(a.pending()));
    conn.sent(conn.pending().size());
    EXPECT_TRUE(conn.established());
  }
  /// A tagged or untagged segment as `head` says; its length and CRC are added.
  void put(const Segment& s, Bytes payload, bool crc = false) { conn.receive(test::frame(s, payload, crc)); }
  Conn conn;
};

std::string_view verdict(const std::function<void(Peer&)>& act) {
  Peer p;
  act(p);
  if (p.conn.violation() == Violation::none) return "none";
  EXPECT_TRUE(p.conn.failed() && p.conn.wants_close());
  std::vector<uint8_t> out(1);
  EXPECT_TRUE(p.conn.recv(out).is(ECONNRESET));
  // The last frame says why, in the form of the RFC; one that answers a Terminate would be wrong.
  FpduParser parser(false);
  Bytes pending = p.conn.pending(), ulpdu, last;
  while (parser.take(pending, ulpdu) == Violation::none && !ulpdu.empty()) last = ulpdu;
  Segment s;
  const bool terminated =
      !last.empty() && parse_segment(last, s) == Violation::none && s.opcode == Opcode::kTerminate;
  EXPECT_EQ(terminated, p.conn.violation() != Violation::rdmap_terminated);
  Terminate t;
  if (terminated && parse_terminate(s.payload, t) == Violation::none) {
    EXPECT_EQ(t.code, terminate_code(p.conn.violation()));
  }
  return name_of(p.conn.violation());
}

TEST(Conn, NegativeTable) {
  const std::vector<uint8_t> byte(1), four = hex("80010080");
  const auto write = [&](uint32_t stag, uint64_t offset, Bytes payload) {
    return [=](Peer& p) { p.put({.stag = stag, .offset = offset}, payload); };
  };
  const auto raw = [](const char* wire) { return [=](Peer& p) { p.conn.receive(hex(wire)); }; };
  const auto send = [&](Opcode op, uint32_t queue, uint32_t msn, Bytes payload) {
    return [=](Peer& p) { p.put({.opcode = op, .queue = queue, .msn = msn}, payload); };
  };
  EXPECT_EQ(verdict(write(0x3333, 0x30000, byte)), "none");
  EXPECT_EQ(verdict(write(0x3334, 0x30000, byte)), "ddp_stag");
  EXPECT_EQ(verdict(write(1, 0, byte)), "ddp_stag");
  EXPECT_EQ(verdict(write(1, 0, {})), "none");
  EXPECT_EQ(verdict(write(0x3333, 0x31000, byte)), "ddp_bounds");
  EXPECT_EQ(verdict(write(0x3333, ~0ull - 3, four)), "ddp_bounds");
  EXPECT_EQ(verdict(write(0x3333, ~0ull - 2, four)), "ddp_wrap");
  EXPECT_EQ(verdict(raw("000d c140")), "fpdu_short");
  EXPECT_EQ(verdict(raw("000e 4143 00000000 00000000 00000001 00000000")), "fpdu_short");
  EXPECT_EQ(verdict(raw("000e c240 00000001 0000000000000000 00000000")), "ddp_tagged_version");
  EXPECT_EQ(verdict(raw("0016 4243 00000000 00000000 00000001 00000000 80010080 00000000")),
            "ddp_untagged_version");
  EXPECT_EQ(verdict(raw("0016 4183 00000000 00000000 00000001 00000000 80010080 00000000")), "rdmap_version");
  EXPECT_EQ(verdict(raw("0016 4148 00000000 00000000 00000001 00000000 80010080 00000000")), "rdmap_opcode");
  EXPECT_EQ(verdict(raw("0016 4143 00000000 00000000 00000001 00000004 80010080 00000000")), "ddp_offset");
  EXPECT_EQ(verdict(send(Opcode::kSend, 0, 1, four)), "none");
  EXPECT_EQ(verdict(send(Opcode::kSendSolicited, 0, 1, four)), "none");
  EXPECT_EQ(verdict(send(Opcode::kSendInvalidate, 0, 1, four)), "rdmap_invalidate");
  EXPECT_EQ(verdict(send(Opcode::kSendSolicitedInvalidate, 0, 1, four)), "rdmap_invalidate");
  EXPECT_EQ(verdict(send(Opcode::kSend, 3, 1, four)), "ddp_queue");
  EXPECT_EQ(verdict(send(Opcode::kSend, 0, 2, four)), "ddp_msn");
  EXPECT_EQ(verdict(send(Opcode::kSend, 0, 1, hex("8001008000"))), "ddp_too_long");
  EXPECT_EQ(verdict(send(Opcode::kSend, 0, 1, hex("800100"))), "rs_message_size");
  EXPECT_EQ(verdict(send(Opcode::kSend, 0, 1, hex("01000000"))), "rs_data_length");
  EXPECT_EQ(verdict(send(Opcode::kSend, 0, 1, hex("000000c0"))), "rs_iomap");
  EXPECT_EQ(verdict(send(Opcode::kReadRequest, 1, 1, four)), "rdmap_read_size");
  EXPECT_EQ(verdict(send(Opcode::kReadRequest, 1, 1, build_read_request({1, 0, 1, 0x3333, 0x30000}))),
            "rdmap_read_stag");
  EXPECT_EQ(verdict(send(Opcode::kReadRequest, 1, 1, build_read_request({1, 0, 0, 1, 0}))), "none");
  EXPECT_EQ(verdict([&](Peer& p) {
              for (uint32_t msn : {1u, 2u}) send(Opcode::kReadRequest, 1, msn, build_read_request({}))(p);
            }),
            "mpa_insufficient_ird");
  EXPECT_EQ(verdict([&](Peer& p) { p.put({.opcode = Opcode::kReadResponse, .stag = 1}, {}); }),
            "rdmap_opcode");
  EXPECT_EQ(verdict(send(Opcode::kTerminate, 2, 1, hex("21010300"))), "rdmap_terminated");
}

TEST(Conn, WrongCrcIsKept) {
  Peer p(true);
  std::vector<uint8_t> wire = test::frame({.stag = 1}, {}, true);
  wire[5] ^= 1;
  p.conn.receive(wire);
  EXPECT_EQ(name_of(p.conn.violation()), "fpdu_crc");
  EXPECT_EQ(copy(p.conn.endpoint().bad_frame()), wire);
}

TEST(Conn, FirstMessageOfAnotherKindThanAgreed) {
  Peer write(false, kRtrWrite), read(false, kRtrRead), full(false, kRtrWrite);
  write.put({.opcode = Opcode::kReadRequest, .queue = 1, .msn = 1}, build_read_request({}));
  EXPECT_EQ(name_of(write.conn.violation()), "mpa_wrong_rtr");
  read.put({.stag = 1}, {});
  EXPECT_EQ(name_of(read.conn.violation()), "mpa_wrong_rtr");
  full.put({.stag = 0x3333, .offset = 0x30000}, hex("00"));
  EXPECT_EQ(name_of(full.conn.violation()), "mpa_wrong_rtr");
}

TEST(Conn, EmptyReadIsAnsweredByAnEmptyResponse) {
  Peer p;
  p.put({.opcode = Opcode::kReadRequest, .queue = 1, .msn = 1}, build_read_request({7, 9, 0, 1, 0}));
  EXPECT_EQ(copy(p.conn.pending().first(20)), hex("000e c142 00000007 0000000000000009 00000000"));
}

// --- ends ---

TEST(Conn, EndsAsATcpUserExpects) {
  std::vector<uint8_t> out(10);
  Peer clean, cut, reset;
  clean.conn.receive_end();  // the peer's process was killed
  auto n = clean.conn.recv(out);
  EXPECT_TRUE(n && *n == 0 && clean.conn.ended_unannounced() && clean.conn.wants_close());
  n = clean.conn.send(out);  // as behind a FIN: the first goes out, and is answered by a reset
  EXPECT_TRUE(n && *n == out.size());
  EXPECT_TRUE(clean.conn.send(out).is(EPIPE));
  n = clean.conn.recv(out);
  EXPECT_TRUE(n && *n == 0);
  cut.conn.receive(hex("00"));
  cut.conn.receive_end();
  EXPECT_EQ(name_of(cut.conn.violation()), "stream_cut");
  EXPECT_EQ(copy(cut.conn.pending()), hex("0016 4147 00000000 00000002 00000001 00000000 20010000 00000000"));
  EXPECT_TRUE(cut.conn.recv(out).is(ECONNRESET));
  reset.conn.receive_reset();
  EXPECT_TRUE(reset.conn.recv(out).is(ECONNRESET));
  Peer farewell;
  farewell.put({.opcode = Opcode::kSend, .msn = 1}, hex("000000e0"));
  farewell.conn.receive_reset();
  n = farewell.conn.recv(out);
  EXPECT_TRUE(n && *n == 0 && !farewell.conn.ended_unannounced());
}

// What the program has not read yet when the reset comes is not lost, as with TCP; only then it is told.
TEST(Conn, AResetComesBehindTheData) {
  std::vector<uint8_t> out(10);
  for (const bool farewell : {false, true}) {
    Peer p;
    p.put({.opcode = Opcode::kWrite, .stag = 0x3333, .offset = 0x30000}, hex("aabb"));
    p.put({.opcode = Opcode::kSend, .msn = 1}, hex("02000000"));
    if (farewell) p.put({.opcode = Opcode::kSend, .msn = 2}, hex("000000e0"));
    p.conn.receive_reset();
    auto n = p.conn.recv(out);
    EXPECT_TRUE(n && *n == 2);
    n = p.conn.recv(out);
    EXPECT_TRUE(farewell ? n && *n == 0 : n.is(ECONNRESET));
  }
}

TEST(Conn, Kick) {
  Wire w;
  Conn a(options(Role::kInitiator, {.crc = false})), b(options(Role::kResponder, {.crc = false}));
  w.settle(a, b);
  a.kick();
  EXPECT_EQ(copy(a.pending()), hex("000e c140 00000001 0000000000000000 00000000"));
  w.settle(a, b);
  EXPECT_FALSE(b.failed());
}

TEST(Conn, ReadingOfAClosedDirection) {
  Wire w;
  Conn a(options(Role::kInitiator)), b(options(Role::kResponder));
  w.settle(a, b);
  EXPECT_TRUE(a.shutdown(SHUT_RD).ok());
  std::vector<uint8_t> out(1);
  const auto n = a.recv(out);
  EXPECT_TRUE(n && *n == 0);
  EXPECT_TRUE(a.shutdown(99).is(EINVAL));
}

TEST(Conn, PendingIsLimited) {
  Wire w;
  auto o = options(Role::kInitiator);
  o.max_pending = 1000;
  Conn a(o), b(options(Role::kResponder));
  w.settle(a, b);
  const auto data = pattern(5000, 1);
  size_t sent = 0;
  while (auto n = a.send(Bytes(data).subspan(sent))) sent += *n;
  EXPECT_LT(sent, 1100u);
}

}  // namespace
}  // namespace accel::siw
