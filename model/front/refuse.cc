#include "model/front/refuse.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <string>

#include "model/front/environment.h"
#include "model/front/raw.h"

namespace model {
namespace {

struct Refusal {
  std::string name;
  int error = 0;
  bool every = false;
  mutable std::atomic<long> grants{0};
};

int number_of(const std::string& error) {
  for (int e = 1; e < 134; ++e) {
    const char* known = strerrorname_np(e);
    if (known != nullptr && error == known) return e;
  }
  return 0;
}

/// A word that is not understood would be a test that tests nothing: it is said, and every call is refused.
const std::deque<Refusal>& refusals() {
  static const auto* const kRead = [] {
    auto* list = new std::deque<Refusal>;
    const std::string& text = environment().refuse;
    for (size_t at = 0; at < text.size();) {
      const size_t end = std::min(text.find(',', at), text.size());
      const std::string item = text.substr(at, end - at);
      const size_t colon = item.find(':'), second = item.find(':', colon + 1);
      Refusal& r = list->emplace_back();
      r.name = item.substr(0, colon);
      r.error = colon == std::string::npos ? 0 : number_of(item.substr(colon + 1, second - colon - 1));
      if (second != std::string::npos) r.grants = atol(item.c_str() + second + 1);
      if (r.error == 0) {
        std::string said("MLX5_MODEL_REFUSE is not understood: ");
        said.append(item).append("\n");
        raw::write(2, said.data(), said.size());
        r.every = true;
        r.error = EINVAL;
      }
      at = end + 1;
    }
    return list;
  }();
  return *kRead;
}

}  // namespace

int refusal(const char* name) {
  for (const Refusal& r : refusals()) {
    if (!r.every && r.name != name) continue;
    if (r.grants.fetch_sub(1) <= 0) return r.error;
  }
  return 0;
}

}  // namespace model
