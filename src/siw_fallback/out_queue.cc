#include "siw_fallback/out_queue.h"

namespace accel::siw {

void OutQueue::lend(Bytes bytes) {
  loans_.push_back({own_.size(), bytes});
  on_loan_ += bytes.size();
}

size_t OutQueue::gather(std::span<Bytes> pieces) const {
  size_t count = 0, at = at_;
  const auto add = [&](Bytes piece) {
    if (!piece.empty() && count < pieces.size()) pieces[count++] = piece;
  };
  for (size_t i = first_loan_; i < loans_.size() && count < pieces.size(); i++) {
    add(Bytes(own_).subspan(at, loans_[i].before - at));
    add(loans_[i].bytes);
    at = loans_[i].before;
  }
  add(Bytes(own_).subspan(at));
  return count;
}

void OutQueue::sent(size_t n) {
  while (n > 0) {
    const bool loan = first_loan_ < loans_.size();
    const size_t own = std::min(n, (loan ? loans_[first_loan_].before : own_.size()) - at_);
    at_ += own;
    n -= own;
    if (n == 0) break;
    Bytes& bytes = loans_[first_loan_].bytes;
    const size_t part = std::min(n, bytes.size());
    bytes = bytes.subspan(part);
    on_loan_ -= part;
    n -= part;
    if (bytes.empty()) first_loan_++;
  }
  tidy();
}

void OutQueue::tidy() {
  if (on_loan_ == 0) loans_.clear(), first_loan_ = 0;
  if (at_ == own_.size() && on_loan_ == 0) {
    own_.clear();
    at_ = 0;
  } else if (on_loan_ == 0 && at_ > (size_t{64} << 10) && at_ * 2 > own_.size()) {
    own_.erase(own_.begin(), own_.begin() + static_cast<ptrdiff_t>(at_));
    at_ = 0;
  }
}

void OutQueue::keep() {
  if (on_loan_ == 0) return;
  size_t end = own_.size(), to = end + on_loan_;  // from the back, so that nothing is overwritten
  own_.resize(to);
  for (size_t i = loans_.size(); i-- > first_loan_;) {
    const Loan& loan = loans_[i];
    const auto begin = own_.begin() + static_cast<ptrdiff_t>(loan.before);
    std::copy_backward(begin, own_.begin() + static_cast<ptrdiff_t>(end),
                       own_.begin() + static_cast<ptrdiff_t>(to));
    to -= end - loan.before + loan.bytes.size();
    std::copy(loan.bytes.begin(), loan.bytes.end(), own_.begin() + static_cast<ptrdiff_t>(to));
    end = loan.before;
  }
  on_loan_ = 0;
  tidy();
}

}  // namespace accel::siw
