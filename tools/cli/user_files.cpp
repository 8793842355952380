#include "tools/cli/user_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "models/accelerate_config_reader.h"
#include "models/base/error.h"
#include "models/base/nearest.h"
#include "models/base/utf8.h"
#include "models/bitsandbytes.h"
#include "models/decisions/layer.h"
#include "models/gpu_catalog.h"
#include "models/json_reader.h"
#include "models/optimizers.h"
#include "models/options.h"
#include "models/peft_config_reader.h"
#include "models/recompute.h"
#include "models/run_names.h"
#include "models/storages.h"
#include "models/trainer_config_reader.h"
#include "models/trainers.h"
#include "models/training_arguments_reader.h"
#include "tools/cli/values.h"

namespace plimsoll::tools {

namespace {
using models::FileSetting;
using models::FileSettings;

constexpr std::int64_t kMostBytes = 1 << 20;

struct FileKind {
  const char* option;
  const char* reader;  // whose defaults fill in what the file does not say
  bool of_trainer = false;  // which goes before a launcher's
};
constexpr std::string_view kTrainer = "trainer";
// In the order in which they are held against each other.
constexpr std::array<FileKind, 7> kKinds{{{"axolotl", "Axolotl 0.19", true},
                                          {"llamafactory", "LLaMA-Factory 0.9.5", true},
                                          {"swift", "ms-swift 4.6", true},
                                          {"torchtitan", "torchtitan 0.2.2", true},
                                          {"training-args", "Transformers 5.17", true},
                                          {"accelerate", "Accelerate 1.15"},
                                          {"peft", "PEFT 0.21"}}};

// Training without autocast is what all three dtypes are.
bool agree(const FileSetting& setting, const std::string& mine) {
  if (is_same_value(mine, setting.value)) return true;
  if (setting.option == "lora-targets" || setting.option == "modules-to-save")  // a set
    return mine.size() == setting.value.size() && std::ranges::is_permutation(mine, setting.value);
  return setting.option == "precision" && setting.value == "fp32" &&
         (mine == "bf16" || mine == "fp16");
}

std::string short_value(const std::string& value) {
  return value.empty() ? "" : " " + shortened(value);
}

class Merger {
 public:
  Merger(const std::string& model, const Options& given, FileDefaults defaults, ModelSource& models)
      : given_(given), defaults_(defaults), models_(models) {
    out_.model = model;
    for (const auto& [name, value] : given.given())
      if (name != kTrainer &&
          std::ranges::none_of(kKinds, [&](const FileKind& k) { return name == k.option; }))
        out_.options.add(name, value, given.origin(name));
  }

  FileOptions merged() {
    for (const FileKind& kind : kKinds)
      if (const std::string* path = given_.find(kind.option)) add(kind, *path);
    settle_optimizer();
    settle_checkpoints();
    settle_reentrant();
    for (const Held& held : held_) {
      if (held.setting.is_default && defaults_ == FileDefaults::left_open) continue;
      out_.options.add(held.setting.option, held.setting.value, origin(held));
      if (!held.setting.is_default) out_.set.push_back(held.setting.option);
    }
    if (const std::string* name = given_.find(kTrainer)) add_trainer(*name);
    for (const FileKind& kind : kKinds) tell(kind);
    out_.notes.insert(out_.notes.end(), notes_.begin(), notes_.end());
    return std::move(out_);
  }

 private:
  struct Held {
    FileSetting setting;
    std::string path;
    const FileKind* kind;
  };

  static std::string origin(const Held& held) { return held.path + ": " + held.setting.key; }

  const LoadedModel* loaded() {
    if (out_.model.empty()) return nullptr;
    const std::string* assume = given_.find("assume");
    model_ = models_.load(out_.model, assume ? *assume : "");
    return model_.get();
  }

  // A launch line's arguments come as the object that they are.
  std::string source_of(const FileKind& kind, const std::string& path) const {
    if (!path.starts_with('{')) return path;
    const std::string origin = given_.origin(kind.option);
    return origin.empty() ? std::string("--") + kind.option : origin;
  }

  FileSettings read(const FileKind& kind, const std::string& path) {
    const std::string name = kind.option;
    const std::string source = source_of(kind, path);
    const std::string content =
        path.starts_with('{') ? path : models::read_text_file(path, kMostBytes);
    if (name == "training-args") return models::read_training_arguments(content, source);
    if (name == "axolotl") return models::read_axolotl_config(content, source);
    if (name == "llamafactory") return models::read_llamafactory_config(content, source);
    if (name == "torchtitan") return models::read_torchtitan_config(content, source);
    if (name == "swift") {
      const std::string* gpus = given_.find("gpus");
      return models::read_swift_arguments(
          content, source, gpus == nullptr ? 1 : whole("gpus", *gpus, 1, std::int64_t{1} << 40));
    }
    if (name == "accelerate") return models::read_accelerate_config(content, source);
    if (out_.model.empty() && !given_.has("params")) {
      out_.model = models::peft_base_model(content, source);
      if (!out_.model.empty())
        notes_.push_back(fmt::format("{}: planned is its base_model_name_or_path, {}", source,
                                     shortened(out_.model, 100)));
    }
    const LoadedModel* model = loaded();
    return models::read_peft_config(content, source, model ? &model->spec : nullptr);
  }

  void add(const FileKind& kind, const std::string& path) {
    const FileSettings file = read(kind, path);
    const std::string source = source_of(kind, path);
    if (!file.model.empty() && out_.model.empty() && !given_.has("params"))
      out_.model = file.model;
    else if (kind.of_trainer && !file.model.empty() && file.model != out_.model)
      notes_.push_back(fmt::format("{}: names {}; planned is {}", source,
                                   shortened(file.model, 100),
                                   given_.has("params") ? "the count of --params" : out_.model));
    for (const FileSetting& setting : file.settings) add(Held{setting, source, &kind});
    notes_.insert(notes_.end(), file.notes.begin(), file.notes.end());
  }

  void add(Held held) {
    beside_its_file(held);
    const FileSetting& setting = held.setting;
    if (const std::string* mine = given_.find(setting.option)) {
      if (!setting.is_default && !agree(setting, *mine))
        fail(ErrorKind::bad_input, fmt::format("{}, but {} says {} ({}): give one of the two",
                                               given_.said(setting.option), held.path,
                                               shortened(setting.value), setting.key));
      return;
    }
    const auto other =
        std::ranges::find(held_, setting.option, [](const Held& h) { return h.setting.option; });
    const bool one_more = other != held_.end() && other->path == held.path &&
                          models::find_plan_option(setting.option)->repeatable;
    if (other == held_.end() || one_more) {
      held_.push_back(std::move(held));
      return;
    }
    if (setting.is_default || agree(setting, other->setting.value)) return;
    if (other->setting.is_default || other->setting.yields) {
      *other = std::move(held);
    } else if (setting.option == "precision" && other->kind->of_trainer) {
      // training_args.py, __post_init__: bf16 and fp16 go before ACCELERATE_MIXED_PRECISION.
      notes_.push_back(fmt::format("{}: {} goes before {} of {}", other->path, other->setting.key,
                                   setting.key, held.path));
    } else {
      fail(ErrorKind::bad_input,
           fmt::format("{} says {} ({}), but {} says {} ({}): give one of the two", other->path,
                       shortened(other->setting.value), other->setting.key, held.path,
                       shortened(setting.value), setting.key));
    }
  }

  // How checkpoints around layers are made, where it was said that there are none.
  bool lacks_checkpoints(std::string_view option) const {
    return option == "use-reentrant" && recomputes_no_layers(out_.options.find("recompute"));
  }

  // How torch's optimizers step, where another package's was asked for.
  bool has_one_form(std::string_view option) const {
    if (option != "optimizer-impl" || !out_.options.has("optimizer")) return false;
    const auto optimizer = models::choice_from<models::Optimizer>(said("optimizer"));
    return optimizer && models::rule_of(*optimizer).torch.package != nullptr;
  }

  static bool recomputes_no_layers(const std::string* text) {
    if (text == nullptr) return false;
    const auto recompute = models::recompute_from(*text);
    return recompute && !models::decisions::recomputes_layers(recompute->kind);
  }

  // Of the card that is named.
  bool is_before_ampere() const {
    const std::string* name = out_.options.find("gpu");
    if (name == nullptr) return false;
    try {
      const models::Gpu gpu = models::find_gpu(*name);
      return gpu.vendor == "nvidia" && gpu.compute_capability.front() < '8' &&
             gpu.compute_capability.size() == 3;
    } catch (const Error&) {  // said where it is read
      return false;
    }
  }

  // Of the base and the precision that are asked for.
  bool has_base(models::TrainerBase base) const {
    if (base == models::TrainerBase::any) return true;
    const auto* packed = models::find_packed_storage(said("quantize"));
    if (packed == nullptr || !models::packs_with_bitsandbytes(*packed)) return false;
    return base == models::TrainerBase::packed ||
           (packed->bits == 4 && said("precision") == "bf16-mixed" && said("kbit-prep") != "no" &&
            said("zero") != "2" && said("zero") != "3");
  }

  // DeepSpeed's engine casts what a trainer has loaded, to the precision's 16 bits; a packed base
  // is unpacked to what it was packed from.
  bool casts_weights() const {
    return said("stack") == "deepspeed" && said("precision").ends_with("-mixed") &&
           !out_.options.has("quantize");
  }

  std::string_view said(std::string_view option) const {
    const std::string* text = out_.options.find(option);
    return text == nullptr ? std::string_view() : *text;
  }

  // A trainer's defaults, where neither an option nor a file says something.
  void add_trainer(const std::string& name) {
    const models::Trainer* trainer = models::find_trainer(name);
    if (trainer == nullptr) {
      std::string known;
      std::vector<std::string> names;
      for (const models::Trainer& one : models::trainers()) {
        names.push_back(std::string(one.name) + "@" + std::string(one.version));
        known += (known.empty() ? "" : ", ") + names.back();
        names.emplace_back(one.name);  // "tlr" is near "trl", though not near "trl@0.24"
      }
      const std::vector<std::string_view> views(names.begin(), names.end());
      const std::string near = nearest(name, views);
      fail(ErrorKind::bad_input,
           fmt::format("--trainer {}: not known{}; known are {}", shortened(name),
                       near.empty() ? "" : " (did you mean " + near + "?)", known));
    }
    const std::string called = fmt::format("{}@{}", trainer->name, trainer->version);
    std::string taken, left;
    const bool older = is_before_ampere();
    for (const models::TrainerDefault& one : trainer->defaults) {
      if (one.option == "adapter-dtype" && !out_.options.has("lora-rank")) continue;
      if (!has_base(one.base)) continue;
      if (one.option == "param-dtype" && casts_weights()) {
        out_.notes.push_back(fmt::format(
            "{}: it loads weights in {}, which DeepSpeed's engine casts", called, one.value));
        continue;
      }
      const std::string_view value =
          older && !one.before_ampere.empty() ? one.before_ampere : one.value;
      const std::string* text = out_.options.find(one.option);
      const bool said =
          text != nullptr || lacks_checkpoints(one.option) || has_one_form(one.option);
      const bool agrees = text != nullptr && *text == value;
      std::string& list = said && !agrees ? left : taken;
      list += fmt::format("{}--{} {}", list.empty() ? "" : ", ", one.option, value);
      if (said) continue;
      // Not in `set`: it is where a user of the trainer begins, and a remedy may say otherwise.
      out_.options.add(one.option, std::string(value), called + ": " + std::string(one.source));
    }
    out_.notes.push_back(fmt::format("{} ({}): {}", called, trainer->source, taken));
    if (!left.empty())
      out_.notes.push_back(fmt::format("{}: you say otherwise than {}", called, left));
    out_.notes.push_back(fmt::format("{}: {}", called, trainer->beside));
  }

  // Accelerate opens it from where it is started; configurations also travel together.
  static void beside_its_file(Held& held) {
    namespace fs = std::filesystem;
    std::string& value = held.setting.value;
    if (held.setting.option != "deepspeed" || value.starts_with('{')) return;
    std::error_code error;
    const fs::path beside = fs::path(held.path).parent_path() / value;
    if (!fs::exists(value, error) && fs::exists(beside, error)) value = beside.string();
  }

  // transformers/integrations/deepspeed.py, deepspeed_optim_sched: an optimizer of ds_config.json
  // is the one that steps, whatever `optim` says.
  void settle_optimizer() {
    const auto named = std::ranges::find(
        held_, "deepspeed", [](const Held& held) { return std::string_view(held.setting.option); });
    const std::string* path = given_.find("deepspeed");
    if (path == nullptr && named == held_.end()) return;
    const FileSettings file =
        read_deepspeed_option(path != nullptr ? *path : named->setting.value, loaded());
    const auto is_optimizer = [](const FileSetting& s) { return s.option == "optimizer"; };
    if (std::ranges::none_of(file.settings, is_optimizer)) return;
    std::erase_if(held_, [](const Held& held) {
      return held.setting.option == "optimizer" || held.setting.option == "optimizer-impl";
    });
  }

  // Of checkpoints that are not made, no default and no file says how.
  void settle_checkpoints() {
    const auto recompute = std::ranges::find(
        held_, "recompute", [](const Held& one) { return std::string_view(one.setting.option); });
    const std::string* text = given_.find("recompute");
    if (text == nullptr && recompute != held_.end()) text = &recompute->setting.value;
    if (recomputes_no_layers(text))
      std::erase_if(held_, [](const Held& one) { return one.setting.option == "use-reentrant"; });
  }

  // llamafactory/model/model_utils/checkpointing.py, prepare_model_for_training.
  void settle_reentrant() {
    const auto held = [&](std::string_view option, std::string_view value) {
      return std::ranges::find_if(held_, [=](const Held& one) {
        return one.setting.option == option && one.setting.value == value;
      });
    };
    const auto reentrant = held("use-reentrant", "yes");
    if (reentrant == held_.end() || reentrant->kind != &kKinds[1]) return;
    if (held("fsdp-version", "2") == held_.end()) return;
    notes_.push_back(reentrant->path + ": LLaMA-Factory turns use_reentrant_gc off under FSDP2");
    held_.erase(reentrant);
  }

  // What was read of one file, and what its reader adds.
  void tell(const FileKind& kind) {
    std::string said, added;
    std::string path;
    for (const Held& held : held_) {
      if (held.kind != &kind) continue;
      path = held.path;
      const FileSetting& s = held.setting;
      std::string& list = s.is_default ? added : said;
      list += fmt::format("{}--{}{} ({})", list.empty() ? "" : ", ", s.option, short_value(s.value),
                          s.key);
    }
    if (!said.empty()) out_.notes.push_back(fmt::format("{}: {}", path, said));
    if (!added.empty() && defaults_ == FileDefaults::filled)
      out_.notes.push_back(
          fmt::format("{} does not say, so {}'s defaults hold: {}", path, kind.reader, added));
  }

  const Options& given_;
  FileDefaults defaults_;
  ModelSource& models_;
  std::shared_ptr<const LoadedModel> model_;
  std::vector<Held> held_;
  std::vector<std::string> notes_;
  FileOptions out_;
};

}  // namespace

bool has_user_files(const Options& given) {
  return given.has(kTrainer) ||
         std::ranges::any_of(kKinds, [&](const FileKind& kind) { return given.has(kind.option); });
}

FileOptions with_user_files(const std::string& model, const Options& given, FileDefaults defaults,
                            ModelSource& models) {
  return Merger(model, given, defaults, models).merged();
}

void fail_with_origin(const Error& error, const Options& options) {
  const std::string& message = error.message();
  if (message.starts_with("--")) {
    const std::string name = message.substr(2, message.find_first_of(" :", 2) - 2);
    const std::string origin = options.origin(name);
    if (!origin.empty()) throw Error(error.kind(), origin + ": " + message, error.where());
  }
  throw error;
}

}  // namespace plimsoll::tools
