#include "models/deepspeed_config_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "models/base/nearest.h"
#include "models/base/quantity.h"
#include "models/base/utf8.h"
#include "models/config_reader.h"
#include "models/optimizers.h"

namespace plimsoll::models {

namespace {

using Names = std::span<const std::string_view>;

// runtime/config.py and the sections' own files. The first group is read here; the others change
// no memory of a step.
constexpr std::array<std::string_view, 48> kSections{
    "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps",
    "zero_optimization", "bf16", "bfloat16", "fp16", "data_types", "optimizer",
    "communication_data_type", "activation_checkpointing", "amp", "torch_autocast",
    "sparse_gradients", "zenflow", "hybrid_engine", "compression_training", "weight_quantization",
    "tensor_parallel", "expert_parallel", "sequence_parallel_size",
    // no memory
    "scheduler", "gradient_clipping", "prescale_gradients", "gradient_predivide_factor",
    "gradient_allreduce_op", "steps_per_print", "wall_clock_breakdown", "memory_breakdown",
    "dump_state", "disable_allgather", "disable_python_gc", "zero_allow_untested_optimizer",
    "zero_force_ds_cpu_optimizer", "flops_profiler", "comms_logger", "tensorboard", "wandb",
    "csv_monitor", "comet", "checkpoint", "aio", "autotuning", "data_efficiency",
    "dataloader_drop_last", "managed_gradient_accumulation", "pipeline", "compile"};

// runtime/zero/config.py.
constexpr std::array<std::string_view, 43> kZero{"stage",
                                                 "contiguous_gradients",
                                                 "reduce_scatter",
                                                 "reduce_bucket_size",
                                                 "use_multi_rank_bucket_allreduce",
                                                 "allgather_partitions",
                                                 "allgather_bucket_size",
                                                 "overlap_comm",
                                                 "compute_grad_norm",
                                                 "load_from_fp32_weights",
                                                 "elastic_checkpoint",
                                                 "offload_param",
                                                 "offload_optimizer",
                                                 "zenflow",
                                                 "sub_group_size",
                                                 "cpu_offload_param",
                                                 "cpu_offload_use_pin_memory",
                                                 "cpu_offload",
                                                 "stage3_prefetch_bucket_size",
                                                 "stage3_param_persistence_threshold",
                                                 "stage3_model_persistence_threshold",
                                                 "stage3_max_live_parameters",
                                                 "stage3_max_reuse_distance",
                                                 "stage3_gather_16bit_weights_on_model_save",
                                                 "stage3_module_granularity_threshold",
                                                 "stage3_use_all_reduce_for_fetch_params",
                                                 "stage3_allgather_sequential",
                                                 "stage3_gather_fp16_weights_on_model_save",
                                                 "ignore_unused_parameters",
                                                 "legacy_stage1",
                                                 "round_robin_gradients",
                                                 "parameter_alignment",
                                                 "zero_hpz_partition_size",
                                                 "zero_quantized_weights",
                                                 "zero_quantized_nontrainable_weights",
                                                 "zero_quantized_gradients",
                                                 "memory_efficient_linear",
                                                 "pipeline_loading_checkpoint",
                                                 "override_module_apply",
                                                 "log_trace_cache_warnings",
                                                 "enable_sanity_checks",
                                                 "save_muon_momentum_buffer_in_memory",
                                                 "leaf_module"};

// Of those the fields that are called otherwise, which DeepSpeed takes by these names, too
// (populate_by_name of runtime/config_utils.py).
constexpr std::string_view kStage3 = "stage3_";
constexpr std::array<std::string_view, 9> kZeroFields{
    "prefetch_bucket_size",         "param_persistence_threshold",
    "model_persistence_threshold",  "max_live_parameters",
    "max_reuse_distance",           "gather_16bit_weights_on_model_save",
    "module_granularity_threshold", "use_all_reduce_for_fetch_params",
    "allgather_sequential"};

// runtime/precision_config.py.
constexpr std::array<std::string_view, 5> kBf16{
    "enabled", "immediate_grad_update", "check_grad_overflow", "bf16_master_weights_and_grads",
    "bf16_optimizer_states"};
constexpr std::array<std::string_view, 9> kFp16{"enabled",
                                                "auto_cast",
                                                "loss_scale",
                                                "initial_scale_power",
                                                "loss_scale_window",
                                                "hysteresis",
                                                "consecutive_hysteresis",
                                                "min_loss_scale",
                                                "fp16_master_weights_and_grads"};

class Reader {
 public:
  Reader(const Config& file, std::optional<std::int64_t> hidden) : file_(file), hidden_(hidden) {}

  FileSettings read() {
    check_sections();
    say("stack", "deepspeed", "the file");
    batch();
    precision();
    if (const auto section = file_.section("optimizer")) optimizer(*section);
    if (const auto section = file_.section("zero_optimization")) zero(*section);
    refuse_sections();
    return std::move(out_);
  }

 private:
  void say(const char* option, std::string value, std::string key) {
    out_.settings.push_back({option, std::move(value), std::move(key)});
  }
  static bool is_auto(const Config& from, const char* key) { return from.is_text(key, "auto"); }
  static bool flag(const Config& from, const char* key, bool fallback) {
    return is_auto(from, key) ? fallback : from.flag(key, fallback);
  }

  [[noreturn]] void unsupported(const std::string& key, std::string_view why) const {
    fail(ErrorKind::unsupported, fmt::format("{}: {}: {}", file_.source(), key, why));
  }

  // Whole numbers, which people write as 5e8, too.
  static std::optional<std::int64_t> whole(const Config& from, const char* key) {
    if (!from.has(key) || is_auto(from, key)) return std::nullopt;
    const double number = from.real(key, 0);
    constexpr double most = 9.2e18;
    if (number < 0 || std::floor(number) != number)
      from.refuse(key, "a whole number from 0 up, or \"auto\"");
    return number >= most ? std::int64_t{9'223'372'036'854'775'807}
                          : static_cast<std::int64_t>(number);
  }

  void unknown(const std::string& key, const std::string& where, Names known, bool strict) {
    const std::string near = nearest(key, known);
    if (!strict && near.empty()) {
      out_.notes.push_back(fmt::format("{}: DeepSpeed knows no key '{}' and ignores it",
                                       file_.source(), shortened(key)));
      return;
    }
    fail(ErrorKind::bad_input,
         fmt::format("{}: unknown key '{}'{}{}", file_.source(), shortened(key), where,
                     near.empty() ? "" : fmt::format("; did you mean '{}'?", near)));
  }

  void check_keys(const Config& section, const char* name, Names known, Names also = {}) {
    for (const std::string& key : section.keys())
      if (std::ranges::find(known, key) == known.end() &&
          std::ranges::find(also, key) == also.end())
        unknown(key, fmt::format(" in {}", name), known, true);
  }
  static const char* spelled(const Config& zero, const char* key) {
    const bool other = std::string_view(key).starts_with(kStage3) && !zero.has(key) &&
                       zero.has(key + kStage3.size());
    return other ? key + kStage3.size() : key;
  }

  // At the top DeepSpeed ignores what it does not know; a near miss is a slip all the same.
  void check_sections() {
    for (const std::string& key : file_.keys())
      if (std::ranges::find(kSections, key) == kSections.end()) unknown(key, "", kSections, false);
  }

  // Transformers and Accelerate put the training arguments in place of "auto": here, the options.
  void batch() {
    const auto size = [&](const char* option, const char* key) {
      if (const auto value = whole(file_, key)) {
        if (*value == 0) file_.refuse(key, "a positive whole number, or \"auto\"");
        say(option, std::to_string(*value), key);
      }
    };
    size("micro-batch", "train_micro_batch_size_per_gpu");
    size("grad-accum", "gradient_accumulation_steps");
    size("global-batch", "train_batch_size");
  }

  void precision() {
    const char* bf16_name = file_.has("bf16") ? "bf16" : "bfloat16";
    const auto bf16 = file_.section(bf16_name), fp16 = file_.section("fp16");
    if (bf16) check_keys(*bf16, bf16_name, kBf16);
    if (fp16) check_keys(*fp16, "fp16", kFp16);
    const bool is_bf16 = bf16 && flag(*bf16, "enabled", false);
    const bool is_fp16 = fp16 && flag(*fp16, "enabled", false);
    check(!(is_bf16 && is_fp16), ErrorKind::bad_input, [&] {
      return file_.source() + ": bf16 and fp16 are both enabled, which DeepSpeed refuses";
    });
    const bool open = (bf16 && is_auto(*bf16, "enabled")) || (fp16 && is_auto(*fp16, "enabled"));
    if (is_bf16) {
      const bool pure = flag(*bf16, "bf16_master_weights_and_grads", false);
      if (pure != flag(*bf16, "bf16_optimizer_states", false))
        unsupported("bf16.bf16_master_weights_and_grads",
                    "without bf16_optimizer_states (or the other way round) it is not modelled");
      say("precision", pure ? "bf16" : "bf16-mixed", std::string(bf16_name) + ".enabled");
    } else if (is_fp16) {
      if (flag(*fp16, "fp16_master_weights_and_grads", false))
        unsupported("fp16.fp16_master_weights_and_grads", "is not modelled yet");
      say("precision", "fp16-mixed", "fp16.enabled");
    } else if (!open) {
      say("precision", "fp32", "bf16.enabled");
    } else {
      out_.notes.push_back(file_.source() + ": bf16 or fp16 is \"auto\": --precision decides");
    }
    if (const auto types = file_.section("data_types"); types && types->has("grad_accum_dtype"))
      say("grad-dtype", types->text("grad_accum_dtype", ""), "data_types.grad_accum_dtype");
  }

  // Names: runtime/config.py, DEEPSPEED_OPTIMIZERS; anything else is torch.optim's.
  void optimizer(const Config& section) {
    const auto lower = [](std::string text) {
      std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::tolower(c); });
      return text;
    };
    const std::string type = lower(section.text("type", ""));
    const auto params = section.section("params");
    const auto is = [&](const char* name) { return name != nullptr && lower(name) == type; };
    const auto given = [&](const char* setting) {
      return setting != nullptr && params && params->has(setting) && !is_auto(*params, setting) &&
             params->real(setting, 0) != 0;
    };
    // Of two with one type (SGD) the second is what the first is with its setting.
    const OptimizerRule* found = nullptr;
    for (const OptimizerRule& rule : kOptimizers)
      if (is(rule.deepspeed.type) || is(rule.deepspeed.other_type))
        if (found == nullptr || given(rule.deepspeed.setting)) found = &rule;
    if (found == nullptr) unsupported("optimizer.type", "only " + types() + " are modelled");
    say("optimizer", std::string(found->name), "optimizer.type");
    if (found->deepspeed.steps_flat && params && flag(*params, "torch_adam", false))
      say("optimizer-impl", "foreach", "optimizer.params.torch_adam");
  }

  // "AdamW, Adam and SGD".
  static std::string types() {
    std::vector<std::string> all;
    for (const OptimizerRule& rule : kOptimizers)
      for (const char* type : {rule.deepspeed.type, rule.deepspeed.other_type})
        if (type != nullptr && std::ranges::find(all, type) == all.end()) all.emplace_back(type);
    std::string text = all.front();
    for (std::size_t i = 1; i < all.size(); ++i)
      text += (i + 1 < all.size() ? ", " : " and ") + all[i];
    return text;
  }

  // accelerator.py, _prepare_deepspeed: "auto" sizes from the model's hidden size.
  void size(const Config& zero, const char* option, const char* field, double of_square,
            std::int64_t of_hidden) {
    const char* key = spelled(zero, field);
    const std::string name = std::string("zero_optimization.") + key;
    std::optional<std::int64_t> value = whole(zero, key);
    if (zero.has(key) && is_auto(zero, key) && (of_square > 0 || of_hidden > 0)) {
      check(hidden_.has_value(), ErrorKind::bad_input, [&] {
        return fmt::format("{}: {} is \"auto\", but the model says no hidden_size to take it from",
                           file_.source(), name);
      });
      const std::int64_t square = checked_multiply(*hidden_, *hidden_);
      value = of_hidden > 0 ? *hidden_ * of_hidden
                            : static_cast<std::int64_t>(of_square * static_cast<double>(square));
      out_.notes.push_back(fmt::format("{}: {} \"auto\" is {} (Accelerate, from hidden_size {})",
                                       file_.source(), name, *value, *hidden_));
    }
    if (value) say(option, std::to_string(*value), name);
  }

  void zero(const Config& zero) {
    check_keys(zero, "zero_optimization", kZero, kZeroFields);
    for (const std::string_view field : kZeroFields)
      if (const std::string other = std::string(kStage3) + std::string(field);
          zero.has(field) && zero.has(other))
        zero.refuse(field, "one of it and " + other);
    if (const auto stage = whole(zero, "stage"))
      say("zero", std::to_string(*stage), "zero_optimization.stage");
    const std::int64_t stage = whole(zero, "stage").value_or(3);  // "auto": whoever asks knows
    size(zero, "reduce-bucket-size", "reduce_bucket_size", 1.0, 0);
    if (stage == 3) {
      size(zero, "sub-group-size", "sub_group_size", 0, 0);
      size(zero, "stage3-prefetch-bucket-size", "stage3_prefetch_bucket_size", 0.9, 0);
      size(zero, "stage3-param-persistence-threshold", "stage3_param_persistence_threshold", 0, 10);
      size(zero, "stage3-max-live-parameters", "stage3_max_live_parameters", 0, 0);
      size(zero, "stage3-max-reuse-distance", "stage3_max_reuse_distance", 0, 0);
    }
    if (zero.has("overlap_comm") && !is_auto(zero, "overlap_comm"))
      say("overlap-comm", zero.flag("overlap_comm", false) ? "yes" : "no",
          "zero_optimization.overlap_comm");
    // engine.py, _configure_zero_optimizer: stage3.py does not take it.
    if (flag(zero, "round_robin_gradients", false) && stage != 0 && stage != 3)
      say("round-robin-gradients", "yes", "zero_optimization.round_robin_gradients");
    offload(zero);
    refuse_zero(zero);
  }

  // ZeRO-Infinity's buffers. aio changes the sizes of files, pipelines how many buffers are needed.
  void nvme(const Config& section, const std::string& name, bool states) {
    const auto size = [&](const char* key, const char* option) {
      if (const auto value = whole(section, key))
        say(option, std::to_string(*value), name + "." + key);
    };
    size("buffer_count", states ? "offload-optimizer-buffer-count" : "offload-param-buffer-count");
    if (!states) size("buffer_size", "offload-param-buffer-size");
    if (!states) size("max_in_cpu", "offload-param-max-in-cpu");
    for (const char* key : {"pipeline_read", "pipeline_write", "fast_init"})
      if (flag(section, key, false)) unsupported(name + "." + key, "is not modelled yet");
    constexpr std::int64_t block = 1 << 20;  // runtime/swap_tensor/aio_config.py
    if (const auto aio = file_.section("aio"))
      if (aio->natural("block_size", block) > block ||
          aio->natural("intra_op_parallelism", 1) != 1 || flag(*aio, "use_gds", false))
        unsupported("aio", "other sizes than the defaults, and use_gds, are not modelled yet");
  }

  // runtime/zero/offload_config.py.
  void offload(const Config& zero) {
    std::string parts, to;
    std::optional<bool> pinned;
    for (const auto& [key, part] :
         {std::pair{"offload_optimizer", "optimizer"}, std::pair{"offload_param", "params"}}) {
      const std::string name = std::string("zero_optimization.") + key;
      const auto section = zero.section(key);
      if (!section || is_auto(*section, "device")) continue;
      const std::string device = section->text("device", "none");
      if (device == "none") continue;
      if (device != "cpu" && device != "nvme") section->refuse("device", "none, cpu or nvme");
      if (!to.empty() && device != to)
        unsupported(name + ".device", "must be the other section's; both are planned alike");
      to = device;
      if (device == "nvme") nvme(*section, name, part == std::string_view("optimizer"));
      if (section->has("ratio") && section->real("ratio", 1) != 1)
        unsupported(name + ".ratio", "another one than 1 is not modelled yet");
      if (flag(*section, "super_offload", false))
        unsupported(name + ".super_offload", "is not modelled yet");
      const bool pin = flag(*section, "pin_memory", true);
      if (pinned.value_or(pin) != pin)
        unsupported(name + ".pin_memory", "must be the other section's; both are planned alike");
      pinned = pin;
      parts += (parts.empty() ? "" : ",") + std::string(part);
    }
    if (parts.empty()) return;
    say("offload", parts, "zero_optimization.offload_optimizer");
    if (to == "nvme") say("offload-to", to, "zero_optimization.offload_optimizer.device");
    if (!*pinned) say("offload-pin", "no", "zero_optimization.offload_optimizer.pin_memory");
  }

  void refuse_zero(const Config& zero) const {
    const auto refuse = [&](const char* field, bool modelled) {
      const char* key = spelled(zero, field);
      if (zero.has(key) && flag(zero, key, modelled) != modelled)
        unsupported(std::string("zero_optimization.") + key,
                    modelled ? "false is not modelled yet" : "is not modelled yet");
    };
    for (const char* key :
         {"cpu_offload", "cpu_offload_param", "parameter_alignment", "zero_quantized_weights",
          "zero_quantized_nontrainable_weights", "zero_quantized_gradients",
          "stage3_use_all_reduce_for_fetch_params", "stage3_allgather_sequential", "legacy_stage1"})
      refuse(key, false);
    for (const char* key : {"contiguous_gradients", "reduce_scatter",
                            "use_multi_rank_bucket_allreduce", "memory_efficient_linear"})
      refuse(key, true);
    if (whole(zero, "zero_hpz_partition_size").value_or(1) > 1)
      unsupported("zero_optimization.zero_hpz_partition_size", "ZeRO++ is not modelled yet");
  }

  void refuse_sections() {
    for (const char* key : {"amp", "torch_autocast", "hybrid_engine"})
      if (const auto section = file_.section(key); section && flag(*section, "enabled", false))
        unsupported(key, "is not modelled yet");
    for (const char* key : {"zenflow", "compression_training", "weight_quantization",
                            "tensor_parallel", "expert_parallel"})
      if (file_.has(key)) unsupported(key, "is not modelled yet");
    if (file_.has("communication_data_type") && !is_auto(file_, "communication_data_type"))
      unsupported("communication_data_type", "another dtype than the model's is not modelled yet");
    if (file_.has("activation_checkpointing"))
      out_.notes.push_back(file_.source() +
                           ": activation_checkpointing has no effect on a "
                           "Transformers model; --recompute says what is "
                           "recomputed");
  }

  const Config& file_;
  std::optional<std::int64_t> hidden_;
  FileSettings out_;
};

}  // namespace

FileSettings read_deepspeed_config(std::string_view text, const std::string& source,
                                   std::optional<std::int64_t> hidden) {
  const Config file = Config::parse(text, source);
  return Reader(file, hidden).read();
}

}  // namespace plimsoll::models
