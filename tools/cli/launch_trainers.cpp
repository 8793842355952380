#include "tools/cli/launch_trainers.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "models/base/error.h"
#include "models/base/utf8.h"
#include "models/trainer_keys.h"

namespace plimsoll::tools {

namespace {
struct Script {
  std::string_view option, module, path;
};
constexpr std::array<Script, 6> kScripts{
    {{"axolotl", "axolotl.cli.train", "axolotl/cli/train.py"},
     {"llamafactory", "llamafactory.launcher", "llamafactory/launcher.py"},
     {"swift", "swift.cli.sft", "swift/cli/sft.py"},
     {"swift", "swift.cli.pt", "swift/cli/pt.py"},
     {"torchtitan", "torchtitan.train", "torchtitan/train.py"},
     {"torchtitan", "torchtitan.train", "torchtitan/train"}}};

std::int64_t number(const Environment& variables, const char* name, std::int64_t fallback) {
  const auto found = variables.find(name);
  if (found == variables.end()) return fallback;
  const std::string& text = found->second;
  const bool is_one =
      !text.empty() && text.size() < 7 && text.find_first_not_of("0123456789") == std::string::npos;
  check(is_one && std::stoll(text) > 0, ErrorKind::bad_input, [&] {
    return fmt::format("the launch line: {}={}: a positive whole number is needed", name,
                       shortened(text));
  });
  return std::stoll(text);
}
}  // namespace

std::string trainer_of_script(const std::string& script) {
  for (const Script& one : kScripts)
    if (script == one.module || script == one.path || script.ends_with("/" + std::string(one.path)))
      return std::string(one.option);
  return "";
}

std::string trainer_of_arguments(const Has& has) {
  if (has("finetuning_type") || has("cutoff_len")) return "llamafactory";
  if (has("base_model") && has("datasets")) return "axolotl";  // lists stand in its file only
  return "";
}

std::string argument_of_megatron(const Has& has) {
  for (const std::string_view name : models::megatron_keys())
    if (has(name)) return std::string(name);
  return "";
}

std::optional<TrainerCommand> trainer_command(const std::string& program) {
  if (program == "axolotl") return TrainerCommand{"axolotl", "train"};
  if (program == "llamafactory-cli" || program == "lmf")
    return TrainerCommand{"llamafactory", "train"};
  if (program == "swift") return TrainerCommand{"swift", "sft pt"};
  return std::nullopt;
}

std::optional<StartedRanks> started_ranks(const std::string& option, const Environment& variables) {
  // llamafactory/cli.py and hparams/parser.py: other trainers behind the same command.
  for (const char* other : {"USE_V1", "USE_MCA", "USE_MEGATRON_BRIDGE"})
    if (const auto found = variables.find(other);
        option == "llamafactory" && found != variables.end() && found->second != "0")
      fail(ErrorKind::unsupported, fmt::format("the launch line: {}={}: is not modelled yet", other,
                                               shortened(found->second)));
  const std::int64_t nodes = number(variables, "NNODES", 1);
  const auto devices = variables.find("CUDA_VISIBLE_DEVICES");
  const std::int64_t visible = devices == variables.end() || devices->second.empty()
                                   ? 0
                                   : 1 + std::ranges::count(devices->second, ',');
  if (variables.contains("NPROC_PER_NODE"))
    return StartedRanks{number(variables, "NPROC_PER_NODE", 1), nodes, "NPROC_PER_NODE"};
  if (option == "swift") {
    check(visible < 2, ErrorKind::unsupported, [&] {
      return fmt::format(
          "the launch line: CUDA_VISIBLE_DEVICES={}: without NPROC_PER_NODE ms-swift splits the "
          "model over them, which is not modelled",
          shortened(devices->second));
    });
    return StartedRanks{1, nodes, "swift"};
  }
  if (visible > 0) return StartedRanks{visible, nodes, "CUDA_VISIBLE_DEVICES"};
  return std::nullopt;
}

bool is_read_variable(const std::string& option, const std::string& name) {
  if (option != "swift" && option != "llamafactory") return false;
  constexpr std::array<std::string_view, 4> kRead{"NPROC_PER_NODE", "NNODES",
                                                  "CUDA_VISIBLE_DEVICES", "FORCE_TORCHRUN"};
  return std::ranges::find(kRead, name) != kRead.end();
}

}  // namespace plimsoll::tools
