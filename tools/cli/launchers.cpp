#include "tools/cli/launchers.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

#include "models/base/nearest.h"
#include "models/base/utf8.h"
#include "tools/cli/launch_words.h"

namespace plimsoll::tools::launchers {

namespace {
// accelerate 1.15, commands/launch.py. Those that bear on memory are looked at below.
constexpr auto kAccelerateFlags =
    std::to_array<std::string_view>({"quiet",
                                     "q",
                                     "cpu",
                                     "multi_gpu",
                                     "tpu",
                                     "enable_cpu_affinity",
                                     "dynamo_use_fullgraph",
                                     "dynamo_use_dynamic",
                                     "dynamo_use_regional_compilation",
                                     "use_deepspeed",
                                     "use_fsdp",
                                     "use_parallelism_config",
                                     "use_megatron_lm",
                                     "same_network",
                                     "m",
                                     "module",
                                     "no_python",
                                     "tpu_cluster",
                                     "no_tpu_cluster",
                                     "tpu_use_sudo",
                                     "downcast_bf16",
                                     "debug",
                                     "fp8_use_autocast_during_eval"});
constexpr auto kAccelerateValues =
    std::to_array<std::string_view>({"config_file",
                                     "mixed_precision",
                                     "num_processes",
                                     "num_machines",
                                     "num_cpu_threads_per_process",
                                     "dynamo_backend",
                                     "dynamo_mode",
                                     "gpu_ids",
                                     "machine_rank",
                                     "main_process_ip",
                                     "main_process_port",
                                     "tee",
                                     "t",
                                     "log_dir",
                                     "role",
                                     "rdzv_backend",
                                     "rdzv_conf",
                                     "max_restarts",
                                     "monitor_interval",
                                     "main_training_function",
                                     "deepspeed_config_file",
                                     "zero_stage",
                                     "offload_optimizer_device",
                                     "offload_param_device",
                                     "offload_optimizer_nvme_path",
                                     "offload_param_nvme_path",
                                     "gradient_accumulation_steps",
                                     "gradient_clipping",
                                     "zero3_init_flag",
                                     "zero3_save_16bit_model",
                                     "deepspeed_hostfile",
                                     "deepspeed_exclusion_filter",
                                     "deepspeed_inclusion_filter",
                                     "deepspeed_multinode_launcher",
                                     "deepspeed_moe_layer_cls_names",
                                     "fsdp_version",
                                     "fsdp_offload_params",
                                     "fsdp_min_num_params",
                                     "fsdp_sharding_strategy",
                                     "fsdp_reshard_after_forward",
                                     "fsdp_auto_wrap_policy",
                                     "fsdp_transformer_layer_cls_to_wrap",
                                     "fsdp_backward_prefetch",
                                     "fsdp_state_dict_type",
                                     "fsdp_forward_prefetch",
                                     "fsdp_use_orig_params",
                                     "fsdp_cpu_ram_efficient_loading",
                                     "fsdp_sync_module_states",
                                     "fsdp_activation_checkpointing",
                                     "fsdp_activation_checkpointing_offload",
                                     "parallelism_config_dp_replicate_size",
                                     "parallelism_config_dp_shard_size",
                                     "parallelism_config_tp_size",
                                     "parallelism_config_cp_size",
                                     "parallelism_config_sp_size",
                                     "mpirun_hostfile"});
// torch 2.11, distributed/run.py.
constexpr auto kTorchrunFlags = std::to_array<std::string_view>(
    {"standalone", "m", "module", "no_python", "run_path", "virtual_local_rank", "use_env"});
constexpr auto kTorchrunValues = std::to_array<std::string_view>({"nnodes",
                                                                  "nproc_per_node",
                                                                  "rdzv_backend",
                                                                  "rdzv_endpoint",
                                                                  "rdzv_id",
                                                                  "rdzv_conf",
                                                                  "max_restarts",
                                                                  "monitor_interval",
                                                                  "start_method",
                                                                  "event_log_handler",
                                                                  "role",
                                                                  "log_dir",
                                                                  "r",
                                                                  "redirects",
                                                                  "t",
                                                                  "tee",
                                                                  "local_ranks_filter",
                                                                  "duplicate_stdout_filters",
                                                                  "duplicate_stderr_filters",
                                                                  "node_rank",
                                                                  "master_addr",
                                                                  "master_port",
                                                                  "local_addr",
                                                                  "logs_specs",
                                                                  "numa_binding",
                                                                  "signals_to_handle"});
// deepspeed 0.19.8, launcher/runner.py.
constexpr auto kDeepSpeedFlags = std::to_array<std::string_view>(
    {"module", "no_python", "no_local_rank", "no_ssh", "no_ssh_check", "force_multi", "save_pid",
     "bind_cores_to_rank", "q", "quiet"});
constexpr auto kDeepSpeedValues = std::to_array<std::string_view>(
    {"H",           "hostfile",       "i",        "include",          "e",
     "exclude",     "num_nodes",      "num_gpus", "num_accelerators", "master_port",
     "master_addr", "node_rank",      "launcher", "launcher_args",    "enable_each_rank_log",
     "autotuning",  "bind_core_list", "ssh_port", "venv_script",      "log_level"});

constexpr auto kPythonFlags = std::to_array<std::string_view>({"u", "O", "m"});

constexpr auto kDeepSpeedKeys = std::to_array<std::string_view>(
    {"deepspeed_config_file", "zero_stage", "offload_optimizer_device", "offload_param_device",
     "offload_optimizer_nvme_path", "offload_param_nvme_path", "gradient_accumulation_steps",
     "gradient_clipping", "zero3_init_flag", "zero3_save_16bit_model",
     "deepspeed_moe_layer_cls_names"});
constexpr auto kTop =
    std::to_array<std::string_view>({"mixed_precision", "num_processes", "num_machines",
                                     "dynamo_backend", "gpu_ids", "downcast_bf16", "cpu"});
}  // namespace

constinit const Launcher kAccelerate{"accelerate launch", kAccelerateFlags, kAccelerateValues};
constinit const Launcher kTorchrun{"torchrun", kTorchrunFlags, kTorchrunValues};
constinit const Launcher kDeepSpeed{"deepspeed", kDeepSpeedFlags, kDeepSpeedValues};
constinit const Launcher kPython{"python", kPythonFlags, {}};
constinit const Launcher kOwnCommand{"", {}, {}};

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
