// wire_scripts WORLD [OPTION...] PATH...: plays scripts, and says which do not hold. Exit status 0: all did.
//   core                  the pure core, in virtual time
//   kernel                the kernel's TCP, behind a TUN device
//   --ip_version=ipv6     over IPv6; else IPv4
//   --trace               also what happened
//   --jobs N              so many at once (kernel)
//   --changed             plays each script with each of its expected lines changed: each time it must fail
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <list>
#include <map>
#include <sstream>
#include <string_view>

#include "player.h"
#include "stack/tcp/segment.h"

namespace accel::scripts {
namespace {

struct Options {
  bool kernel = false, trace = false, changed = false;
  Addresses ends = kIpv4;
  int jobs = 1;
  std::vector<std::string> paths;
};

std::string text_of(const std::string& path, const Failure& f, const std::vector<std::string>& trace) {
  std::string out = path + ":" + std::to_string(f.line) + ": " + f.what + "\n";
  constexpr size_t kShown = 6;
  for (size_t i = trace.size() > kShown ? trace.size() - kShown : 0; i < trace.size(); ++i)
    out += "      " + trace[i] + "\n";
  return out;
}

/// Of a script that is to fail with `fault`: nothing where it does.
std::string with_fault(const std::string& path, const std::string& fault, const std::string& what) {
  if (what.find(fault) != std::string::npos) return "";
  return path + ": fails with '" + what + "', not with '" + fault + "'\n";
}

/// What is wrong, or nothing.
std::string played(const Script& script, const Options& options, World* world) {
  Player player(script, *world);
  const auto failed = player.play();
  if (options.trace) {
    std::string all;
    for (const std::string& line : player.trace()) all += "    " + line + "\n";
    std::fputs(all.c_str(), stdout);
    std::fflush(stdout);
  }
  if (const std::string fault = script.option("fails"); !fault.empty())
    return with_fault(script.path, fault, failed ? failed->what : "nothing");
  std::string out;
  if (failed) out = text_of(script.path, *failed, player.trace());
  // Why a script is not to hold here, as its head says.
  std::string reason = script.option(options.kernel ? "kernel_differs" : "core_differs");
  if (reason.empty()) return out;
  return failed ? "" : script.path + ": holds, though it says that it does not: " + reason + "\n";
}

std::string played_on_core(const Script& script, const Options& options) {
  return played(script, options, make_core_world(options.ends, 1500 + options.ends.longer_header()).get());
}

/// Of a process that plays a script on the kernel.
enum Status : uint8_t { kHeld, kFailed, kDisturbed };

int play_on_kernel(const Script& script, const Options& options, int out) {
  std::string wrong;
  Status status = kFailed;
  World* world = nullptr;  // the process' end is its end
  try {
    world = make_kernel_world(options.ends).release();
    wrong = played(script, options, world);
    status = wrong.empty() ? kHeld : world->disturbed() ? kDisturbed : kFailed;
  } catch (const std::exception& e) {
    wrong = script.path + ": " + e.what() + "\n";
  }
  (void)!write(out, wrong.data(), std::min<size_t>(wrong.size(), 65536));
  return status;
}

/// A kernel's script plays in a process of its own, whose namespace and threads end with it. A busy machine
/// delays what the script does itself: then it has not been played as it is written, and is played again.
class Children {
 public:
  explicit Children(int jobs) : jobs_(jobs) {}
  void play(const Script& script, const Options& options, int plays = 1) {
    while (static_cast<int>(running_.size()) >= jobs_) reap();
    int ends[2];
    if (pipe(ends) != 0) std::abort();
    std::fflush(stdout);
    const pid_t pid = fork();
    if (pid == 0) _exit(play_on_kernel(script, options, ends[1]));
    close(ends[1]);
    running_[pid] = {ends[0], &script, &options, plays};
  }
  void finish() {
    while (!running_.empty()) reap();
  }
  int failures = 0, again = 0;

 private:
  struct Running {
    int out;
    const Script* script;
    const Options* options;
    int plays;
  };
  void reap() {
    int status = 0;
    const pid_t pid = wait(&status);
    auto found = running_.find(pid);
    if (found == running_.end()) return;
    const Running r = found->second;
    running_.erase(found);
    std::string text;
    char part[4096];
    for (ssize_t n; (n = read(r.out, part, sizeof part)) > 0;) text.append(part, static_cast<size_t>(n));
    close(r.out);
    if (WIFEXITED(status) && WEXITSTATUS(status) == kDisturbed && r.plays < kMostPlays) {
      ++again;
      return play(*r.script, *r.options, r.plays + 1);
    }
    if (status == 0) return;
    ++failures;
    if (r.plays == kMostPlays) text += "      (the machine was busy each time)\n";
    std::fputs(text.empty() ? "a script's process ended by a signal\n" : text.c_str(), stdout);
  }
  static constexpr int kMostPlays = 20;
  int jobs_;
  std::map<pid_t, Running> running_;
};

/// An event's expectation made wrong in one way after another. False: there are no more ways.
bool change(Event& e, int way) {
  if (auto* s = std::get_if<Expect>(&e.action)) {
    switch (way) {
      case 0:
        s->segment.flags ^= kPsh;
        return true;
      case 1:
        if ((s->segment.flags & kSyn) != 0 && (s->segment.flags & kAck) == 0) return change(e, 2);
        if (s->segment.ack)
          ++*s->segment.ack;
        else
          ++s->segment.seq;
        return true;
      case 2:
        s->segment.flags ^= kUrg;
        return true;
      case 3:
        s->segment.any_options = false;
        s->segment.options.push_back({1, {}, {}, {}});
        return true;
      case 4: {
        if (e.moment.any) return false;
        const Duration later = e.moment.to.value_or(e.moment.from) - e.moment.from + 50ms;
        e.moment.from += later;
        if (e.moment.to) *e.moment.to += later;
        return true;
      }
      default:
        return false;
    }
  }
  if (auto* c = std::get_if<Call>(&e.action)) {
    if (way != 0 || c->result.any() || c->name == "socket" || c->name.starts_with("accept")) return false;
    c->result.number += 1000;
    c->error.clear();
    return true;
  }
  return false;
}

/// How many changed scripts held nevertheless.
int play_changed(const Script& script, const Options& options, int& played_scripts) {
  int held = 0;
  for (size_t i = 0; i < script.events.size(); ++i)
    for (int way = 0;; ++way) {
      Script other = script;
      if (!change(other.events[i], way)) break;
      ++played_scripts;
      if (!played_on_core(other, options).empty()) continue;
      ++held;
      std::printf("%s:%d: holds whatever the line says (change %d)\n", script.path.c_str(),
                  script.events[i].line, way);
    }
  return held;
}

std::vector<std::string> scripts_of(const std::vector<std::string>& paths) {
  std::vector<std::string> out;
  for (const std::string& path : paths) {
    if (!std::filesystem::is_directory(path)) {
      out.push_back(path);
      continue;
    }
    for (const auto& entry : std::filesystem::recursive_directory_iterator(path))
      if (entry.path().extension() == ".pkt") out.push_back(entry.path().string());
  }
  std::sort(out.begin(), out.end());
  return out;
}

/// Whether it is to be played here.
bool wanted(const Script& script, const Options& options) {
  const std::string family = script.option("ip_version");
  if (!family.empty() && (family == "ipv6") != options.ends.v6()) return false;
  return !options.changed || (script.option("core_differs") + script.option("fails")).empty();
}

/// Whether a script that is not of the language says so; else its fault is printed.
bool unreadable_as_said(const std::string& path, const std::string& text, const ScriptError& e) {
  constexpr std::string_view kOption = "--fails=\"";
  const size_t at = text.find(kOption);
  if (at == std::string::npos) {
    std::printf("%s:%d: %s\n", path.c_str(), e.line, e.what());
    return false;
  }
  const size_t begin = at + kOption.size();
  const std::string wrong = with_fault(path, text.substr(begin, text.find('"', begin) - begin), e.what());
  std::fputs(wrong.c_str(), stdout);
  return wrong.empty();
}

int run(const Options& options) {
  int total = 0, failures = 0, changes = 0;
  Children children(options.jobs);
  std::list<Script> scripts;
  for (const std::string& path : scripts_of(options.paths)) {
    std::ifstream in(path);
    std::stringstream text;
    text << in.rdbuf();
    Script& script = scripts.emplace_back();
    try {
      if (!in) throw ScriptError(0, "cannot be read");
      script = parse_script(path, text.str());
    } catch (const ScriptError& e) {
      failures += !unreadable_as_said(path, text.str(), e);
      ++total;
      continue;
    }
    if (!wanted(script, options)) continue;
    ++total;
    if (options.changed) {
      failures += play_changed(script, options, changes);
    } else if (options.kernel) {
      children.play(script, options);
    } else if (std::string wrong = played_on_core(script, options); !wrong.empty()) {
      ++failures;
      std::fputs(wrong.c_str(), stdout);
    }
  }
  children.finish();
  failures += children.failures;
  if (options.changed) std::printf("%d changes\n", changes);
  if (children.again != 0) std::printf("played again on a busy machine: %d\n", children.again);
  std::printf("%d scripts, %d failures\n", total, failures);
  return failures != 0 || total == 0;
}

}  // namespace
}  // namespace accel::scripts

int main(int argc, char** argv) {
  accel::scripts::Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "core" || word == "kernel")
      options.kernel = word == "kernel";
    else if (word == "--ip_version=ipv4" || word == "--ip_version=ipv6")
      options.ends = word.ends_with("ipv6") ? accel::scripts::kIpv6 : accel::scripts::kIpv4;
    else if (word == "--trace")
      options.trace = true;
    else if (word == "--changed")
      options.changed = true;
    else if (word == "--jobs" && i + 1 < argc)
      options.jobs = std::atoi(argv[++i]);
    else
      options.paths.push_back(word);
  }
  if (options.kernel && access("/dev/net/tun", R_OK | W_OK) != 0) {
    std::perror("/dev/net/tun");
    return 77;  // ctest: skipped
  }
  return accel::scripts::run(options);
}
