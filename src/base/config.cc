#include "base/config.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fnmatch.h>
#include <sys/auxv.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "base/log_target.h"
#include "base/spelling.h"

namespace accel {
namespace {

constexpr const char* kDefaultFile = "/etc/libaccel.toml";
constexpr std::string_view kEnvPrefix = "ACCEL_";

/// As they were when the program began: setproctitle() and friends overwrite argv and the environment behind
/// it.
struct AtStart {
  char program[256] = "";
  std::vector<std::string>* env = nullptr;  ///< "ACCEL_X=value"; only when there is any
  bool secure = false;
} at_start;

[[gnu::constructor]] void capture(int argc, char** argv, char** envp) {
  at_start.secure = getauxval(AT_SECURE) != 0;
  if (argc > 0 && argv && argv[0]) {
    const char* slash = std::strrchr(argv[0], '/');
    std::strncpy(at_start.program, slash ? slash + 1 : argv[0], sizeof at_start.program - 1);
  }
  if (at_start.secure || !envp) return;
  for (; *envp; ++envp)
    if (std::strncmp(*envp, kEnvPrefix.data(), kEnvPrefix.size()) == 0) {
      if (!at_start.env) at_start.env = new std::vector<std::string>;
      at_start.env->emplace_back(*envp);
    }
}

void read_environment(const ConfigSource& source, Config& config, std::vector<std::string>& problems) {
  auto rows = setting_texts();
  auto apply = [&](size_t i) {
    const char* value = source.env(std::string(rows[i].env).c_str());
    if (!value || !*value) return false;
    if (set_setting(config.settings, i, value)) return true;
    problems.push_back(std::string(rows[i].env) + ": \"" + value + "\" is not a value of it" +
                       meant_perhaps(value, rows[i].allowed) + "; allowed: " + rows[i].allowed);
    if (!rows[i].tuning) config.misread = true;
    return false;
  };
  // The profile first: other variables win over it.
  for (bool profile : {true, false})
    for (size_t i = 0; i < rows.size(); ++i)
      if ((rows[i].name == "profile") == profile && apply(i) && profile)
        apply_profile(config.settings, config.settings.profile);
  if (const char* off = source.env("ACCEL_DISABLE"))
    config.disabled = *off != '\0' && std::strcmp(off, "0") != 0;
}

/// Misspelt ones only: the prefix may be another program's too.
void report_unknown_variables(const ConfigSource& source, std::vector<std::string>& problems) {
  std::vector<std::string_view> known{"ACCEL_CONFIG", "ACCEL_APP_ID", "ACCEL_DISABLE"};
  for (const SettingText& row : setting_texts()) known.push_back(row.env);
  for (const std::string& name : source.env_names) {
    if (name.size() > 64 || std::find(known.begin(), known.end(), name) != known.end()) continue;
    size_t allowed = name.size() < kEnvPrefix.size() + 6 ? 1 : 2;
    for (std::string_view right : known)
      if (edit_distance(name, right) <= allowed) {
        problems.push_back(name + ": no such setting; meant is perhaps " + std::string(right));
        break;
      }
  }
}

bool prefix_matches(const IpAddress& prefix, unsigned length, const IpAddress& address) {
  if (prefix.is_v4() != address.is_v4()) return false;
  unsigned bytes = length / 8;
  if (std::memcmp(prefix.bytes.data(), address.bytes.data(), bytes) != 0) return false;
  unsigned bits = length % 8;
  return bits == 0 || ((prefix.bytes[bytes] ^ address.bytes[bytes]) & (0xff << (8 - bits)) & 0xff) == 0;
}

template <class T>
bool parse_whole(std::string_view text, T* out) {
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  return error == std::errc{} && end == text.data() + text.size();
}

}  // namespace

bool Rule::matches(Role r, const Endpoint& e) const {
  if (role && *role != r) return false;
  if (e.port < first_port || e.port > last_port) return false;
  return !prefix || prefix_matches(*prefix, prefix_length, e.address);
}

Path Config::path_for(Role role, const Endpoint& endpoint) const {
  if (disabled) return Path::kKernel;
  for (const Rule& rule : rules)
    if (rule.path && rule.matches(role, endpoint)) return *rule.path;
  return settings.path;
}

Iwarp Config::iwarp_for(Role role, const Endpoint& endpoint) const {
  if (!wants_iwarp) return Iwarp::kOff;
  for (const Rule& rule : rules)
    if (rule.iwarp && rule.matches(role, endpoint)) return *rule.iwarp;
  return settings.iwarp;
}

bool Config::device_allowed(std::string_view netdev) const {
  std::string name(netdev);
  bool allowed = false, only_exclusions = true;
  std::string_view rest = settings.devices;
  while (!rest.empty()) {
    size_t comma = rest.find(',');
    std::string glob(rest.substr(0, comma));
    rest = comma == std::string_view::npos ? std::string_view{} : rest.substr(comma + 1);
    while (!glob.empty() && glob.front() == ' ') glob.erase(0, 1);
    while (!glob.empty() && glob.back() == ' ') glob.pop_back();
    if (glob.empty()) continue;
    if (glob[0] == '!') {
      if (fnmatch(glob.c_str() + 1, name.c_str(), 0) == 0) return false;
      continue;
    }
    only_exclusions = false;
    allowed = allowed || fnmatch(glob.c_str(), name.c_str(), 0) == 0;
  }
  return allowed || only_exclusions;
}

bool parse_prefix(std::string_view text, std::optional<IpAddress>* prefix, uint8_t* length) {
  if (text == "*") {
    prefix->reset();
    *length = 0;
    return true;
  }
  if (text.size() >= 2 && text.front() == '[' && text.back() == ']') text = text.substr(1, text.size() - 2);
  size_t slash = text.find('/');
  std::string host(text.substr(0, slash));
  uint8_t four[4], sixteen[16];
  unsigned bits = 0, most = 0;
  if (inet_pton(AF_INET, host.c_str(), four) == 1) {
    *prefix = IpAddress::from_v4_bytes(four);
    most = 32;
  } else if (inet_pton(AF_INET6, host.c_str(), sixteen) == 1) {
    *prefix = IpAddress::from_v6_bytes(sixteen);
    most = (*prefix)->is_v4() ? 32 : 128;
  } else {
    return false;
  }
  bits = most;
  if (slash != std::string_view::npos && (!parse_whole(text.substr(slash + 1), &bits) || bits > most))
    return false;
  *length = static_cast<uint8_t>(128 - most + bits);
  return true;
}

bool parse_ports(std::string_view text, uint16_t* first, uint16_t* last) {
  if (text == "*") {
    *first = 0;
    *last = 65535;
    return true;
  }
  size_t dash = text.find('-');
  if (!parse_whole(text.substr(0, dash), first)) return false;
  *last = *first;
  if (dash != std::string_view::npos && !parse_whole(text.substr(dash + 1), last)) return false;
  return *first <= *last;
}

Config load_config(const ConfigSource& source, std::vector<std::string>& problems) {
  Config config;
  if (!source.file.empty()) read_config_file(source, config, problems);
  read_environment(source, config, problems);
  report_unknown_variables(source, problems);
  if (!problems.empty()) config.first_problem = problems.front();
  if (config.misread) {
    // What the operator wanted is not known for certain: the kernel's way is the one that cannot be wrong.
    config.settings.path = Path::kKernel;
    config.rules.clear();
    config.settings.iwarp = Iwarp::kOff;
    config.settings.same_host = SameHost::kOff;
  }
  if (config.settings.require == Require::kShm) {
    config.settings.require = Require::kOff;
    config.settings.same_host = SameHost::kRequire;
  }
  config.wants_iwarp = config.settings.iwarp != Iwarp::kOff && !config.disabled;
  for (const Rule& rule : config.rules)
    config.wants_iwarp |= rule.iwarp.value_or(Iwarp::kOff) != Iwarp::kOff && !config.disabled;
  return config;
}

std::string meant_perhaps(std::string_view word, std::string_view allowed) {
  std::vector<std::string_view> words;
  while (!allowed.empty()) {
    const size_t end = allowed.find_first_of(" |,");
    if (end != 0) words.push_back(allowed.substr(0, end));
    allowed = end == std::string_view::npos ? std::string_view{} : allowed.substr(end + 1);
  }
  const std::string_view meant = nearest_word(word, words);
  return meant.empty() ? "" : "; meant is perhaps \"" + std::string(meant) + "\"";
}

const char* environment(const char* name) {
  if (at_start.secure) return nullptr;
  size_t size = std::strlen(name);
  if (at_start.env)
    for (const std::string& entry : *at_start.env)
      if (entry.size() > size && entry[size] == '=' && entry.compare(0, size, name) == 0)
        return entry.c_str() + size + 1;
  return std::getenv(name);
}

ConfigSource process_source() {
  ConfigSource source;
  char exe[PATH_MAX];
  if (ssize_t n = readlink("/proc/self/exe", exe, sizeof exe); n > 0) {
    std::string_view path(exe, static_cast<size_t>(n));
    source.programs.emplace_back(path.substr(path.rfind('/') + 1));
  }
  if (at_start.program[0]) source.programs.emplace_back(at_start.program);
  if (const char* id = environment("ACCEL_APP_ID")) source.user_id = id;
  source.file = kDefaultFile;
  if (const char* file = environment("ACCEL_CONFIG"); file && *file) {
    source.file = file;
    source.file_must_exist = true;
  }
  source.env = environment;
  if (at_start.env)
    for (const std::string& entry : *at_start.env)
      source.env_names.push_back(entry.substr(0, entry.find('=')));
  return source;
}

const Config& config() {
  // Not a function's static: its guard could be held by another thread at the moment of a fork, for ever in
  // the child.
  static std::atomic<const Config*> loaded{nullptr};
  if (const Config* c = loaded.load(std::memory_order_acquire)) return *c;
  int saved = errno;
  std::vector<std::string> problems;
  const Config* mine = new Config(load_config(process_source(), problems));
  const Config* winner = nullptr;
  if (loaded.compare_exchange_strong(winner, mine, std::memory_order_acq_rel)) {
    set_log_level(mine->settings.log);
    set_log_rate(mine->settings.log_rate);
    if (const std::string why_not = open_log_target(mine->settings.log_to); !why_not.empty())
      log(LogLevel::kWarning, "%s", why_not.c_str());
    for (const std::string& problem : problems) log(LogLevel::kWarning, "%s", problem.c_str());
    winner = mine;
  } else {
    delete mine;
  }
  errno = saved;
  return *winner;
}

}  // namespace accel
