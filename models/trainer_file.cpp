#include "models/trainer_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "models/optimizers.h"
#include "models/training_arguments_keys.h"

namespace plimsoll::models {

namespace {

constexpr std::int64_t kMostBytes = 1 << 20;

// Names of OptimizerNames whose rows say none (models/optimizers.h, `trainer`).
constexpr std::array<std::pair<std::string_view, const char*>, 12> kOtherOptimizers{
    {{"adamw_8bit", "adam8bit"},
     {"rmsprop_bnb_32bit", "rmsprop-bnb"},
     {"apollo_adamw", "apollo"},
     {"apollo_adamw_layerwise", "apollo"},
     {"galore_adamw", "galore"},
     {"galore_adamw_8bit", "galore8bit"},
     {"galore_adamw_layerwise", "galore"},
     {"galore_adamw_8bit_layerwise", "galore8bit"},
     {"lomo", "lomo"},
     {"adalomo", "adalomo"},
     {"grokadamw", "grokadamw"},
     {"muon", "muon"}}};

// Members of optim_args that make other states (trainer_optimizer.py).
constexpr std::array<std::pair<std::string_view, std::string_view>, 5> kOtherMemory{
    {{"adamw_torch_8bit", "block_size"},
     {"adamw_torch_4bit", "block_size"},
     {"rmsprop", "momentum"},
     {"rmsprop", "centered"},
     {"stable_adamw", "kahan_sum"}}};

bool is_in(std::span<const std::string_view> keys, std::string_view key) {
  return std::ranges::find(keys, key) != keys.end();
}
}  // namespace

void TrainerFile::sort_keys(const KeyTable& table, std::span<const std::string_view> also_known,
                            const std::string& program) {
  std::vector<std::string> foreign;
  for (const std::string& key : unknown_keys(file_, table)) {
    if (is_in(also_known, key)) continue;
    // A slip in a name that is read would be an answer to another question.
    const std::string near = nearest_key(key, table);
    const auto distance =
        static_cast<std::ptrdiff_t>(near.size()) - static_cast<std::ptrdiff_t>(key.size());
    if (!near.empty() && std::abs(distance) <= 2) refuse_unknown_key(file_, key, table);
    foreign.push_back(key);
  }
  if (foreign.size() == file_.keys().size())
    fail(ErrorKind::bad_input, fmt::format("{}: no field of {} in it", file_.source(), program));
  if (!foreign.empty())
    note(fmt::format("not of {}, and not looked at: {}", program, listed(foreign)));
  if (const auto idle = present(file_, table.no_memory); !idle.empty())
    note("of no bearing on memory: " + listed(idle));
}

bool TrainerFile::flag(const char* key, bool fallback) const {
  if (!file_.has(key)) return fallback;
  if (file_.is_flag(key)) return file_.flag(key, fallback);
  const std::string value = file_.shown(key);
  for (const char* yes : {"1", "\"true\"", "\"True\"", "\"yes\""})
    if (value == yes) return true;
  for (const char* no : {"0", "\"false\"", "\"False\"", "\"no\""})
    if (value == no) return false;
  file_.refuse(key, "true or false");
}

std::optional<Config> TrainerFile::section(const char* key, bool path) const {
  if (!file_.has(key)) return std::nullopt;
  if (!file_.is_string(key)) return file_.section(key);
  const std::string text = file_.text(key, "");
  const std::string source = file_.source() + ": " + key;
  if (text.starts_with('{')) return Config::parse(text, source);
  if (!path) file_.refuse(key, "an object");
  return Config::parse(read_text_file(text, kMostBytes), text);
}

void TrainerFile::sizes(const char* micro_batch, const char* accumulation) {
  say("micro-batch", std::to_string(file_.count(micro_batch, 8)), micro_batch);
  say("grad-accum", std::to_string(file_.count(accumulation, 1)), accumulation);
  if (flag("auto_find_batch_size", false))
    note("auto_find_batch_size: planned is the size that it begins with");
}

void TrainerFile::optimizer(const char* key, const char* arguments_key) {
  const std::string name = file_.text(key, "adamw_torch_fused");
  const std::string arguments = file_.is_object(arguments_key)
                                    ? file_.section(arguments_key)->dump()
                                    : file_.text(arguments_key, "");
  const OptimizerRule* found = nullptr;
  for (const OptimizerRule& rule : kOptimizers) {
    const bool is = (rule.trainer.name && name == rule.trainer.name) ||
                    (rule.trainer.fused && name == rule.trainer.fused);
    const bool has_momentum = arguments.find("momentum") != std::string::npos;
    // SGD's momentum stands in optim_args.
    if (is && (found == nullptr || (has_momentum && rule.kind == Optimizer::momentum)))
      found = &rule;
  }
  if (found == nullptr) {
    const auto* other =
        std::ranges::find(kOtherOptimizers, name, [](const auto& o) { return o.first; });
    if (other == kOtherOptimizers.end()) refuse_key(file_, key, "is no optimizer that is modelled");
    // scale_type=tensor, rank=1: APOLLO-mini (arXiv 2412.05270, section 4.3).
    const bool of_tensors =
        name.starts_with("apollo") && arguments.find("tensor") != arguments.npos;
    say("optimizer", of_tensors ? "apollo-mini" : other->second, key);
    if (name.starts_with("galore") || name.starts_with("apollo"))
      projection(name, key, arguments, arguments_key);
    return;
  }
  for (const auto& [optimizer, argument] : kOtherMemory)
    if (name == optimizer && arguments.find(argument) != arguments.npos)
      refuse_key(file_, arguments_key,
                 std::string(argument) + " with " + name + " is not modelled yet");
  say("optimizer", std::string(found->name), key);
  if (found->trainer.fused != nullptr)
    say("optimizer-impl", name == found->trainer.fused ? "fused" : "foreach", key);
}

// "rank=64, update_proj_gap=100" (trainer_optimizer.py, _get_galore_optimizer; APOLLO's alike).
void TrainerFile::projection(const std::string& name, const char* key, const std::string& arguments,
                             const char* arguments_key) {
  const bool galore = name.starts_with("galore");
  const std::string who = galore ? "GaLore" : "APOLLO";
  if (arguments.find("proj_type") != std::string::npos)
    refuse_key(file_, arguments_key, "proj_type: only std is modelled");
  if (file_.is_text("optim_target_modules", "all-linear"))
    refuse_key(file_, "optim_target_modules",
               "all-linear takes the head too; " + who + " is modelled for the layers' matrices");
  if (!galore && arguments.find("svd") != std::string::npos)
    refuse_key(file_, arguments_key, "proj: only random is modelled");
  note(who + " is planned for every matrix of a layer (optim_target_modules of attn and mlp)");
  if (const std::size_t rank = arguments.find("rank"); rank != std::string::npos) {
    const std::size_t from = arguments.find_first_of("0123456789", rank);
    const std::size_t to =
        std::min(arguments.find_first_not_of("0123456789", from), arguments.size());
    if (from == std::string::npos) refuse_key(file_, arguments_key, "rank: a number is needed");
    say("galore-rank", arguments.substr(from, to - from), arguments_key);
  }
  if (name.ends_with("layerwise")) say("optimizer-in-backward", "", key);
}

void TrainerFile::compile() {
  if (flag("torch_compile", false)) say("compile", "model", "torch_compile");
  for (const char* key : {"torch_compile_backend", "torch_compile_mode"})
    if (!file_.is_set("torch_compile") && file_.is_set(key)) say("compile", "model", key);
}

void TrainerFile::attention(const char* key, const std::string& name) {
  // Names of attn_implementation. The two of the hub are what Transformers falls back to where a
  // package is not there (modeling_flash_attention_utils.py, FLASH_ATTN_KERNEL_FALLBACK).
  constexpr std::array<std::pair<std::string_view, const char*>, 7> kKinds{
      {{"eager", "eager"},
       {"sdpa", "flash"},
       {"flex_attention", "flex"},
       {"flash_attention_2", "flash-2"},
       {"flash_attention_3", "flash-3"},
       {"kernels-community/flash-attn2", "flash-2"},
       {"kernels-community/flash-attn3", "flash-3"}}};
  const auto kind = std::ranges::find(kKinds, name, [](const auto& one) { return one.first; });
  if (kind != kKinds.end())
    say("attention", kind->second, key);
  else if (!name.empty())
    refuse_key(
        file_, key,
        "only sdpa, eager, flex_attention, flash_attention_2 and flash_attention_3 are modelled");
}

void TrainerFile::sharding(int version) {
  if (file_.is_set("deepspeed")) {
    if (file_.is_set("fsdp")) file_.refuse("fsdp", "only one of fsdp and deepspeed");
    const auto inline_config =
        file_.is_object("deepspeed") ? file_.section("deepspeed") : std::nullopt;
    say("deepspeed", inline_config ? inline_config->dump() : file_.text("deepspeed", ""),
        "deepspeed");
    return;
  }
  if (file_.is_set("fsdp") || (trainer_ != nullptr && file_.is_set("fsdp_config"))) fsdp(version);
  if (const auto sizes = section("parallelism_config", false))
    add_parallelism_settings(*sizes, out_);
  ddp();
}

void TrainerFile::ddp() {
  if (file_.has("ddp_bucket_cap_mb"))
    say("bucket-cap-mb", std::to_string(file_.count("ddp_bucket_cap_mb", 25)), "ddp_bucket_cap_mb");
  if (file_.has("ddp_backend") && !file_.is_text("ddp_backend", "nccl"))
    refuse_key(file_, "ddp_backend", "only nccl is modelled");
  if (flag("ddp_static_graph", false)) refuse_key(file_, "ddp_static_graph", "is not modelled yet");
}

// `fsdp` is true, or the words of before 5.20: "full_shard auto_wrap".
void TrainerFile::fsdp(int version) {
  const std::string empty = "{}";
  Config config =
      section("fsdp_config", true).value_or(Config::parse(empty, file_.source() + ": fsdp_config"));
  std::string words = file_.is_string("fsdp") ? file_.text("fsdp", "") : "";
  if (file_.is_list("fsdp"))
    for (const std::string& word : file_.texts("fsdp", 10)) words += " " + word;
  FsdpDefaults defaults{.version = version, .trainer = true};
  FileSettings read;
  add_fsdp_settings(config, defaults, 0, read);
  for (FileSetting& setting : read.settings)
    if (setting.option == "zero" && !words.empty() && setting.is_default)
      setting = from_words(words, setting);
  const bool offloads = std::ranges::any_of(
      read.settings, [](const FileSetting& setting) { return setting.option == "offload"; });
  if (words.find("offload") != std::string::npos && !offloads)
    read.settings.push_back({"offload", "params", "fsdp", false});
  out_.settings.push_back({"stack", "pytorch", "fsdp", false});
  out_.settings.insert(out_.settings.end(), read.settings.begin(), read.settings.end());
  out_.notes.insert(out_.notes.end(), read.notes.begin(), read.notes.end());
  if (file_.has("gradient_checkpointing") && flag("gradient_checkpointing", false))
    note(
        "gradient_checkpointing under FSDP gathers each layer once more than "
        "activation_checkpointing of fsdp_config, which is planned");
}

FileSetting TrainerFile::from_words(const std::string& words, FileSetting setting) const {
  const auto has = [&](const char* word) { return words.find(word) != std::string::npos; };
  if (has("hybrid_shard") || has("no_shard"))
    refuse_key(file_, "fsdp", "is FSDP1's; full_shard and shard_grad_op are modelled");
  if (!has("full_shard") && !has("shard_grad_op") && !has("auto_wrap"))
    file_.refuse("fsdp", "true, full_shard or shard_grad_op, and auto_wrap");
  setting.value = has("shard_grad_op") ? "2" : "3";
  setting.key = "fsdp";
  setting.is_default = false;
  return setting;
}

bool TrainerFile::reentrant() {
  const auto kwargs = section("gradient_checkpointing_kwargs", false);
  if (!kwargs) return false;
  for (const std::string& key : kwargs->keys())
    if (key != "use_reentrant" && key != "preserve_rng_state" && key != "determinism_check")
      refuse_key(*kwargs, key, "is not modelled yet");
  if (!kwargs->has("use_reentrant")) return false;
  state("use-reentrant", kwargs->flag("use_reentrant", false) ? "yes" : "no",
        "gradient_checkpointing_kwargs.use_reentrant");
  return true;
}

void TrainerFile::others() {
  if (flag("use_cpu", false)) refuse_key(file_, "use_cpu", "training on a CPU is not modelled");
  if (const auto config = section("accelerator_config", true))
    if (config->is_set("split_batches"))
      refuse_key(*config, "split_batches", "is not modelled yet");
  if (file_.is_set("torch_empty_cache_steps"))
    note("torch_empty_cache_steps: planned is a cache that is never emptied");
  if (flag("ddp_find_unused_parameters", false))
    note("ddp_find_unused_parameters: planned as false");
}

void TrainerFile::low_rank(const char* rank, const char* alpha, const char* dropout) {
  const std::int64_t r = file_.count(rank, 8);
  say("lora-rank", std::to_string(r), rank);
  say("lora-alpha", fmt::format("{}", file_.real(alpha, 2.0 * static_cast<double>(r))), alpha);
  say("lora-dropout", fmt::format("{}", file_.probability(dropout, 0)), dropout);
}

std::vector<std::string> TrainerFile::names(const char* key) const {
  if (file_.is_list(key)) return file_.texts(key, 4096);
  return file_.has(key) ? std::vector{file_.text(key, "")} : std::vector<std::string>();
}

std::string TrainerFile::targets(const char* key) const {
  const std::vector<std::string> all = names(key);
  std::string out;
  for (const std::string& name : all) {
    if (name.empty()) file_.refuse(key, "names of modules, none of them empty,");
    if (name.find_first_of("*^$()|\\") != std::string::npos)
      refuse_key(file_, key, "a pattern is not modelled from this file; --peft reads them");
    for (const char c : name)
      if (c != ' ') out += c;
    if (&name != &all.back()) out += ',';
  }
  return out;
}

void TrainerFile::prefixes(const char* key, const char* option) {
  for (const std::string& name : names(key)) {
    if (name.find_first_of("*?[]") != std::string::npos)
      file_.refuse(key, "starts of parameters' names, as model.layers.0.,");
    state(option, name + "*", key);
  }
}

void TrainerFile::further(const char* modules_to_save, const char* use_dora) {
  const std::string saved = targets(modules_to_save);
  if (!saved.empty()) state("modules-to-save", saved, modules_to_save);
  if (flag(use_dora, false)) state("use-dora", "yes", use_dora);
}

FileSettings TrainerFile::finished() {
  if (trainer_ == nullptr) return std::move(out_);
  const auto stated = std::ranges::find_if(out_.settings, [](const FileSetting& s) {
    return s.option == "optimizer" && !s.is_default && s.value != "adamw";
  });
  for (const TrainerDefault& one : trainer_->defaults) {
    if (one.base != TrainerBase::any) continue;
    if (one.option == "optimizer-impl" && stated != out_.settings.end()) continue;
    const std::size_t comma = one.source.rfind(", ");
    const FileSetting setting{
        std::string(one.option), std::string(one.value),
        std::string(comma == one.source.npos ? one.source : one.source.substr(comma + 2)), true};
    const auto said = std::ranges::find(out_.settings, one.option, &FileSetting::option);
    if (said == out_.settings.end())
      out_.settings.push_back(setting);
    else if (said->is_default)
      *said = setting;
  }
  return std::move(out_);
}

}  // namespace plimsoll::models
