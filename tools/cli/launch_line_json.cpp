#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>

#include "models/base/error.h"
#include "models/base/nearest.h"
#include "models/config_reader.h"
#include "models/file_keys.h"
#include "models/training_arguments_keys.h"
#include "models/yaml_reader.h"
#include "tools/cli/launch_line.h"
#include "tools/cli/launchers.h"
#include "tools/cli/values.h"

namespace plimsoll::tools {

namespace {
using Json = nlohmann::json;
using namespace launchers;

constexpr std::int64_t kMostBytes = 1 << 20;
constexpr const char* kOrigin = "the launch line";

[[noreturn]] void refuse(const std::string& why) {
  fail(ErrorKind::bad_input, fmt::format("{}: {}", kOrigin, why));
}

bool is_in(Names names, std::string_view name) {
  return std::ranges::find(names, name) != names.end();
}

// "--nproc-per-node" is nproc_per_node. "": no option; "-1" is a number.
std::string option_name(std::string_view word) {
  if (word.size() < 2 || word[0] != '-' || (word[1] >= '0' && word[1] <= '9') || word[1] == '.')
    return "";
  word.remove_prefix(word.starts_with("--") ? 2 : 1);
  std::string name(word.substr(0, word.find('=')));
  std::ranges::replace(name, '-', '_');
  return name;
}

// As YAML has it: numbers, truth, words.
Json typed(const std::string& text) {
  if (text.empty() || text.find_first_of("\n:#[]{}&*!|>'\"%@`, ") != std::string::npos) return text;
  return Json::parse(models::json_from_yaml("v: " + text, kOrigin))["v"];
}

// The words of a launch line, taken one by one.
class Line {
 public:
  explicit Line(const std::vector<std::string>& words) : words_(words) {}
  bool done() const { return at_ >= words_.size(); }
  const std::string& peek() const { return words_[at_]; }
  std::string take() {
    if (done()) refuse("ends too early");
    return words_[at_++];
  }
  // The value of the option that was taken last, behind its "=" or the next word.
  std::string value_of(const std::string& word) {
    const std::size_t equals = word.find('=');
    if (equals != std::string::npos) return word.substr(equals + 1);
    if (done()) refuse(word + " needs a value");
    return take();
  }

 private:
  const std::vector<std::string>& words_;
  std::size_t at_ = 0;
};

class Reader {
 public:
  Reader(const std::vector<std::string>& words, Options& options)
      : line_(words), options_(options) {}

  void read() {
    environment();
    const Launcher& launcher = find_launcher();
    launcher_options(launcher);
    if (line_.done() && pushed_.empty()) refuse("names no script");
    script_ = pushed_.empty() ? line_.take() : pushed_;
    script();
    if (launcher.name == kAccelerate.name) accelerate();
    if (launcher.name == kTorchrun.name) torchrun();
    if (launcher.name == kDeepSpeed.name) deepspeed();
    if (launcher.name == kPython.name) set_ranks(1, 1, "python");
  }

 private:
  // NAME=VALUE before the command.
  void environment() {
    std::vector<std::string> others;
    while (!line_.done()) {
      const std::string& word = line_.peek();
      const std::size_t equals = word.find('=');
      if (equals == std::string::npos || word.find('/') < equals || word.starts_with('-')) break;
      const std::string name = word.substr(0, equals);
      if (name == "PYTORCH_CUDA_ALLOC_CONF" || name == "PYTORCH_ALLOC_CONF")
        set("allocator-conf", word.substr(equals + 1), name);
      else
        others.push_back(name);
      (void)line_.take();
    }
    if (!others.empty())
      options_.add_note(
          fmt::format("{}: variables that are not looked at: {}", kOrigin, models::listed(others)));
  }

  const Launcher& find_launcher() {
    std::string program = line_.take();
    program = program.substr(program.rfind('/') + 1);
    if (program == "accelerate" && !line_.done() && line_.peek() == "launch") {
      (void)line_.take();
      return kAccelerate;
    }
    if (program == "torchrun") return kTorchrun;
    if (program == "deepspeed") return kDeepSpeed;
    if (program == "python" || program.starts_with("python3") || program.ends_with(".py")) {
      if (program.ends_with(".py")) refuse("begins with its launcher: python " + program);
      return python();
    }
    refuse(
        fmt::format("'{}' is no launcher that is known (accelerate launch, torchrun, python -m "
                    "torch.distributed.run, deepspeed, python)",
                    program.substr(0, 60)));
  }

  const Launcher& python() {
    while (!line_.done() && (line_.peek() == "-u" || line_.peek() == "-O")) (void)line_.take();
    if (line_.done() || line_.peek() != "-m") return kPython;
    (void)line_.take();
    const std::string module = line_.take();
    if (module == "torch.distributed.run" || module == "torch.distributed.launch") return kTorchrun;
    if (module == "accelerate.commands.launch") return kAccelerate;
    if (module == "deepspeed.launcher.runner") return kDeepSpeed;
    pushed_ = module;
    return kPython;
  }

  void launcher_options(const Launcher& launcher) {
    while (!line_.done() && pushed_.empty()) {
      const std::string name = option_name(line_.peek());
      if (name.empty()) return;
      const std::string word = line_.take();
      if (is_in(launcher.flags, name)) {
        launched_[name] = true;
      } else if (is_in(launcher.values, name)) {
        launched_[name] = typed(line_.value_of(word));
      } else {
        std::vector<std::string_view> all(launcher.flags.begin(), launcher.flags.end());
        all.insert(all.end(), launcher.values.begin(), launcher.values.end());
        const std::string near = nearest(name, all);
        refuse(fmt::format("{} has no option {}{}", launcher.name, word.substr(0, 60),
                           near.empty() ? "" : fmt::format("; did you mean --{}?", near)));
      }
    }
  }

  // HfArgumentParser and its likes: --name value …, --name=value, --name; a file of them first.
  void script() {
    Json arguments = Json::object();
    std::vector<std::string> others;
    while (!line_.done()) {
      const std::string word = line_.take();
      const std::string name = option_name(word);
      if (name.empty()) {
        if (!add_file(word, arguments)) others.push_back(word);
        continue;
      }
      std::vector<std::string> values;
      if (const std::size_t equals = word.find('='); equals != std::string::npos)
        values.push_back(word.substr(equals + 1));
      else
        while (!line_.done() && option_name(line_.peek()).empty()) values.push_back(line_.take());
      if (name == "config" && values.size() == 1 && add_file(values[0], arguments)) continue;
      if (values.empty()) arguments[name] = true;
      if (values.size() == 1) arguments[name] = typed(values[0]);
      if (values.size() > 1) arguments[name] = values;
    }
    if (!others.empty())
      options_.add_note(fmt::format("{}: words for {} that are not looked at: {}", kOrigin, script_,
                                    models::listed(others)));
    if (arguments.empty()) return;
    std::vector<std::string> names;
    for (const auto& [name, value] : arguments.items()) names.push_back(name);
    const models::Config as_file = models::Config::parse(arguments.dump(), kOrigin);
    if (models::unknown_keys(as_file, models::kArguments).size() == names.size())
      options_.add_note(
          fmt::format("{}: arguments of {} that are not looked at, for none is of "
                      "TrainingArguments: {}",
                      kOrigin, script_, models::listed(names)));
    else
      set("training-args", arguments.dump(-1, ' ', false, Json::error_handler_t::replace), "");
  }

  // What stands on the line goes before what stands in the file.
  static bool add_file(const std::string& path, Json& arguments) {
    if (!path.ends_with(".json") && !path.ends_with(".yaml") && !path.ends_with(".yml"))
      return false;
    const Json file = read_object(path);
    for (const auto& [name, value] : file.items())
      if (!arguments.contains(name)) arguments[name] = value;
    return true;
  }
  static Json read_object(const std::string& path) {
    const std::string text =
        models::json_from_json_or_yaml(models::read_text_file(path, kMostBytes), path);
    return Json::parse(models::Config::parse(text, path).dump());
  }

  // An option of ours, unless the user gave another value.
  void set(const char* option, const std::string& value, const std::string& key) {
    const std::string* mine = options_.find(option);
    if (mine == nullptr) {
      options_.add(option, value, key.empty() ? kOrigin : fmt::format("{}: {}", kOrigin, key));
      return;
    }
    if (*mine == value) return;
    refuse(key.empty()
               ? fmt::format("--{} {} beside it: give one of the two", option, mine->substr(0, 60))
               : fmt::format("{} says --{} {}, but --{} {} is given: give one of the two", key,
                             option, value.substr(0, 60), option, mine->substr(0, 60)));
  }

  void set_ranks(std::int64_t per_node, std::int64_t nodes, const char* key) {
    set("gpus", std::to_string(checked_multiply(per_node, nodes)), key);
    if (nodes > 1 || per_node > 8) set("gpus-per-node", std::to_string(per_node), key);
  }

  std::int64_t number(const char* name, std::int64_t fallback) const {
    const auto found = launched_.find(name);
    if (found == launched_.end()) return fallback;
    if (!found->is_number_integer() || found->get<std::int64_t>() < 1)
      refuse(fmt::format("--{} {}: a positive whole number is needed", name, found->dump()));
    return found->get<std::int64_t>();
  }

  void torchrun() {
    if (launched_.contains("nnodes") && launched_["nnodes"].is_string())
      refuse("--nnodes " + launched_["nnodes"].dump() + ": a fixed number is needed");
    set_ranks(number("nproc_per_node", 1), number("nnodes", 1), "--nproc_per_node");
  }

  void deepspeed() {
    const char* key = launched_.contains("num_gpus") ? "num_gpus" : "num_accelerators";
    std::int64_t gpus = launched_.contains(key) ? number(key, 1) : 0;
    const std::string include = text("include", "i");
    if (gpus == 0 && !include.empty() && include.find('@') == std::string::npos)
      if (const std::size_t colon = include.find(':'); colon != std::string::npos)
        gpus = 1 + std::ranges::count(include.substr(colon), ',');
    if (gpus > 0) return set_ranks(gpus, number("num_nodes", 1), "--num_gpus");
    if (!options_.has("gpus"))
      refuse("deepspeed takes every GPU that it finds: --num_gpus or --gpus says how many");
  }
  std::string text(const char* name, const char* letter) const {
    for (const char* one : {name, letter})
      if (const auto found = launched_.find(one); found != launched_.end() && found->is_string())
        return found->get<std::string>();
    return "";
  }

  // The launcher's arguments go before what stands in its file (_validate_launch_command).
  void accelerate() {
    Json config = Json::object();
    if (const auto file = launched_.find("config_file"); file != launched_.end())
      config = read_object(file->is_string() ? file->get<std::string>() : file->dump());
    const bool has_file = !config.empty();
    for (const auto& [name, value] : launched_.items()) place(config, name, value);
    const bool given = options_.has("gpus");
    if (!config.contains("num_processes") && !given)
      refuse("accelerate takes every GPU that it finds: --num_processes or --gpus says how many");
    const char* way = launched_.contains("use_deepspeed") ? "DEEPSPEED"
                      : launched_.contains("use_fsdp")    ? "FSDP"
                                                          : nullptr;
    if (way != nullptr) config["distributed_type"] = way;
    if (launched_.contains("use_megatron_lm")) config["distributed_type"] = "MEGATRON_LM";
    if (launched_.contains("tpu")) config["distributed_type"] = "XLA";
    if (!has_file && !config.contains("distributed_type")) {
      const Json ranks = config.value("num_processes", Json(2));
      config["distributed_type"] = ranks == 1 ? "NO" : "MULTI_GPU";
    }
    if (!has_file)
      options_.add_note(
          fmt::format("{}: planned without an accelerate/default_config.yaml of the "
                      "machine that it runs on",
                      kOrigin));
    set("accelerate", config.dump(-1, ' ', false, Json::error_handler_t::replace), "");
  }

  static void place(Json& config, const std::string& name, const Json& value) {
    constexpr auto kDeepSpeedKeys = std::to_array<std::string_view>(
        {"deepspeed_config_file", "zero_stage", "offload_optimizer_device", "offload_param_device",
         "offload_optimizer_nvme_path", "offload_param_nvme_path", "gradient_accumulation_steps",
         "gradient_clipping", "zero3_init_flag", "zero3_save_16bit_model",
         "deepspeed_moe_layer_cls_names"});
    constexpr auto kTop =
        std::to_array<std::string_view>({"mixed_precision", "num_processes", "num_machines",
                                         "dynamo_backend", "gpu_ids", "downcast_bf16"});
    if (is_in(kDeepSpeedKeys, name)) config["deepspeed_config"][name] = value;
    if (name.starts_with("fsdp_")) config["fsdp_config"][name] = value;
    if (name.starts_with("parallelism_config_")) config["parallelism_config"][name] = value;
    if (is_in(kTop, name)) config[name] = value;
    if (name == "cpu") config["use_cpu"] = value;
  }

  Line line_;
  Options& options_;
  std::string script_, pushed_;
  Json launched_ = Json::object();
};

}  // namespace

void add_launch_line(const std::vector<std::string>& words, Options& options) {
  if (words.empty()) refuse("a command is missing behind --, as in -- torchrun train.py");
  Reader(words, options).read();
}

}  // namespace plimsoll::tools
