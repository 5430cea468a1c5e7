// The assertions between %{ and }%: a small part of Python's expressions.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace accel::scripts {

/// Evaluates each "assert EXPRESSION[, MESSAGE]", separated by line ends or semicolons. Returns what does not
/// hold, with its values, or nothing. Throws ScriptError.
std::string failed_assertion(const std::string& code,
                             const std::function<std::optional<int64_t>(const std::string&)>& value_of);

}  // namespace accel::scripts
