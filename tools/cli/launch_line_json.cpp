#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>

#include "models/base/error.h"
#include "models/base/utf8.h"
#include "models/config_reader.h"
#include "models/file_keys.h"
#include "models/toml_reader.h"
#include "models/training_arguments_keys.h"
#include "models/yaml_reader.h"
#include "tools/cli/launch_line.h"
#include "tools/cli/launch_trainers.h"
#include "tools/cli/launch_words.h"
#include "tools/cli/launchers.h"
#include "tools/cli/values.h"

namespace plimsoll::tools {

namespace {
using Json = nlohmann::json;
using namespace launchers;
using namespace launch_words;

constexpr std::int64_t kMostBytes = 1 << 20;

// As YAML has it: numbers, truth, words; but 010 is ten on a line.
Json typed(const std::string& text) {
  if (text.empty() || text.find_first_of("\n:#[]{}&*!|>'\"%@`, ") != std::string::npos) return text;
  const bool whole = text.find_first_not_of("0123456789") == std::string::npos;
  const std::size_t zeros = whole ? std::min(text.find_first_not_of('0'), text.size() - 1) : 0;
  return Json::parse(models::json_from_yaml("v: " + text.substr(zeros), kOrigin))["v"];
}

class Reader {
 public:
  Reader(const std::vector<std::string>& words, Options& options)
      : line_(words), options_(options) {}

  void read() {
    environment();
    const Launcher& launcher = find_launcher();
    note_variables();
    if (launcher.name == kOwnCommand.name) return own_command();
    launcher_options(launcher);
    if (line_.done() && pushed_.empty()) refuse("names no script");
    script_ = pushed_.empty() ? line_.take() : pushed_;
    trainer_ = trainer_of_script(script_);
    if (trainer_.empty()) command_as_script();
    script();
    if (launcher.name == kAccelerate.name) accelerate();
    if (launcher.name == kTorchrun.name) torchrun();
    if (launcher.name == kDeepSpeed.name) deepspeed();
    if (launcher.name == kPython.name) set_ranks(1, 1, "python");
  }

 private:
  // NAME=VALUE before the command.
  void environment() {
    while (!line_.done()) {
      const std::string& word = line_.peek();
      const std::size_t equals = word.find('=');
      if (equals == std::string::npos || word.find('/') < equals || word.starts_with('-')) break;
      const std::string name = word.substr(0, equals);
      if (name == "PYTORCH_CUDA_ALLOC_CONF" || name == "PYTORCH_ALLOC_CONF")
        set("allocator-conf", word.substr(equals + 1), name);
      else
        variables_[name] = word.substr(equals + 1);
      (void)line_.take();
    }
  }
  void note_variables() {
    std::vector<std::string> others;
    for (const auto& [name, value] : variables_)
      if (!is_read_variable(trainer_, name)) others.push_back(name);
    if (others.empty()) return;
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
    if (const auto command = trainer_command(program)) {
      const std::string action = line_.done() ? "" : line_.take();
      if (action.empty() || std::string_view(command->actions).find(action) == std::string::npos)
        refuse(fmt::format("{} {}: only {} {} is planned", program, shortened(action), program,
                           command->actions));
      trainer_ = command->option;
      script_ = program + " " + action;
      return kOwnCommand;
    }
    refuse_launcher(program);
  }

  // torchrun … /opt/venv/bin/swift sft …: a program's own command, started by a launcher.
  void command_as_script() {
    const auto command = trainer_command(script_.substr(script_.rfind('/') + 1));
    if (!command || line_.done() ||
        std::string_view(command->actions).find(line_.peek()) == std::string_view::npos)
      return;
    trainer_ = command->option;
    script_ += " " + line_.take();
  }

  // A training program's own command, which starts its ranks itself.
  void own_command() {
    script();
    if (trainer_ == "axolotl") return axolotl();
    const auto ranks = started_ranks(trainer_, variables_);
    if (!ranks && !options_.has("gpus"))
      refuse(script_ +
             " takes every GPU that it finds: NPROC_PER_NODE, CUDA_VISIBLE_DEVICES or --gpus says "
             "how many");
    if (ranks) set_ranks(ranks->per_node, ranks->nodes, ranks->key);
    // llamafactory/launcher.py, OPTIM_TORCH
    if (trainer_ == "llamafactory" && ranks && ranks->per_node * ranks->nodes > 1 &&
        !options_.has("allocator-conf"))
      set("allocator-conf", "expandable_segments:True", script_);
  }

  // axolotl/cli/utils/train.py: accelerate unless --launcher says torchrun; behind -- its options.
  void axolotl() {
    if (!line_.done()) (void)line_.take();  // "--"
    const std::string name = launcher_;
    if (name != "accelerate" && name != "torchrun" && name != "python")
      refuse(
          fmt::format("--launcher {}: accelerate, torchrun or python is needed", shortened(name)));
    launcher_options(name == "accelerate" ? kAccelerate : name == "torchrun" ? kTorchrun : kPython);
    if (!line_.done()) refuse(fmt::format("'{}' behind --", shortened(line_.peek())));
    if (name == "accelerate") accelerate();
    if (name == "torchrun") torchrun();
    if (name == "python") set_ranks(1, 1, "--launcher");
  }

  const Launcher& python() {
    while (!line_.done() && (line_.peek() == "-u" || line_.peek() == "-O")) (void)line_.take();
    if (line_.done() || line_.peek() != "-m") return kPython;
    (void)line_.take();
    const std::string module = line_.take();
    if (const Launcher* launcher = launcher_of_module(module)) return *launcher;
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
        refuse_option(launcher, name, word);
      }
    }
  }

  // HfArgumentParser and its likes: --name value …, --name=value, --name; a file of them first.
  void script() {
    Json arguments = Json::object();
    std::vector<std::string> others;
    while (!line_.done() && line_.peek() != "--") {
      const std::string word = line_.take();
      std::string name = option_name(word);
      if (name.empty()) {
        if (!add_file(word, arguments) && !add_pair(word, arguments)) others.push_back(word);
        continue;
      }
      std::vector<std::string> values;
      if (const std::size_t equals = word.find('='); equals != std::string::npos)
        values.push_back(word.substr(equals + 1));
      else
        while (!line_.done() && option_name(line_.peek()).empty() && line_.peek() != "--")
          values.push_back(line_.take());
      add(name, values, arguments);
    }
    if (!others.empty())
      options_.add_note(fmt::format("{}: words for {} that are not looked at: {}", kOrigin, script_,
                                    models::listed(others)));
    hand_on(arguments);
  }

  void add(const std::string& name, const std::vector<std::string>& values, Json& arguments) {
    if (name == "config" && values.size() == 1 && add_file(values[0], arguments)) return;
    if (trainer_ == "axolotl" && name == "launcher" && values.size() == 1) {
      launcher_ = values[0];
      return;
    }
    if (trainer_ == "axolotl" && name.starts_with("no_") && values.empty()) {
      arguments[name.substr(3)] = false;  // click's --flag/--no-flag
      return;
    }
    const Json value = values.empty()       ? Json(true)
                       : values.size() == 1 ? typed(values[0])
                                            : Json(values);
    const std::size_t point = trainer_ == "torchtitan" ? name.find('.') : std::string::npos;
    if (point == std::string::npos)
      arguments[name] = value;
    else if (name == "job.config_file")
      toml_ = values.empty() ? "" : values[0];
    else
      arguments[name.substr(0, point)][name.substr(point + 1)] = value;
  }

  // llamafactory/hparams/parser.py, read_args: key=value behind a file.
  bool add_pair(const std::string& word, Json& arguments) const {
    const std::size_t equals = word.find('=');
    if (trainer_ != "llamafactory" || equals == std::string::npos || equals == 0) return false;
    arguments[word.substr(0, equals)] = typed(word.substr(equals + 1));
    return true;
  }

  // What the script takes, to the option that reads it.
  void hand_on(Json& arguments) {
    const auto has = [&](std::string_view name) { return arguments.contains(name); };
    if (trainer_.empty()) trainer_ = trainer_of_arguments(has);
    if (const std::string name = argument_of_megatron(has); !name.empty())
      refuse(
          fmt::format("{} of {}: Megatron-LM's arguments are not read, and what it splits over "
                      "ranks is not modelled yet",
                      name, script_));
    const bool engine = config_of_deepspeed(arguments);
    if (trainer_ == "torchtitan") {
      if (toml_.empty()) refuse(script_ + " without --job.config_file");
      const Json said = arguments;
      arguments =
          Json::parse(models::json_from_toml(models::read_text_file(toml_, kMostBytes), toml_));
      arguments.merge_patch(said);
    }
    if (arguments.empty()) return;
    if (!trainer_.empty())
      return set(trainer_.c_str(), arguments.dump(-1, ' ', false, Json::error_handler_t::replace),
                 "");
    std::vector<std::string> names;
    for (const auto& [name, value] : arguments.items()) names.push_back(name);
    const models::Config as_file = models::Config::parse(arguments.dump(), kOrigin);
    if (engine || models::unknown_keys(as_file, models::kArguments).size() == names.size())
      options_.add_note(fmt::format(
          "{}: arguments of {} that are not looked at, for {}: {}", kOrigin, script_,
          engine ? "DeepSpeed's engine is no Trainer's" : "none is of TrainingArguments",
          models::listed(names)));
    else
      set("training-args", arguments.dump(-1, ' ', false, Json::error_handler_t::replace), "");
  }

  // deepspeed.add_config_arguments: --deepspeed as a flag, its file as --deepspeed_config; the
  // engine that it makes is no Trainer's.
  bool config_of_deepspeed(Json& arguments) {
    const auto file = arguments.find("deepspeed_config");
    if (!trainer_.empty() || file == arguments.end() || !file->is_string()) return false;
    set("deepspeed", file->get<std::string>(), "deepspeed_config");
    arguments.erase("deepspeed_config");
    arguments.erase("deepspeed");
    return true;
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
               ? fmt::format("--{} {} beside it: give one of the two", option, shortened(*mine))
               : fmt::format("{} says --{} {}, but --{} {} is given: give one of the two", key,
                             option, shortened(value), option, shortened(*mine)));
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
    const Json include = launched_.value("include", launched_.value("i", Json()));
    if (gpus == 0 && include.is_string()) gpus = included_devices(include.get<std::string>());
    if (gpus > 0) return set_ranks(gpus, number("num_nodes", 1), "--num_gpus");
    if (!options_.has("gpus"))
      refuse("deepspeed takes every GPU that it finds: --num_gpus or --gpus says how many");
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
    if (!trainer_.empty() && !has_file && way == nullptr && !config.contains("distributed_type"))
      return trainer_ranks(config);
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

  // The trainer says how its ranks work together, and in which precision.
  void trainer_ranks(const Json& config) {
    if (config.contains("num_processes"))
      set_ranks(number("num_processes", 1), 1, "--num_processes");
    for (const auto& [name, value] : launched_.items())
      if (name != "num_processes" && name != "num_machines" && name != "m" && name != "module" &&
          name != "multi_gpu")
        options_.add_note(
            fmt::format("{}: --{} is not looked at beside {}", kOrigin, name, script_));
    if (number("num_machines", 1) > 1)
      refuse("--num_machines without a file of accelerate's: --gpus and --gpus-per-node say it");
  }

  static void place(Json& config, const std::string& name, const Json& value) {
    const auto section = section_of_argument(name);
    if (!section) return;
    if (!section->empty())
      config[*section][name] = value;
    else
      config[name == "cpu" ? "use_cpu" : name] = value;
  }

  Line line_;
  Options& options_;
  std::string script_, pushed_, trainer_, toml_, launcher_ = "accelerate";
  Environment variables_;
  Json launched_ = Json::object();
};

}  // namespace

void add_launch_line(const std::vector<std::string>& words, Options& options) {
  if (words.empty()) refuse("a command is missing behind --, as in -- torchrun train.py");
  Reader(words, options).read();
}

}  // namespace plimsoll::tools
