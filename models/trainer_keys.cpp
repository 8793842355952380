#include "models/trainer_keys.h"

#include <array>

namespace plimsoll::models {

std::vector<std::string_view> key_words(std::string_view text) {
  std::vector<std::string_view> out;
  for (std::size_t at = text.find_first_not_of(' '); at != std::string_view::npos;) {
    const std::size_t end = text.find(' ', at);
    out.push_back(text.substr(at, end - at));
    at = text.find_first_not_of(' ', end);
  }
  return out;
}

namespace {
constexpr std::string_view kAxolotlRead =
    "base_model adapter load_in_8bit load_in_4bit bnb_config_kwargs lora_r lora_alpha "
    "lora_dropout lora_target_modules lora_target_linear peft_autocast_adapter_dtype "
    "lora_modules_to_save peft_use_dora unfrozen_parameters "
    "sequence_len micro_batch_size gradient_accumulation_steps batch_size "
    "auto_find_batch_size optimizer optim_args bf16 fp16 bfloat16 float16 float32 "
    "gradient_checkpointing gradient_checkpointing_kwargs xformers_attention sdp_attention "
    "flex_attention flash_attention sage_attention eager_attention attn_implementation "
    "deepspeed fsdp fsdp_config fsdp_version dp_shard_size dp_replicate_size "
    "context_parallel_size sequence_parallel_degree tensor_parallel_size torch_compile "
    "torch_compile_backend torch_compile_mode plugins liger_rope liger_rms_norm "
    "liger_layer_norm liger_swiglu liger_glu_activation liger_cross_entropy "
    "liger_fused_linear_cross_entropy lora_mlp_kernel lora_qkv_kernel lora_o_kernel "
    "lora_embedding_kernel ddp_bucket_cap_mb sample_packing pad_to_sequence_len val_set_size "
    "test_datasets accelerator_config torch_empty_cache_steps ddp_find_unused_parameters "
    "resize_token_embeddings_to_32x trust_remote_code peft_use_rslora ";
constexpr std::string_view kAxolotlUnmodelled =
    "rl trl ebft reward_model process_reward_model trainer_cls qat quantization num_labels "
    "fp8 fp8_config selective_checkpointing activation_offloading layer_offloading "
    "freeze_mm_modules flash_attn_cross_entropy flash_attn_fuse_mlp "
    "flash_optimum gemma4_hybrid_attn_impl large_head_attention flash_attn_d512 sdpa_varlen "
    "fused_attn_kernel experts_implementation ple_cpu_offload quantize_moe_experts "
    "scaling_softmax chunked_cross_entropy cut_cross_entropy use_eaft tiled_mlp "
    "llama4_linearized_experts deepcompile fp32_norms fp32_norm_classes shrink_embeddings "
    "embeddings_skip_upcast torch_compile_options neftune_noise_alpha noisy_embedding_alpha "
    "lisa_n_layers lisa_step_interval use_kernels model_quantization_config use_onebitllms "
    "lora_target_parameters lora_rank_pattern lora_model_dir peft "
    "peft_layers_to_transform peft_layers_pattern peft_layer_replication "
    "peft_trainable_token_indices qlora_sharded_model_loading lora_on_cpu gptq relora "
    "optim_target_modules spectrum_top_fraction s2_attention device_map max_memory "
    "gpu_memory_limit rope_scaling model_config model_kwargs liger_rms_norm_gated "
    "liger_use_token_scaling liger_kernel_impl relora_cpu_offload max_packed_sequence_len "
    "dynamic_checkpoint use_pose peft_init_lora_weights fix_untrained_tokens tokens "
    "added_tokens_overrides ";
constexpr std::string_view kAxolotlNoMemory =
    "adam_beta1 adam_beta2 adam_beta3 adam_epsilon adam_epsilon2 auto_resume_from_checkpoints "
    "axolotl_config_path base_model_config base_model_ignore_patterns batch_flattening "
    "bench_dataset bench_split center_rewards_coefficient chat_template chat_template_jinja "
    "chat_template_kwargs chunked_cross_entropy_num_chunks cls_model_config comet_api_key "
    "comet_experiment_config comet_experiment_key comet_mode comet_online comet_project_name "
    "comet_workspace cosine_constant_lr_ratio cosine_min_lr_ratio cpo_alpha "
    "curriculum_sampling dataloader_drop_last dataloader_num_workers dataloader_pin_memory "
    "dataloader_prefetch_factor dataset_exact_deduplication dataset_keep_in_memory "
    "dataset_num_proc dataset_prepared_path dataset_processes dataset_shard_idx "
    "dataset_shard_num datasets ddp ddp_broadcast_buffers ddp_timeout default_system_message "
    "device dion_lr dion_momentum dion_rank_fraction dion_rank_multiple_of do_bench_eval "
    "do_causal_lm_eval dpo_beta dpo_generate_during_eval dpo_label_smoothing dpo_loss_type "
    "dpo_loss_weights dpo_norm_loss dpo_padding_free dpo_use_liger_kernel "
    "dpo_use_logits_to_keep dpo_use_weighting eaft_alpha eaft_k early_stopping_patience "
    "embedding_lr embedding_lr_scale eot_tokens eval_batch_size eval_causal_lm_metrics "
    "eval_max_new_tokens eval_sample_packing eval_sequence_len eval_steps eval_strategy "
    "eval_table_size evals_per_epoch evaluation_strategy excess_length_strategy "
    "experimental_skip_move_to_device flash_attn_rms_norm flex_attn_compile_kwargs "
    "fp8_enable_fsdp_float8_all_gather fsdp_final_state_dict_type gc_collect_steps gc_steps "
    "generate_samples generation_do_sample generation_max_new_tokens generation_prompt_ratio "
    "generation_temperature generation_top_k generation_top_p gradio_max_new_tokens "
    "gradio_server_name gradio_server_port gradio_share gradio_temperature gradio_title "
    "greater_is_better group_by_length heads_k_stride hf_mlflow_log_artifacts "
    "hf_use_auth_token hub_model_id hub_revision hub_strategy image_resize_algorithm "
    "image_size include_tkps include_tokens_per_second is_falcon_derived_model "
    "is_llama_derived_model is_mistral_derived_model is_preprocess is_qwen_derived_model "
    "jagged_restart_anneal_steps jagged_restart_steps jagged_restart_warmup_steps "
    "kto_desirable_weight kto_undesirable_weight learning_rate lisa_layers_attribute "
    "load_best_model_at_end local_rank logging_steps lora_alpha_pattern lora_fan_in_fan_out "
    "loraplus_lr_embedding loraplus_lr_ratio loss_watchdog_patience loss_watchdog_threshold "
    "low_cpu_mem_usage lr_div_factor lr_groups lr_quadratic_warmup lr_scheduler "
    "lr_scheduler_kwargs max_grad_norm max_prompt_len max_steps mean_resizing_embeddings "
    "merge_lora merge_method metric_for_best_model min_sample_len mlflow_experiment_name "
    "mlflow_run_name mlflow_tracking_uri model_quantization_config_kwargs "
    "multipack_real_batches num_dataset_shards_to_save num_epochs num_generation_samples "
    "orpo_alpha otel_metrics_host otel_metrics_port output_dir pad_to_multiple_of "
    "peft_ensure_weight_tying pose_max_context_len pose_num_chunks pose_split_on_token_ids "
    "precompute_ref_log_probs preprocess_iterable pretrain_multipack_attn "
    "pretrain_multipack_buffer_size pretraining_dataset pretraining_sample_concatenation "
    "processor_kwargs processor_type profiler_steps profiler_steps_start push_dataset_to_hub "
    "qgalore_cos_threshold qgalore_gamma_proj qgalore_proj_bits qgalore_proj_group_size "
    "qgalore_proj_quant qgalore_proj_type qgalore_queue_size qgalore_rank qgalore_scale "
    "qgalore_update_proj_gap ray_num_workers ray_run_name reinit_weights relora_prune_method "
    "relora_prune_ratio remove_unused_columns resources_per_worker resume_from_checkpoint "
    "ring_attn_func rl_beta role_boundaries rpo_alpha sample_packing_bin_size "
    "sample_packing_eff_est sample_packing_group_size sample_packing_mp_start_method "
    "sample_packing_sequentially save_first_step save_only_model save_safetensors save_steps "
    "save_strategy save_total_limit saves_per_epoch scaling_softmax_bias "
    "scaling_softmax_factor seed shuffle_before_merging_datasets shuffle_merged_datasets "
    "simpo_gamma skip_prepare_dataset special_tokens spectrum_model_name streaming "
    "streaming_multipack_buffer_size strict tf32 tiled_mlp_num_shards "
    "tiled_mlp_use_original_mlp tokenizer_config tokenizer_legacy tokenizer_save_jinja_files "
    "tokenizer_type tokenizer_use_fast tokenizer_use_mistral_common torchdistx_path "
    "total_num_tokens total_supervised_tokens trackio_project_name trackio_run_name "
    "trackio_space_id train_on_inputs use_comet use_mlflow use_otel_metrics use_ray "
    "use_tensorboard use_trackio use_wandb vllm wandb_entity wandb_log_model wandb_mode "
    "wandb_name wandb_project wandb_run_id wandb_watch warmup_ratio warmup_steps weight_decay "
    "world_size model_type model_revision ";
}  // namespace

const KeyTable& axolotl_keys() {
  static const std::vector<std::string_view> read = key_words(kAxolotlRead),
                                             unmodelled = key_words(kAxolotlUnmodelled),
                                             no_memory = key_words(kAxolotlNoMemory);
  static const KeyTable table{read, unmodelled, no_memory};
  return table;
}

namespace {
constexpr std::string_view kLlamaFactoryRead =
    "model_name_or_path stage finetuning_type lora_rank lora_alpha lora_dropout lora_target "
    "quantization_bit quantization_method quantization_type double_quantization cutoff_len "
    "flash_attn enable_liger_kernel disable_gradient_checkpointing use_reentrant_gc pure_bf16 "
    "packing do_train use_unsloth resize_vocab additional_target use_dora use_rslora do_eval "
    "predict_with_generate val_size eval_dataset per_device_train_batch_size "
    "gradient_accumulation_steps bf16 fp16 gradient_checkpointing "
    "gradient_checkpointing_kwargs optim optim_args torch_compile torch_compile_backend "
    "torch_compile_mode use_liger_kernel liger_kernel_config ddp_bucket_cap_mb "
    "ddp_find_unused_parameters ddp_backend fsdp fsdp_config deepspeed use_cpu "
    "accelerator_config parallelism_config auto_find_batch_size eval_strategy "
    "ddp_static_graph torch_empty_cache_steps full_determinism ";
constexpr std::string_view kLlamaFactoryUnmodelled =
    "use_llama_pro use_galore use_apollo use_badam use_adam_mini "
    "use_mca use_hyper_parallel use_muon use_dft_loss use_asft_loss use_eaft_loss "
    "adapter_name_or_path shift_attn mixture_of_depths use_unsloth_gc moe_aux_loss_coef "
    "upcast_layernorm upcast_lmhead_output quantization_device_map use_kt use_v1_kernels fp8 "
    "neat_packing rope_scaling freeze_language_model neftune_noise_alpha "
    "label_smoothing_factor compute_accuracy optim_target_modules ";
constexpr std::string_view kLlamaFactoryNoMemory =
    "adam_beta1 adam_beta2 adam_epsilon adapter_folder add_special_tokens add_tokens "
    "apollo_layerwise apollo_proj apollo_proj_type apollo_rank apollo_scale "
    "apollo_scale_front apollo_scale_type apollo_target apollo_update_interval asft_alpha "
    "audio_sampling_rate average_tokens_across_devices badam_mask_mode badam_mode "
    "badam_start_block badam_switch_interval badam_switch_mode badam_update_ratio "
    "badam_verbose batch_eval_metrics bf16_full_eval block_diag_attn buffer_size cache_dir "
    "compute_dtype create_new_adapter crop_to_patches data_seed data_shared_file_system "
    "dataloader_drop_last dataloader_in_order dataloader_multiprocessing_context "
    "dataloader_num_workers dataloader_persistent_workers dataloader_pin_memory "
    "dataloader_prefetch_factor dataset dataset_dir ddp_broadcast_buffers ddp_timeout debug "
    "default_system device_map disable_shuffling disable_tqdm do_predict do_sample "
    "dpo_label_smoothing eaft_alpha early_stopping_steps enable_jit_checkpoint "
    "enable_thinking enable_torch_profiler eval_accumulation_steps eval_delay "
    "eval_do_concat_batches eval_num_beams eval_on_each_dataset eval_on_start eval_steps "
    "eval_use_gather_object evaluation_strategy export_device export_dir export_hub_model_id "
    "export_legacy_format export_quantization_bit export_quantization_dataset "
    "export_quantization_maxlen export_quantization_nsamples export_size fp16_full_eval "
    "fp8_backend fp8_enable_fsdp_float8_all_gather freeze_extra_modules "
    "freeze_multi_modal_projector freeze_trainable_layers freeze_trainable_modules "
    "freeze_vision_tower galore_layerwise galore_proj_type galore_rank galore_scale "
    "galore_target galore_update_interval generation_max_length generation_num_beams "
    "greater_is_better group_by_length hf_hub_token hub_always_push hub_model_id "
    "hub_private_repo hub_revision hub_strategy hub_token hyper_parallel_args "
    "ignore_data_skip ignore_pad_token_for_loss image_do_pan_and_scan image_max_pixels "
    "image_min_pixels include_effective_tokens_per_second include_for_metrics "
    "include_num_input_tokens_seen infer_backend infer_dtype init_special_tokens "
    "interleave_probs kt_expert_checkpoint_path kt_lora_expert_intermediate_size "
    "kt_lora_expert_num kt_use_lora_experts kt_weight_path kto_chosen_weight "
    "kto_rejected_weight label_names ld_alpha learning_rate length_column_name length_penalty "
    "load_best_model_at_end local_rank log_level log_level_replica log_on_each_node "
    "logging_dir logging_first_step logging_nan_inf_filter logging_steps logging_strategy "
    "loraplus_lr_embedding loraplus_lr_ratio low_cpu_mem_usage lr_scheduler_kwargs "
    "lr_scheduler_type mask_history master_addr master_port max_grad_norm max_length "
    "max_new_tokens max_samples max_steps media_dir metric_for_best_model mix_strategy "
    "model_max_length model_revision module_dropout ms_hub_token new_special_tokens_config "
    "no_cuda num_beams num_train_epochs offload_folder oft_block_size oft_rank oft_target "
    "om_hub_token output_dir overwrite_cache overwrite_output_dir per_device_eval_batch_size "
    "pissa_convert pissa_init pissa_iter plot_loss ppo_buffer_size ppo_epochs ppo_score_norm "
    "ppo_target ppo_whiten_rewards prediction_loss_only pref_bco_weight pref_beta pref_ftx "
    "pref_loss preprocessing_batch_size preprocessing_num_workers preserve_thinking "
    "print_param_status profile_modules profiler_active_steps profiler_output_dir "
    "profiler_profile_memory profiler_record_shapes profiler_repeat profiler_wait_steps "
    "profiler_warmup_steps profiler_with_stack project push_to_hub ray_init_kwargs "
    "ray_num_workers ref_model ref_model_adapters ref_model_quantization_bit "
    "remove_unused_columns repetition_penalty report_to "
    "restore_callback_states_from_checkpoint resume_from_checkpoint reward_model "
    "reward_model_adapters reward_model_quantization_bit reward_model_type run_name "
    "save_on_each_node save_only_model save_safetensors save_steps save_strategy "
    "save_total_limit seed sglang_config sglang_lora_backend sglang_maxlen "
    "sglang_mem_fraction sglang_tp_size simpo_gamma skip_memory_metrics skip_special_tokens "
    "split_special_tokens streaming swanlab_api_key swanlab_lark_secret "
    "swanlab_lark_webhook_url swanlab_logdir swanlab_mode swanlab_project swanlab_run_name "
    "swanlab_workspace temperature template tf32 tokenized_path tool_format top_k top_p "
    "trackio_bucket_id trackio_space_id trackio_static_space_id train_from_scratch "
    "train_on_prompt train_sampling_strategy trust_remote_code use_audio_in_video use_cache "
    "use_fast_tokenizer use_kv_cache use_swanlab video_fps video_max_pixels video_maxlen "
    "video_min_pixels vllm_config vllm_enforce_eager vllm_gpu_util vllm_max_lora_rank "
    "vllm_maxlen warmup_ratio warmup_steps weight_decay ";
}  // namespace

const KeyTable& llamafactory_keys() {
  static const std::vector<std::string_view> read = key_words(kLlamaFactoryRead),
                                             unmodelled = key_words(kLlamaFactoryUnmodelled),
                                             no_memory = key_words(kLlamaFactoryNoMemory);
  static const KeyTable table{read, unmodelled, no_memory};
  return table;
}

namespace {
constexpr std::string_view kSwiftRead =
    "model tuner_type train_type torch_dtype attn_impl max_length lora_rank lora_alpha "
    "lora_dropout target_modules target_regex lora_dtype quant_method quant_bits "
    "bnb_4bit_quant_type bnb_4bit_use_double_quant bnb_4bit_quant_storage packing "
    "padding_free packing_length use_logits_to_keep tuner_backend task_type loss_scale "
    "modules_to_save freeze_parameters trainable_parameters use_rslora use_dora lora_bias ENV "
    "eval_strategy val_dataset split_dataset_ratio "
    "loss_type use_hf per_device_train_batch_size gradient_accumulation_steps bf16 fp16 "
    "gradient_checkpointing gradient_checkpointing_kwargs optim optim_args torch_compile "
    "torch_compile_backend torch_compile_mode use_liger_kernel liger_kernel_config "
    "ddp_bucket_cap_mb ddp_find_unused_parameters ddp_backend fsdp fsdp_config deepspeed "
    "use_cpu accelerator_config parallelism_config auto_find_batch_size ddp_static_graph "
    "torch_empty_cache_steps full_determinism ";
constexpr std::string_view kSwiftUnmodelled =
    "freeze_parameters_regex freeze_parameters_ratio "
    "trainable_parameters_regex freeze_llm target_parameters "
    "use_galore lisa_activated_layers adapters sequence_parallel_size optimizer "
    "enable_dft_loss enable_channel_loss zero_hpz_partition_size deepspeed_autotp_size "
    "rope_scaling use_swift_lora new_special_tokens experts_impl device_map max_memory "
    "galore_quantization vit_lr aligner_lr mrl_dims router_aux_loss_coef init_strategy "
    "callbacks external_plugins custom_register_path neftune_noise_alpha "
    "label_smoothing_factor optim_target_modules ";
constexpr std::string_view kSwiftNoMemory =
    "acc_strategy adalora_beta1 adalora_beta2 adalora_deltaT adalora_init_r "
    "adalora_orth_reg_weight adalora_target_r adalora_tfinal adalora_tinit adam_beta1 "
    "adam_beta2 adam_epsilon adapter_act adapter_length add_non_thinking_prefix add_version "
    "agent_template average_tokens_across_devices batch_eval_metrics bf16_full_eval "
    "bnb_4bit_compute_dtype boft_block_num boft_block_size boft_dropout "
    "boft_n_butterfly_factor cached_dataset cached_val_dataset check_model columns "
    "create_checkpoint_symlink custom_dataset_info data_seed dataloader_drop_last "
    "dataloader_in_order dataloader_multiprocessing_context dataloader_num_workers "
    "dataloader_persistent_workers dataloader_pin_memory dataloader_prefetch_factor dataset "
    "dataset_num_proc dataset_shuffle ddp_broadcast_buffers ddp_timeout debug "
    "decision_drop_instructions decision_shuffle_fields decision_state_as_text "
    "decision_subsample_options disable_auto_column_mapping disable_ignore_empty_think "
    "disable_tqdm do_eval do_predict download_mode ds3_gather_for_generation "
    "early_stop_interval enable_jit_checkpoint enable_npu_model_patch enable_thinking "
    "eval_accumulation_steps eval_dataset eval_dataset_args eval_delay eval_do_concat_batches "
    "eval_generation_config eval_limit eval_metric eval_on_start eval_steps "
    "eval_use_evalscope eval_use_gather_object evaluation_strategy extra_eval_args "
    "fourier_n_frequency fourier_scaling fp16_full_eval freeze_aligner freeze_vit "
    "galore_cos_threshold galore_gamma_proj galore_optim_per_parameter galore_proj_bits "
    "galore_proj_group_size galore_proj_quant galore_proj_type galore_queue_size galore_rank "
    "galore_scale galore_target_modules galore_update_proj_gap galore_with_embedding "
    "greater_is_better group_by_length hqq_axis hub_always_push hub_model_id hub_private_repo "
    "hub_revision hub_strategy hub_token ignore_args_error ignore_data_skip "
    "include_for_metrics include_num_input_tokens_seen init_weights interleave_prob "
    "is_binary_loss_scale label_names lazy_tokenize learning_rate length_column_name "
    "lisa_step_interval llamapro_num_groups llamapro_num_new_blocks load_args "
    "load_best_model_at_end load_data_args load_from_cache_file local_rank local_repo_path "
    "log_level log_level_replica log_on_each_node logging_dir logging_first_step "
    "logging_nan_inf_filter logging_steps logging_strategy logprobs lora_ga_batch_size "
    "lora_ga_direction lora_ga_iters lora_ga_max_length lora_ga_scale lora_ga_stable_gamma "
    "lorap_lr_ratio lr_scheduler_kwargs lr_scheduler_type max_epochs max_grad_norm "
    "max_model_len max_new_tokens max_pixels max_shard_size max_steps metric_for_best_model "
    "model_author model_kwargs model_name model_revision model_type no_cuda norm_bbox "
    "num_beams num_labels num_train_epochs output_dir overwrite_output_dir packing_num_proc "
    "packing_strategy padding_side per_device_eval_batch_size prediction_loss_only "
    "preserve_thinking problem_type project push_to_hub reft_args reft_intervention_type "
    "reft_layer_key reft_layers reft_rank remove_unused_columns repetition_penalty report_to "
    "response_prefix restore_callback_states_from_checkpoint resume_from_checkpoint "
    "resume_only_model run_name safe_serialization save_on_each_node save_only_model "
    "save_safetensors save_steps save_strategy save_total_limit seed shuffle_buffer_size "
    "skip_memory_metrics stop_words stopping_strategy stream streaming strict "
    "structured_outputs_regex swanlab_email_language swanlab_exp_name swanlab_mode "
    "swanlab_notification_method swanlab_project swanlab_receiver_email swanlab_secret "
    "swanlab_sender_email swanlab_smtp_port swanlab_smtp_server swanlab_token "
    "swanlab_webhook_url swanlab_workspace system temperature template template_backend tf32 "
    "top_k top_logprobs top_p trackio_bucket_id trackio_space_id trackio_static_space_id "
    "train_dataloader_shuffle train_sampling_strategy truncation_strategy trust_remote_code "
    "use_chat_template use_flash_ckpt val_dataset_shuffle vera_d_initial vera_dropout "
    "vera_projection_prng_key vera_rank vit_gradient_checkpointing warmup_ratio warmup_steps "
    "weight_decay use_cache ";
}  // namespace

const KeyTable& swift_keys() {
  static const std::vector<std::string_view> read = key_words(kSwiftRead),
                                             unmodelled = key_words(kSwiftUnmodelled),
                                             no_memory = key_words(kSwiftNoMemory);
  static const KeyTable table{read, unmodelled, no_memory};
  return table;
}

// megatron/training/arguments.py; mcore_adapter/training_args.py, which LLaMA-Factory hands them
// to.
std::span<const std::string_view> megatron_keys() {
  static constexpr std::array<std::string_view, 8> keys{
      "tensor_model_parallel_size", "pipeline_model_parallel_size",
      "expert_model_parallel_size", "virtual_pipeline_model_parallel_size",
      "use_distributed_optimizer",  "use_mcore_models",
      "recompute_granularity",      "moe_token_dispatcher_type"};
  return keys;
}

}  // namespace plimsoll::models
