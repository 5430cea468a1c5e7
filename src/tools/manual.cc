// The manual's pages and the completions for shells, from the tables and the command line.
#include <fmt/format.h>

#include <cctype>

#include "base/config.h"
#include "tools/command_line.h"

namespace accel::tools {
namespace {

/// Text as roff has it.
std::string roff(std::string_view text) {
  std::string out;
  for (char c : text) {
    if (c == '\\')
      out += "\\e";
    else if (c == '-')
      out += "\\-";
    else if ((c == '.' || c == '\'') && (out.empty() || out.back() == '\n'))
      out += std::string("\\&") + c;
    else
      out += c;
  }
  return out;
}

void title(std::string_view name, int section, std::string_view summary) {
  fmt::print(".TH {} {} \"\" \"libaccel {}\" \"libaccel\"\n.SH NAME\n{} \\- {}\n", name, section,
             ACCEL_VERSION, roff(name), roff(summary));
}

void item(std::string_view tag, std::string_view text) {
  fmt::print(".TP\n\\fB{}\\fR\n{}\n", roff(tag), roff(text));
}

std::vector<const CLI::App*> subcommands(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

bool takes_value(const CLI::Option& option) { return option.get_items_expected_max() > 0; }

/// "--profile WORD", "PID".
std::string usage_of(const CLI::Option& option) {
  if (option.get_positional()) return option.get_name();
  std::string text = "--" + option.get_lnames().front();
  if (takes_value(option)) text += choices(option).empty() ? " VALUE" : " WORD";
  return text;
}

std::string list(const std::vector<std::string>& words, std::string_view separator) {
  std::string text;
  for (const std::string& w : words) text.append(text.empty() ? "" : separator).append(w);
  return text;
}

void print_accel_page() {
  CLI::App app;
  CommandLine line;
  describe_command_line(app, line);
  title("accel", 1, "runs programs with libaccel and shows what they do");
  fmt::print(".SH SYNOPSIS\n");
  for (const CLI::App* sub : subcommands(app)) {
    fmt::print(".B accel {}\n", sub->get_name());
    for (const CLI::Option* option : sub->get_options()) {
      if (option->check_lname("help")) continue;
      const std::string usage = roff(usage_of(*option));
      fmt::print("{}\n", option->get_required() ? usage : "[" + usage + "]");
    }
    if (sub->get_name() == "run") fmt::print("\\-\\- COMMAND [ARGUMENT...]\n");
    fmt::print(".br\n");
  }
  fmt::print(
      ".SH DESCRIPTION\n"
      "libaccel carries TCP and UDP of unmodified programs past the kernel's stack, on queues of the NIC.\n"
      "This command starts programs with it, says what a machine offers and lacks, and shows what running "
      "programs do.\n"
      "It is the authority on each socket: its path, and why.\n"
      ".SH COMMANDS\n");
  for (const CLI::App* sub : subcommands(app)) {
    fmt::print(".SS accel {}\n{}.\n", sub->get_name(), roff(sub->get_description()));
    for (const CLI::Option* option : sub->get_options()) {
      std::string text = option->get_description() + ".";
      if (const auto words = choices(*option); !words.empty()) text += " One of: " + list(words, ", ") + ".";
      if (!option->check_lname("help")) item(usage_of(*option), text);
    }
  }
  fmt::print(
      ".SH EXIT STATUS\n0: done, or what was asked for is there. 1: it is not. 2: the command line was "
      "wrong.\n"
      "\\fBaccel run\\fR ends as its command does; 126 and 127 mean what they mean to shells.\n"
      ".SH SEE ALSO\n.BR libaccel (7),\n.BR libaccel.toml (5)\n");
}

void print_configuration_page() {
  title("libaccel.toml", 5, "the configuration of libaccel");
  fmt::print(
      ".SH SYNOPSIS\n/etc/libaccel.toml, or the file that ACCEL_CONFIG names\n"
      ".SH DESCRIPTION\n{}\n",
      roff("A file in TOML 1.0. Settings come from, later ones winning over earlier ones: the defaults, the "
           "section [default], the first section [[application]] that matches the program, the environment "
           "(ACCEL_*). Within a section its profile comes first. A program reads it once, before its first "
           "Internet socket; setuid programs ignore the environment."));
  fmt::print(".SH FILES THAT ARE INCLUDED\n{}\n",
             roff("include = \"FILE\", or a list of files, at the head of the file: relative to its folder. "
                  "[default] of the file itself wins over that of an included one; of applications the "
                  "first that matches counts, those of the file itself come first."));
  fmt::print(".SH SETTINGS\n");
  for (const SettingText& row : setting_texts())
    item(row.name,
         fmt::format("{} {}: {}. Default: {}. Variable: {}.", row.help,
                     row.allowed == "text" ? "Value" : "Allowed", row.allowed, row.default_value, row.env));
  fmt::print(".SH APPLICATIONS\n");
  item("[[application]]",
       "name is a glob on the program's name, user_id is compared with ACCEL_APP_ID; where both are given, "
       "both "
       "must match. Any setting may stand in the section.");
  item(
      "[[application.rule]]",
      "role (tcp_server, tcp_client, udp_receiver, udp_sender, udp_connect), address (\"10.0.0.0/8\"), ports "
      "(\"6379-6380\"), path (auto, stack, kernel), iwarp (off, prefer, require). The first rule that "
      "matches "
      "a socket decides its path.");
  fmt::print(".SH PROFILES\n");
  for (size_t i = 1; i < kWords<Profile>.size(); ++i)
    item(kWords<Profile>[i], profile_text(static_cast<Profile>(i)));
  fmt::print(
      ".SH MISTAKES\n{}\n",
      roff("Each is one line on stderr: file, line, column, what is allowed, and what is perhaps meant. "
           "Of a setting that only tunes, the default serves then. Where a mistake may concern which "
           "sockets are accelerated, the programs that it concerns run on the kernel's path (reason "
           "misread)."));
  fmt::print(
      ".SH SEE ALSO\n.BR libaccel (7),\n.BR accel (1)\n.br\n"
      "A JSON schema for editors is part of the package libaccel\\-dev.\n");
}

void print_library_page() {
  title("libaccel", 7, "TCP and UDP of unmodified programs on the NIC's queues");
  fmt::print(
      ".SH SYNOPSIS\n.B accel run \\-\\- COMMAND\n[ARGUMENT...]\n.br\nLD_PRELOAD={}/libaccel.so COMMAND\n",
      roff(ACCEL_INSTALL_LIBDIR));
  fmt::print(".SH DESCRIPTION\n");
  for (std::string_view paragraph :
       {"Socket and epoll calls of the program run through a TCP/IP stack in its own process, on raw-packet "
        "queues "
        "of an mlx5 NIC (ConnectX) or on AF_XDP queues of another. With peers that speak iWARP a connection "
        "can be "
        "soft-iWARP over the kernel's TCP. What cannot be served this way is passed to the kernel, and accel "
        "stat "
        "says why.",
        "It needs CAP_NET_RAW, and on AF_XDP CAP_NET_ADMIN and CAP_BPF. Without them the program runs on the "
        "kernel's path as before. accel check says what a machine lacks, with the cure for each.",
        "Packet filters of the host hold: what they may deny, translate or log stays with the kernel."})
    fmt::print("{}\n.PP\n", roff(paragraph));
  fmt::print(".SH ENVIRONMENT\n");
  item("LD_PRELOAD", "The library, by its path.");
  item("ACCEL_CONFIG", "The configuration file; /etc/libaccel.toml where it is not set.");
  item("ACCEL_APP_ID", "Compared with user_id of [[application]].");
  item("ACCEL_DISABLE", "1: nothing is accelerated in this process.");
  item("ACCEL_*", "Every setting of libaccel.toml(5).");
  fmt::print(".SH FILES\n");
  item("/etc/libaccel.toml", "The configuration.");
  fmt::print(".SH REASONS\nWhy a socket is on the path that it is on:\n");
#define REASON(name, text) item(#name, text ".");
#include "engine/reasons.def"
#undef REASON
  fmt::print(".SH SEE ALSO\n.BR accel (1),\n.BR libaccel.toml (5),\n.BR ld.so (8)\n");
}

/// In single quotes of a shell.
std::string shell_quoted(std::string_view text) {
  std::string out = "'";
  for (char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

void print_bash(const CLI::App& app) {
  fmt::print(
      "# bash completion of accel; generated by `accel docs bash`\n_accel() {{\n"
      "  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} "
      "command=${{COMP_WORDS[1]}}\n"
      "  COMPREPLY=()\n");
  std::vector<std::string> names;
  for (const CLI::App* sub : subcommands(app)) names.push_back(sub->get_name());
  fmt::print(
      "  if [ \"$COMP_CWORD\" -eq 1 ]; then\n    COMPREPLY=($(compgen -W {} -- \"$word\"))\n    return\n  "
      "fi\n",
      shell_quoted(list(names, " ") + " --help --version"));
  fmt::print("  case $command in\n");
  for (const CLI::App* sub : subcommands(app)) {
    fmt::print("    {})\n", sub->get_name());
    if (sub->get_name() == "run")
      fmt::print(
          "      local i\n      for ((i = 2; i < COMP_CWORD; ++i)); do\n"
          "        if [ \"${{COMP_WORDS[i]}}\" = -- ]; then\n"
          "          COMPREPLY=($(compgen -c -- \"$word\") $(compgen -f -- \"$word\"))\n          return\n"
          "        fi\n      done\n");
    fmt::print("      case $before in\n");
    std::string flags, positional;
    for (const CLI::Option* option : sub->get_options()) {
      const auto words = choices(*option);
      if (option->get_positional()) {
        positional += list(words, " ");
        if (words.empty()) positional += option->get_name() == "PID" ? "$(ls /proc | grep -x '[0-9]*')" : "";
        continue;
      }
      const std::string name = "--" + option->get_lnames().front();
      flags += (flags.empty() ? "" : " ") + name;
      if (!words.empty())
        fmt::print("        {}) COMPREPLY=($(compgen -W {} -- \"$word\")); return ;;\n", name,
                   shell_quoted(list(words, " ")));
      else if (takes_value(*option))
        fmt::print("        {}) COMPREPLY=($(compgen -f -- \"$word\")); return ;;\n", name);
    }
    fmt::print("      esac\n      COMPREPLY=($(compgen -W \"{} {}\" -- \"$word\")) ;;\n", flags, positional);
  }
  fmt::print("  esac\n}}\ncomplete -F _accel accel\n");
}

void print_zsh(const CLI::App& app) {
  fmt::print(
      "#compdef accel\n# zsh completion; generated by `accel docs zsh`\n_accel() {{\n  local -a commands\n  "
      "commands=(\n");
  for (const CLI::App* sub : subcommands(app))
    fmt::print("    {}\n", shell_quoted(sub->get_name() + ":" + sub->get_description()));
  fmt::print(
      "  )\n  if (( CURRENT == 2 )); then\n    _describe command commands\n    return\n  fi\n  case "
      "$words[2] in\n");
  for (const CLI::App* sub : subcommands(app)) {
    fmt::print("    {}) _arguments -s", sub->get_name());
    for (const CLI::Option* option : sub->get_options()) {
      std::string what = option->get_description();
      for (char& c : what)
        if (c == '[' || c == ']' || c == ':') c = ' ';
      const auto words = choices(*option);
      const std::string values = words.empty() ? "_files" : "(" + list(words, " ") + ")";
      if (option->get_positional())
        fmt::print(" \\\n      {}", shell_quoted(fmt::format(":{}:{}", what, words.empty() ? " " : values)));
      else if (takes_value(*option))
        fmt::print(" \\\n      {}", shell_quoted(fmt::format("--{}[{}]:value:{}",
                                                             option->get_lnames().front(), what, values)));
      else
        fmt::print(" \\\n      {}",
                   shell_quoted(fmt::format("--{}[{}]", option->get_lnames().front(), what)));
    }
    if (sub->get_name() == "run") fmt::print(" \\\n      '*::command:_normal'");
    fmt::print(" ;;\n");
  }
  fmt::print("  esac\n}}\n_accel \"$@\"\n");
}

}  // namespace

void print_manual(const std::string& page) {
  if (page == "accel.1") print_accel_page();
  if (page == "libaccel.toml.5") print_configuration_page();
  if (page == "libaccel.7") print_library_page();
}

void print_completion(const std::string& shell) {
  CLI::App app;
  CommandLine line;
  describe_command_line(app, line);
  if (shell == "bash") print_bash(app);
  if (shell == "zsh") print_zsh(app);
}

}  // namespace accel::tools
