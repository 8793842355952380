#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "models/base/nearest.h"
#include "models/base/quantity.h"
#include "models/base/utf8.h"
#include "models/recompute.h"
#include "models/toml_reader.h"
#include "models/trainer_config_reader.h"
#include "models/trainer_file.h"
#include "models/trainer_keys.h"

namespace plimsoll::models {

namespace {

// Of each section what is read, what is refused where it is set, and what changes no memory.
struct Section {
  std::string_view name;
  std::string_view read, unmodelled, no_memory;
};
constexpr std::array kSections{
    Section{"model", "name flavor converters", "",
            "hf_assets_path tokenizer_path"
            " print_after_conversion"},
    Section{"optimizer", "name implementation early_step_in_backward", "",
            "lr beta1 beta2 eps weight_decay"},
    Section{"training",
            "local_batch_size global_batch_size seq_len enable_cpu_offload dtype "
            "mixed_precision_param mixed_precision_reduce",
            "", "dataset dataset_path max_norm steps gc_freq gc_debug dataloader"},
    Section{"parallelism",
            "data_parallel_replicate_degree data_parallel_shard_degree fsdp_reshard_after_forward "
            "tensor_parallel_degree pipeline_parallel_degree context_parallel_degree "
            "expert_parallel_degree expert_tensor_parallel_degree",
            "enable_async_tensor_parallel disable_loss_parallel module_fqns_per_model_part",
            "pipeline_parallel_first_stage_less_layers pipeline_parallel_last_stage_less_layers "
            "pipeline_parallel_layers_per_stage pipeline_parallel_schedule "
            "pipeline_parallel_schedule_csv pipeline_parallel_microbatch_size "
            "pipeline_parallel_expert_parallel_overlap context_parallel_load_balancer "
            "context_parallel_rotate_method expert_parallel_comm_backend"},
    Section{"activation_checkpoint", "mode selective_ac_option",
            "per_op_sac_force_recompute_mm_shapes_by_fqns debug",
            "early_stop memory_budget visualize_memory_budget_pareto preserve_rng_state "
            "determinism_check"},
    Section{"compile", "enable", "", "components backend"},
    Section{"fault_tolerance", "", "enable",
            "process_group process_group_timeout_ms replica_id group_size min_replica_size "
            "semi_sync_method"},
    Section{"experimental", "", "custom_import custom_args_module", ""},
    Section{"debug", "", "moe_force_load_balance", "seed deterministic deterministic_warn_only"}};
// Of a step they change nothing.
constexpr auto kIdleSections =
    std::to_array<std::string_view>({"job", "profiling", "metrics", "lr_scheduler", "checkpoint",
                                     "quantize", "comm", "memory_estimation", "validation"});

// models/llama3/__init__.py, llama3_args: flavors with the dimensions of released models.
constexpr std::array<std::pair<std::string_view, const char*>, 3> kFlavors{
    {{"8B", "llama-3.1-8b"}, {"70B", "llama-3.1-70b"}, {"405B", "llama-3.1-405b"}}};

class Reader : TrainerFile {
 public:
  explicit Reader(const Config& file) : TrainerFile(file, find_trainer("torchtitan@0.2.2")) {}

  FileSettings read() {
    sections();
    model();
    training();
    steps();
    parallelism();
    checkpoints();
    if (at("compile").flag("enable", false)) put("compile", "block", "compile", "enable");
    return finished();
  }

 private:
  void sections() {
    std::vector<std::string> idle;
    std::vector<std::string_view> known(kIdleSections.begin(), kIdleSections.end());
    for (const Section& one : kSections) known.push_back(one.name);
    for (const std::string& key : file_.keys()) {
      if (std::ranges::find(known, key) == known.end()) {
        const std::string near = nearest(key, known);
        fail(ErrorKind::bad_input,
             fmt::format("{}: unknown section [{}]{}", file_.source(), shortened(key),
                         near.empty() ? "" : fmt::format("; did you mean [{}]?", near)));
      }
      const auto* own = std::ranges::find(kSections, key, &Section::name);
      if (own == kSections.end())
        idle.push_back("[" + key + "]");
      else
        keys(*own);
    }
    if (!idle.empty()) note("of no bearing on memory: " + listed(idle));
    const auto validation = file_.section("validation");
    if (validation && validation->flag("enable", false))
      note("validation.enable: evaluation is not planned");
  }

  // torchtitan refuses unknown fields, too (config/manager.py).
  void keys(const Section& section) {
    const auto file = at(section.name);
    const auto read = key_words(section.read), unmodelled = key_words(section.unmodelled),
               no_memory = key_words(section.no_memory);
    const KeyTable table{read, unmodelled, no_memory};
    for (const std::string& key : unknown_keys(file, table)) refuse_unknown_key(file, key, table);
    refuse_unmodelled_keys(file, table);
  }

  // Of the file, or an empty one.
  Config at(std::string_view section) const {
    const std::string source = fmt::format("{}: [{}]", file_.source(), section);
    const auto found = file_.section(section);
    return Config::parse(found ? found->dump() : "{}", source);
  }
  void put(const char* option, std::string value, const std::string& section, const char* key) {
    out_.settings.push_back({option, std::move(value), section + "." + key, !at(section).has(key)});
  }

  void model() {
    const Config section = at("model");
    if (section.text("name", "llama3") != "llama3")
      refuse_key(section, "name", "only torchtitan's llama3 is modelled");
    if (section.entries("converters") > 0)
      refuse_key(section, "converters", "float8 and MX layers are not modelled yet");
    const std::string flavor = section.text("flavor", "debugmodel");
    const auto* found =
        std::ranges::find(kFlavors, flavor, [](const auto& one) { return one.first; });
    if (found != kFlavors.end()) {
      out_.model = found->second;
      note(fmt::format("model.flavor {}: {} unless MODEL says another", flavor, found->second));
    } else {
      note(fmt::format("model.flavor {}: its dimensions are not known here; MODEL says them",
                       shortened(flavor)));
    }
  }

  void training() {
    const Config section = at("training");
    put("micro-batch", std::to_string(section.count("local_batch_size", 8)), "training",
        "local_batch_size");
    put("seq-len", std::to_string(section.count("seq_len", 2048)), "training", "seq_len");
    if (section.has("global_batch_size") && section.shown("global_batch_size") != "-1")
      put("global-batch", std::to_string(section.count("global_batch_size", 1)), "training",
          "global_batch_size");
    const bool fp32 = is_fp32(section, "mixed_precision_param", "bfloat16");
    put("precision", fp32 ? "fp32" : "bf16-mixed", "training", "mixed_precision_param");
    if (!is_fp32(section, "mixed_precision_reduce", "float32"))
      section.refuse("mixed_precision_reduce", "float32");
    if (!is_fp32(section, "dtype", "float32"))
      refuse_key(section, "dtype", "only float32 is modelled");
    if (section.flag("enable_cpu_offload", false))
      put("offload", "params", "training", "enable_cpu_offload");
  }
  static bool is_fp32(const Config& section, const char* key, const char* fallback) {
    const std::string value = section.text(key, fallback);
    if (value != "float32" && value != "bfloat16") section.refuse(key, "float32 or bfloat16");
    return value == "float32";
  }

  void steps() {
    const Config section = at("optimizer");
    const std::string name = section.text("name", "AdamW");
    if (name != "AdamW") refuse_key(section, "name", "only AdamW is modelled");
    put("optimizer", "adamw", "optimizer", "name");
    const std::string implementation = section.text("implementation", "fused");
    if (implementation != "fused" && implementation != "foreach" && implementation != "for-loop")
      section.refuse("implementation", "fused, foreach or for-loop");
    put("optimizer-impl", implementation, "optimizer", "implementation");
    if (section.flag("early_step_in_backward", false))
      put("optimizer-in-backward", "", "optimizer", "early_step_in_backward");
  }

  // -1: all ranks that are left.
  std::int64_t degree(const Config& section, const char* key, std::int64_t fallback) const {
    if (section.shown(key) == "-1") return -1;
    return section.count(key, fallback);
  }

  void parallelism() {
    const Config section = at("parallelism");
    const std::int64_t copies = degree(section, "data_parallel_replicate_degree", 1);
    const std::int64_t shards = degree(section, "data_parallel_shard_degree", -1);
    const std::string reshard = section.text("fsdp_reshard_after_forward", "default");
    if (reshard != "default" && reshard != "always" && reshard != "never")
      section.refuse("fsdp_reshard_after_forward", "default, always or never");
    if (copies < 1) section.refuse("data_parallel_replicate_degree", "a number from 1 up");
    if (shards == 1 && copies > 1)
      refuse_key(section, "data_parallel_shard_degree", "torchtitan without FSDP is not modelled");
    put("zero", reshard == "never" ? "2" : "3", "parallelism",
        reshard == "never" ? "fsdp_reshard_after_forward" : "data_parallel_shard_degree");
    if (shards > 0 && copies > 1)
      put("shard-group", std::to_string(shards), "parallelism", "data_parallel_shard_degree");
    if (shards < 0 && copies > 1)
      refuse_key(section, "data_parallel_shard_degree",
                 "with data_parallel_replicate_degree a number is needed");
    std::int64_t divided = 1;  // among how many ranks each of those is
    for (const auto& [key, option] :
         {std::pair{"tensor_parallel_degree", "tp"}, std::pair{"pipeline_parallel_degree", "pp"},
          std::pair{"context_parallel_degree", "cp"}, std::pair{"expert_parallel_degree", "ep"}})
      if (const std::int64_t ranks = section.count(key, 1); ranks > 1) {
        put(option, std::to_string(ranks), "parallelism", key);
        // Experts borrow their ranks from those of data.
        if (std::string_view(option) != "ep") divided = checked_multiply(divided, ranks);
      }
    if (shards > 0)
      put("gpus", std::to_string(checked_multiply(checked_multiply(shards, copies), divided)),
          "parallelism", "data_parallel_shard_degree");
  }

  void checkpoints() {
    const Config section = at("activation_checkpoint");
    const std::string mode = section.text("mode", "selective");
    if (mode == "none" || mode == "full")
      return put("recompute", mode, "activation_checkpoint", "mode");
    if (mode != "selective")
      refuse_key(section, "mode", "only none, full and selective are modelled");
    const bool number =
        section.has("selective_ac_option") && !section.is_string("selective_ac_option");
    const std::string option =
        number ? section.shown("selective_ac_option") : section.text("selective_ac_option", "2");
    // Every so many layers; 0: each (activation_checkpoint.py, _apply_layer_sac).
    const auto each = recompute_from("nth:" + option);
    if (!each && option != "op" && option != "0")
      fail(ErrorKind::bad_input, section.source() + ": selective_ac_option is " +
                                     shortened(option) + ": op, or a whole number of layers");
    // JobConfig's default is not what its train configs say, which --trainer stands for.
    out_.settings.push_back({"recompute",
                             option == "op"             ? "ops:torchtitan"
                             : each && each->layers > 1 ? text_of(*each)
                                                        : "full",
                             "activation_checkpoint.selective_ac_option", false});
  }
};

}  // namespace

FileSettings read_torchtitan_config(std::string_view text, const std::string& source) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  check(first != std::string_view::npos, ErrorKind::bad_input,
        [&] { return source + ": is empty"; });
  if (source.ends_with(".py"))
    fail(ErrorKind::unsupported,
         source +
             ": torchtitan's configurations of 0.3 on are Python; TOML, that of 0.2.2, is "
             "read");
  const Config file =
      Config::parse(text[first] == '{' ? std::string(text) : json_from_toml(text, source), source);
  return Reader(file).read();
}

}  // namespace plimsoll::models
