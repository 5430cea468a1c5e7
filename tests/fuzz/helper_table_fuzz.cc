// Any bytes as the table that the helper reads when its program has ended, while another thread goes on
// writing: nothing is read or written outside of the lists, and each connection ends with its answer.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "helper/unanswered.h"

namespace {

using accel::helper::Row;
using accel::helper::Table;
using accel::helper::Unanswered;

constexpr size_t kMostRows = 64;
constexpr size_t kSize = sizeof(Table) + kMostRows * sizeof(Row);

/// One byte after it is somebody else's for ASan.
Table* make_table() { return static_cast<Table*>(std::aligned_alloc(alignof(Row), kSize)); }

void keep_writing(Table* table) {
  for (uint32_t n = 0;; ++n) {
    std::atomic_ref(table->touched).store((n & 1) != 0 ? ~0u : n % kMostRows, std::memory_order_relaxed);
    std::atomic_ref(table->row[n % kMostRows].used).store(n >> 6 & 1, std::memory_order_relaxed);
    std::atomic_ref(table->row[n % 7].local_port).store(static_cast<uint16_t>(n), std::memory_order_relaxed);
  }
}

void expect(bool holds) {
  if (!holds) abort();
}

/// All but the `unreachable`-th have a way; the answers come in the order that was asked, or turned round.
void wake(const Table& table, uint32_t rows, uint8_t choice) {
  const std::unique_ptr<void, decltype(&std::free)> memory(std::calloc(1, Unanswered::memory_for(rows)),
                                                           &std::free);
  Unanswered unanswered(table, rows, memory.get(),
                        [&](const Row& row) { return (row.local[15] ^ choice) % 4 != 0; });
  expect(unanswered.open() <= rows);
  std::vector<Row> sent;
  const uint32_t open = unanswered.open(), unreachable = choice % 16;
  unanswered.each([&](const Row& row) {
    sent.push_back(row);
    return sent.size() != unreachable;
  });
  expect(sent.size() == open);
  expect(unanswered.open() == open - (unreachable != 0 && unreachable <= open ? 1 : 0));
  if ((choice & 16) != 0) std::reverse(sent.begin(), sent.end());
  for (const Row& row : sent) {
    uint8_t ports[4];
    std::memcpy(ports, &row.remote_port, 2);
    std::memcpy(ports + 2, &row.local_port, 2);
    const uint32_t before = unanswered.open();
    unanswered.answered(row.remote, ports);
    expect(unanswered.open() <= before);
  }
  expect(unanswered.over());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static Table* const table = [] {
    Table* made = make_table();
    std::thread(keep_writing, made).detach();
    return made;
  }();
  if (size < 4) return 0;
  std::memcpy(static_cast<void*>(table), data, std::min(size, kSize));
  const size_t file =
      data[size - 1] % 8 == 0 ? data[size - 2] : kSize - data[size - 3] % 64;  // the file's size
  const uint32_t rows = accel::helper::rows_of(*table, file);
  expect(rows * sizeof(Row) + sizeof(Table) <= std::max(file, sizeof(Table)));
  wake(*table, rows, data[size - 1]);
  return 0;
}
