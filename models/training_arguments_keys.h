// The fields of TrainingArguments (transformers 5.17, training_args.py) and of the scripts around
// it: which are read, which are refused, which change no memory of a step.
#pragma once

#include <array>
#include <string_view>

#include "models/file_keys.h"

namespace plimsoll::models {

inline constexpr auto kArgumentsRead = std::to_array<std::string_view>(
    {"per_device_train_batch_size", "gradient_accumulation_steps", "bf16", "fp16",
     "gradient_checkpointing", "gradient_checkpointing_kwargs", "optim", "optim_args",
     "torch_compile", "torch_compile_backend", "torch_compile_mode", "use_liger_kernel",
     "liger_kernel_config", "ddp_bucket_cap_mb", "ddp_find_unused_parameters", "ddp_backend",
     "fsdp", "fsdp_config", "deepspeed", "use_cpu", "accelerator_config", "parallelism_config",
     "auto_find_batch_size", "eval_strategy", "do_train",
     // of scripts (trl/trainer/model_config.py, sft_config.py; transformers/examples)
     "model_name_or_path", "model_revision", "dtype", "torch_dtype", "attn_implementation",
     "max_length", "max_seq_length", "model_max_length", "block_size", "use_peft", "lora_r",
     "lora_alpha", "lora_dropout", "lora_target_modules", "lora_task_type", "use_rslora",
     "load_in_8bit", "load_in_4bit", "bnb_4bit_quant_type", "use_bnb_nested_quant", "packing",
     "padding_free", "use_dora", "lora_modules_to_save", "lora_target_parameters",
     "neftune_noise_alpha", "label_smoothing_factor", "optim_target_modules", "ddp_static_graph",
     "torch_empty_cache_steps", "full_determinism", "activation_offloading"});

inline constexpr auto kArgumentsUnmodelled = std::to_array<std::string_view>(
    {"neftune_noise_alpha", "label_smoothing_factor", "lora_target_parameters", "padding_free"});

// Evaluation is not planned: a note where it is asked for.
inline constexpr auto kArgumentsOfEvaluation = std::to_array<std::string_view>(
    {"per_device_eval_batch_size", "eval_steps", "eval_delay", "eval_on_start",
     "eval_do_concat_batches", "eval_use_gather_object", "eval_accumulation_steps",
     "prediction_loss_only", "include_for_metrics", "batch_eval_metrics", "bf16_full_eval",
     "fp16_full_eval", "do_eval"});

inline constexpr auto kArgumentsNoMemory =
    std::to_array<std::string_view>({"output_dir",
                                     "num_train_epochs",
                                     "max_steps",
                                     "learning_rate",
                                     "lr_scheduler_type",
                                     "lr_scheduler_kwargs",
                                     "warmup_steps",
                                     "warmup_ratio",
                                     "weight_decay",
                                     "adam_beta1",
                                     "adam_beta2",
                                     "adam_epsilon",
                                     "average_tokens_across_devices",
                                     "max_grad_norm",
                                     "tf32",
                                     "use_cache",
                                     "logging_strategy",
                                     "logging_steps",
                                     "logging_first_step",
                                     "log_on_each_node",
                                     "logging_nan_inf_filter",
                                     "include_num_input_tokens_seen",
                                     "log_level",
                                     "log_level_replica",
                                     "disable_tqdm",
                                     "report_to",
                                     "run_name",
                                     "project",
                                     "trackio_space_id",
                                     "trackio_bucket_id",
                                     "trackio_static_space_id",
                                     "save_only_model",
                                     "save_strategy",
                                     "save_steps",
                                     "save_on_each_node",
                                     "save_total_limit",
                                     "enable_jit_checkpoint",
                                     "push_to_hub",
                                     "hub_token",
                                     "hub_private_repo",
                                     "hub_model_id",
                                     "hub_strategy",
                                     "hub_always_push",
                                     "hub_revision",
                                     "load_best_model_at_end",
                                     "metric_for_best_model",
                                     "greater_is_better",
                                     "ignore_data_skip",
                                     "restore_callback_states_from_checkpoint",
                                     "seed",
                                     "data_seed",
                                     "dataloader_drop_last",
                                     "dataloader_num_workers",
                                     "dataloader_pin_memory",
                                     "dataloader_persistent_workers",
                                     "dataloader_prefetch_factor",
                                     "dataloader_multiprocessing_context",
                                     "dataloader_in_order",
                                     "remove_unused_columns",
                                     "label_names",
                                     "train_sampling_strategy",
                                     "length_column_name",
                                     "ddp_broadcast_buffers",
                                     "ddp_timeout",
                                     "debug",
                                     "skip_memory_metrics",
                                     "do_predict",
                                     "resume_from_checkpoint",
                                     "local_rank",
                                     "overwrite_output_dir",
                                     "logging_dir",
                                     "save_safetensors",
                                     "group_by_length",
                                     "evaluation_strategy",
                                     "no_cuda",
                                     "trust_remote_code"});

inline constexpr KeyTable kArguments{kArgumentsRead, kArgumentsUnmodelled, kArgumentsNoMemory};

}  // namespace plimsoll::models
