// Text that has come out of order (RFC 9293 section 3.10.7.4, seventh), until what is missing before it
// comes.
#pragma once

#include <cstdint>
#include <span>

#include "stack/memory_account.h"
#include "stack/packet.h"
#include "stack/tcp/options.h"

namespace accel {

/// The text lies at its place in sequence space: blocks of 4 KiB, and a bit for each byte that has come.
///
/// Small pieces share blocks, so whatever a peer sends costs at most the window and an eighth, in one-byte
/// pieces too. A piece is placed, found and taken in a time that does not grow with how many there are;
/// finding where a run of text ends reads one bit for each full block of it. Linux' tree of buffers
/// (tcp_data_queue_ofo()) gets there by collapsing.
class Reassembly {
 public:
  static constexpr uint32_t kBlock = 4096;

  /// `next`: the byte that is missing, RCV.NXT. Blocks are charged to `account`, which outlives this.
  Reassembly(MemoryAccount& account, uint32_t next);
  Reassembly(const Reassembly&) = delete;
  Reassembly& operator=(const Reassembly&) = delete;
  ~Reassembly();

  bool empty() const { return bytes_ == 0; }
  uint32_t bytes() const { return bytes_; }    ///< of text
  uint32_t memory() const { return memory_; }  ///< true size
  uint32_t next() const { return next_; }
  uint32_t top() const { return top_; }  ///< one past the last byte that has come
  /// What insert() would have to allocate for [begin, end) at most.
  uint32_t cost(uint32_t begin, uint32_t end) const;

  /// Text at `seq`, which lies behind next() by less than 2^30. False: no memory, and nothing is changed.
  bool insert(uint32_t seq, std::span<const uint8_t> text);
  /// The first run of bytes in [begin, end) that are here already; empty: none is.
  SackBlock present_in(uint32_t begin, uint32_t end) const;
  /// The run that [begin, end) is a part of. All of that has been inserted.
  SackBlock run_of(uint32_t begin, uint32_t end) const { return {run_begin(begin), run_end(end)}; }

  /// RCV.NXT has advanced: what is before it is forgotten.
  void advance(uint32_t next);
  /// The text at next(), as far as it goes within a block; empty: that byte is missing.
  std::span<const uint8_t> front() const;
  /// The block of front(), if it has nothing else: it becomes the caller's, a packet of the heap with front()
  /// as its bytes, and next() advances. Else nullptr.
  Packet* detach_front();
  /// Gives up the block with the last bytes (tcp_prune_ofo_queue()), of what is not empty().
  void drop_top();

 private:
  struct Block;
  Block*& slot(uint32_t number) const { return slots_[number & (size_ - 1)]; }
  Block* block_at(uint32_t seq) const { return slots_ ? slot(seq / kBlock) : nullptr; }
  bool reserve(uint32_t end);
  bool make_blocks(uint32_t begin, uint32_t end);
  void drop(uint32_t number);
  void note_full(uint32_t number, bool full);
  uint32_t full_before(uint32_t number) const;
  uint32_t full_from(uint32_t number) const;
  uint32_t run_begin(uint32_t seq) const;
  uint32_t run_end(uint32_t seq) const;
  void account_for(int64_t bytes);

  MemoryAccount& account_;
  uint32_t next_, top_;
  uint32_t bytes_ = 0;
  uint32_t memory_ = 0;
  uint32_t size_ = 0;         ///< slots: a power of two, always one more than blocks from next_ to top_
  Block** slots_ = nullptr;   ///< by block number modulo size_
  uint64_t* full_ = nullptr;  ///< a bit for each slot whose block has all its bytes; behind slots_
};

}  // namespace accel
