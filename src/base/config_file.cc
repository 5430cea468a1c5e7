// libaccel.toml into a Config. The file may be anything: too large, a pipe, deeply nested; the process must
// not notice.
#include <fcntl.h>
#include <fnmatch.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <list>

#define TOML_HEADER_ONLY 1
#define TOML_EXCEPTIONS 0
#define TOML_ENABLE_FORMATTERS 0
#define TOML_FLOAT_CHARCONV 1  // else the whole of libstdc++'s locales, 400 KB of code
// toml++ 3.3 asserts what "[%x]" in a file makes false, and with NDEBUG has clang assume it: neither in
// somebody else's process. The code behind the assertions reports an error.
#undef NDEBUG
#define TOML_ASSERT(condition) static_assert(true)
#define TOML_MAX_NESTED_VALUES 16  // threads with small stacks read the file too
#include <toml++/toml.h>

#include "base/config.h"
#include "base/real.h"
#include "base/result.h"

namespace accel {
namespace {

constexpr size_t kMaxFile = 1 << 20;
constexpr size_t kMaxProblems = 20;
/// toml++ nests one table for each dot of a key, without limit, and destroys them recursively.
constexpr size_t kMaxDots = 64;
constexpr unsigned kMaxDepth = 4;  ///< of files that include others
constexpr size_t kMaxFiles = 16;

/// Errors are errno numbers.
Result<std::string> read_file(const std::string& path) {
  int fd = real.open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return err(errno);
  struct stat facts;
  Errno error{};
  std::string text;
  if (fstat(fd, &facts) != 0)
    error = err(errno);
  else if (!S_ISREG(facts.st_mode) && facts.st_rdev != makedev(1, 3))  // /dev/null: no configuration
    error = err(S_ISDIR(facts.st_mode) ? EISDIR : EINVAL);
  while (error == Errno{} && text.size() <= kMaxFile) {
    size_t had = text.size();
    text.resize(had + 16384);
    ssize_t n = real.read(fd, text.data() + had, 16384);
    if (n < 0) error = err(errno);
    text.resize(had + static_cast<size_t>(std::max<ssize_t>(n, 0)));
    if (n <= 0) break;
  }
  real.close(fd);
  if (error != Errno{}) return error;
  if (text.size() > kMaxFile) return err(EFBIG);
  return text;
}

/// The line with too many dots in a key, or 0.
size_t find_overlong_key(std::string_view text) {
  for (size_t line = 1; !text.empty(); ++line) {
    size_t end = text.find('\n');
    std::string_view row = text.substr(0, end);
    text = end == std::string_view::npos ? std::string_view{} : text.substr(end + 1);
    size_t first = row.find_first_not_of(" \t");
    if (first == std::string_view::npos || row[first] == '#') continue;
    if (static_cast<size_t>(std::count(row.begin(), row.end(), '.')) > kMaxDots) return line;
  }
  return 0;
}

/// Follows where in the text strings and comments are, a character at a time.
class Scanner {
 public:
  bool in_comment() const { return comment_; }
  void next(std::string_view text, size_t& at) {
    const char c = text[at];
    if (comment_) {
      comment_ = c != '\n';
    } else if (quote_ == 0) {
      comment_ = c == '#';
      if (c == '"' || c == '\'') open(text, at);
    } else if (c == '\\' && quote_ == '"') {
      ++at;
    } else if (c == '\n' && length_ == 1) {
      quote_ = 0;  // an error, which is the parser's to report
    } else if (c == quote_ && (length_ == 1 || text.substr(at, 3) == std::string(3, c))) {
      at += length_ - 1;
      quote_ = 0;
    }
    ++at;
  }

 private:
  void open(std::string_view text, size_t& at) {
    quote_ = text[at];
    length_ = text.substr(at, 3) == std::string(3, quote_) ? 3 : 1;
    at += length_ - 1;
  }
  char quote_ = 0;     ///< of the string we are in
  size_t length_ = 1;  ///< of its quotation mark
  bool comment_ = false;
};

/// toml++ 3.3 ends in undefined behaviour on "\u00e4" in a key (is_non_ascii_horizontal_whitespace), so it
/// gets to see ASCII only: comments lose the rest, elsewhere it is an error. Returns that line, or 0.
size_t make_ascii(std::string& text) {
  Scanner scanner;
  size_t line = 1;
  for (size_t at = 0; at < text.size();) {
    const size_t from = at;
    const bool comment = scanner.in_comment();
    scanner.next(text, at);
    for (size_t i = from; i < std::min(at, text.size()); ++i) {
      if (text[i] == '\n') ++line;
      if ((text[i] & 0x80) == 0) continue;
      if (!comment) return line;
      text[i] = '?';
    }
  }
  return 0;
}

std::string shortened(std::string_view text) {
  return text.size() <= 60 ? std::string(text) : std::string(text.substr(0, 57)) + "...";
}

class FileReader {
 public:
  FileReader(const ConfigSource& source, Config& config, std::vector<std::string>& problems)
      : source_(source), config_(config), problems_(problems) {}

  void read() {
    if (!load(source_.file, 0)) return;
    config_.file = source_.file;
    for (const File* file : defaults_) read_default(*file);
    for (const File* file : applications_) read_applications(*file);
  }

 private:
  struct File {
    std::string name;
    toml::table root;
  };

  /// The file's table, behind those of the files that it includes. False: there is none.
  bool load(const std::string& name, unsigned depth) {
    file_ = name;
    auto text = read_file(name);
    if (!text) {
      if (text.is(ENOENT) && depth == 0 && !source_.file_must_exist) return false;
      fail({}, std::string("cannot be read: ") + std::strerror(static_cast<int>(text.error())) +
                   "; allowed: a readable file of at most 1 MiB");
      return false;
    }
    if (size_t line = find_overlong_key(*text)) {
      fail(start_of(line), "too many dots in a line; allowed: 64");
      return false;
    }
    if (size_t line = make_ascii(*text)) {
      fail(start_of(line),
           "a character that is not ASCII; allowed: those in comments, and \\u00e4 in strings");
      return false;
    }
    toml::parse_result parsed = toml::parse(*text, name);
    if (!parsed) {
      fail(parsed.error().source().begin,
           std::string(parsed.error().description()) + "; allowed: TOML 1.0 (https://toml.io)");
      return false;
    }
    files_.push_back({name, std::move(parsed).table()});
    File& file = files_.back();
    applications_.push_back(&file);
    load_included(file, depth);
    defaults_.push_back(&file);
    return true;
  }

  void load_included(const File& file, unsigned depth) {
    const toml::node* node = file.root.get("include");
    if (!node) return;
    const auto load_one = [&](const toml::node& element) {
      auto name = element.value_exact<std::string>();
      file_ = file.name;
      if (!name || name->empty()) {
        fail(position(element),
             "include is not the name of a file; allowed: include = \"FILE\", [\"FILE\", ...]");
      } else if (depth + 1 >= kMaxDepth || files_.size() >= kMaxFiles) {
        fail(position(element),
             "include goes too deep, or in a circle; allowed: " + std::to_string(kMaxDepth) + " levels, " +
                 std::to_string(kMaxFiles) + " files");
      } else {
        const size_t slash = file.name.rfind('/');
        const bool relative = (*name)[0] != '/' && slash != std::string::npos;
        load(relative ? file.name.substr(0, slash + 1) + *name : *name, depth + 1);
      }
    };
    if (const toml::array* list = node->as_array())
      for (const toml::node& element : *list) load_one(element);
    else
      load_one(*node);
  }

  void read_default(const File& file) {
    file_ = file.name;
    for (auto&& [key, node] : file.root)
      if (key != "default" && key != "application" && key != "include")
        fail(key.source().begin, unknown(key.str(), "include, default, application"));
    if (const toml::node* node = file.root.get("default")) {
      if (const toml::table* table = node->as_table())
        read_section(*table, config_, config_.misread, false);
      else
        fail(position(*node), "default is not a section; allowed: [default]");
    }
  }

  void read_applications(const File& file) {
    file_ = file.name;
    const toml::node* node = file.root.get("application");
    if (!node) return;
    const toml::array* all = node->as_array();
    if (!all) return fail(position(*node), "application is not a list of sections; allowed: [[application]]");
    for (const toml::node& element : *all) {
      const toml::table* table = element.as_table();
      if (!table) {
        fail(position(element), "not a section; allowed: [[application]]");
        continue;
      }
      // Every section is checked; the first one that matches counts.
      bool unreadable = false;
      bool ours = application_matches(*table, unreadable) && !matched_;
      Config ignored;
      bool misread = false;
      read_section(*table, ours ? config_ : ignored, misread, true);
      if (unreadable || (ours && misread)) config_.misread = true;
      if (ours) {
        matched_ = true;
        if (const toml::node* name = table->get("name")) config_.application = name->value_or(std::string{});
      }
    }
  }

  bool application_matches(const toml::table& table, bool& unreadable) {
    auto name = text_of(table, "name", unreadable);
    auto id = text_of(table, "user_id", unreadable);
    if (unreadable) return false;
    if (!name && !id) {
      problem(table.source().begin, "application without name; allowed: name = \"GLOB\", user_id = \"ID\"");
      unreadable = true;
      return false;
    }
    if (id && *id != source_.user_id) return false;
    if (!name) return true;
    for (const std::string& program : source_.programs)
      if (fnmatch(name->c_str(), program.c_str(), 0) == 0) return true;
    return false;
  }

  std::optional<std::string> text_of(const toml::table& table, std::string_view key, bool& unreadable) {
    const toml::node* node = table.get(key);
    if (!node) return {};
    if (auto text = node->value_exact<std::string>()) return text;
    problem(position(*node), std::string(key) + " is not a string; allowed: text in quotes");
    unreadable = true;
    return {};
  }

  /// [default] or an [[application]].
  void read_section(const toml::table& table, Config& into, bool& misread, bool application) {
    auto rows = setting_texts();
    // The section's profile first: what the section itself says wins over it.
    if (const toml::node* node = table.get("profile")) {
      Settings probe = into.settings;
      auto text = scalar(*node);
      if (text && set_setting(probe, row_of("profile"), *text)) apply_profile(into.settings, probe.profile);
    }
    for (auto&& [key, node] : table) {
      if (application && (key == "name" || key == "user_id")) continue;
      if (application && key == "rule") {
        read_rules(node, into, misread);
        continue;
      }
      size_t row = row_of(key.str());
      if (row == rows.size()) {
        problem(key.source().begin, unknown(key.str(), keys(application)));
        misread = true;
        continue;
      }
      auto text = scalar(node);
      bool kind_fits =
          text && node.is_string() == (rows[row].quoted || (node.is_string() && is_size(rows[row])));
      // `require` is a word, but require = true is what its environment variable suggests.
      if (rows[row].name == "require" && node.is_boolean()) kind_fits = true;
      if (!kind_fits || !set_setting(into.settings, row, *text)) {
        problem(position(node), std::string(rows[row].name) + " = " + (text ? shortened(*text) : "?") +
                                    " is not a value of it" +
                                    meant_perhaps(text ? *text : "", rows[row].allowed) +
                                    "; allowed: " + rows[row].allowed);
        if (!rows[row].tuning) misread = true;
      }
    }
  }

  void read_rules(const toml::node& node, Config& into, bool& misread) {
    const toml::array* list = node.as_array();
    if (!list) {
      problem(position(node), "rule is not a list of sections; allowed: [[application.rule]]");
      misread = true;
      return;
    }
    for (const toml::node& element : *list) {
      Rule rule;
      const toml::table* table = element.as_table();
      bool good = table && read_rule(*table, rule);
      if (!table) problem(position(element), "not a section; allowed: [[application.rule]]");
      if (good)
        into.rules.push_back(rule);
      else
        misread = true;
    }
  }

  bool read_rule(const toml::table& table, Rule& rule) {
    bool good = true;
    for (auto&& entry : table) {  // clang 14 captures no structured bindings
      const auto& key = entry.first;
      const auto& node = entry.second;
      auto text = scalar(node);
      auto bad = [&](std::string_view allowed) {
        problem(position(node), std::string(key.str()) + " = " + (text ? shortened(*text) : "?") +
                                    " is not a value of it; allowed: " + std::string(allowed));
        good = false;
      };
      if (key == "role") {
        Role role{};
        if (read_word(node, "role", &role))
          rule.role = role;
        else
          good = false;
      } else if (key == "path") {
        Path path{};
        if (read_word(node, "path", &path))
          rule.path = path;
        else
          good = false;
      } else if (key == "iwarp") {
        Iwarp iwarp{};
        if (read_word(node, "iwarp", &iwarp))
          rule.iwarp = iwarp;
        else
          good = false;
      } else if (key == "address") {
        if (!node.is_string() || !parse_prefix(*text, &rule.prefix, &rule.prefix_length))
          bad("\"10.0.0.0/8\", \"2001:db8::/32\", \"*\"");
      } else if (key == "ports") {
        if (!text || !parse_ports(*text, &rule.first_port, &rule.last_port))
          bad("\"6379\", \"6379-6380\", \"*\"");
      } else {
        problem(key.source().begin, unknown(key.str(), "role, address, ports, path, iwarp"));
        good = false;
      }
    }
    if (good && !rule.path && !rule.iwarp) {
      problem(table.source().begin,
              "rule that decides nothing; allowed: path = \"auto | stack | kernel\", iwarp");
      good = false;
    }
    return good;
  }

  template <class E>
  bool read_word(const toml::node& node, std::string_view key, E* out) {
    auto text = node.value_exact<std::string>();
    std::string allowed;
    for (size_t i = 0; i < kWords<E>.size(); ++i) {
      if (text && *text == kWords<E>[i]) {
        *out = static_cast<E>(i);
        return true;
      }
      allowed.append(i ? " | " : "").append(kWords<E>[i]);
    }
    problem(position(node), std::string(key) + " = " + shortened(scalar(node).value_or("?")) +
                                " is not a value of it" + meant_perhaps(scalar(node).value_or(""), allowed) +
                                "; allowed: " + allowed);
    return false;
  }

  static std::optional<std::string> scalar(const toml::node& node) {
    if (auto text = node.value_exact<std::string>()) return text;
    if (auto number = node.value_exact<int64_t>()) return std::to_string(*number);
    if (auto flag = node.value_exact<bool>()) return *flag ? "true" : "false";
    return {};
  }

  /// Numbers may be written as "4M".
  static bool is_size(const SettingText& row) {
    return !row.quoted && row.allowed.find('|') == std::string::npos;
  }

  static size_t row_of(std::string_view name) {
    auto rows = setting_texts();
    size_t i = 0;
    while (i < rows.size() && rows[i].name != name) ++i;
    return i;
  }

  static std::string keys(bool application) {
    std::string all = application ? "name, user_id, rule" : "";
    for (const SettingText& row : setting_texts()) all.append(all.empty() ? "" : ", ").append(row.name);
    return all;
  }

  static std::string unknown(std::string_view key, const std::string& allowed) {
    return "unknown key \"" + shortened(key) + "\"" + meant_perhaps(key, allowed) + "; allowed: " + allowed;
  }

  static toml::source_position position(const toml::node& node) { return node.source().begin; }
  static toml::source_position start_of(size_t line) { return {static_cast<toml::source_index>(line), 1}; }

  void problem(toml::source_position at, const std::string& text) {
    if (++count_ > kMaxProblems) return;
    std::string where = file_;
    if (at.line) where += ":" + std::to_string(at.line) + ":" + std::to_string(at.column);
    problems_.push_back(count_ == kMaxProblems ? source_.file + ": and more" : where + ": " + text);
  }

  /// A problem that concerns every program.
  void fail(toml::source_position at, const std::string& text) {
    problem(at, text);
    config_.misread = true;
  }

  const ConfigSource& source_;
  Config& config_;
  std::vector<std::string>& problems_;
  size_t count_ = 0;
  std::string file_;       ///< the one that is being read
  std::list<File> files_;  ///< with those that they include
  /// Included files come first, so that a file wins over what it includes; of applications the first that
  /// matches counts.
  std::vector<const File*> defaults_, applications_;
  bool matched_ = false;  ///< an application
};

}  // namespace

void read_config_file(const ConfigSource& source, Config& config, std::vector<std::string>& problems) {
  FileReader(source, config, problems).read();
}

}  // namespace accel
