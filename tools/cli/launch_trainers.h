// Training programs that a launch line starts, by their own command or as a script of a launcher.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace plimsoll::tools {

using Environment = std::map<std::string, std::string, std::less<>>;  // NAME=VALUE before a command

// The option that reads what such a program takes: "axolotl" of axolotl.cli.train, "torchtitan" of
// torchtitan/train.py; "": a script of another kind.
std::string trainer_of_script(const std::string& script);

// The same, of what a script of another kind takes: LLaMA-Factory's src/train.py, Axolotl's file.
using Has = std::function<bool(std::string_view)>;
std::string trainer_of_arguments(const Has& has);

// An argument that Megatron-LM's programs take and no Trainer does; "": none.
std::string argument_of_megatron(const Has& has);

// Of a program's own command, and what has to follow it: "swift" takes sft or pt.
struct TrainerCommand {
  const char* option;
  const char* actions;  // "sft pt"
};
std::optional<TrainerCommand> trainer_command(const std::string& program);

struct StartedRanks {
  std::int64_t per_node = 1, nodes = 1;
  const char* key = "";  // that says so
};
// How many ranks LLaMA-Factory (launcher.py) or ms-swift (cli/main.py) starts, as their variables
// say; nothing: as many as the machine has. Error{bad_input}: numbers that are none, or devices
// that the program would split the model over.
std::optional<StartedRanks> started_ranks(const std::string& option, const Environment& variables);

// Whether one of the above looks at it.
bool is_read_variable(const std::string& option, const std::string& name);

}  // namespace plimsoll::tools
