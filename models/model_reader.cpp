#include "models/model_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "models/base/nearest.h"
#include "models/base/utf8.h"
#include "models/checkpoint_check.h"
#include "models/config_reader.h"
#include "models/safetensors_reader.h"
#include "models/table/family.h"
#include "models/table/table.h"

namespace plimsoll::models {

namespace {
using families::Family;

// Config files are a few kilobytes; label maps reach some megabytes.
constexpr std::int64_t kMostConfigBytes = 64 << 20;

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  return std::ranges::equal(
      a, b, [](unsigned char x, unsigned char y) { return std::tolower(x) == std::tolower(y); });
}

std::string joined(const std::vector<std::string_view>& names) {
  std::string out;
  for (const std::string_view name : names) out.append(out.empty() ? "" : ", ").append(name);
  return out;
}

std::string suggestion(std::string_view model_type) {
  const std::vector<std::string_view> names = families::family_names();
  const std::string near = nearest(model_type, names);
  return near.empty() ? "" : fmt::format("; did you mean '{}'?", near);
}

Family family_of(const Config& config, const ReadOptions& options) {
  if (!options.assume.empty()) {
    const auto* entry = families::find_family(options.assume);
    check(entry != nullptr, ErrorKind::bad_input, [&] {
      return fmt::format("--assume {}: not a known model_type{} (known: {})", options.assume,
                         suggestion(options.assume), joined(families::family_names()));
    });
    return entry->make();
  }
  const std::string type = config.text("model_type", "");
  if (type.empty()) config.refuse("model_type", "the name of a model family (or --assume llama)");
  const auto* entry = families::find_family(type);
  check(entry != nullptr, ErrorKind::unsupported, [&] {
    return fmt::format("{}: model_type '{}' is not known{} (--assume llama reads it as llama)",
                       config.source(), shortened(type), suggestion(type));
  });
  return entry->make();
}

// The architecture that the config names, if the family has it. With --assume the class may have
// any name, and the family's first one stands for it.
const families::Architecture& architecture_of(const Config& config, const Family& family,
                                              const ReadOptions& options) {
  const std::vector<std::string> named = config.texts("architectures", 16);
  if (named.empty()) return family.architectures.front();
  for (const families::Architecture& known : family.architectures)
    if (known.name == named.front()) return known;
  for (const families::Architecture& known : family.architectures)
    if (equal_ignoring_case(known.name, named.front())) return known;
  if (!options.assume.empty()) return family.architectures.front();
  std::vector<std::string_view> known;
  known.reserve(family.architectures.size());
  for (const families::Architecture& a : family.architectures) known.push_back(a.name);
  fail(ErrorKind::unsupported,
       fmt::format("{}: architecture '{}' of model_type '{}' is not known (known: {})",
                   config.source(), shortened(named.front()), family.model_type, joined(known)));
}

std::optional<DType> dtype_of(const Config& config) {
  const std::string name = config.text({"dtype", "torch_dtype"}, "");
  return dtype_from(name);
}

// The text part of a multimodal config, where only that part is of a known family.
std::optional<Config> text_part(const Config& config, const ReadOptions& options) {
  if (!options.assume.empty() || families::find_family(config.text("model_type", "")) != nullptr)
    return std::nullopt;
  std::optional<Config> text = config.section("text_config");
  if (!text || families::find_family(text->text("model_type", "")) == nullptr) return std::nullopt;
  return text;
}

// A config for a model's own code may keep its sizes under names that the family of that
// model_type does not read; its defaults would then be a guess dressed as an answer.
void check_sizes_were_read(const Config& config, std::string_view model_type) {
  constexpr std::array<std::array<const char*, 7>, 2> kGroups{
      {{"hidden_size", "n_embd", "n_embed", "d_model", "dim", "hidden_dim", "model_dim"},
       {"num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "n_blocks",
        "depth"}}};
  for (const auto& group : kGroups) {
    const char* unread = nullptr;
    bool read = false;
    for (const char* key : group) {
      const bool was_read = config.was_read(key);
      read |= was_read;
      if (!was_read && config.mentions(key)) unread = key;
    }
    check(read || unread == nullptr, ErrorKind::unsupported, [&] {
      return fmt::format(
          "{}: '{}' is not a size of model_type '{}' in Transformers (a config for custom code?)",
          config.source(), unread, model_type);
    });
  }
}

// What Transformers would fill in with its class's defaults is another model: LlamaConfig() is
// Llama 7B. One of each group must be there, where the family reads it.
constexpr std::array<std::array<const char*, 6>, 7> kSizes{{
    {"hidden_size", "n_embd", "n_embed", "d_model"},
    {"num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers"},
    {"num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads"},
    {"vocab_size"},
    {"intermediate_size"},
    {"num_local_experts", "num_experts", "n_routed_experts"},
    {"moe_intermediate_size"},
}};

std::vector<std::string> sizes_left_out(const Config& config) {
  std::vector<std::string> out;
  for (const auto& group : kSizes) {
    std::string missed;  // under all names that the family knows
    bool read = false;
    for (const char* key : group) {
      if (key == nullptr) break;
      read |= config.was_read(key);
      if (config.was_missed(key)) missed += (missed.empty() ? "" : " or ") + std::string(key);
    }
    if (!read && !missed.empty()) out.push_back(std::move(missed));
  }
  return out;
}

// transformers/activations.py, ACT2FN.
void check_activation(const Config& config, const char* key) {
  constexpr std::array<std::string_view, 24> kKnown{"gelu",
                                                    "gelu_10",
                                                    "gelu_accurate",
                                                    "gelu_fast",
                                                    "gelu_new",
                                                    "gelu_python",
                                                    "gelu_python_tanh",
                                                    "gelu_pytorch_tanh",
                                                    "hardswish",
                                                    "laplace",
                                                    "leaky_relu",
                                                    "linear",
                                                    "mish",
                                                    "prelu",
                                                    "quick_gelu",
                                                    "relu",
                                                    "relu2",
                                                    "relu6",
                                                    "sigmoid",
                                                    "silu",
                                                    "sqrtsoftplus",
                                                    "swish",
                                                    "tanh",
                                                    "xielu"};
  if (!config.has(key)) return;
  const std::string name = config.text(key, "");
  if (std::ranges::find(kKnown, name) != kKnown.end()) return;
  const std::string near = nearest(name, kKnown);
  config.refuse(key, near.empty() ? "an activation of Transformers, such as gelu or silu,"
                                  : "an activation of Transformers (did you mean '" + near + "'?)");
}

// A config that cannot be run can still be planned.
void read_numerics(const Config& config, const Family& family, ModelSpec& model) {
  if (!model.decoder) {
    model.no_numerics = model.no_decoder.empty() ? "the layers of model_type '" + model.model_type +
                                                       "' are not known to it"
                                                 : model.no_decoder;
    return;
  }
  if (family.numerics == nullptr) {
    model.no_numerics = "no numbers are read for model_type '" + model.model_type + "'";
    return;
  }
  try {
    model.numerics = family.numerics(config, model);
  } catch (const Error& error) {
    model.no_numerics = error.message();
  }
}

// `part`: of a multimodal config, whose nested configs name what differs from their class only.
// A classifier's logits are neither scaled nor capped, and its head has a matrix of its own. Other
// losses than cross entropy are not modelled (loss/loss_utils.py, ForSequenceClassificationLoss).
void classify(const Config& config, ModelSpec& model) {
  const std::int64_t labels = families::labels(config);
  const std::string kind = config.text("problem_type", "");
  const bool other = !kind.empty() && kind != "single_label_classification";
  if (labels == 1 || other) {
    model.no_decoder = other ? "problem_type '" + kind + "'" : "num_labels 1: a regression's loss";
    model.decoder.reset();
    return;
  }
  const auto set = [&](Decoder& decoder) {
    decoder.labels = labels;
    decoder.tied_head = decoder.scaled_logits = false;
    decoder.soft_capped_logits = decoder.low_loss_once = false;
  };
  set(*model.decoder);
  std::erase_if(model.other_forwards,
                [](const OtherForward& of) { return of.code != ModelCode::transformers; });
  for (OtherForward& of : model.other_forwards) set(of.decoder);
}

ModelSpec build(const Config& config, const ReadOptions& options, bool part) {
  const Family family = family_of(config, options);
  const families::Architecture& architecture = architecture_of(config, family, options);
  ModelSpec model;
  model.model_type = family.model_type;
  model.architecture = architecture.name;
  model.checkpoint_dtype = dtype_of(config);
  family.build(config, architecture.head, model);
  if (model.decoder && architecture.head == families::Head::sequence_classification)
    classify(config, model);
  read_numerics(config, family, model);
  check_sizes_were_read(config, family.model_type);
  check_activation(config, "hidden_act");
  check_activation(config, "activation_function");
  (void)model.parameter_count();  // throws where it overflows
  const std::vector<std::string> left_out = sizes_left_out(config);
  const std::vector<std::string_view> missing(left_out.begin(), left_out.end());
  if (!missing.empty() && !part)
    fail(ErrorKind::bad_input,
         fmt::format("{}: {} is missing: a config must state its sizes (Transformers would fill in "
                     "the defaults of {}, which are another model's)",
                     config.source(), joined(missing), family.model_type));
  if (!missing.empty())
    model.notes.push_back(fmt::format("{} of text_config: the defaults of {}, as in Transformers",
                                      joined(missing), family.model_type));
  if (config.has("quantization_config"))
    model.notes.push_back("quantization_config is not applied: parameters are counted unpacked");
  return model;
}

void add_checkpoint_notes(ModelSpec& model, const std::filesystem::path& folder) {
  if (const std::optional<std::string> pointer = lfs_pointer_in(folder)) {
    model.notes.push_back(*pointer +
                          " is a Git LFS pointer (git lfs pull brings the weights): not compared");
    return;
  }
  if (const std::optional<Checkpoint> checkpoint = find_checkpoint(folder))
    compare_with_checkpoint(model, *checkpoint);
}
}  // namespace

// The sum first, then what explains it; a checkpoint that is just the model needs no words.
void compare_with_checkpoint(ModelSpec& model, const Checkpoint& checkpoint) {
  constexpr std::size_t kMostNotes = 16;
  const CheckpointCheck result = check_checkpoint(model, checkpoint);
  if (result.differences.empty()) return;
  const std::string what = result.agrees() ? "holds this model" : "does not hold this model";
  if (checkpoint.has_shapes)
    model.notes.push_back(fmt::format("{} {}: {} elements stored, {} parameters", checkpoint.source,
                                      what, result.stored_elements.value(),
                                      result.model_parameters.value()));
  else
    model.notes.push_back(
        fmt::format("{} {} (compared by name: its files are not there)", checkpoint.source, what));
  for (std::size_t i = 0; i < std::min(kMostNotes, result.differences.size()); ++i)
    model.notes.push_back(result.differences[i].text);
  if (result.differences.size() > kMostNotes)
    model.notes.push_back(
        fmt::format("and {} more differences", result.differences.size() - kMostNotes));
}

std::string classifier_of(std::string_view model_type) {
  const families::FamilyEntry* entry = families::find_family(model_type);
  if (entry == nullptr) return "";
  for (const families::Architecture& of : entry->make().architectures)
    if (of.head == families::Head::sequence_classification) return of.name;
  return "";
}

ModelSpec read_model(std::string_view config_text, std::string name, std::string source,
                     const ReadOptions& options) {
  const Config config = Config::parse(config_text, std::move(source));
  const std::optional<Config> text = text_part(config, options);
  ModelSpec model;
  try {
    model = build(text ? *text : config, options, text.has_value());
  } catch (const Error& error) {
    // Arithmetic does not know the file that its operands came from.
    if (error.message().starts_with("overflow"))
      fail(error.kind(), fmt::format("{}: {}", config.source(), error.message()), error.where());
    throw;
  }
  if (text) {
    if (!model.checkpoint_dtype) model.checkpoint_dtype = dtype_of(config);
    model.notes.push_back(
        fmt::format("only text_config ({}) of the {} model is modelled: its other parts are not "
                    "counted",
                    model.model_type, config.text("model_type", "multimodal")));
  }
  model.name = std::move(name);
  return model;
}

DropoutKeys dropout_keys(std::string_view config_text, std::string source,
                         const ReadOptions& options) {
  const Config config = Config::parse(config_text, std::move(source));
  const std::optional<Config> text = text_part(config, options);
  const Config& read = text ? *text : config;
  (void)build(read, options, text.has_value());
  return {.part = text ? "text_config" : "",
          .names = {read.probabilities().begin(), read.probabilities().end()}};
}

ModelSpec model_from_path(const std::filesystem::path& path, const ReadOptions& options) {
  namespace fs = std::filesystem;
  std::error_code error;
  const bool folder = fs::is_directory(path, error);
  const fs::path file = folder ? path / "config.json" : path;
  check(!folder || fs::exists(file, error), ErrorKind::bad_input,
        [&] { return path.string() + ": a folder without a config.json"; });
  ModelSpec model = read_model(read_text_file(file.string(), kMostConfigBytes), path.string(),
                               file.string(), options);
  add_checkpoint_notes(model, file.parent_path());
  return model;
}

}  // namespace plimsoll::models
