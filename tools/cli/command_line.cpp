#include "tools/cli/command_line.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>

#include "models/base/error.h"
#include "models/base/nearest.h"
#include "models/base/utf8.h"
#include "tools/cli/help.h"

namespace plimsoll::tools {

namespace {
std::string shown(std::string_view word) {
  return shortened(word);
}

[[noreturn]] void refuse(std::string message) {
  fail(ErrorKind::bad_input, std::move(message));
}

const Command& command_called(std::string_view name) {
  std::vector<std::string_view> names;
  for (const Command& command : commands()) {
    if (command.name == name) return command;
    names.push_back(command.name);
  }
  const std::string near = nearest(name, names);
  refuse(fmt::format("no command '{}'{} (plimsoll --help lists them)", shown(name),
                     near.empty() ? "" : fmt::format("; did you mean '{}'?", near)));
}

}  // namespace

std::vector<Option> question_options(const Command& command) {
  std::vector<Option> options;
  if (!command.takes_plan_options) return options;
  for (const Option& option : plan_options())
    if (std::ranges::find(command.own_options, option.name, &Option::name) ==
        command.own_options.end())
      options.push_back(option);
  return options;
}

std::vector<Option> options_of(const Command& command) {
  std::vector<Option> options = question_options(command);
  options.insert(options.end(), command.own_options.begin(), command.own_options.end());
  options.insert(options.end(), output_options().begin(), output_options().end());
  return options;
}

namespace {

// "--json --quiet": CLI11 would take "--quiet" for the file's name, and "-1" for an option. Each
// option that takes a value is joined with the next word, which must not be an option.
std::vector<std::string> joined(std::vector<std::string> words,
                                const std::vector<Option>& options) {
  std::vector<std::string> out;
  int arguments = 0;
  for (std::size_t i = 0; i < words.size(); ++i) {
    std::string& word = words[i];
    const std::size_t equals = word.find('=');
    const auto option = std::ranges::find_if(options, [&](const Option& candidate) {
      return word.starts_with("--") &&
             std::string_view(word).substr(0, equals).substr(2) == candidate.name;
    });
    const bool complete = equals != std::string::npos;
    if (option != options.end() && complete) {
      if (option->value.empty()) refuse(fmt::format("--{} takes no value", option->name));
      if (equals + 1 == word.size())
        refuse(fmt::format("{} needs a value: {}", word, option->help));
    }
    if (option == options.end() || complete || option->value.empty()) {
      arguments += !word.starts_with("-");
      out.push_back(std::move(word));
      continue;
    }
    // "[TENSOR]": a word for the command itself comes first.
    const bool alone = i + 1 == words.size() || words[i + 1].starts_with("-") || arguments == 0;
    if (option->value.starts_with('[') && alone) {
      out.push_back(word + "=" + std::string(option->alone));
      continue;
    }
    if (i + 1 == words.size() || words[i + 1].empty())
      refuse(fmt::format("{} needs a value: {}", word, option->help));
    if (words[i + 1].starts_with("--"))
      refuse(fmt::format("{} needs a value, but {} follows", word, shown(words[i + 1])));
    out.push_back(word + "=" + words[i + 1]);
    ++i;
  }
  return out;
}

std::string nearest_of(std::string_view word, const std::vector<Option>& options) {
  std::vector<std::string_view> names{"help"};
  for (const Option& option : options) names.push_back(option.name);
  const std::size_t begin = word.find_first_not_of('-');
  return begin == std::string_view::npos ? "" : nearest(word.substr(begin), names);
}

[[noreturn]] void refuse_word(const std::string& word, const Command& command,
                              const std::vector<Option>& options) {
  if (!word.starts_with("-") || word == "-")
    refuse(fmt::format("unexpected argument '{}' ({} takes {})", shown(word), command.name,
                       command.argument.empty() ? "none" : command.argument));
  const std::string name = word.substr(0, word.find('='));
  const std::string near = nearest_of(name, options);
  refuse(fmt::format("{} has no option {}{}", command.name, shown(name),
                     near.empty() ? fmt::format(" ({}{} --help lists them)",
                                                command.is_program ? "" : "plimsoll ", command.name)
                                  : fmt::format("; did you mean --{}?", near)));
}

struct Parser {
  const Command& command;
  CLI::App app;
  std::vector<Option> options;
  std::vector<std::vector<std::string>> values;  // parallel to options
  std::unique_ptr<bool[]> flags;
  std::vector<std::string> arguments;

  explicit Parser(const Command& c)
      : command(c),
        options(options_of(c)),
        values(options.size()),
        flags(new bool[options.size()]()) {
    app.set_help_flag();  // help.h has its own
    app.allow_extras();
    if (!c.argument.empty())
      app.add_option(std::string(c.argument), arguments)->expected(0, 1 << 20);
    for (std::size_t i = 0; i < options.size(); ++i) add(i);
  }

  void add(std::size_t i) {
    const Option& option = options[i];
    const std::string name = "--" + std::string(option.name);
    if (option.value.empty())
      app.add_flag(name, flags[i]);
    else
      app.add_option(name, values[i])->allow_extra_args(false);
  }

  Options given() const {
    Options given;
    for (std::size_t i = 0; i < options.size(); ++i) {
      if (values[i].size() > 1 && !options[i].repeatable)
        refuse(fmt::format("--{} is given {} times", options[i].name, values[i].size()));
      for (const std::string& value : values[i]) given.add(options[i].name, value);
      if (flags[i]) given.add(options[i].name, "");
    }
    return given;
  }
};
}  // namespace

CommandLine parse_command_line(std::vector<std::string> words, std::string_view version) {
  CommandLine line;
  if (words.empty()) refuse("a command is missing (plimsoll --help lists them)");
  if (words[0] == "--help" || words[0] == "-h" || words[0] == "help") {
    line.text = words.size() == 1 ? overview(version) : help_text(command_called(words[1]));
    return line;
  }
  if (words[0] == "--version" || words[0] == "-V" || words[0] == "version") {
    line.text = fmt::format("plimsoll {}\n", version);
    return line;
  }
  if (words[0].starts_with('-'))
    refuse(fmt::format("the command comes first, not {} (plimsoll --help lists them)",
                       shown(words[0])));
  const Command& command = command_called(words[0]);
  words.erase(words.begin());
  return parse_arguments(command, std::move(words));
}

CommandLine parse_arguments(const Command& command, std::vector<std::string> words) {
  CommandLine line;
  line.command = &command;
  Parser parser(command);
  const auto dashes = std::ranges::find(words, "--");
  if (command.takes_plan_options && dashes != words.end()) {
    line.launch.assign(dashes + 1, words.end());
    line.has_launch = true;
    words.erase(dashes, words.end());
  }
  const bool help = std::ranges::any_of(
      words, [](const std::string& word) { return word == "--help" || word == "-h"; });
  if (help) {
    line.text = help_text(command);
    return line;
  }
  check(command.unavailable.empty(), ErrorKind::unsupported,
        [&] { return fmt::format("{}: {}", command.name, command.unavailable); });
  words = joined(std::move(words), parser.options);
  std::ranges::reverse(words);  // CLI11 takes them from the back
  try {
    parser.app.parse(words);
  } catch (const CLI::Error& error) {
    refuse(error.what());
  }
  for (const std::string& word : parser.app.remaining()) refuse_word(word, command, parser.options);
  if (parser.arguments.size() > 1 && !command.takes_more_arguments)
    refuse_word(parser.arguments[1], command, parser.options);
  if (!parser.arguments.empty()) {
    line.argument = parser.arguments[0];
    for (const std::string& argument : parser.arguments)
      if (argument.empty()) refuse(fmt::format("{} is empty", command.argument));
    line.arguments = parser.arguments;
  }
  line.options = parser.given();
  return line;
}

}  // namespace plimsoll::tools
