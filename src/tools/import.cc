// accel import: configurations of VMA, XLIO and Onload as libaccel.toml. Each line says where it comes from;
// what has no equivalent is listed, with what libaccel does instead.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/config.h"
#include "base/spelling.h"
#include "tools/commands.h"

namespace accel::tools {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

enum How {
  kNone,           ///< no equivalent; the note says what libaccel does
  kAlways,         ///< libaccel always does so
  kNumber,         ///< a number, brought into our range
  kPolls,          ///< how long to poll; -1: without end
  kFlag,           ///< 0, 1, true, false
  kAutoFlag,       ///< the same, or -1/auto
  kHugePages,      ///< the name or number of a way to allocate
  kBytesOfFrames,  ///< bytes, of which we count frames
  kTraceLevel,     ///< the name or number of a log level
  kSpec,           ///< the name or number of a profile
  kAccelerate,     ///< 0: nothing is accelerated unless a rule says so
  kDecelerate,     ///< 1: the same
  kDevices,        ///< names of devices
  kNotDevices,
  kInline,  ///< XLIO's "key=value, key=value"
};

struct Known {
  std::string_view json_key, name;
  How how;
  std::string_view ours, note;
};
constexpr Known kXlio[] = {
#define XLIO_SETTING(json_key, suffix, how, ours, note) {json_key, suffix, how, ours, note},
#include "tools/import.def"
#undef XLIO_SETTING
};
constexpr Known kOnload[] = {
#define ONLOAD_SETTING(name, how, ours, note) {"", name, how, ours, note},
#include "tools/import.def"
#undef ONLOAD_SETTING
};

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

/// "4096", "-1", "2GB", "64K".
std::optional<int64_t> number_of(const std::string& text) {
  int64_t value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{}) return {};
  std::string unit = lower(std::string(end, text.data() + text.size()));
  if (unit.size() == 2 && unit[1] == 'b') unit.pop_back();
  const size_t at = unit.empty() || unit == "b" ? 0 : std::string("?kmgt").find(unit);
  if (at == std::string::npos || unit.size() > 1 || std::abs(value) > (int64_t{1} << (62 - 10 * at)))
    return {};
  return value * (int64_t{1} << (10 * at));
}

std::optional<bool> flag_of(const std::string& text) {
  const std::string word = lower(text);
  if (word == "1" || word == "true" || word == "enable" || word == "yes" || word == "y") return true;
  if (word == "0" || word == "false" || word == "disable" || word == "no" || word == "n") return false;
  return {};
}

/// The position of a word or number in a list that begins at `first`; none: not of it.
std::optional<int64_t> place_of(const std::string& text, std::initializer_list<const char*> words,
                                int64_t first) {
  int64_t at = first;
  for (const char* word : words) {
    if (lower(text) == word || text == std::to_string(at)) return at;
    ++at;
  }
  return {};
}

/// Words of a line; quotes hold together, what follows a # is left out.
std::vector<std::string> words_of(const std::string& line) {
  std::vector<std::string> words;
  std::string word;
  bool any = false;
  char quote = 0;
  for (char c : line) {
    if (quote != 0 ? c == quote : (c == '"' || c == '\'')) {
      quote = quote != 0 ? 0 : c;
      any = true;
    } else if (quote == 0 && c == '#' && !any) {
      break;
    } else if (quote == 0 && std::isspace(static_cast<unsigned char>(c))) {
      if (any) words.push_back(std::exchange(word, {}));
      any = false;
    } else {
      word += c;
      any = true;
    }
  }
  if (any) words.push_back(word);
  return words;
}

/// What a comment of the result may hold.
std::string printable(std::string_view text) {
  std::string out;
  for (unsigned char c : text.substr(0, 200)) out += c >= 32 && c < 127 ? static_cast<char>(c) : '?';
  return out;
}

std::string toml_string(std::string_view text) {
  std::string out = "\"";
  for (unsigned char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (c >= 32 && c < 127)
      out += static_cast<char>(c);
    else
      out += fmt::format("\\u{:04x}", c);
  }
  return out + "\"";
}

struct Application {
  std::string name = "*", id = "*";
  std::string origin;
  std::vector<std::string> rules;  ///< as TOML, each with its origin
};

class Importer {
 public:
  /// False: it cannot be read.
  bool read_file(const std::string& file);
  void read_environment();
  void print() const;

 private:
  struct Value {
    std::string value, origin;
  };

  void read_line(const std::string& line);
  void read_json(const std::string& text);
  void read_json_values(const ordered_json& node, const std::string& prefix);
  void read_json_rules(const ordered_json& rules);
  void assign(const std::string& name, const std::string& value);
  void onload_set(const std::string& name, const std::string& value);
  void onload_import(const std::string& name);
  void take(const Known& known, const std::string& value);
  void take_inline(const std::string& text);
  void set(std::string_view ours, const std::string& value, std::string_view note);
  void number(const Known& known, int64_t value);
  void unknown(const std::string& name, const Known* begin, const Known* end, std::string_view prefix);
  void start_application(const std::string& name, const std::string& id);
  void rule(const std::vector<std::string>& words);
  void without(std::string_view why) { without_.push_back(fmt::format("{}: {}", origin_, why)); }
  Application& application() {
    if (applications_.empty()) start_application("*", "*");
    return applications_[current_];
  }
  static size_t row_of(std::string_view name) {
    auto rows = setting_texts();
    return static_cast<size_t>(
        std::find_if(rows.begin(), rows.end(), [&](auto& r) { return r.name == name; }) - rows.begin());
  }

  std::string file_, origin_;
  std::vector<fs::path> importing_;   ///< profiles that wait for the one that is read
  std::map<size_t, Value> settings_;  ///< by their row
  std::vector<std::string> without_;
  std::vector<Application> applications_;
  size_t current_ = 0;
};

void Importer::set(std::string_view ours, const std::string& value, std::string_view note) {
  Settings probe;
  const size_t row = row_of(ours);
  if (!set_setting(probe, row, value))
    return without(
        fmt::format("{} = {} is not allowed here: {}", ours, printable(value), setting_texts()[row].allowed));
  std::string origin = note.empty() ? origin_ : fmt::format("{} ({})", origin_, note);
  if (auto had = settings_.find(row); had != settings_.end()) {
    if (had->second.value == value)
      origin = had->second.origin + "; " + origin;
    else
      without_.push_back(fmt::format("{}: {} = {} is replaced by a later line: {}", had->second.origin, ours,
                                     had->second.value, origin_));
  }
  settings_[row] = {value, origin};
}

/// Brings it into the setting's range, and says so.
void Importer::number(const Known& known, int64_t value) {
  const std::string& allowed = setting_texts()[row_of(known.ours)].allowed;
  const size_t dash = allowed.find('-');
  const int64_t least = std::stoll(allowed), most = std::stoll(allowed.substr(dash + 1));
  const int64_t fitting = std::clamp(value, least, most);
  std::string note(known.note);
  if (fitting != value) note += fmt::format("{}{} is allowed", note.empty() ? "" : "; ", allowed);
  set(known.ours, std::to_string(fitting), note);
}

void Importer::take(const Known& known, const std::string& value) {
  const auto n = number_of(value);
  const auto flag = flag_of(value);
  const auto misread = [&] { without(fmt::format("{} is not a value of it", printable(value))); };
  switch (known.how) {
    case kNone:
      return without(known.note);
    case kAlways:
      return without(known.note);
    case kInline:
      return take_inline(value);
    case kNumber:
      if (!n) return misread();
      if (*n < 0) return without("the default of libaccel serves");
      return number(known, *n);
    case kPolls:
      if (!n) return misread();
      return number(known, *n < 0 ? INT32_MAX : *n);
    case kFlag:
      return flag ? set(known.ours, *flag ? "true" : "false", known.note) : misread();
    case kAutoFlag:
      if (n == -1 || lower(value) == "auto") return without("the default of libaccel serves");
      return flag ? set(known.ours, *flag ? "true" : "false", known.note) : misread();
    case kHugePages: {
      // anonymous pages, contiguous pages, huge pages; XLIO's JSON has true and false
      const auto way = place_of(value, {"anon", "contig", "huge"}, 0);
      if (lower(value) == "true" || lower(value) == "hugepages") return set(known.ours, "true", "");
      if (lower(value) == "false") return set(known.ours, "false", "");
      return way ? set(known.ours, *way == 0 ? "false" : "true", "") : misread();
    }
    case kBytesOfFrames:
      return n && *n >= 0 ? number(known, *n / 4096) : misread();
    case kTraceLevel: {
      const auto level = place_of(
          value,
          {"init", "none", "panic", "error", "warn", "info", "details", "debug", "fine", "finer", "all"}, -2);
      if (!level && lower(value) != "warning") return misread();
      const int64_t at = level.value_or(2);
      return set(known.ours,
                 at < 0    ? "off"
                 : at <= 1 ? "error"
                 : at == 2 ? "warning"
                 : at <= 4 ? "info"
                           : "debug",
                 "");
    }
    case kSpec: {
      const std::string word = lower(value);
      const bool latency = word.find("latency") != std::string::npos || word == "1" || word == "2";
      if (latency) return set(known.ours, "latency", "");
      if (word.starts_with("nginx") || word == "3" || word == "4") return set(known.ours, "nginx", "");
      return without("libaccel has no such profile; see accel run --profile");
    }
    case kAccelerate:
      if (!flag) return misread();
      return *flag ? without("libaccel always does so")
                   : set(known.ours, "kernel", "rules say what is accelerated");
    case kDecelerate:
      if (!flag) return misread();
      return *flag ? set(known.ours, "kernel", "") : without("libaccel always does so");
    case kDevices:
    case kNotDevices: {
      std::string globs;
      std::istringstream names(value);
      for (std::string name; names >> name;) {
        if (!globs.empty()) globs += ",";
        globs += (known.how == kNotDevices ? "!" : "") + name;
      }
      if (globs.empty()) return without("names no device");
      const size_t row = row_of(known.ours);  // both may be given
      if (auto had = settings_.find(row); had != settings_.end()) {
        had->second.value += "," + globs;
        had->second.origin += ", " + origin_;
        return;
      }
      return set(known.ours, globs, "");
    }
  }
}

void Importer::unknown(const std::string& name, const Known* begin, const Known* end,
                       std::string_view prefix) {
  std::vector<std::string> names;
  for (const Known* k = begin; k != end; ++k)
    if (!k->name.empty()) names.push_back(std::string(prefix) + std::string(k->name));
  const std::vector<std::string_view> views(names.begin(), names.end());
  const std::string_view meant = nearest_word(name, views);
  without("not a known setting" + (meant.empty() ? "" : "; meant is perhaps " + std::string(meant)));
}

void Importer::assign(const std::string& name, const std::string& value) {
  if (name.starts_with("EF_")) return onload_set(name, value);
  const size_t prefix = name.starts_with("VMA_") ? 4 : name.starts_with("XLIO_") ? 5 : 0;
  if (prefix == 0) return;  // another program's
  for (const Known& k : kXlio)
    if (!k.name.empty() && name.substr(prefix) == k.name) return take(k, value);
  unknown(name, std::begin(kXlio), std::end(kXlio), name.substr(0, prefix));
}

void Importer::onload_set(const std::string& name, const std::string& value) {
  for (const Known& k : kOnload)
    if (name == k.name) return take(k, value);
  unknown(name, std::begin(kOnload), std::end(kOnload), "");
}

void Importer::onload_import(const std::string& name) {
  const fs::path folder = fs::path(file_).parent_path();
  std::error_code error;
  for (const char* ending : {".opf", ".opf-fragment", ""}) {
    const fs::path file = folder / (name + ending);
    if (!fs::is_regular_file(file, error)) continue;
    if (std::find(importing_.begin(), importing_.end(), file) != importing_.end())
      return without("imports itself: not read again");
    const std::string back = file_;
    importing_.push_back(back);
    read_file(file.string());
    importing_.pop_back();
    file_ = back;
    return;
  }
  without("that profile is not beside this file: import it too");
}

void Importer::take_inline(const std::string& text) {
  std::istringstream pairs(text);
  const std::string origin = origin_;
  for (std::string pair; std::getline(pairs, pair, ',');) {
    pair.erase(0, pair.find_first_not_of(' '));
    const size_t equals = pair.find('=');
    if (equals == std::string::npos) continue;
    origin_ = fmt::format("{}: {}", origin, printable(pair));
    const std::string key = pair.substr(0, equals);
    auto known =
        std::find_if(std::begin(kXlio), std::end(kXlio), [&](const Known& k) { return k.json_key == key; });
    if (known != std::end(kXlio))
      take(*known, pair.substr(equals + 1));
    else
      without("not a known setting");
  }
}

void Importer::start_application(const std::string& name, const std::string& id) {
  for (current_ = 0; current_ < applications_.size(); ++current_)
    if (applications_[current_].name == name && applications_[current_].id == id) return;
  applications_.push_back({name, id, origin_, {}});
}

/// "use os tcp_server 10.0.0.0/8:80-81", "use vma tcp_client 1.2.3.4:80:*:*".
void Importer::rule(const std::vector<std::string>& words) {
  if (words.size() != 4) return without("not understood: use TRANSPORT ROLE ADDRESS:PORTS[:ADDRESS:PORTS]");
  const std::string& transport = words[1];
  if (transport == "sdp" || transport == "sa") return without("libaccel has no such transport");
  const bool os = transport == "os";
  if (!os && transport != "vma" && transport != "xlio" && transport != "*")
    return without(fmt::format("{} is not a transport", printable(transport)));
  if (std::find(kWords<Role>.begin(), kWords<Role>.end(), words[2]) == kWords<Role>.end())
    return without(fmt::format("{} is not a role", printable(words[2])));
  std::vector<std::string> parts;
  std::istringstream tuple(words[3]);
  for (std::string part; std::getline(tuple, part, ':');) parts.push_back(part);
  if (parts.size() != 2 && parts.size() != 4) return without("not understood: ADDRESS:PORTS[:ADDRESS:PORTS]");
  if (parts.size() == 4 && (parts[2] != "*" || parts[3] != "*"))
    return without("rules have the remote end of clients only: this one is left out");
  std::optional<IpAddress> prefix;
  uint8_t length = 0;
  uint16_t first = 0, last = 0;
  if (!parse_prefix(parts[0], &prefix, &length) || !parse_ports(parts[1], &first, &last))
    return without("not understood: an IPv4 address with its prefix length or *, a port, two ports or *");
  std::string text = fmt::format("[[application.rule]]  # {}\nrole = \"{}\"\n", origin_, words[2]);
  if (parts[0] != "*") text += fmt::format("address = {}\n", toml_string(parts[0]));
  if (parts[1] != "*") text += fmt::format("ports = {}\n", toml_string(parts[1]));
  application().rules.push_back(text + fmt::format("path = \"{}\"\n", os ? "kernel" : "auto"));
}

void Importer::read_line(const std::string& line) {
  std::vector<std::string> words = words_of(line);
  if (words.empty()) return;
  const std::string first = words[0];
  if (first == "application-id") {
    if (words.size() < 2 || words.size() > 3) return without("not understood: application-id PROGRAM ID");
    return start_application(words[1], words.size() == 3 ? words[2] : "*");
  }
  if (first == "use") return rule(words);
  if (first == "log") return without("setting log has levels; messages go to stderr");
  if (first == "onload_set" || first == "onload_set_only") {
    if (words.size() < 2) return without("not understood: onload_set NAME VALUE");
    const std::string value = words.size() > 2 ? words[2] : "";
    if (value.find('$') != std::string::npos) return without("the value is the shell's: not evaluated");
    return onload_set(words[1], value);
  }
  if (first == "onload_import")
    return words.size() < 2 ? without("not understood: onload_import PROFILE") : onload_import(words[1]);
  // Assignments: a shell's, an environment file's, a systemd unit's.
  if (first == "export" || first == "env") words.erase(words.begin());
  bool any = false;
  for (std::string word : words) {
    if (word.starts_with("Environment=")) word.erase(0, 12);
    const size_t equals = word.find('=');
    if (equals == std::string::npos) break;
    const std::string name = word.substr(0, equals);
    if (name.empty() ||
        name.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_") !=
            std::string::npos)
      break;
    any = true;
    assign(name, word.substr(equals + 1));
  }
  if (!any) without("not understood, or a shell's command: not evaluated");
}

void Importer::read_json_rules(const ordered_json& rules) {
  if (!rules.is_array()) return without("rules are not a list");
  for (const ordered_json& entry : rules) {
    const auto text = [&](const char* key) {
      return entry.is_object() && entry.contains(key) && entry[key].is_string()
                 ? entry[key].get<std::string>()
                 : std::string("*");
    };
    start_application(text("name"), text("id"));
    if (!entry.is_object() || !entry.contains("actions") || !entry["actions"].is_array()) continue;
    for (const ordered_json& action : entry["actions"]) {
      const std::string line = action.is_string() ? action.get<std::string>() : action.dump();
      origin_ = fmt::format("{}: acceleration_control.rules: {}", file_, printable(line));
      rule(words_of(line));
    }
  }
}

void Importer::read_json_values(const ordered_json& node, const std::string& prefix) {
  for (const auto& [name, value] : node.items()) {
    const std::string key = prefix.empty() ? name : prefix + "." + name;
    const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
    origin_ =
        fmt::format("{}: {} = {}", file_, printable(key), printable(value.is_object() ? "{...}" : text));
    if (key == "acceleration_control.rules") {
      read_json_rules(value);
      continue;
    }
    auto known =
        std::find_if(std::begin(kXlio), std::end(kXlio), [&](const Known& k) { return k.json_key == key; });
    if (known != std::end(kXlio) && !value.is_object())
      take(*known, text);
    else if (value.is_object())
      read_json_values(value, key);
    else
      without("not a known setting");
  }
}

void Importer::read_json(const std::string& text) {
  const ordered_json root = ordered_json::parse(text, nullptr, false, true);
  origin_ = file_;
  if (root.is_discarded() || !root.is_object()) return without("not JSON: nothing of it was read");
  read_json_values(root, "");
}

bool Importer::read_file(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  std::ostringstream content;
  if (!in || !(content << in.rdbuf())) {
    if (!in || in.bad() || fs::is_directory(file)) return false;
  }
  file_ = file;
  const std::string text = content.str();
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first != std::string::npos && text[first] == '{') {
    read_json(text);
    return true;
  }
  std::istringstream lines(text);
  size_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    const size_t start = line.find_first_not_of(" \t");
    if (start == std::string::npos) continue;
    file_ = file;  // an imported profile has changed it
    origin_ = fmt::format("{}:{}: {}", file, number, printable(line.substr(start)));
    read_line(line);
  }
  return true;
}

void Importer::read_environment() {
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string line = *entry;
    const size_t equals = line.find('=');
    if (equals == std::string::npos) continue;
    origin_ = "environment: " + printable(line);
    assign(line.substr(0, equals), line.substr(equals + 1));
  }
}

void Importer::print() const {
  fmt::print("# libaccel.toml, by accel import. Behind each line stands what it comes from.\n");
  auto rows = setting_texts();
  if (!settings_.empty()) fmt::print("\n[default]\n");
  for (const auto& [row, value] : settings_)
    fmt::print("{} = {}  # {}\n", rows[row].name, rows[row].quoted ? toml_string(value.value) : value.value,
               value.origin);

  // Here the first application that matches counts; there each that matches adds its rules, in order. So
  // those for every program come last, and the others have their rules as well.
  std::vector<const Application*> order;
  for (bool everybody : {false, true})
    for (const Application& a : applications_)
      if ((a.name == "*" && a.id == "*") == everybody) order.push_back(&a);
  for (const Application* a : order) {
    const bool everybody = a->name == "*" && a->id == "*";
    fmt::print("\n[[application]]{}{}\nname = {}\n", a->origin.empty() ? "" : "  # ", a->origin,
               toml_string(a->name));
    if (a->id != "*") fmt::print("user_id = {}\n", toml_string(a->id));
    for (const Application& other : applications_)
      if (&other == a || (!everybody && other.name == "*" && other.id == "*"))
        for (const std::string& r : other.rules) fmt::print("\n{}", r);
  }
  if (!without_.empty()) fmt::print("\n# Without an equivalent:\n");
  for (const std::string& line : without_) fmt::print("#   {}\n", line);
}

}  // namespace

int import(const ImportOptions& options) {
  Importer importer;
  int status = 0;
  for (const std::string& file : options.files)
    if (!importer.read_file(file)) {
      fmt::print(stderr, "accel import: {} cannot be read\n", file);
      status = 1;
    }
  if (options.environment) importer.read_environment();
  if (status == 0) importer.print();
  return status;
}

}  // namespace accel::tools
