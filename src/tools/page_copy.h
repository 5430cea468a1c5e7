// Copies out of a statistics page that its process may be writing at the same time, and maliciously: each
// number is fetched once, checked, and used from the copy.
#pragma once

#include <type_traits>

#include "engine/stats_page.h"
#include "tools/page_reader.h"

namespace accel::tools {

/// One load: a compiler may else fetch again what it has checked.
template <class T>
T once(const T& shared) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof(uint64_t));
  return *static_cast<const volatile T*>(&shared);
}

/// Texts and what is there before anybody asks.
void copy_facts(const stats::Page& page, ProcessStats& into);
/// What reasons are about: a text for each number that a row's byte can hold.
void copy_details(const stats::Page& page, ProcessStats& into);
/// Copies the answer as of one moment. False: it was being written at each of a hundred tries; what is copied
/// then may be of several moments.
bool copy_answer(const stats::Page& page, ProcessStats& into);

}  // namespace accel::tools
