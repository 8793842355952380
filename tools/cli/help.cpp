#include "tools/cli/help.h"

#include <fmt/format.h>

#include <algorithm>

#include "reports/text.h"

namespace plimsoll::tools {

namespace {
constexpr std::size_t kColumns = 80;
constexpr std::size_t kHelpColumn = 26;

// "  left            text", the text broken at the right edge.
void add_entry(std::string& out, std::string_view left, std::string_view text,
               std::size_t column = kHelpColumn) {
  std::string line = "  " + std::string(left);
  const std::string indent(column, ' ');
  if (reports::width(line) + 2 > column) {
    out += line + '\n';
    line.clear();
  }
  line = reports::padded(line, column);
  const auto lines = reports::wrapped(text, kColumns - column, "");
  for (std::size_t i = 0; i < lines.size(); ++i) out += (i == 0 ? line : indent) + lines[i] + '\n';
  if (lines.empty()) out += line + '\n';
}

void add_options(std::string& out, std::span<const Option> options) {
  std::string_view group;
  for (const Option& option : options) {
    if (option.group != group) {
      group = option.group;
      out += fmt::format("\n{}:\n", group);
    }
    const std::string left = "--" + std::string(option.name) + (option.value.empty() ? "" : " ") +
                             std::string(option.value);
    add_entry(out, left,
              std::string(option.help) + (option.is_never_modelled() ? " [not yet]" : ""));
  }
}

void add_paragraph(std::string& out, std::string_view text) {
  for (const std::string& line : reports::wrapped(text, kColumns, "")) out += line + '\n';
}
// To be pasted as it stands: a backslash where a line is broken.
void add_example(std::string& out, std::string_view example) {
  out += "\nExample:\n";
  const auto lines = reports::wrapped(example, kColumns - 4, "    ");
  for (std::size_t i = 0; i < lines.size(); ++i)
    out += "  " + lines[i] + (i + 1 < lines.size() ? " \\\n" : "\n");
}
}  // namespace

std::string overview(std::string_view version) {
  std::string out = fmt::format(
      "plimsoll {}\nWhat a training step costs in GPU memory, before it runs.\n\n"
      "Usage: plimsoll COMMAND ...\n\nCommands:\n",
      version);
  for (const Command& command : commands()) {
    // The first sentence, as far as its colon.
    const std::size_t question = std::min(command.help.find('?'), command.help.size() - 1);
    const std::string_view first = command.help.substr(0, question + 1);
    add_entry(out, command.name, first.substr(0, first.find(':')), 13);
  }
  out += "\nplimsoll COMMAND --help explains its options.\n";
  add_example(out, commands().front().example);
  return out;
}

std::string help_text(const Command& command) {
  std::string out;
  add_paragraph(out, command.help);
  out += fmt::format("\nUsage: {}{}{}{} [OPTIONS]{}\n", command.is_program ? "" : "plimsoll ",
                     command.name, command.argument.empty() ? "" : " ", command.argument,
                     command.takes_plan_options ? " [-- LAUNCH LINE]" : "");
  if (command.argument == "MODEL")
    add_paragraph(out,
                  "MODEL is a name of `plimsoll models`, a Hugging Face config.json or a folder "
                  "with one, or a hub id (org/name) in the local Hugging Face cache.");
  if (command.takes_plan_options) {
    add_paragraph(out,
                  "LAUNCH LINE is what starts the training: accelerate launch, torchrun, deepspeed "
                  "or python, with the script's arguments. What it says becomes options; what is "
                  "not understood is listed in the answer.");
    add_options(out, question_options(command));
  }
  add_options(out, command.own_options);
  add_options(out, output_options());
  if (command.takes_plan_options)
    out += "\n[not yet]: known, and refused by name: this version does not model it.\n";
  add_example(out, command.example);
  return out;
}

}  // namespace plimsoll::tools
