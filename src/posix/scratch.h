// A growing array for calls that may run in signal handlers: its own few elements, then anonymous memory;
// never malloc.
#pragma once

#include <sys/mman.h>

#include <cstring>
#include <span>
#include <type_traits>

namespace accel::posix {

template <class T, size_t kInline>
class Scratch {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  Scratch() = default;
  ~Scratch() { release(); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  /// False: no memory.
  bool push_back(const T& value) {
    if (size_ == capacity_ && !grow(capacity_ * 2)) return false;
    data_[size_++] = value;
    return true;
  }
  /// To `size` elements, all of them zero bytes.
  bool assign_zero(size_t size) {
    if (size > capacity_ && !grow(size)) return false;
    size_ = size;
    std::memset(static_cast<void*>(data_), 0, size * sizeof(T));
    return true;
  }
  void clear() { size_ = 0; }
  bool empty() const { return size_ == 0; }
  size_t size() const { return size_; }
  T* data() { return data_; }
  T& operator[](size_t i) { return data_[i]; }
  T* begin() { return data_; }
  T* end() { return data_ + size_; }
  operator std::span<T>() { return {data_, size_}; }

 private:
  bool grow(size_t capacity) {
    void* memory =
        mmap(nullptr, capacity * sizeof(T), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return false;
    std::memcpy(memory, static_cast<const void*>(data_), size_ * sizeof(T));
    release();
    data_ = static_cast<T*>(memory);
    capacity_ = capacity;
    return true;
  }
  void release() {
    if (data_ != inline_) munmap(data_, capacity_ * sizeof(T));
  }

  T inline_[kInline];
  T* data_ = inline_;
  size_t size_ = 0;
  size_t capacity_ = kInline;
};

}  // namespace accel::posix
