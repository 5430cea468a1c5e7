// The bytes that the application has given and the peer has not acknowledged, in chunks.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <cstring>
#include <new>
#include <span>

#include "stack/tcp/seq.h"
#include "stack/wire/checksum.h"

namespace accel {

/// A piece of memory for stream bytes; they follow the struct.
struct SendChunk {
  SendChunk* next = nullptr;
  uint32_t capacity = 0;
  uint32_t begin = 0;  ///< acknowledged up to here
  uint32_t end = 0;
  uint8_t marks = 0;  ///< SendQueue::Mark: what its last byte ends; nothing is added behind it
  uint8_t* data() { return reinterpret_cast<uint8_t*>(this + 1); }
  const uint8_t* data() const { return reinterpret_cast<const uint8_t*>(this + 1); }
};

/// Free chunks of two sizes, so that a busy stream does not call the allocator. Shared by a stack's
/// connections.
class ChunkCache {
 public:
  static constexpr uint32_t kSmall = 2048 - sizeof(SendChunk), kBig = 65536 - sizeof(SendChunk);
  static constexpr uint32_t kKeepSmall = 64, kKeepBig = 32;

  ChunkCache() = default;
  ChunkCache(const ChunkCache&) = delete;
  ChunkCache& operator=(const ChunkCache&) = delete;
  ~ChunkCache() {
    for (List* list : {&small_, &big_})
      while (list->head) {
        SendChunk* c = list->head;
        list->head = c->next;
        ::operator delete(c);
      }
  }

  /// nullptr: no memory.
  SendChunk* take(size_t want) {
    List& list = want > kSmall ? big_ : small_;
    SendChunk* c = list.head;
    if (c) {
      list.head = c->next;
      --list.size;
    } else {
      uint32_t capacity = want > kSmall ? kBig : kSmall;
      void* memory = ::operator new(sizeof(SendChunk) + capacity, std::nothrow);
      if (!memory) return nullptr;
      c = new (memory) SendChunk;
      c->capacity = capacity;
    }
    c->next = nullptr;
    c->begin = c->end = 0;
    c->marks = 0;
    return c;
  }

  void give(SendChunk* c) {
    List& list = c->capacity == kBig ? big_ : small_;
    if (list.size >= (c->capacity == kBig ? kKeepBig : kKeepSmall)) {
      ::operator delete(c);
      return;
    }
    c->next = list.head;
    list.head = c;
    ++list.size;
  }

 private:
  struct List {
    SendChunk* head = nullptr;
    uint32_t size = 0;
  };
  List small_, big_;
};

/// A byte queue addressed by sequence number. Its owner calls clear() before it is destroyed.
class SendQueue {
 public:
  /// Where the first byte lies in sequence space; to be called while empty.
  void start(uint32_t seq) { begin_ = end_ = seq; }
  uint32_t begin() const { return begin_; }
  uint32_t end() const { return end_; }
  uint32_t size() const { return end_ - begin_; }
  uint32_t memory() const { return memory_; }  ///< true size

  /// Copies n bytes in; less when memory ran out.
  uint32_t append(ChunkCache& cache, const uint8_t* from, uint32_t n) {
    uint32_t left = n;
    while (left > 0) {
      if (!tail_ || tail_->end == tail_->capacity || tail_->marks) {
        SendChunk* c = cache.take(left);
        if (!c) break;
        (tail_ ? tail_->next : head_) = c;
        tail_ = c;
        memory_ += memory_of(*c);
      }
      uint32_t part = std::min(left, tail_->capacity - tail_->end);
      std::memcpy(tail_->data() + tail_->end, from, part);
      tail_->end += part;
      from += part;
      left -= part;
      end_ += part;
    }
    return n - left;
  }

  enum Mark : uint8_t {
    kPush = 1,    ///< the segment that holds the byte before has PSH
    kRecord = 2,  ///< no segment holds bytes of both sides
  };
  /// Marks the end of what is in the queue, which is not empty.
  void mark_end(uint8_t marks) { tail_->marks |= marks; }
  bool at_record_end() const { return tail_ && (tail_->marks & kRecord); }
  /// How many of the `n` bytes from `seq` on come before the first end that has `mark`; n: none of them is
  /// one, or the last. The range lies within the queue.
  uint32_t up_to(uint8_t mark, uint32_t seq, uint32_t n) const {
    auto [c, at] = chunk_of(seq);
    for (;; c = c->next) {
      at += c->end - c->begin;
      const uint32_t run = at - seq;
      if (run >= n) return n;
      if (c->marks & mark) return run;
    }
  }
  /// Whether one of the `n` bytes from `seq` on is the last before an end that has `mark`.
  bool ends_within(uint8_t mark, uint32_t seq, uint32_t n) const {
    auto [c, at] = chunk_of(seq);
    for (;; c = c->next) {
      at += c->end - c->begin;
      const uint32_t run = at - seq;
      if (run > n) return false;
      if (c->marks & mark) return true;
      if (run == n) return false;
    }
  }

  /// Forgets the bytes before `seq`, which lies within begin()..end().
  void acknowledge(ChunkCache& cache, uint32_t seq) {
    uint32_t n = seq - begin_;
    begin_ = seq;
    while (n > 0) {
      uint32_t part = std::min(n, head_->end - head_->begin);
      head_->begin += part;
      n -= part;
      if (head_->begin == head_->end && (head_->next || head_->end == head_->capacity || begin_ == end_))
        pop(cache);
    }
  }

  /// Copies [seq, seq + n) out, adding to `sum`. The range lies within the queue.
  void copy(uint8_t* to, uint32_t seq, uint32_t n, PartSum& sum) {
    walk(seq, n, [&](const uint8_t* p, uint32_t part) {
      sum.copy(to, p, part);
      to += part;
    });
  }
  void copy(uint8_t* to, uint32_t seq, uint32_t n) {
    walk(seq, n, [&](const uint8_t* p, uint32_t part) {
      std::memcpy(to, p, part);
      to += part;
    });
  }

  void clear(ChunkCache& cache) {
    while (head_) pop(cache);
    begin_ = end_;
  }

 private:
  static uint32_t memory_of(const SendChunk& c) {
    return c.capacity + static_cast<uint32_t>(sizeof(SendChunk));
  }
  void pop(ChunkCache& cache) {
    SendChunk* c = head_;
    head_ = c->next;
    if (!head_) tail_ = nullptr;
    if (cursor_ == c) cursor_ = nullptr;
    memory_ -= memory_of(*c);
    cache.give(c);
  }

  struct Position {
    SendChunk* chunk;
    uint32_t at;  ///< sequence number of its first byte
  };
  Position chunk_of(uint32_t seq) const {
    SendChunk* c = head_;
    uint32_t at = begin_;
    if (cursor_ && cursor_ != head_ && seq_ge(seq, cursor_seq_)) {
      c = cursor_;
      at = cursor_seq_;
    }
    while (seq - at >= c->end - c->begin) {
      at += c->end - c->begin;
      c = c->next;
    }
    return {c, at};
  }

  /// Calls visit(pointer, length) for the pieces of [seq, seq + n). The cursor remembers the chunk, so that
  /// going forward through a long queue does not begin anew each time.
  template <class Visit>
  void walk(uint32_t seq, uint32_t n, Visit&& visit) {
    auto [c, at] = chunk_of(seq);
    while (n > 0) {
      uint32_t offset = seq - at;
      uint32_t part = std::min(n, c->end - c->begin - offset);
      visit(c->data() + c->begin + offset, part);
      seq += part;
      n -= part;
      if (n > 0) {
        at += c->end - c->begin;
        c = c->next;
      }
    }
    cursor_ = c;
    cursor_seq_ = at;
  }

  SendChunk* head_ = nullptr;
  SendChunk* tail_ = nullptr;
  SendChunk* cursor_ = nullptr;
  uint32_t cursor_seq_ =
      0;  ///< of the cursor's first byte; only chunks after the head are remembered as such
  uint32_t begin_ = 0;
  uint32_t end_ = 0;
  uint32_t memory_ = 0;
};

}  // namespace accel
