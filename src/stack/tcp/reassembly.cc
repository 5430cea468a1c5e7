#include "stack/tcp/reassembly.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <new>

#include "stack/tcp/seq.h"

namespace accel {
namespace {

constexpr uint32_t kNumbers = 1u << 20;  ///< of blocks in sequence space
constexpr uint32_t kLeastSlots = 64;
constexpr uint32_t kWords = Reassembly::kBlock / 64;
constexpr uint32_t kAllocator = 16;  ///< what it takes for itself

using Bits = std::array<uint64_t, kWords>;

/// Bits [from, to) of a word; from < to <= 64.
uint64_t mask(uint32_t from, uint32_t to) { return ~uint64_t{0} << from & ~uint64_t{0} >> (64 - to); }

/// Calls visit(word, mask) for each word of bits [from, to).
template <class Visit>
void for_words(Bits& bits, uint32_t from, uint32_t to, Visit visit) {
  while (from < to) {
    const uint32_t in = from % 64, n = std::min(64 - in, to - from);
    visit(bits[from / 64], mask(in, in + n));
    from += n;
  }
}

/// How many bits were clear.
uint32_t set_bits(Bits& bits, uint32_t from, uint32_t to) {
  uint32_t fresh = 0;
  for_words(bits, from, to, [&](uint64_t& word, uint64_t m) {
    fresh += static_cast<uint32_t>(std::popcount(~word & m));
    word |= m;
  });
  return fresh;
}

/// How many bits were set.
uint32_t clear_bits(Bits& bits, uint32_t from, uint32_t to) {
  uint32_t had = 0;
  for_words(bits, from, to, [&](uint64_t& word, uint64_t m) {
    had += static_cast<uint32_t>(std::popcount(word & m));
    word &= ~m;
  });
  return had;
}

/// The first bit from `from` on that is as `set` says; kBlock: none is.
uint32_t find_bit(const Bits& bits, uint32_t from, bool set) {
  for (uint32_t at = from; at < Reassembly::kBlock; at = (at / 64 + 1) * 64) {
    const uint64_t word = (set ? bits[at / 64] : ~bits[at / 64]) >> at % 64;
    if (word) return at + static_cast<uint32_t>(std::countr_zero(word));
  }
  return Reassembly::kBlock;
}

/// One past the last bit before `to` that is as `set` says; 0: none is.
uint32_t find_bit_back(const Bits& bits, uint32_t to, bool set) {
  while (to > 0) {
    const uint32_t in = (to - 1) % 64;
    const uint64_t word = (set ? bits[(to - 1) / 64] : ~bits[(to - 1) / 64]) << (63 - in);
    if (word) return to - static_cast<uint32_t>(std::countl_zero(word));
    to -= in + 1;
  }
  return 0;
}

}  // namespace

/// A packet of the heap whose `length` counts the bytes that are there.
struct Reassembly::Block : Packet {
  std::array<uint8_t, kBlock> text;  // left as it is
  Bits bits{};
};

Reassembly::Reassembly(MemoryAccount& account, uint32_t next) : account_(account), next_(next), top_(next) {
  account_for(sizeof(Reassembly) + kAllocator);
}

Reassembly::~Reassembly() {
  for (uint32_t i = 0; i < size_; ++i) ::operator delete(slots_[i]);
  ::operator delete(slots_);
  account_.release(memory_);
}

void Reassembly::account_for(int64_t bytes) {
  memory_ += static_cast<uint32_t>(bytes);
  account_.charge(static_cast<uint64_t>(bytes));
}

static uint32_t blocks_between(uint32_t begin, uint32_t end) {
  return ((end - 1) / Reassembly::kBlock - begin / Reassembly::kBlock) % kNumbers + 1;
}

static size_t directory_bytes(uint32_t slots) { return slots * sizeof(void*) + slots / 8; }

static uint32_t slots_for(uint32_t next, uint32_t end) {
  return std::max(std::bit_ceil(blocks_between(next, end) + 1), kLeastSlots);
}

uint32_t Reassembly::cost(uint32_t begin, uint32_t end) const {
  uint32_t missing = 0;
  const uint32_t slots = slots_for(next_, seq_max(end, top_));
  for (uint32_t i = 0, n = blocks_between(begin, end); i < n; ++i)
    missing += slots > size_ || slot(begin / kBlock + i) == nullptr;
  const size_t directory = slots > size_ ? directory_bytes(slots) - directory_bytes(size_) : 0;
  return static_cast<uint32_t>(missing * (sizeof(Block) + kAllocator) + directory);
}

/// The directory is large enough for blocks up to `end`.
bool Reassembly::reserve(uint32_t end) {
  const uint32_t size = slots_for(next_, end);
  if (size <= size_) return true;
  void* memory = ::operator new(directory_bytes(size), std::nothrow);
  if (!memory) return false;
  auto** slots = static_cast<Block**>(memory);
  std::fill_n(slots, size, nullptr);
  auto* full = reinterpret_cast<uint64_t*>(slots + size);
  std::fill_n(full, size / 64, 0);
  const uint32_t first = next_ / kBlock, before = size_;
  for (uint32_t i = 0; i < before; ++i) {
    const uint32_t number = first + i, to = number & (size - 1), from = number & (before - 1);
    slots[to] = slots_[from];
    full[to / 64] |= (full_[from / 64] >> from % 64 & 1) << to % 64;
  }
  ::operator delete(slots_);
  slots_ = slots;
  full_ = full;
  size_ = size;
  account_for(static_cast<int64_t>(directory_bytes(size)) - static_cast<int64_t>(directory_bytes(before)));
  return true;
}

bool Reassembly::make_blocks(uint32_t begin, uint32_t end) {
  for (uint32_t i = 0, n = blocks_between(begin, end); i < n; ++i) {
    Block*& b = slot(begin / kBlock + i);
    if (b) continue;
    void* memory = ::operator new(sizeof(Block), std::nothrow);
    if (!memory) return false;
    b = new (memory) Block;
    b->buffer = b->text.data();
    b->capacity = kBlock;
    account_for(sizeof(Block) + kAllocator);
  }
  return true;
}

void Reassembly::drop(uint32_t number) {
  Block*& b = slot(number);
  if (!b) return;
  bytes_ -= b->length;
  note_full(number, false);
  ::operator delete(b);
  b = nullptr;
  account_for(-static_cast<int64_t>(sizeof(Block) + kAllocator));
}

void Reassembly::note_full(uint32_t number, bool full) {
  const uint32_t i = number & (size_ - 1);
  const uint64_t bit = uint64_t{1} << i % 64;
  if (full)
    full_[i / 64] |= bit;
  else
    full_[i / 64] &= ~bit;
}

bool Reassembly::insert(uint32_t seq, std::span<const uint8_t> text) {
  if (text.empty()) return true;
  const uint32_t end = seq + static_cast<uint32_t>(text.size());
  if (!reserve(seq_max(end, top_)) || !make_blocks(seq, end)) return false;
  while (!text.empty()) {
    Block& b = *block_at(seq);
    const uint32_t offset = seq % kBlock;
    const auto n = static_cast<uint32_t>(std::min<size_t>(kBlock - offset, text.size()));
    std::memcpy(b.text.data() + offset, text.data(), n);
    const uint32_t fresh = set_bits(b.bits, offset, offset + n);
    b.length += fresh;
    bytes_ += fresh;
    if (b.length == kBlock) note_full(seq / kBlock, true);
    text = text.subspan(n);
    seq += n;
  }
  top_ = seq_max(top_, end);
  return true;
}

SackBlock Reassembly::present_in(uint32_t begin, uint32_t end) const {
  end = seq_min(end, top_);
  while (seq_lt(begin, end)) {
    const Block* b = block_at(begin);
    const uint32_t offset = begin % kBlock, found = b ? find_bit(b->bits, offset, true) : kBlock;
    begin += found - offset;
    if (found < kBlock) break;
  }
  return seq_lt(begin, end) ? SackBlock{begin, seq_min(run_end(begin), end)} : SackBlock{};
}

/// How many blocks in a row before `number` are full. That of next_ never is, so this ends.
uint32_t Reassembly::full_before(uint32_t number) const {
  for (uint32_t n = 0;;) {
    const uint32_t i = (number - 1 - n) & (size_ - 1), in = i % 64;
    const uint64_t gaps = ~full_[i / 64] << (63 - in);
    if (gaps) return n + static_cast<uint32_t>(std::countl_zero(gaps));
    n += in + 1;
  }
}

/// How many blocks in a row from `number` on are full. The slot behind the last block is free, so this ends.
uint32_t Reassembly::full_from(uint32_t number) const {
  for (uint32_t n = 0;;) {
    const uint32_t i = (number + n) & (size_ - 1), in = i % 64;
    const uint64_t gaps = ~full_[i / 64] >> in;
    if (gaps) return n + static_cast<uint32_t>(std::countr_zero(gaps));
    n += 64 - in;
  }
}

/// Where the run begins that ends before `seq`; `seq` itself: there is none.
uint32_t Reassembly::run_begin(uint32_t seq) const {
  if (const uint32_t offset = seq % kBlock; offset > 0) {
    const Block* b = block_at(seq);
    const uint32_t gap = b ? find_bit_back(b->bits, offset, false) : offset;
    if (gap > 0) return seq - offset + gap;
    seq -= offset;
  }
  seq -= full_before(seq / kBlock) * kBlock;
  const Block* b = block_at(seq - 1);
  return b ? seq - kBlock + find_bit_back(b->bits, kBlock, false) : seq;
}

/// One past the run that begins at `seq`; `seq` itself: there is none.
uint32_t Reassembly::run_end(uint32_t seq) const {
  if (const uint32_t offset = seq % kBlock; offset > 0) {
    const Block* b = block_at(seq);
    const uint32_t gap = b ? find_bit(b->bits, offset, false) : offset;
    seq += gap - offset;
    if (gap < kBlock) return seq;
  }
  seq += full_from(seq / kBlock) * kBlock;
  const Block* b = block_at(seq);
  return b ? seq + find_bit(b->bits, 0, false) : seq;
}

void Reassembly::advance(uint32_t next) {
  const uint32_t first = next_ / kBlock;
  const uint32_t blocks = std::min((next / kBlock - first) % kNumbers, size_);
  for (uint32_t i = 0; i < blocks; ++i) drop(first + i);
  next_ = next;
  top_ = seq_max(top_, next);
  Block* b = block_at(next);
  if (!b) return;
  const uint32_t had = clear_bits(b->bits, 0, next % kBlock);
  b->length -= had;
  bytes_ -= had;
  if (b->length < kBlock) note_full(next / kBlock, false);
}

std::span<const uint8_t> Reassembly::front() const {
  const Block* b = block_at(next_);
  if (!b) return {};
  const uint32_t offset = next_ % kBlock;
  return {b->text.data() + offset, find_bit(b->bits, offset, false) - offset};
}

Packet* Reassembly::detach_front() {
  const auto n = static_cast<uint32_t>(front().size());
  const uint32_t number = next_ / kBlock;
  Block* b = n > 0 ? slot(number) : nullptr;
  if (!b || b->length != n) return nullptr;
  b->offset = next_ % kBlock;
  b->seq = next_;
  b->capacity = sizeof b->text + sizeof b->bits;  // nobody asks what has come any more
  slot(number) = nullptr;
  note_full(number, false);
  bytes_ -= n;
  account_for(-static_cast<int64_t>(sizeof(Block) + kAllocator));
  advance(next_ + n);
  return b;
}

void Reassembly::drop_top() {
  const uint32_t first = next_ / kBlock;
  uint32_t last = blocks_between(next_, top_) - 1;
  drop(first + last);
  top_ = next_;
  while (last-- > 0) {
    const Block* b = slot(first + last);
    if (!b || b->length == 0) continue;
    top_ = (first + last) * kBlock + find_bit_back(b->bits, kBlock, true);
    break;
  }
}

}  // namespace accel
