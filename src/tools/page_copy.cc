#include "tools/page_copy.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

namespace accel::tools {
namespace {

using namespace std::chrono_literals;

template <size_t N>
std::string text_of(const char (&field)[N]) {
  char copy[N];
  std::memcpy(copy, field, N);
  return {copy, strnlen(copy, N)};
}

}  // namespace

void copy_facts(const stats::Page& page, ProcessStats& into) {
  into.application = text_of(page.application);
  into.config_file = text_of(page.config_file);
  into.profile = text_of(page.profile);
  into.mistake = text_of(page.mistake);
  into.helper = once(page.helper);
  into.no_helper = text_of(page.no_helper);
  into.engine = once(page.has_engine) != 0;
}

void copy_details(const stats::Page& page, ProcessStats& into) {
  static_assert(std::extent_v<decltype(page.detail)> > UINT8_MAX);
  into.details.clear();
  for (const auto& detail : page.detail) into.details.push_back(text_of(detail));
}

bool copy_answer(const stats::Page& page, ProcessStats& into) {
  for (int attempt = 0; attempt < 100; ++attempt) {
    const uint64_t before = page.sequence.load(std::memory_order_acquire);
    if (before & 1) {
      std::this_thread::sleep_for(1ms);
      continue;
    }
    const uint32_t rows = std::min(once(page.rows), stats::kMaxRows);
    const uint32_t ports = std::min(once(page.ports), stats::kMaxPorts);
    into.socket_count = once(page.rows_wanted);
    into.sockets.assign(page.row, page.row + rows);
    into.ports.assign(page.port, page.port + ports);
    for (size_t i = 0; i < std::size(kCounterTexts); ++i)
      into.counters[kCounterTexts[i].name] = once(page.counter[i]);
    std::atomic_thread_fence(std::memory_order_acquire);
    if (page.sequence.load(std::memory_order_relaxed) == before) return true;
  }
  return false;
}

}  // namespace accel::tools
