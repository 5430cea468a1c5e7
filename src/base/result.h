// Errors are values: a Result<T> is a T or an errno number. errno itself is written in one place, to_libc().
#pragma once

#include <cerrno>
#include <optional>
#include <utility>

namespace accel {

/// An errno number (errno.h); never 0 inside a failed Result.
enum class Errno : int {};

constexpr Errno err(int number) { return static_cast<Errno>(number); }

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}  // NOLINT: a value is a result
  Result(Errno error) : error_(error) {}         // NOLINT: an error is a result

  explicit operator bool() const { return value_.has_value(); }
  bool ok() const { return value_.has_value(); }
  T& operator*() { return *value_; }
  const T& operator*() const { return *value_; }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }
  Errno error() const { return error_; }
  bool is(int number) const { return !ok() && static_cast<int>(error_) == number; }

 private:
  std::optional<T> value_;
  Errno error_{};
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Errno error) : error_(error) {}  // NOLINT: an error is a result

  explicit operator bool() const { return ok(); }
  bool ok() const { return static_cast<int>(error_) == 0; }
  Errno error() const { return error_; }
  bool is(int number) const { return static_cast<int>(error_) == number; }

 private:
  Errno error_{};
};

/// The one writer of errno: a failed result becomes -1 with errno set, as libc's calls return.
template <class T>
T to_libc(const Result<T>& r) {
  if (r) return *r;
  errno = static_cast<int>(r.error());
  return static_cast<T>(-1);
}

inline int to_libc(const Result<void>& r) {
  if (r) return 0;
  errno = static_cast<int>(r.error());
  return -1;
}

}  // namespace accel
