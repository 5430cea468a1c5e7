// What waits to go out: bytes of our own and, between them, the program's memory while its call lasts. Then
// one sendmsg() takes headers, payload and tails together, and only what it leaves has to be copied.
#pragma once

#include <vector>

#include "siw_fallback/bytes.h"

namespace accel::siw {

class OutQueue {
 public:
  void put(Bytes bytes) { own_.insert(own_.end(), bytes.begin(), bytes.end()); }
  /// Not copied: stays the caller's, who calls keep() before it may change.
  void lend(Bytes bytes);
  /// Copies what is on loan still.
  void keep();

  bool empty() const { return size() == 0; }
  size_t size() const { return own_.size() - at_ + on_loan_; }
  /// The pieces in their order, as many as there is room for; returns how many.
  size_t gather(std::span<Bytes> pieces) const;
  /// What waits, while nothing is on loan.
  Bytes own() const { return Bytes(own_).subspan(at_); }
  /// So much from the front is gone.
  void sent(size_t n);

 private:
  struct Loan {
    size_t before;  // its place: in front of this byte of own_
    Bytes bytes;
  };
  void tidy();

  std::vector<uint8_t> own_;
  size_t at_ = 0;  // of own_, what has not been sent
  std::vector<Loan> loans_;
  size_t first_loan_ = 0, on_loan_ = 0;
};

}  // namespace accel::siw
