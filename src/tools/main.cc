// accel: run a program with libaccel, see what a machine offers, see what running programs do.
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string_view>
#include <system_error>

#include "base/spelling.h"
#include "tools/command_line.h"

namespace accel::tools {
namespace {

constexpr int kWrongUse = 2;

/// Takes COMMAND and all that follows off the arguments of `accel run`: it is not ours to parse.
std::vector<std::string> take_command(int& argc, char** argv) {
  std::vector<std::string> command;
  if (argc < 2 || std::string_view(argv[1]) != "run") return command;
  int i = 2;
  for (; i < argc; ++i) {
    std::string_view argument = argv[i];
    if (argument == "--" || argument.empty() || argument[0] != '-') break;
    if (argument == "--profile" || argument == "--config") ++i;
  }
  if (i >= argc) return command;
  command.assign(argv + i + (std::string_view(argv[i]) == "--" ? 1 : 0), argv + argc);
  argc = i;
  return command;
}

/// The words that may stand where a wrong one does: subcommands, or the options of the subcommand.
std::vector<std::string> words_of(const CLI::App& app) {
  std::vector<std::string> words;
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; }))
    words.push_back(sub->get_name());
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) words.push_back("--" + name);
  return words;
}

std::string suggestion(const std::string& word, const std::vector<std::string>& among) {
  const std::vector<std::string_view> views(among.begin(), among.end());
  const std::string_view meant = nearest_word(word.substr(0, word.find('=')), views);
  return meant.empty() ? "" : "; meant is perhaps " + std::string(meant);
}

/// One line: what is wrong, what may be meant, where help is.
int say_wrong(const CLI::App& app, const CLI::ParseError& e) {
  const CLI::App* at = &app;
  for (const CLI::App* sub : app.get_subcommands()) at = sub;
  const std::string name = at == &app ? "accel" : "accel " + at->get_name();
  std::string what = e.what();
  const std::vector<std::string> extras = app.remaining(true);
  if (!extras.empty()) {
    const std::string& word = extras.front();
    const bool option = word.starts_with("-");
    what = (option       ? "unknown option "
            : at == &app ? "unknown subcommand "
                         : "unexpected argument ") +
           word + suggestion(word, words_of(*at));
  } else if (const size_t open = what.find("{"); open != std::string::npos) {
    // "--profile: latncy not in {default,...}"
    const size_t colon = what.find(": "), end = what.find(" not in ");
    if (colon != std::string::npos && end != std::string::npos) {
      std::vector<std::string> among;
      for (const CLI::Option* option : at->get_options())
        for (std::string& word : choices(*option)) among.push_back(std::move(word));
      what += suggestion(what.substr(colon + 2, end - colon - 2), among);
    }
  }
  std::fprintf(stderr, "%s: %s\n%s --help lists what there is\n", name.c_str(), what.c_str(), name.c_str());
  return kWrongUse;
}

int dispatch(const CLI::App& app, CommandLine& line) {
  if (app.got_subcommand("run")) return run(line.run);
  if (app.got_subcommand("check")) return check(line.check);
  if (app.got_subcommand("stat")) return stat(line.stat);
  if (app.got_subcommand("explain")) return explain(line.explain);
  if (app.got_subcommand("ss")) return ss(line.ss);
  if (app.got_subcommand("set")) return set(line.set);
  if (app.got_subcommand("metrics")) return metrics(line.metrics);
  if (app.got_subcommand("capture")) {
    if (line.capture.target == "all") line.capture.target.clear();
    return capture(line.capture);
  }
  if (app.got_subcommand("import")) {
    if (line.import.files.empty() && !line.import.environment) {
      std::fprintf(stderr, "accel import: name a file, or --environment\n");
      return kWrongUse;
    }
    return import(line.import);
  }
  return docs(line.document);
}

int say_unwritten(int error) {
  std::fprintf(stderr, "accel: the output could not be written: %s\n", std::strerror(error));
  return 1;
}

/// A full disk or a closed pipe is an error like any other.
int flushed(int status) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return status;
  return say_unwritten(errno);
}

int parse_and_run(int argc, char** argv) {
  std::vector<std::string> command = take_command(argc, argv);
  CLI::App app;
  CommandLine line;
  describe_command_line(app, line);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& e) {  // --help, --version
    return app.exit(e);
  } catch (const CLI::ParseError& e) {
    return say_wrong(app, e);
  }
  line.run.command = std::move(command);
  return dispatch(app, line);
}

}  // namespace
}  // namespace accel::tools

int main(int argc, char** argv) {
  try {
    return accel::tools::flushed(accel::tools::parse_and_run(argc, argv));
  } catch (const std::system_error& e) {  // fmt::print()
    return accel::tools::say_unwritten(e.code().value());
  } catch (const std::exception& e) {
    std::fprintf(stderr, "accel: %s\n", e.what());
    return accel::tools::kWrongUse;
  }
}
