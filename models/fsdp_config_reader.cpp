#include "models/fsdp_config_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>

#include "models/base/nearest.h"
#include "models/base/utf8.h"
#include "models/file_keys.h"

namespace plimsoll::models {

namespace {

constexpr auto kRead = std::to_array<std::string_view>(
    {"version", "sharding_strategy", "reshard_after_forward", "auto_wrap_policy",
     "transformer_layer_cls_to_wrap", "min_num_params", "backward_prefetch", "forward_prefetch",
     "use_orig_params", "activation_checkpointing", "offload_params", "cpu_offload",
     "limit_all_gathers", "activation_checkpointing_offload", "cpu_offload_pin_memory"});
constexpr auto kUnmodelled =
    std::to_array<std::string_view>({"ignored_modules", "xla", "xla_fsdp_v2", "xla_fsdp_grad_ckpt",
                                     "xla_fsdp_settings", "mixed_precision_policy"});
constexpr auto kNoMemory = std::to_array<std::string_view>(
    {"cpu_ram_efficient_loading", "sync_module_states", "state_dict_type", "save_only_model",
     "final_state_dict_type"});
constexpr KeyTable kTable{kRead, kUnmodelled, kNoMemory};

std::string upper(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return std::toupper(c); });
  return text;
}

// One `fsdp_config`, its keys under whichever of their two names they stand.
class Reader {
 public:
  Reader(const Config& file, const FsdpDefaults& defaults) : file_(file), defaults_(defaults) {
    for (const std::string& key : file.keys()) {
      const std::string bare = key.starts_with("fsdp_") ? key.substr(5) : key;
      if (!names_.emplace(bare, key).second)
        fail(ErrorKind::bad_input,
             fmt::format("{}: {} and {} are both there", file.source(), names_.at(bare), key));
      check_known(bare, key);
    }
  }

  void read(std::int64_t gpus_per_node, FileSettings& out) {
    const std::int64_t version = whole("version", defaults_.version);
    if (version != 1 && version != 2) file_.refuse(key("version"), "1 or 2");
    say(out, "fsdp-version", std::to_string(version), "version");
    if (version == 1)
      first(gpus_per_node, out);
    else
      second(out);
    if (version == 1 && !flag("use_orig_params", true))
      say(out, "fsdp-use-orig-params", "no", "use_orig_params");
    offload(out);
    wrapping();
    refuse_unmodelled();
    if (flag("activation_checkpointing", false))
      say(out, "recompute", "full", "activation_checkpointing");
  }

 private:
  void check_known(const std::string& bare, const std::string& key) const {
    for (const auto& keys :
         {std::span<const std::string_view>(kRead), std::span<const std::string_view>(kUnmodelled),
          std::span<const std::string_view>(kNoMemory)})
      if (std::ranges::find(keys, bare) != keys.end()) return;
    const std::string near = nearest(bare, kRead);
    fail(ErrorKind::bad_input,
         fmt::format("{}: unknown key '{}'{}", file_.source(), shortened(key),
                     near.empty() ? ""
                                  : fmt::format("; did you mean '{}{}'?",
                                                key == bare ? "" : "fsdp_", near)));
  }

  std::string key(const std::string& bare) const {
    const auto found = names_.find(bare);
    return found == names_.end() ? bare : found->second;
  }
  bool has(const std::string& bare) const { return file_.has(key(bare)); }

  void say(FileSettings& out, const char* option, std::string value,
           const std::string& bare) const {
    out.settings.push_back({option, std::move(value), "fsdp_config." + key(bare), !has(bare)});
  }

  // Booleans stand as words, too: accelerate's str_to_bool.
  bool flag(const std::string& bare, bool fallback) const {
    if (!has(bare)) return fallback;
    if (!file_.is_string(key(bare))) return file_.flag(key(bare), fallback);
    const std::string word = upper(file_.text(key(bare), ""));
    if (word == "TRUE" || word == "YES" || word == "1") return true;
    if (word == "FALSE" || word == "NO" || word == "0") return false;
    file_.refuse(key(bare), "true or false");
  }
  std::int64_t whole(const std::string& bare, std::int64_t fallback) const {
    if (!has(bare)) return fallback;
    if (file_.is_text(key(bare), "1")) return 1;
    if (file_.is_text(key(bare), "2")) return 2;
    return file_.natural(key(bare), fallback);
  }
  std::string word(const std::string& bare, const char* fallback) const {
    if (file_.is_flag(key(bare))) return file_.flag(key(bare), false) ? "TRUE" : "FALSE";
    return upper(file_.text(key(bare), fallback));
  }
  [[noreturn]] void unsupported(const std::string& bare, std::string_view why) const {
    refuse_key(file_, key(bare), why);
  }

  // torch/distributed/fsdp/api.py, ShardingStrategy, by name or number.
  void first(std::int64_t gpus_per_node, FileSettings& out) const {
    constexpr auto kStrategies = std::to_array<std::string_view>(
        {"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"});
    const std::string where = "sharding_strategy";
    // accelerate 1.15, utils/dataclasses.py: with FSDP1 the other key is not looked at.
    if (has("reshard_after_forward") && word("reshard_after_forward", "") != "FULL_SHARD")
      out.notes.push_back(
          fmt::format("{}: with FSDP1 Accelerate does not look at {}; FSDP_SHARDING_STRATEGY says "
                      "how it shards (FULL_SHARD)",
                      file_.source(), key("reshard_after_forward")));
    std::size_t chosen = 0;
    if (has(where)) {
      const bool number = !file_.is_string(key(where));
      const std::string name =
          number ? std::to_string(file_.natural(key(where), 1)) : word(where, "FULL_SHARD");
      const auto* found = std::ranges::find(kStrategies, name);
      chosen =
          found != kStrategies.end()
              ? static_cast<std::size_t>(found - kStrategies.begin())
              : (name.size() == 1 ? static_cast<std::size_t>(name[0] - '1') : kStrategies.size());
      if (chosen >= kStrategies.size())
        file_.refuse(key(where), "FULL_SHARD, SHARD_GRAD_OP, HYBRID_SHARD or HYBRID_SHARD_ZERO2");
    }
    if (chosen == 2) unsupported(where, "FSDP that does not shard is not modelled; MULTI_GPU is");
    say(out, "zero", chosen == 1 || chosen == 4 ? "2" : "3", where);
    if (chosen < 3) return;
    if (gpus_per_node == 0) unsupported(where, "needs to know the GPUs of a node");
    say(out, "shard-group", std::to_string(gpus_per_node), where);
  }

  void second(FileSettings& out) const {
    const bool reshards = flag("reshard_after_forward", true);
    say(out, "zero", reshards ? "3" : "2", "reshard_after_forward");
  }

  void offload(FileSettings& out) const {
    for (const char* bare : {"offload_params", "cpu_offload"})
      if (flag(bare, false)) {
        say(out, "offload", "params", bare);
        if (has("cpu_offload_pin_memory"))
          say(out, "offload-pin", flag("cpu_offload_pin_memory", true) ? "yes" : "no",
              "cpu_offload_pin_memory");
        return;
      }
  }

  void wrapping() const {
    const std::string policy =
        word("auto_wrap_policy", defaults_.trainer ? "TRANSFORMER_BASED_WRAP" : "NO_WRAP");
    if (policy != "TRANSFORMER_BASED_WRAP")
      unsupported("auto_wrap_policy",
                  "only TRANSFORMER_BASED_WRAP is modelled: each decoder layer is a unit");
    const std::string name = key("transformer_layer_cls_to_wrap");
    std::vector<std::string> classes;
    if (file_.is_list(name))
      classes = file_.texts(name, 100);
    else if (has("transformer_layer_cls_to_wrap"))
      classes = {file_.text(name, "")};
    for (const std::string& one : classes)
      if (!one.ends_with("Layer") && !one.ends_with("Block"))
        unsupported("transformer_layer_cls_to_wrap", "only decoder layers are modelled as units");
  }

  void refuse_unmodelled() const {
    for (const auto& [bare, name] : names_)
      if (std::ranges::find(kUnmodelled, bare) != std::end(kUnmodelled) && file_.is_set(name))
        refuse_key(file_, name, "is not modelled yet");
    if (flag("activation_checkpointing_offload", false))
      unsupported("activation_checkpointing_offload", "is not modelled yet");
    if (whole("version", defaults_.version) == 2) return;  // it has none of what follows
    if (word("backward_prefetch", "NO_PREFETCH") != "BACKWARD_PRE" &&
        word("backward_prefetch", "") != "1")
      unsupported("backward_prefetch",
                  "FSDP1 is modelled with BACKWARD_PRE (Accelerate's own default is NO_PREFETCH)");
    if (flag("forward_prefetch", false)) unsupported("forward_prefetch", "is not modelled yet");
    if (!flag("limit_all_gathers", true)) unsupported("limit_all_gathers", "is not modelled yet");
  }

  const Config& file_;
  FsdpDefaults defaults_;
  std::map<std::string, std::string> names_;  // without "fsdp_" → as it stands there
};

}  // namespace

void add_fsdp_settings(const Config& fsdp, const FsdpDefaults& defaults, std::int64_t gpus_per_node,
                       FileSettings& out) {
  Reader(fsdp, defaults).read(gpus_per_node, out);
}

void add_parallelism_settings(const Config& sizes, FileSettings& out) {
  constexpr std::string_view kPrefix = "parallelism_config_";
  constexpr std::array<std::pair<std::string_view, const char*>, 4> kSizes{
      {{"dp_shard_size", "shard-group"}, {"tp_size", "tp"}, {"cp_size", "cp"}, {"sp_size", "cp"}}};
  constexpr auto kIdle =
      std::to_array<std::string_view>({"dp_replicate_size", "cp_backend", "cp_comm_strategy",
                                       "sp_backend", "sp_seq_length", "sp_attn_implementation"});
  for (const std::string& key : sizes.keys()) {
    const std::string_view bare =
        key.starts_with(kPrefix) ? std::string_view(key).substr(kPrefix.size()) : key;
    const auto* found = std::ranges::find(kSizes, bare, [](const auto& s) { return s.first; });
    if (found == kSizes.end()) {
      if (std::ranges::find(kIdle, bare) == kIdle.end() && bare != "sp_seq_length_is_variable")
        fail(ErrorKind::bad_input,
             fmt::format("{}: unknown key '{}'", sizes.source(), shortened(key)));
      continue;
    }
    const std::int64_t size = sizes.optional_count(key, 1);
    if (size > 1)
      out.settings.push_back(
          {found->second, std::to_string(size), "parallelism_config." + key, false});
  }
}

}  // namespace plimsoll::models
