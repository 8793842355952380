// The options of what starts a training run.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace plimsoll::tools::launchers {

using Names = std::span<const std::string_view>;

// What a launcher takes: names without dashes, "_" inside.
struct Launcher {
  std::string_view name;
  Names flags;  // take no value
  Names values;
};

// accelerate 1.15, commands/launch.py. Those that bear on memory are looked at below.
inline constexpr auto kAccelerateFlags =
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
inline constexpr auto kAccelerateValues =
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
inline constexpr auto kTorchrunFlags = std::to_array<std::string_view>(
    {"standalone", "m", "module", "no_python", "run_path", "virtual_local_rank", "use_env"});
inline constexpr auto kTorchrunValues = std::to_array<std::string_view>({"nnodes",
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
inline constexpr auto kDeepSpeedFlags = std::to_array<std::string_view>(
    {"module", "no_python", "no_local_rank", "no_ssh", "no_ssh_check", "force_multi", "save_pid",
     "bind_cores_to_rank", "q", "quiet"});
inline constexpr auto kDeepSpeedValues = std::to_array<std::string_view>(
    {"H",           "hostfile",       "i",        "include",          "e",
     "exclude",     "num_nodes",      "num_gpus", "num_accelerators", "master_port",
     "master_addr", "node_rank",      "launcher", "launcher_args",    "enable_each_rank_log",
     "autotuning",  "bind_core_list", "ssh_port", "venv_script",      "log_level"});

inline constexpr Launcher kAccelerate{"accelerate launch", kAccelerateFlags, kAccelerateValues};
inline constexpr Launcher kTorchrun{"torchrun", kTorchrunFlags, kTorchrunValues};
inline constexpr Launcher kDeepSpeed{"deepspeed", kDeepSpeedFlags, kDeepSpeedValues};
inline constexpr auto kPythonFlags = std::to_array<std::string_view>({"u", "O", "m"});
inline constexpr Launcher kPython{"python", kPythonFlags, {}};
// A training program's own: axolotl train, llamafactory-cli train, swift sft.
inline constexpr Launcher kOwnCommand{"", {}, {}};

bool is_in(Names names, std::string_view name);

// Of python -m; nullptr: another module.
const Launcher* launcher_of_module(std::string_view module);

// Error{bad_input}: nothing that is known starts a training by this name.
[[noreturn]] void refuse_launcher(const std::string& program);

// Error{bad_input}: `launcher` has no option `word`, and its nearest one.
[[noreturn]] void refuse_option(const Launcher& launcher, const std::string& name,
                                const std::string& word);

// Of deepspeed's --include of one node, as localhost:0,1; 0: none, or of several.
std::int64_t included_devices(std::string_view include);

// Where accelerate's file says what its launcher's argument says; "": at the top; nothing: nowhere.
std::optional<std::string_view> section_of_argument(std::string_view name);

}  // namespace plimsoll::tools::launchers
