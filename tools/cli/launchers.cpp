#include "tools/cli/launchers.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "models/base/nearest.h"
#include "models/base/utf8.h"
#include "tools/cli/launch_words.h"

namespace plimsoll::tools::launchers {

namespace {
constexpr auto kDeepSpeedKeys = std::to_array<std::string_view>(
    {"deepspeed_config_file", "zero_stage", "offload_optimizer_device", "offload_param_device",
     "offload_optimizer_nvme_path", "offload_param_nvme_path", "gradient_accumulation_steps",
     "gradient_clipping", "zero3_init_flag", "zero3_save_16bit_model",
     "deepspeed_moe_layer_cls_names"});
constexpr auto kTop =
    std::to_array<std::string_view>({"mixed_precision", "num_processes", "num_machines",
                                     "dynamo_backend", "gpu_ids", "downcast_bf16", "cpu"});
}  // namespace

bool is_in(Names names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

const Launcher* launcher_of_module(std::string_view module) {
  if (module == "torch.distributed.run" || module == "torch.distributed.launch") return &kTorchrun;
  if (module == "accelerate.commands.launch") return &kAccelerate;
  if (module == "deepspeed.launcher.runner") return &kDeepSpeed;
  return nullptr;
}

void refuse_launcher(const std::string& program) {
  launch_words::refuse(fmt::format(
      "'{}' is no launcher that is known (accelerate launch, torchrun, python -m "
      "torch.distributed.run, deepspeed, python, axolotl train, llamafactory-cli train, swift sft)",
      shortened(program)));
}

void refuse_option(const Launcher& launcher, const std::string& name, const std::string& word) {
  std::vector<std::string_view> all(launcher.flags.begin(), launcher.flags.end());
  all.insert(all.end(), launcher.values.begin(), launcher.values.end());
  const std::string near = nearest(name, all);
  launch_words::refuse(fmt::format("{} has no option {}{}", launcher.name, shortened(word),
                                   near.empty() ? "" : fmt::format("; did you mean --{}?", near)));
}

std::int64_t included_devices(std::string_view include) {
  const std::size_t colon = include.find(':');
  if (colon == std::string_view::npos || include.find('@') != std::string_view::npos) return 0;
  return 1 + std::ranges::count(include.substr(colon), ',');
}

std::optional<std::string_view> section_of_argument(std::string_view name) {
  if (is_in(kDeepSpeedKeys, name)) return "deepspeed_config";
  if (name.starts_with("fsdp_")) return "fsdp_config";
  if (name.starts_with("parallelism_config_")) return "parallelism_config";
  if (is_in(kTop, name)) return "";
  return std::nullopt;
}

}  // namespace plimsoll::tools::launchers
