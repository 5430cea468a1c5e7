// Text of a script to its events.
#include <algorithm>
#include <cctype>
#include <string_view>
#include <tuple>

#include "script.h"
#include "stack/tcp/options.h"
#include "stack/tcp/segment.h"

namespace accel::scripts {
namespace {

class Parser {
 public:
  Parser(const std::string& path, const std::string& text) : text_(text) { script_.path = path; }

  Script parse() {
    for (skip(); !done(); skip()) {
      if (starts("--"))
        option();
      else if (peek() == '`')
        sysctls();
      else
        add(event());
    }
    return std::move(script_);
  }

 private:
  /// A line of several ports is a line each.
  void add(Event e) {
    auto* in = std::get_if<Inject>(&e.action);
    auto* out = std::get_if<Expect>(&e.action);
    SegmentSpec* s = in ? &in->segment : out ? &out->segment : nullptr;
    const uint16_t more = s && s->ports ? std::exchange(s->ports->more, uint16_t{0}) : uint16_t{0};
    script_.events.push_back(e);
    e.moment = {};
    for (uint16_t i = 0; i < more; ++i) {
      ++(in ? s->ports->from : s->ports->to);
      script_.events.push_back(e);
    }
  }

  // ---- characters ----
  bool done() const { return at_ >= text_.size(); }
  char peek(size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }
  bool starts(std::string_view what) const { return text_.compare(at_, what.size(), what) == 0; }
  [[noreturn]] void fail(const std::string& what) const { throw ScriptError(line_, what); }
  void step() {
    if (text_[at_++] == '\n') ++line_;
  }
  void skip() {
    while (!done()) {
      if (starts("//") || peek() == '#') {
        while (!done() && peek() != '\n') step();
      } else if (starts("/*")) {
        while (!done() && !starts("*/")) step();
        if (done()) fail("a comment without an end");
        at_ += 2;
      } else if (std::isspace(static_cast<unsigned char>(peek()))) {
        step();
      } else {
        return;
      }
    }
  }
  bool take(std::string_view what) {
    skip();
    if (!starts(what)) return false;
    at_ += what.size();
    return true;
  }
  void need(std::string_view what) {
    if (!take(what)) fail("'" + std::string(what) + "' expected before '" + rest() + "'");
  }
  std::string rest() const { return text_.substr(at_, std::min<size_t>(20, text_.find('\n', at_) - at_)); }
  static bool of_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; }
  std::string word() {
    skip();
    std::string out;
    while (of_word(peek())) out += text_[at_++];
    return out;
  }
  bool take_word(const std::string& what) {
    skip();
    if (!starts(what) || of_word(peek(what.size()))) return false;
    at_ += what.size();
    return true;
  }
  bool at_number() {
    skip();
    return std::isdigit(static_cast<unsigned char>(peek()));
  }
  int64_t number() {
    skip();
    size_t used = 0;
    try {
      const int64_t value = std::stoll(text_.substr(at_, 24), &used, 0);
      at_ += used;
      return value;
    } catch (const std::exception&) {
      fail("a number expected before '" + rest() + "'");
    }
  }
  uint32_t number32() { return static_cast<uint32_t>(number()); }
  std::string quoted(char mark) {
    std::string out;
    for (++at_; !done() && peek() != mark; step()) {
      if (peek() == '\\') ++at_;
      out += peek();
    }
    if (done()) fail("a text without an end");
    ++at_;
    return out;
  }

  // ---- the script's head ----
  void option() {
    at_ += 2;
    const std::string name = word();
    std::string value;
    if (peek() == '=') {
      ++at_;
      if (peek() == '"')
        value = quoted('"');
      else
        while (!done() && !std::isspace(static_cast<unsigned char>(peek()))) value += text_[at_++];
    }
    script_.options[name] = value;
  }

  /// A command in packetdrill; here the settings that such commands make.
  void sysctls() {
    std::string command = quoted('`');
    std::replace(command.begin(), command.end(), '\n', ' ');
    size_t at = 0;
    auto next = [&] {
      at = command.find_first_not_of(" \t;", at);
      if (at == std::string::npos) return std::string();
      std::string out;
      for (bool inside = false; at < command.size() && (inside || !std::isspace(command[at])); ++at)
        if (command[at] == '"' || command[at] == '\'')
          inside = !inside;
        else if (command[at] != ';')
          out += command[at];
      return out;
    };
    for (std::string part = next(); !part.empty(); part = next()) {
      if (part == "sysctl" || part == "-q" || part == "-w" || part == "&&" ||
          part.ends_with("set_sysctls.py"))
        continue;
      if (part.ends_with("defaults.sh")) {
        packetdrill_defaults();
        continue;
      }
      const size_t equals = part.find('=');
      if (equals == std::string::npos) fail("a command that is no sysctl: " + command);
      std::string name = part.substr(0, equals);
      if (name.starts_with("/proc/sys/")) name = name.substr(10);
      std::replace(name.begin(), name.end(), '/', '.');
      script_.sysctls.emplace_back(name, part.substr(equals + 1));
    }
  }
  /// What packetdrill's own tests begin with, where it is not the default here.
  void packetdrill_defaults() {
    script_.sysctls.emplace_back("net.ipv4.tcp_rmem", "4096 540000 15728640");
    script_.sysctls.emplace_back("net.ipv4.tcp_wmem", "4096 540000 4194304");
  }

  // ---- times ----
  Duration time() {
    skip();
    std::string digits;
    while (std::isdigit(static_cast<unsigned char>(peek())) || (peek() == '.' && peek(1) != '.'))
      digits += text_[at_++];
    if (digits.empty()) fail("a time expected before '" + rest() + "'");
    const size_t dot = digits.find('.');
    Duration out = std::chrono::seconds(dot == 0 ? 0 : std::stoll(digits));
    if (dot == std::string::npos) return out;
    std::string fraction = digits.substr(dot + 1);
    fraction.resize(9, '0');
    return out + Duration(std::stoll(fraction));
  }
  Moment moment() {
    Moment out;
    if (take("*")) {
      out.any = true;
      return out;
    }
    out.relative = take("+");
    out.from = time();
    if (take("~")) {
      if (out.relative) need("+");
      out.to = time();
    }
    return out;
  }

  Event event() {
    Event out;
    skip();
    out.line = line_;
    out.moment = moment();
    std::optional<Duration> end;
    bool end_relative = out.moment.relative;
    if (take("...")) {
      if (take("+")) end_relative = true;
      end = time();
    }
    skip();
    if (starts("%{")) {
      out.action = check();
    } else if (take("<")) {
      out.action = inbound();
    } else if (take(">")) {
      if (take_word("nothing"))
        out.action = ExpectNothing{};
      else
        out.action = Expect{segment()};
    } else {
      Call c = call();
      c.end = end;
      c.end_relative = end_relative;
      out.action = std::move(c);
    }
    return out;
  }

  Check check() {
    at_ += 2;
    std::string code;
    while (!done() && !starts("}%")) {
      code += peek();
      step();
    }
    if (done()) fail("assertions without an end");
    at_ += 2;
    return {code};
  }

  // ---- segments ----
  std::variant<Inject, Expect, ExpectNothing, InjectIcmp, Call, Check> inbound() {
    if (take_word("icmp")) return icmp();
    SegmentSpec s = segment();
    if (s.any_options) fail("<...> of a segment that is to be made");
    return Inject{s};
  }

  InjectIcmp icmp() {
    InjectIcmp out;
    if (!take_word("unreachable")) fail("an ICMP type that is not known: " + word());
    static const std::map<std::string, uint8_t> codes = {
        {"net_unreachable", 0},  {"host_unreachable", 1}, {"protocol_unreachable", 2},
        {"port_unreachable", 3}, {"frag_needed", 4},      {"source_route_failed", 5}};
    const std::string code = word();
    auto found = codes.find(code);
    if (found == codes.end()) fail("an ICMP code that is not known: " + code);
    out.code = found->second;
    if (take_word("mtu")) out.mtu = static_cast<uint16_t>(number());
    need("[");
    std::tie(out.seq, out.length) = sequence();
    need("]");
    return out;
  }

  std::pair<uint32_t, uint32_t> sequence() {
    const uint32_t begin = number32();
    need(":");
    const uint32_t end = number32();
    need("(");
    const uint32_t length = number32();
    need(")");
    if (end - begin != length) fail("a segment whose length is not its end less its beginning");
    return {begin, length};
  }

  uint8_t flags() {
    skip();
    uint8_t out = 0;
    if (take("-")) return out;
    static const std::string names = "FSRP.UEW";
    const size_t begin = at_;
    for (size_t bit; !done() && (bit = names.find(peek())) != std::string::npos; ++at_)
      out |= static_cast<uint8_t>(1u << bit);
    if (at_ == begin || !std::isspace(static_cast<unsigned char>(peek())))
      fail("flags expected before '" + rest() + "'");
    return out;
  }

  uint16_t port(PortPair& p) {
    const auto first = static_cast<uint16_t>(number());
    if (take("..")) p.more = static_cast<uint16_t>(number() - first);
    return first;
  }

  SegmentSpec segment() {
    SegmentSpec s;
    if (take("[")) {
      static const std::map<std::string, uint8_t> ecn = {{"noecn", 0}, {"ect1", 1}, {"ect0", 2}, {"ce", 3}};
      const std::string name = word();
      auto found = ecn.find(name);
      if (found == ecn.end()) fail("a field of IP that is not known: " + name);
      s.ecn = found->second;
      need("]");
    }
    if (at_number()) {
      PortPair p;
      p.from = port(p);
      need(">");
      p.to = port(p);
      s.ports = p;
    }
    s.flags = flags();
    std::tie(s.seq, s.length) = sequence();
    if (take_word("ack")) s.ack = number32();
    if (take_word("win")) s.window = static_cast<uint16_t>(number());
    if (take_word("urg")) s.urgent = static_cast<uint16_t>(number());
    if (((s.flags & kAck) != 0) != s.ack.has_value()) fail("'.' and 'ack' go together");
    skip();
    if (peek() == '<' && !starts("< ")) options(s);
    return s;
  }

  void options(SegmentSpec& s) {
    need("<");
    if (take("...")) {
      s.any_options = true;
    } else {
      do s.options.push_back(tcp_option());
      while (take(","));
    }
    need(">");
  }

  std::optional<uint32_t> number_or_star() {
    if (take("*")) return std::nullopt;
    return number32();
  }

  std::vector<uint8_t> hexadecimal() {
    skip();
    std::string digits;
    while (!done() && std::isxdigit(static_cast<unsigned char>(peek()))) digits += text_[at_++];
    if (digits.size() % 2 != 0) fail("a cookie of whole bytes expected");
    std::vector<uint8_t> out;
    for (size_t i = 0; i < digits.size(); i += 2)
      out.push_back(static_cast<uint8_t>(std::stoul(digits.substr(i, 2), nullptr, 16)));
    return out;
  }

  OptionSpec tcp_option() {
    const std::string name = word();
    if (name == "nop") return {option::kNop};
    if (name == "eol") return {option::kEnd};
    if (name == "sackOK") return {option::kSackPermitted};
    if (name == "mss") return {option::kMss, number32()};
    if (name == "wscale") return {option::kWindowScale, number32()};
    OptionSpec out;
    if (name == "FO" || name == "FOEXP") {
      out.kind = name == "FO" ? option::kFastOpen : option::kExperiment;
      out.cookie = hexadecimal();
      return out;
    }
    if (name == "TS") {
      out.kind = option::kTimestamps;
      if (!take_word("val")) fail("'val' expected");
      out.a = number_or_star();
      if (!take_word("ecr")) fail("'ecr' expected");
      out.b = number_or_star();
    } else if (name == "sack") {
      out.kind = option::kSack;
      while (at_number()) {
        const uint32_t begin = number32();
        need(":");
        out.sack.emplace_back(begin, number32());
      }
    } else {
      fail("a TCP option that is not known: " + name);
    }
    return out;
  }

  // ---- system calls ----
  Call call() {
    Call c;
    c.name = word();
    if (c.name.empty()) fail("a call or a segment expected before '" + rest() + "'");
    need("(");
    if (!take(")")) {
      do c.arguments.push_back(expression());
      while (take(","));
      need(")");
    }
    need("=");
    c.result = expression();
    skip();
    if (peek() == 'E') c.error = word();
    skip();
    if (peek() == '(')  // a remark
      while (!done() && text_[at_++] != ')') continue;
    return c;
  }

  Value expression() {
    Value v = simple();
    while (take("|")) {
      const Value other = simple();
      if (v.kind != Value::Kind::kNumber || other.kind != Value::Kind::kNumber) fail("'|' of no numbers");
      v.number |= other.number;
    }
    return v;
  }

  Value simple() {
    skip();
    Value v;
    if (take("...")) return v;
    if (at_number() || peek() == '-') {
      v.kind = Value::Kind::kNumber;
      v.number = number();
    } else if (peek() == '"') {
      v.kind = Value::Kind::kText;
      v.text = quoted('"');
      take("...");
    } else if (peek() == '[' || peek() == '{') {
      v = list();
    } else {
      v = named();
    }
    return v;
  }

  Value named() {
    Value v;
    const std::string name = word();
    if (name.empty()) fail("an expression expected before '" + rest() + "'");
    if ((name == "htons" || name == "inet_addr" || name == "htonl") && take("(")) {
      v = expression();
      need(")");
    } else if (auto number = constant(name)) {
      v.kind = Value::Kind::kNumber;
      v.number = *number;
    } else {
      v.kind = Value::Kind::kWord;
      v.text = name;
    }
    return v;
  }

  Value list() {
    const char close = peek() == '[' ? ']' : '}';
    ++at_;
    Value v;
    v.kind = Value::Kind::kList;
    if (take(std::string_view(&close, 1))) return v;
    do {
      std::string name;
      Value item = expression();
      if (item.kind == Value::Kind::kWord) {
        if (take("(")) {  // msg_iov(1)
          expression();
          need(")");
        }
        if (take("=")) {
          name = item.text;
          item = expression();
        } else if (take(":")) {
          fail("a call's result in a record");
        }
      }
      v.members.push_back({name, item});
    } while (take(","));
    need(std::string_view(&close, 1));
    return v;
  }

  const std::string& text_;
  size_t at_ = 0;
  int line_ = 1;
  Script script_;
};

}  // namespace

Script parse_script(const std::string& path, const std::string& text) { return Parser(path, text).parse(); }

}  // namespace accel::scripts
