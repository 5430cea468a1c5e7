#include "assertions.h"

#include <cctype>
#include <vector>

#include "script.h"

namespace accel::scripts {
namespace {

using ValueOf = std::function<std::optional<int64_t>(const std::string&)>;

class Evaluator {
 public:
  Evaluator(const std::string& text, const ValueOf& value_of) : text_(text), value_of_(value_of) {}

  /// Empty, or the values that stood in an assertion that failed.
  std::string run() {
    if (!take_word("assert")) throw ScriptError(0, "no assertion: " + text_);
    const bool held = disjunction() != 0;
    skip();
    if (at_ < text_.size() && text_[at_] != ',')
      throw ScriptError(0, "an assertion goes on: " + text_.substr(at_));
    return held ? "" : text_ + values_;
  }

 private:
  void skip() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
  }
  bool take(const std::string& what) {
    skip();
    if (text_.compare(at_, what.size(), what) != 0) return false;
    at_ += what.size();
    return true;
  }
  static bool of_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }
  bool take_word(const std::string& what) {
    skip();
    if (text_.compare(at_, what.size(), what) != 0) return false;
    if (at_ + what.size() < text_.size() && of_word(text_[at_ + what.size()])) return false;
    at_ += what.size();
    return true;
  }

  int64_t disjunction() {
    int64_t v = conjunction();
    while (take_word("or")) v = (conjunction() != 0) | (v != 0);
    return v;
  }
  int64_t conjunction() {
    int64_t v = negation();
    while (take_word("and")) v = (negation() != 0) & (v != 0);
    return v;
  }
  int64_t negation() {
    if (take_word("not")) return negation() == 0;
    return comparison();
  }
  /// a < b < c, as Python has it.
  int64_t comparison() {
    int64_t left = bits();
    int64_t holds = 1;
    for (bool first = true;; first = false) {
      static const std::vector<std::string> kinds = {"==", "!=", "<=", ">=", "<", ">"};
      size_t kind = 0;
      while (kind < kinds.size() && !take(kinds[kind])) ++kind;
      if (kind == kinds.size()) return first ? left : holds;
      const int64_t right = bits();
      const bool results[] = {left == right, left != right, left <= right, left >= right,
                              left<right, left> right};
      holds &= results[kind];
      left = right;
    }
  }
  int64_t bits() {
    int64_t v = sum();
    for (;;) {
      if (take("&"))
        v &= sum();
      else if (take("|"))
        v |= sum();
      else
        return v;
    }
  }
  int64_t sum() {
    int64_t v = product();
    for (;;) {
      if (take("+"))
        v += product();
      else if (take("-"))
        v -= product();
      else
        return v;
    }
  }
  int64_t product() {
    int64_t v = primary();
    for (;;) {
      if (take("*")) {
        v *= primary();
      } else if (take("//") || take("/")) {
        const int64_t by = primary();
        if (by == 0) throw ScriptError(0, "a division by 0");
        v /= by;
      } else {
        return v;
      }
    }
  }
  int64_t primary() {
    if (take("(")) {
      const int64_t v = disjunction();
      if (!take(")")) throw ScriptError(0, "')' expected in " + text_);
      return v;
    }
    if (take("-")) return -primary();
    skip();
    std::string word;
    while (at_ < text_.size() && of_word(text_[at_])) word += text_[at_++];
    if (word.empty()) throw ScriptError(0, "a value expected in " + text_);
    if (std::isdigit(static_cast<unsigned char>(word[0]))) return std::stoll(word, nullptr, 0);
    if (auto number = constant(word)) return *number;
    const auto value = value_of_(word);
    if (!value) throw ScriptError(0, "nothing is known of " + word);
    values_ += (values_.empty() ? ": " : ", ") + word + " is " + std::to_string(*value);
    return *value;
  }

  const std::string text_;
  const ValueOf& value_of_;
  size_t at_ = 0;
  std::string values_;
};

}  // namespace

std::string failed_assertion(const std::string& code, const ValueOf& value_of) {
  size_t at = 0;
  while (at < code.size()) {
    size_t end = code.find_first_of(";\n", at);
    if (end == std::string::npos) end = code.size();
    std::string statement = code.substr(at, end - at);
    at = end + 1;
    const size_t begin = statement.find_first_not_of(" \t");
    if (begin == std::string::npos || statement[begin] == '#') continue;
    statement = statement.substr(begin, statement.find_last_not_of(" \t") + 1 - begin);
    if (std::string failed = Evaluator(statement, value_of).run(); !failed.empty()) return failed;
  }
  return "";
}

}  // namespace accel::scripts
