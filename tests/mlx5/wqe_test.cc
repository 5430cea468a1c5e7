// What the device would read, byte by byte. The layout is written out here on its own, not through the
// structs that the code uses.
#include "mlx5/wqe.h"

#include <gtest/gtest.h>

#include "tests/mlx5/rings.h"

namespace accel::mlx5 {
namespace {

using test::counting;
using test::hex;
using test::SendMemory;

std::string be64(uint64_t value) {
  value = htobe64(value);
  return hex(reinterpret_cast<uint8_t*>(&value), 8);
}
std::string address(const uint8_t* at) { return be64(reinterpret_cast<uintptr_t>(at)); }

TEST(SendWqe, ByAddress) {
  SendMemory memory(8);
  const auto frame = counting(64);
  const Piece piece{frame.data(), 64};
  EXPECT_EQ(write_send(memory.ring, 0x0105, {&piece, 1}, kChecksum, 0, true), 3u);
  // index 0x0105 lies in block 5 of 8
  EXPECT_EQ(memory.octowords(5, 4),
            "0001050a 00011203 00000008 00000000\n"  // opmod index opcode, qpn ds, CE, imm
            "00000000 c0000000 00000000 00000000\n"  // checksum flags
            "00000040 00012300 " +
                address(frame.data()) +
                "\n"
                "eeeeeeee eeeeeeee eeeeeeee eeeeeeee");
}

TEST(SendWqe, WithHeaderInlineFillsOneBlock) {
  SendMemory memory(8);
  const auto frame = counting(60);
  const Piece piece{frame.data(), 60};
  EXPECT_EQ(write_send(memory.ring, 0, {&piece, 1}, kNoChecksum, kHeaderInline, false), 4u);
  EXPECT_EQ(memory.octowords(0, 4),
            "0000000a 00011204 00000000 00000000\n"
            "00000000 00000000 00000000 00120001\n"
            "02030405 06070809 0a0b0c0d 0e0f1011\n"
            "0000002a 00012300 " +
                address(frame.data() + 18));
}

TEST(SendWqe, ChainWrapsAtTheRingsEnd) {
  SendMemory memory(4);
  const auto frame = counting(100);
  const Piece pieces[] = {{frame.data(), 40}, {frame.data() + 40, 30}, {frame.data() + 70, 30}};
  EXPECT_EQ(write_send(memory.ring, 3, pieces, kChecksum, 0, false), 5u);
  EXPECT_EQ(memory.octowords(3, 5).substr(108), "0000001e 00012300 " + address(frame.data() + 40) + "\n" +
                                                    "0000001e 00012300 " + address(frame.data() + 70))
      << memory.octowords(3, 5);
}

TEST(SendWqe, PieceWhollyInTheHeaderHasNoSegment) {
  SendMemory memory(4);
  const auto frame = counting(60);
  const Piece pieces[] = {{frame.data(), 18}, {frame.data() + 18, 42}};
  // A data segment of length 0 would be read as 2^31 bytes.
  EXPECT_EQ(write_send(memory.ring, 0, pieces, kChecksum, kHeaderInline, false), 4u);
  EXPECT_EQ(memory.octowords(0, 4).substr(108), "0000002a 00012300 " + address(frame.data() + 18));
}

TEST(InlineWqe, Small) {
  SendMemory memory(8);
  const auto frame = counting(20);
  const Piece pieces[] = {{frame.data(), 10}, {frame.data() + 10, 10}};
  EXPECT_EQ(write_inline(memory.ring, 2, pieces, kChecksum, 0, true), 4u);
  EXPECT_EQ(memory.octowords(2, 4),
            "0000020a 00011204 00000008 00000000\n"
            "00000000 c0000000 00000000 00000000\n"
            "80000014 00010203 04050607 08090a0b\n"
            "0c0d0e0f 10111213 eeeeeeee eeeeeeee");
  EXPECT_EQ(inline_octowords(20, 0), 4u);
}

TEST(InlineWqe, WrapsInTheMiddleOfTheBytes) {
  SendMemory memory(4);
  const auto frame = counting(64);
  const Piece piece{frame.data(), 64};
  EXPECT_EQ(write_inline(memory.ring, 3, {&piece, 1}, kChecksum, kHeaderInline, false), 7u);
  EXPECT_EQ(memory.octowords(3, 7),
            "0000030a 00011207 00000000 00000000\n"
            "00000000 c0000000 00000000 00120001\n"
            "02030405 06070809 0a0b0c0d 0e0f1011\n"
            "8000002e 12131415 16171819 1a1b1c1d\n"
            "1e1f2021 22232425 26272829 2a2b2c2d\n"  // the ring's first octoword
            "2e2f3031 32333435 36373839 3a3b3c3d\n"
            "3e3feeee eeeeeeee eeeeeeee eeeeeeee");
  EXPECT_EQ(inline_octowords(64, kHeaderInline), 7u);
}

TEST(InlineWqe, EveryLengthHasItsBytesAndItsSize) {
  for (uint32_t header : {0u, kHeaderInline})
    for (uint32_t length = 20; length <= 256; ++length)
      for (uint16_t index : {0, 2, 6, 7, 8 + 3, 16 + 5}) {
        SendMemory memory(8);
        auto frame = counting(length + kOctoword);
        const Piece piece{frame.data(), length, index < 8 ? 0 : kOctoword};  // with and without room behind
        const uint32_t count = write_inline(memory.ring, index, {&piece, 1}, kChecksum, header, false);
        ASSERT_EQ(count, inline_octowords(length, header));
        // Read it back as the device does.
        auto octoword = [&](uint32_t i) {
          return memory.ring.start + ((size_t{index % 8u} * kBlock + size_t{i} * kOctoword) % (8 * kBlock));
        };
        std::vector<uint8_t> seen;
        uint32_t at = 2;
        if (header) {
          seen.insert(seen.end(), octoword(1) + 14, octoword(1) + 16);
          seen.insert(seen.end(), octoword(2), octoword(2) + 16);
          at = 3;
        }
        uint32_t marked;
        std::memcpy(&marked, octoword(at), 4);
        ASSERT_EQ(be32toh(marked), 0x80000000u | (length - header));
        for (uint32_t i = 4; seen.size() < length; ++i)
          seen.push_back(octoword(at + i / 16)[i % 16]);  // NOLINT
        frame.resize(length);
        ASSERT_EQ(seen, frame) << "length " << length << " index " << index;
      }
}

TEST(TsoWqe, HeaderInlineAndWrap) {
  SendMemory memory(4);
  const auto frame = counting(200);
  const Piece pieces[] = {{frame.data(), 120}, {frame.data() + 120, 80}};
  EXPECT_EQ(write_tso(memory.ring, 3, pieces, 54, 60, true), 8u);
  EXPECT_EQ(memory.octowords(3, 8),
            "0000030e 00011208 00000008 00000000\n"
            "00000000 c000003c 00000000 00360001\n"  // mss 60, header 54
            "02030405 06070809 0a0b0c0d 0e0f1011\n"
            "12131415 16171819 1a1b1c1d 1e1f2021\n"
            "22232425 26272829 2a2b2c2d 2e2f3031\n"  // wrapped
            "32333435 eeeeeeee eeeeeeee eeeeeeee\n"
            "00000042 00012300 " +
                address(frame.data() + 54) + "\n00000050 00012300 " + address(frame.data() + 120));
  EXPECT_EQ(send_octowords(2, 54), 8u);
}

TEST(MultiPacket, PointersAndInline) {
  SendMemory memory(4);
  const auto frame = counting(40);
  MultiPacketWqe wqe(memory.ring, 0xfffe, kChecksum);
  wqe.add_pointer(frame.data(), 40);
  wqe.add_inline(frame.data(), 20);
  wqe.add_pointer(frame.data() + 1, 39);
  EXPECT_EQ(wqe.close(true), 6u);
  EXPECT_EQ(memory.octowords(0xfffe, 6),
            "00fffe29 00011206 00000008 00000000\n"
            "00000000 c0000000 00000000 00000000\n"
            "00000028 00012300 " +
                address(frame.data()) +
                "\n"
                "80000014 00010203 04050607 08090a0b\n"
                "0c0d0e0f 10111213 eeeeeeee eeeeeeee\n"
                "00000027 00012300 " +
                address(frame.data() + 1));
}

TEST(MultiPacket, HoldsSixtyOnePointers) {
  SendMemory memory(32);
  const auto frame = counting(40);
  MultiPacketWqe wqe(memory.ring, 20, kNoChecksum);  // wraps
  int n = 0;
  for (; wqe.fits(1); ++n) wqe.add_pointer(frame.data(), 40);
  EXPECT_EQ(n, 61);
  EXPECT_FALSE(wqe.fits(MultiPacketWqe::inline_cost(40)));
  EXPECT_EQ(wqe.close(false), kMaxOctowords);
  EXPECT_EQ(blocks_of(kMaxOctowords), 16u);
  EXPECT_EQ(memory.octowords(20, 63).substr(36 * 62), "00000028 00012300 " + address(frame.data()));
}

TEST(ReceiveWqe, FullAndShort) {
  alignas(64) uint8_t memory[256];
  std::memset(memory, 0xee, sizeof(memory));
  uint8_t buffer[4096];
  const ReceiveRing ring{memory, 4, 64, 0x00012300};
  for (uint32_t i = 0; i < 3; ++i) write_receive(ring, 5, i, buffer + i, 4096);
  end_receive(ring, 5, 3);
  EXPECT_EQ(hex(memory + 64, 64), "00001000 00012300 " + address(buffer) + "\n00001000 00012300 " +
                                      address(buffer + 1) + "\n00001000 00012300 " + address(buffer + 2) +
                                      "\n00000000 00000100 00000000 00000000");
  const ReceiveRing narrow{memory, 16, 16, 1};
  write_receive(narrow, 0, 0, buffer, 2048);
  end_receive(narrow, 0, 1);
  EXPECT_EQ(hex(memory, 32),
            "00000800 00000001 " + address(buffer) + "\neeeeeeee eeeeeeee eeeeeeee eeeeeeee");
}

// ---- telling the device ----

struct Registers {
  alignas(64) uint8_t page[4096] = {};
  uint32_t record[2] = {};
};

TEST(Doorbell, AlternatesBetweenTheHalves) {
  SendMemory memory(8);
  Registers device;
  SendDoorbell bell{DoorbellRecord(device.record), BlueField(device.page + 0x800, 256)};
  const auto frame = counting(60);
  const Piece piece{frame.data(), 60};
  write_send(memory.ring, 0, {&piece, 1}, kChecksum, 0, false);
  write_send(memory.ring, 1, {&piece, 1}, kChecksum, 0, false);
  bell.announce(2, memory.ring.block(1), 1, false, memory.ring.start, memory.ring.end());
  EXPECT_EQ(be32toh(device.record[1]), 2u);
  EXPECT_EQ(device.record[0], 0u);
  EXPECT_EQ(hex(device.page + 0x800, 16), "0000010a 00011203 00000000 00000000");
  bell.announce(2, memory.ring.block(0), 1, false, memory.ring.start, memory.ring.end());
  EXPECT_EQ(hex(device.page + 0x900, 8), "0000000a 00011203");
}

TEST(Doorbell, OneWqeAloneGoesWithIt) {
  SendMemory memory(4);
  Registers device;
  SendDoorbell bell{DoorbellRecord(device.record), BlueField(device.page + 0x800, 256)};
  const auto frame = counting(100);
  const Piece piece{frame.data(), 100};
  const uint32_t blocks = blocks_of(write_inline(memory.ring, 3, {&piece, 1}, kChecksum, 0, true));
  ASSERT_EQ(blocks, 3u);
  bell.announce(6, memory.ring.block(3), blocks, true, memory.ring.start, memory.ring.end());
  EXPECT_EQ(hex(device.page + 0x800, 64), hex(memory.ring.block(3), 64));
  EXPECT_EQ(hex(device.page + 0x840, 128), hex(memory.ring.start, 128)) << "wraps as the ring does";
  EXPECT_EQ(hex(device.page + 0x8c0, 4), "00000000");
}

TEST(Doorbell, UncachedPageHasOneRegister) {
  SendMemory memory(4);
  Registers device;
  SendDoorbell bell{DoorbellRecord(device.record), BlueField(device.page + 0x800, 0)};
  const auto frame = counting(60);
  const Piece piece{frame.data(), 60};
  for (uint16_t i = 0; i < 3; ++i) {
    write_send(memory.ring, i, {&piece, 1}, kChecksum, 0, false);
    bell.announce(static_cast<uint16_t>(i + 1), memory.ring.block(i), 1, true, memory.ring.start,
                  memory.ring.end());
    EXPECT_EQ(device.page[0x802], i);
    EXPECT_EQ(hex(device.page + 0x808, 8), "00000000 00000000");
  }
}

TEST(Doorbell, ArmsCompletions) {
  Registers device;
  arm_completions(DoorbellRecord(device.record), device.page, 0x000456, 6, 0x01000003);
  EXPECT_EQ(hex(reinterpret_cast<uint8_t*>(device.record), 8), "00000000 20000003");
  EXPECT_EQ(hex(device.page + 0x20, 8), "20000003 00000456");
}

}  // namespace
}  // namespace accel::mlx5
