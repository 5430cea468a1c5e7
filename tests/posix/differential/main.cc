// Plays sequences by their seeds: reads "FIRST COUNT LEAVING" lines (LEAVING: Sequence's), writes one
// transcript a line ("SEED<tab>line<tab>line...").
//
//   posix_differential FAR_NETNS NEAR FAR NEAR6 FAR6 KIND,KIND...|options
//
// options: sequences that try one option each (option_sweep.h).
#include <exception>
#include <iostream>
#include <sstream>

#include "posix/differential/far_end.h"
#include "posix/differential/option_sweep.h"
#include "posix/differential/sequence.h"

using namespace differential;  // NOLINT

static std::vector<Kind> kinds_of(const std::string& list) {
  std::vector<Kind> kinds;
  std::istringstream names(list);
  for (std::string name; std::getline(names, name, ',');)
    for (uint8_t i = 0; i < static_cast<uint8_t>(Kind::kCount); ++i)
      if (name == kind_name(static_cast<Kind>(i))) kinds.push_back(static_cast<Kind>(i));
  return kinds;
}

int main(int argc, char** argv) try {
  if (argc != 7) {
    std::cerr << "usage: posix_differential FAR_NETNS NEAR FAR NEAR6 FAR6 KINDS\n";
    return 2;
  }
  const Hosts hosts{argv[2], argv[3], argv[4], argv[5]};
  const bool sweeps = argv[6] == std::string_view("options");
  const std::vector<Kind> kinds = kinds_of(argv[6]);
  if (kinds.empty() && !sweeps) throw std::runtime_error("no such kind");
  FarEnd far(argv[1]);
  far.connect_markers(hosts.near, hosts.far);
  uint64_t first = 0, count = 0, leaving = 0;
  while (std::cin >> first >> count >> leaving)
    for (uint64_t seed = first; seed < first + count; ++seed) {
      if (sweeps)
        std::cout << seed << '\t' << OptionSweep(seed, far, hosts).play() << std::endl;
      else
        std::cout << seed << '\t' << Sequence(seed, far, hosts, kinds, leaving).play() << std::endl;
    }
  return 0;
} catch (const std::exception& e) {
  std::cerr << e.what() << '\n';
  return 1;
}
