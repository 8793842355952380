#include "models/accelerate_config_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "models/file_keys.h"
#include "models/fsdp_config_reader.h"
#include "models/yaml_reader.h"

namespace plimsoll::models {

namespace {

constexpr auto kRead = std::to_array<std::string_view>(
    {"compute_environment", "distributed_type", "num_processes", "num_machines", "mixed_precision",
     "fp16", "fp8_config", "fsdp_config", "deepspeed_config", "parallelism_config", "use_cpu",
     "dynamo_config", "dynamo_backend"});
constexpr auto kUnmodelled =
    std::to_array<std::string_view>({"downcast_bf16", "tpu_use_cluster", "mpirun_config"});
constexpr auto kNoMemory = std::to_array<std::string_view>(
    {"gpu_ids", "megatron_lm_config", "machine_rank", "main_process_ip", "main_process_port",
     "main_training_function", "rdzv_backend", "same_network", "enable_cpu_affinity", "debug",
     "tpu_name", "tpu_zone", "tpu_use_sudo", "command_file", "commands", "tpu_vm", "tpu_env",
     "num_cpu_threads_per_process"});
constexpr KeyTable kTable{kRead, kUnmodelled, kNoMemory};

// Of `deepspeed_config`: utils/dataclasses.py, DeepSpeedPlugin, and what the launcher takes.
constexpr auto kDeepSpeedRead = std::to_array<std::string_view>(
    {"deepspeed_config_file", "zero_stage", "gradient_accumulation_steps",
     "offload_optimizer_device", "offload_param_device", "deepspeed_moe_layer_cls_names"});
constexpr auto kDeepSpeedUnmodelled =
    std::to_array<std::string_view>({"deepspeed_moe_layer_cls_names"});
constexpr auto kDeepSpeedNoMemory = std::to_array<std::string_view>(
    {"gradient_clipping", "zero3_init_flag", "zero3_save_16bit_model",
     "offload_optimizer_nvme_path", "offload_param_nvme_path", "deepspeed_hostfile",
     "deepspeed_multinode_launcher", "deepspeed_exclusion_filter", "deepspeed_inclusion_filter"});
constexpr KeyTable kDeepSpeedTable{kDeepSpeedRead, kDeepSpeedUnmodelled, kDeepSpeedNoMemory};
// What must not stand beside a deepspeed_config_file (_deepspeed_config_checks).
constexpr auto kNotBesideFile = std::to_array<std::string_view>(
    {"gradient_accumulation_steps", "gradient_clipping", "zero_stage", "offload_optimizer_device",
     "offload_param_device", "offload_param_nvme_path", "offload_optimizer_nvme_path",
     "zero3_save_16bit_model"});

class Reader {
 public:
  explicit Reader(const Config& file) : file_(file) {}

  FileSettings read() {
    for (const std::string& key : unknown_keys(file_, kTable))
      refuse_unknown_key(file_, key, kTable);
    const std::string environment = file_.text("compute_environment", "LOCAL_MACHINE");
    if (environment != "LOCAL_MACHINE")
      refuse_key(file_, "compute_environment", "only LOCAL_MACHINE is modelled");
    check_way();
    ranks();
    sections();
    precision();
    refuse_rest();
    if (auto idle = present(file_, kNoMemory); !idle.empty())
      out_.notes.push_back(
          fmt::format("{}: of no bearing on memory: {}", file_.source(), listed(idle)));
    return std::move(out_);
  }

 private:
  void say(const char* option, std::string value, std::string key, bool is_default = false) {
    out_.settings.push_back({option, std::move(value), std::move(key), is_default});
  }

  // YAML 1.1 reads a bare NO as false.
  std::string word(const char* key, const char* fallback) const {
    if (file_.is_flag(key) && !file_.flag(key, false)) return "NO";
    std::string text = file_.text(key, fallback);
    std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::toupper(c); });
    return text;
  }

  void check_way() {
    if (!file_.has("distributed_type"))
      file_.refuse("distributed_type", "one, as Accelerate says,");
    way_ = word("distributed_type", "");
    constexpr auto kWays =
        std::to_array<std::string_view>({"NO", "MULTI_GPU", "FSDP", "DEEPSPEED"});
    if (std::ranges::find(kWays, way_) != kWays.end()) return;
    constexpr auto kOthers = std::to_array<std::string_view>(
        {"MULTI_CPU", "MULTI_XPU", "MULTI_MLU", "MULTI_SDAA", "MULTI_MUSA", "MULTI_NPU",
         "MULTI_HPU", "MULTI_NEURON", "XLA", "MEGATRON_LM", "TP", "TPU", "GSPMD"});
    if (std::ranges::find(kOthers, way_) != kOthers.end())
      refuse_key(file_, "distributed_type", "is not modelled yet (NO, MULTI_GPU, FSDP, DEEPSPEED)");
    file_.refuse("distributed_type", "NO, MULTI_GPU, FSDP or DEEPSPEED");
  }

  void ranks() {
    const std::int64_t machines = file_.count("num_machines", 1);
    if (file_.has("num_processes")) {
      const std::int64_t ranks = file_.count("num_processes", 1);
      if (ranks % machines != 0)
        file_.refuse("num_processes", fmt::format("a multiple of num_machines {}", machines));
      if (way_ == "NO" && ranks > 1) file_.refuse("num_processes", "1 with distributed_type NO");
      per_node_ = ranks / machines;
      say("gpus", std::to_string(ranks), "num_processes");
      if (machines > 1 || per_node_ > 8)
        say("gpus-per-node", std::to_string(per_node_), "num_machines");
    } else if (way_ == "NO") {
      say("gpus", "1", "num_processes", true);
      per_node_ = 1;
    } else if (machines > 1) {
      file_.refuse("num_processes", "the number of ranks of all machines");
    }
    if (way_ != "NO") return;
    for (const char* section : {"fsdp_config", "deepspeed_config"})
      if (file_.is_set(section)) file_.refuse(section, "none beside distributed_type NO");
  }

  void sections() {
    // A section that is of another way is not looked at (utils/launch.py).
    for (const auto& [section, way] :
         {std::pair{"fsdp_config", "FSDP"}, std::pair{"deepspeed_config", "DEEPSPEED"}})
      if (way_ != way && file_.is_set(section))
        out_.notes.push_back(fmt::format("{}: {} is not looked at with distributed_type {}",
                                         file_.source(), section, way_));
    if (way_ == "MULTI_GPU") {
      say("stack", "pytorch", "distributed_type");
      say("zero", "0", "distributed_type");
    }
    if (way_ == "FSDP") {
      say("stack", "pytorch", "distributed_type");
      const auto section = file_.section("fsdp_config");
      if (!section) file_.refuse("fsdp_config", "a section of FSDP's settings");
      add_fsdp_settings(*section, {}, per_node_, out_);
    }
    if (way_ == "DEEPSPEED") deepspeed();
    if (const auto sizes = file_.section("parallelism_config"))
      add_parallelism_settings(*sizes, out_);
  }

  void deepspeed() {
    const auto section = file_.section("deepspeed_config");
    if (section)
      for (const std::string& key : unknown_keys(*section, kDeepSpeedTable))
        refuse_unknown_key(*section, key, kDeepSpeedTable);
    if (section) refuse_unmodelled_keys(*section, kDeepSpeedTable);
    if (section && section->has("deepspeed_config_file")) {
      for (const std::string_view key : kNotBesideFile)
        if (section->has(key)) section->refuse(key, "to stand in the deepspeed_config_file");
      if (file_.has("mixed_precision"))
        file_.refuse("mixed_precision", "to stand in the deepspeed_config_file");
      say("deepspeed", section->text("deepspeed_config_file", ""),
          "deepspeed_config.deepspeed_config_file");
      return;
    }
    say("stack", "deepspeed", "distributed_type");
    const std::int64_t stage = section ? section->natural("zero_stage", 2) : 2;
    if (stage > 3) section->refuse("zero_stage", "0, 1, 2 or 3");
    say("zero", std::to_string(stage), "deepspeed_config.zero_stage",
        !(section && section->has("zero_stage")));
    if (!section) return;
    std::string offloaded, to;
    for (const auto& [key, part] : {std::pair{"offload_optimizer_device", "optimizer"},
                                    std::pair{"offload_param_device", "params"}}) {
      const std::string device = section->text(key, "none");
      if (device == "none") continue;
      if (device != "cpu" && device != "nvme") section->refuse(key, "none, cpu or nvme");
      if (!to.empty() && device != to)
        refuse_key(*section, key, "must be the other one; both are planned alike");
      to = device;
      offloaded += (offloaded.empty() ? "" : ",") + std::string(part);
    }
    if (!offloaded.empty()) say("offload", offloaded, "deepspeed_config.offload_optimizer_device");
    if (to == "nvme") say("offload-to", to, "deepspeed_config.offload_optimizer_device");
    if (section->has("gradient_accumulation_steps") &&
        !section->is_text("gradient_accumulation_steps", "auto"))
      say("grad-accum", std::to_string(section->count("gradient_accumulation_steps", 1)),
          "deepspeed_config.gradient_accumulation_steps");
  }

  void precision() {
    if (way_ == "DEEPSPEED" && std::ranges::any_of(out_.settings, [](const FileSetting& s) {
          return s.option == "deepspeed";
        }))
      return;  // stands in that file
    std::string kind = word("mixed_precision", "NO");
    const bool old = !file_.has("mixed_precision") && file_.flag("fp16", false);
    if (old) kind = "FP16";
    constexpr std::array<std::pair<std::string_view, const char*>, 4> kKinds{
        {{"NO", "fp32"}, {"FP16", "fp16-mixed"}, {"BF16", "bf16-mixed"}, {"FP8", "fp8-mixed"}}};
    const auto* found = std::ranges::find(kKinds, kind, [](const auto& k) { return k.first; });
    if (found == kKinds.end()) file_.refuse("mixed_precision", "no, fp16, bf16 or fp8");
    if (kind == "FP8") float8();
    // "no": whatever the weights are loaded in.
    say("precision", found->second, old ? "fp16" : "mixed_precision",
        !old && !file_.has("mixed_precision"));
  }

  // utils/dataclasses.py, AORecipeKwargs: FSDP2 gathers in float8 unless it is told not to. Without
  // a backend torchao comes first (accelerator.py).
  void float8() {
    const auto config = file_.section("fp8_config");
    const std::string backend = config ? config->text("backend", "AO") : "AO";
    if (backend != "AO" && backend != "ao")
      refuse_key(*config, "backend", "only torchao's linears (AO) are modelled");
    if (config && !config->flag("pad_inner_dim", true))
      refuse_key(*config, "pad_inner_dim", "is modelled as Accelerate sets it, true");
    const char* const key = "enable_fsdp_float8_all_gather";
    const bool said = config && config->has(key);
    if (said || way_ == "FSDP")
      say("fp8-all-gather", !said || config->flag(key, true) ? "yes" : "no",
          std::string("fp8_config.") + key, !said);
  }

  void refuse_rest() const {
    if (file_.flag("use_cpu", false))
      refuse_key(file_, "use_cpu", "training on a CPU is not modelled");
    for (const std::string_view key : kUnmodelled)
      if (file_.is_set(key) && word_or_set(key)) refuse_key(file_, key, "is not modelled yet");
    const auto dynamo = file_.section("dynamo_config");
    const bool compiles =
        !is_no(file_, "dynamo_backend") ||
        (dynamo && (!is_no(*dynamo, "dynamo_backend") || !is_no(*dynamo, "backend")));
    if (compiles)
      refuse_key(file_, dynamo ? "dynamo_config" : "dynamo_backend",
                 "torch.compile is not modelled yet");
  }
  // downcast_bf16: 'no' is what the questionnaire writes.
  bool word_or_set(std::string_view key) const { return !is_no(file_, key); }
  static bool is_no(const Config& from, std::string_view key) {
    return !from.is_set(key) || from.is_text(key, "no") || from.is_text(key, "NO") ||
           from.is_text(key, "false");
  }

  const Config& file_;
  std::string way_;
  std::int64_t per_node_ = 0;
  FileSettings out_;
};

}  // namespace

FileSettings read_accelerate_config(std::string_view text, const std::string& source) {
  const Config file = Config::parse(json_from_json_or_yaml(std::string(text), source), source);
  return Reader(file).read();
}

}  // namespace plimsoll::models
