// Connections of a program that has ended, until their peers have answered. Freestanding, without system
// calls: tests/fuzz/helper_table_fuzz.cc gives it any table.
#pragma once

#include <cstddef>
#include <cstdint>

#include "helper/table.h"

namespace accel::helper {

/// How many rows of a table in a file of `size` bytes may be looked at. The process may go on writing.
inline uint32_t rows_of(const Table& table, size_t size) {
  if (size < sizeof(Table)) return 0;
  const uint32_t touched = *const_cast<const volatile uint32_t*>(&table.touched);
  const size_t most = (size - sizeof(Table)) / sizeof(Row);
  return touched < most ? touched : static_cast<uint32_t>(most);
}

inline bool is_used(const Row& row) { return *const_cast<const volatile uint32_t*>(&row.used) == 1; }

class Unanswered {
 public:
  /// Bytes that the lists of a table of `rows` rows need, all zero and aligned as a Row.
  static size_t memory_for(uint32_t rows) {
    return size_t{rows} * (sizeof(Row) + sizeof(bool)) + slots_for(rows) * sizeof(uint32_t);
  }

  /// Copies the rows that are in use and for which `is_ours(const Row&)`.
  template <class IsOurs>
  Unanswered(const Table& table, uint32_t rows, void* memory, IsOurs is_ours)
      : row_(static_cast<Row*>(memory)),
        index_(reinterpret_cast<uint32_t*>(row_ + rows)),
        done_(reinterpret_cast<bool*>(index_ + slots_for(rows))),
        mask_(slots_for(rows) - 1) {
    for (uint32_t i = 0; i < rows; ++i) {
      if (!is_used(table.row[i])) continue;
      Row& row = row_[rows_];
      copy(row, table.row[i]);
      if (!is_ours(row)) continue;
      *free_slot(row) = ++rows_;
    }
    open_ = rows_;
  }

  bool over() const { return open_ == 0; }
  uint32_t open() const { return open_; }

  /// send(const Row&) for each that has not answered: false if there is no way to that peer.
  template <class Send>
  void each(Send send) {
    for (uint32_t i = 0; i < rows_; ++i)
      if (!done_[i] && !send(row_[i])) finish(i);
  }

  /// A segment of `from` with these first bytes: source and destination port, in network byte order.
  ///
  /// Our address is not compared: connections of two addresses of ours with one tuple of a peer's answer for
  /// each other, and what that can cost is a second try.
  void answered(const uint8_t (&from)[16], const uint8_t* ports) {
    Row row{};
    copy_bytes(row.remote, from, sizeof row.remote);
    copy_bytes(reinterpret_cast<uint8_t*>(&row.remote_port), ports, 2);
    copy_bytes(reinterpret_cast<uint8_t*>(&row.local_port), ports + 2, 2);
    for (uint32_t slot = hash(row);; ++slot) {
      const uint32_t i = index_[slot & mask_];
      if (i == 0) return;
      if (!done_[i - 1] && same(row_[i - 1], row)) finish(i - 1);
    }
  }

 private:
  /// A power of two, with a free slot at least.
  static uint32_t slots_for(uint32_t rows) {
    uint32_t slots = 64;
    while (slots < 2 * size_t{rows}) slots *= 2;
    return slots;
  }
  static void copy_bytes(uint8_t* to, const uint8_t* from, size_t n) {
    for (size_t i = 0; i < n; ++i) to[i] = from[i];
  }
  static void copy(Row& to, const Row& from) {
    for (size_t i = 0; i < sizeof to; ++i)
      reinterpret_cast<uint8_t*>(&to)[i] = reinterpret_cast<const volatile uint8_t*>(&from)[i];
  }
  void finish(uint32_t i) {
    if (!done_[i]) --open_;
    done_[i] = true;
  }
  static bool same(const Row& a, const Row& b) {
    for (size_t i = 0; i < sizeof a.remote; ++i)
      if (a.remote[i] != b.remote[i]) return false;
    return a.remote_port == b.remote_port && a.local_port == b.local_port;
  }
  /// FNV-1a.
  static uint32_t hash(const Row& row) {
    uint32_t h = 2166136261;
    for (const uint8_t byte : row.remote) h = (h ^ byte) * 16777619;
    h = (h ^ row.remote_port) * 16777619;
    h = (h ^ row.local_port) * 16777619;
    return h ^ h >> 15;
  }
  uint32_t* free_slot(const Row& row) {
    for (uint32_t slot = hash(row);; ++slot)
      if (index_[slot & mask_] == 0) return &index_[slot & mask_];
  }

  Row* row_;
  uint32_t* index_;  ///< of rows, plus 1, by hash; 0: free
  bool* done_;
  uint32_t mask_;
  uint32_t rows_ = 0;
  uint32_t open_ = 0;
};

}  // namespace accel::helper
