#include "tools/cli/completion.h"

#include <fmt/format.h>

#include <algorithm>

#include "tools/cli/command_line.h"

namespace plimsoll::tools {

namespace {
std::string joined(const std::vector<std::string>& words, std::string_view separator) {
  std::string out;
  for (const std::string& word : words) {
    if (!out.empty()) out += separator;
    out += word;
  }
  return out;
}

bool is_name(std::string_view word) {
  return !word.empty() && std::ranges::all_of(word, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '.' || c == '@';
  });
}

// The values that an option takes, where its row or its help lists them ("1, 2 (2)").
std::vector<std::string> values_of(const Option& option, const CompletionNames& names) {
  if (option.name == "gpu") return names.gpus;
  if (option.value == "YES|NO") return {"yes", "no"};
  if (!option.names.empty()) return {option.names.begin(), option.names.end()};
  if (option.value != "NAME" && option.value != "KIND" && option.value != "STAGE" &&
      option.value != "DTYPE" && option.value != "V" && option.value != "TARGET")
    return {};
  std::string_view list = option.help.substr(0, option.help.find(" ("));
  std::vector<std::string> out;
  while (!list.empty()) {
    const std::size_t comma = list.find(", ");
    const std::string_view word = list.substr(0, comma);
    if (is_name(word)) out.emplace_back(word);
    if (comma == std::string_view::npos) break;
    list.remove_prefix(comma + 2);
  }
  return out.size() < 2 ? std::vector<std::string>() : out;
}

bool takes_file(std::string_view value) {
  return value == "FILE" || value.find(".json") != std::string_view::npos;
}

// Commands that this version has.
std::vector<const Command*> available() {
  std::vector<const Command*> out;
  for (const Command& command : commands())
    if (command.unavailable.empty()) out.push_back(&command);
  return out;
}

std::string first_sentence(std::string_view help) {
  const std::size_t end = std::min(help.find_first_of("?:;."), help.size());
  return std::string(help.substr(0, end));
}

// Within 'single quotes' of a shell.
std::string quoted(std::string_view text) {
  std::string out;
  for (const char c : text) out += c == '\'' ? "'\\''" : std::string(1, c);
  return out;
}

// Of zsh's _arguments also [ ] and : mean something.
std::string zsh_text(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '[' || c == ']' || c == ':' || c == '\\') out += '\\';
    out += c;
  }
  return quoted(out);
}

// Text that asks for no other formatting: groff_char(7). All of ours that is not ASCII is "…".
std::string roff(std::string_view text) {
  constexpr std::string_view kEllipsis = "…";
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text.substr(i).starts_with(kEllipsis)) {
      out += "...";
      i += kEllipsis.size() - 1;
      continue;
    }
    const char c = text[i];
    out += c == '\\' ? "\\e" : c == '-' ? "\\-" : c == '\'' ? "\\(aq" : std::string(1, c);
  }
  return out.starts_with('.') ? "\\&" + out : out;
}
}  // namespace

std::string bash_completion(const CompletionNames& names) {
  std::string out =
      "# bash completion of plimsoll, made from its option table\n"
      "_plimsoll() {\n"
      "  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} "
      "command=${COMP_WORDS[1]} options=\n"
      "  COMPREPLY=()\n";
  std::vector<std::string> all;
  std::string values, lists;
  for (const Command* command : available()) {
    all.emplace_back(command->name);
    std::vector<std::string> words{"--help"};
    for (const Option& option : options_of(*command)) {
      words.push_back("--" + std::string(option.name));
      if (option.value.empty() || option.value.starts_with('[')) continue;
      const std::vector<std::string> known = values_of(option, names);
      values += fmt::format("    {}:--{}) ", command->name, option.name);
      if (!known.empty())
        values += fmt::format("COMPREPLY=($(compgen -W '{}' -- \"$cur\")); return ;;\n",
                              quoted(joined(known, " ")));
      else if (takes_file(option.value))
        values += "COMPREPLY=($(compgen -f -- \"$cur\")); return ;;\n";
      else
        values += "return ;;\n";
    }
    lists += fmt::format("    {}) options='{}' ;;\n", command->name, joined(words, " "));
  }
  out += fmt::format(
      "  if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
      "    COMPREPLY=($(compgen -W '{} --help --version' -- \"$cur\"))\n    return\n  fi\n",
      joined(all, " "));
  out += "  case $command:$prev in\n" + values + "  esac\n";
  out += "  case $command in\n" + lists + "  esac\n";
  out += fmt::format(
      "  case $cur in\n"
      "    -*) COMPREPLY=($(compgen -W \"$options\" -- \"$cur\")); return ;;\n"
      "  esac\n"
      "  COMPREPLY=($(compgen -f -- \"$cur\"))\n"
      "  case $command in\n"
      "    fit|recommend|run) COMPREPLY+=($(compgen -W '{}' -- \"$cur\")) ;;\n"
      "  esac\n"
      "}}\n"
      "complete -o filenames -F _plimsoll plimsoll\n",
      joined(names.models, " "));
  return out;
}

std::string zsh_completion(const CompletionNames& names) {
  std::string out =
      "#compdef plimsoll\n# zsh completion of plimsoll, made from its option table\n"
      "_plimsoll() {\n  local -a commands\n  commands=(\n";
  std::string cases;
  for (const Command* command : available()) {
    out += fmt::format("    '{}:{}'\n", command->name, zsh_text(first_sentence(command->help)));
    cases += fmt::format(
        "    {})\n      _arguments \\\n        '--help[the options of this command]' \\\n",
        command->name);
    for (const Option& option : options_of(*command)) {
      std::string action;
      const std::vector<std::string> known = values_of(option, names);
      if (!option.value.empty())
        action = fmt::format(":{}:{}", zsh_text(option.value),
                             !known.empty()             ? "(" + joined(known, " ") + ")"
                             : takes_file(option.value) ? "_files"
                                                        : "");
      cases +=
          fmt::format("        '{}--{}{}[{}]{}' \\\n", option.repeatable ? "*" : "", option.name,
                      option.value.empty() || option.value.starts_with('[') ? "" : "=",
                      zsh_text(option.help), action);
    }
    const bool model = command->argument == "MODEL";
    cases += model ? fmt::format(
                         "        '1:MODEL:_alternative \"names:MODEL:({})\" "
                         "\"files:file:_files\"' '*:file:_files' ;;\n",
                         joined(names.models, " "))
                   : "        '*:file:_files' ;;\n";
  }
  return out +
         "  )\n  if (( CURRENT == 2 )); then\n    _describe command commands\n    return\n  fi\n"
         "  local command=$words[2]\n  shift words\n  (( CURRENT-- ))\n  case $command in\n" +
         cases + "  esac\n}\n_plimsoll \"$@\"\n";
}

std::string fish_completion(const CompletionNames& names) {
  std::string out =
      "# fish completion of plimsoll, made from its option table\ncomplete -c plimsoll -f\n";
  for (const Command* command : available()) {
    out += fmt::format("complete -c plimsoll -n __fish_use_subcommand -a {} -d '{}'\n",
                       command->name, quoted(first_sentence(command->help)));
    const std::string seen =
        fmt::format("complete -c plimsoll -n '__fish_seen_subcommand_from {}'", command->name);
    if (!command->argument.empty()) out += seen + " -F\n";
    if (command->argument == "MODEL")
      out += fmt::format("{} -a '{}'\n", seen, joined(names.models, " "));
    for (const Option& option : options_of(*command)) {
      out += fmt::format("{} -l {} -d '{}'", seen, option.name, quoted(option.help));
      if (!option.value.empty() && !option.value.starts_with('[')) {
        const std::vector<std::string> known = values_of(option, names);
        out += takes_file(option.value) ? " -r -F" : " -x";
        if (!known.empty()) out += fmt::format(" -a '{}'", quoted(joined(known, " ")));
      }
      out += '\n';
    }
  }
  return out;
}

std::string manual_page(std::string_view version) {
  std::string out = fmt::format(
      ".TH PLIMSOLL 1 \"\" \"plimsoll {}\" \"User Commands\"\n"
      ".SH NAME\nplimsoll \\- what a training step costs in GPU memory, before it runs\n"
      ".SH SYNOPSIS\n.B plimsoll\n.I COMMAND\n[\\fIARGUMENT\\fR] [\\fIOPTIONS\\fR]\n"
      ".SH COMMANDS\n",
      roff(version));
  for (const Command* command : available())
    out += fmt::format(".TP\n\\fB{}\\fR \\fI{}\\fR\n{}\n", roff(command->name),
                       roff(command->argument), roff(command->help));
  const auto add = [&](std::span<const Option> options) {
    for (const Option& option : options)
      out += fmt::format(".TP\n\\fB\\-\\-{}\\fR{}\n{}{}\n", roff(option.name),
                         option.value.empty() ? "" : fmt::format(" \\fI{}\\fR", roff(option.value)),
                         roff(option.help),
                         option.is_never_modelled() ? " [not in this version]" : "");
  };
  out += ".SH OPTIONS OF A QUESTION\nOf fit, recommend, run and oom; of batch as keys.\n";
  add(plan_options());
  for (const Command* command : available()) {
    if (command->own_options.empty()) continue;
    out += fmt::format(".SH OPTIONS OF {}\n", roff(command->name));
    add(command->own_options);
  }
  out += ".SH OPTIONS OF EVERY COMMAND\n";
  add(output_options());
  out +=
      ".SH EXIT STATUS\n.TP\n0\nit fits, agrees, is done\n.TP\n1\na valid question whose answer is "
      "no\n.TP\n2\nbad usage or bad input\n.TP\n3\na device, a communicator or the program "
      "failed\n.SH EXAMPLES\n.nf\n";
  for (const Command* command : available()) out += roff(command->example) + "\n";
  return out + ".fi\n";
}

}  // namespace plimsoll::tools
