#include "models/checkpoint_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <span>
#include <unordered_map>
#include <unordered_set>

namespace plimsoll::models {

namespace {
constexpr std::int64_t kMostTensors = 4'000'000;

using Names = std::unordered_map<std::string, std::size_t>;  // tensor -> row of the table

Names expected_names(const ModelSpec& model) {
  std::int64_t total = 0;
  for (const ParameterRow& row : model.parameters) total = checked_add(total, row.instances());
  check(total <= kMostTensors, ErrorKind::bad_input, [&] {
    return fmt::format("{}: {} tensors are too many to compare one by one", model.name, total);
  });
  Names names;
  names.reserve(static_cast<std::size_t>(total));
  for (std::size_t i = 0; i < model.parameters.size(); ++i)
    for (std::string& name : tensor_names(model.parameters[i])) names.emplace(std::move(name), i);
  return names;
}

bool is_digit(char c) {
  return std::isdigit(static_cast<unsigned char>(c)) != 0;
}

// "h.11.attn.bias" -> "h.{}.attn.bias": whole parts that are numbers.
std::string pattern_of(const std::string& name) {
  std::string out;
  for (std::size_t i = 0; i < name.size();) {
    const bool starts = i == 0 || name[i - 1] == '.';
    std::size_t end = i;
    while (starts && end < name.size() && is_digit(name[end])) ++end;
    if (end > i && (end == name.size() || name[end] == '.')) {
      out += "{}";
      i = end;
    } else {
      out += name[i++];
    }
  }
  return out;
}

bool ends_with_any(std::string_view name, std::initializer_list<std::string_view> suffixes) {
  return std::ranges::any_of(suffixes, [&](std::string_view s) { return name.ends_with(s); });
}

// How names of the file become names of the table: a prefix taken off, another put on.
struct Renaming {
  std::string_view strip, add;
};

std::string renamed(const std::string& name, const Renaming& renaming, const Names& expected) {
  std::string out = name;
  // BERT's first checkpoints, converted from TensorFlow.
  if (out.ends_with("LayerNorm.gamma")) out.replace(out.size() - 5, 5, "weight");
  if (out.ends_with("LayerNorm.beta")) out.replace(out.size() - 4, 4, "bias");
  if (expected.contains(out)) return out;
  if (!out.starts_with(renaming.strip)) return out;
  const std::string other = std::string(renaming.add) + out.substr(renaming.strip.size());
  return expected.contains(other) || !renaming.strip.empty() ? other : out;
}

Renaming best_renaming(const Checkpoint& checkpoint, const Names& expected) {
  static constexpr std::array<std::string_view, 8> kBases{
      "model.", "transformer.", "bert.", "roberta.", "gpt_neox.", "vit.", "decoder.", "encoder."};
  std::vector<Renaming> candidates{{"", ""},
                                   {"language_model.", ""},
                                   {"model.language_model.", "model."},
                                   {"model.text_model.", "model."}};
  for (const std::string_view base : kBases) {
    candidates.push_back({base, ""});
    candidates.push_back({"", base});
  }
  Renaming best{};
  std::size_t most = 0;
  for (const Renaming& candidate : candidates) {
    std::size_t matches = 0;
    for (const StoredTensor& tensor : checkpoint.tensors)
      matches += expected.contains(renamed(tensor.name, candidate, expected)) ? 1 : 0;
    if (matches <= most) continue;
    most = matches;
    best = candidate;
  }
  return best;
}

// The module that packed weights and their companions belong to; "" for any other tensor.
// Names of GPTQ, AWQ, bitsandbytes, compressed-tensors, FP8 and MXFP4 checkpoints.
std::string quantized_base(const std::string& name) {
  for (const std::string_view suffix :
       {".qweight", ".qzeros", ".scales", ".g_idx", ".weight_packed", ".weight_scale_inv",
        ".weight_scale_2", ".weight_scale", ".weight_zero_point", ".weight_shape", ".input_scale",
        ".SCB", ".weight_format", "_blocks", "_scales", ".k_scale", ".v_scale"})
    if (name.ends_with(suffix)) return name.substr(0, name.size() - suffix.size());
  for (const std::string_view part :
       {".weight.absmax", ".weight.quant_map", ".weight.quant_state", ".weight.nested_"})
    if (const std::size_t at = name.find(part); at != std::string::npos) return name.substr(0, at);
  return "";
}

bool is_packed_dtype(std::string_view dtype) {
  return ends_with_any(dtype, {"U8", "I8", "I32", "F4"}) || dtype.starts_with("F8");
}

bool is_mask(const StoredTensor& tensor, bool has_shapes) {
  if (!ends_with_any(tensor.name,
                     {"attn.bias", "attn.masked_bias", "attention.bias", "attention.masked_bias"}))
    return false;
  const std::size_t rank = tensor.shape.size();
  if (!has_shapes || tensor.elements() == Count(1)) return true;
  return rank >= 2 && tensor.shape[rank - 1] == tensor.shape[rank - 2];
}

bool is_other_part(const std::string& name) {
  if (name.find("EncDecAttention.relative_attention_bias") != std::string::npos) return true;
  for (const std::string_view part :
       {"cls.", "lm_head.", "score.", "classifier.", "qa_outputs.", "pooler.", "vision_tower.",
        "vision_model.", "visual.", "multi_modal_projector.", "mm_projector.", "audio_tower."})
    for (std::size_t at = name.find(part); at != std::string::npos; at = name.find(part, at + 1))
      if (at == 0 || name[at - 1] == '.') return true;
  return false;
}

class Comparison {
 public:
  Comparison(const ModelSpec& model, const Checkpoint& checkpoint)
      : model_(model), checkpoint_(checkpoint), expected_(expected_names(model)) {}

  CheckpointCheck run() {
    renaming_ = best_renaming(checkpoint_, expected_);
    for (std::size_t i = 0; i < checkpoint_.tensors.size(); ++i) place(i);
    for (const auto& [name, index] : expected_) look_for(name, model_.parameters[index]);
    CheckpointCheck result;
    result.model_parameters = model_.parameter_count();
    if (checkpoint_.has_shapes) result.stored_elements = checkpoint_.elements();
    result.differences = differences();
    result.matches = std::move(matches_);
    Count explained = result.model_parameters;
    for (const Difference& difference : result.differences) explained += difference.elements;
    if (checkpoint_.has_shapes) result.unexplained = result.stored_elements - explained;
    return result;
  }

 private:
  void note(DifferenceKind kind, const std::string& name, Count elements) {
    Difference& difference = found_[{kind, pattern_of(name)}];
    ++difference.tensors;
    difference.elements += elements;
  }

  Count stored(const StoredTensor& tensor) const {
    return checkpoint_.has_shapes ? tensor.elements() : Count(0);
  }

  void place(std::size_t index) {
    const StoredTensor& tensor = checkpoint_.tensors[index];
    const std::string name = renamed(tensor.name, renaming_, expected_);
    renamed_ += name != tensor.name && expected_.contains(name) ? 1 : 0;
    const auto it = expected_.find(name);
    if (it != expected_.end()) {
      seen_.insert(name);
      matches_.push_back({.parameter = name, .row = it->second, .tensor = index});
      compare(tensor, model_.parameters[it->second]);
      return;
    }
    const std::string base = quantized_base(name);
    if (!base.empty()) {
      packed_.insert(base);
      packed_.insert(base + ".weight");
    }
    note(kind_of(tensor, name, !base.empty()), tensor.name, stored(tensor));
  }

  void compare(const StoredTensor& tensor, const ParameterRow& row) {
    if (row.tied) {
      note(DifferenceKind::tied_copy, tensor.name, stored(tensor));
      return;
    }
    if (!checkpoint_.has_shapes) return;
    const auto& axes = row.shape.axes;
    if (std::ranges::equal(tensor.shape,
                           std::span(axes).first(static_cast<std::size_t>(row.shape.rank)))) {
      if (!row.dtype) ++dtypes_[tensor.dtype];
      return;
    }
    const bool packed = is_packed_dtype(tensor.dtype) || has_quant_state(tensor.name);
    note(packed ? DifferenceKind::quantized : DifferenceKind::shape, tensor.name,
         tensor.elements() - row.shape.elements());
  }

  // bitsandbytes holds codes in what bnb_4bit_quant_storage says, 16-bit types too.
  bool has_quant_state(const std::string& name) const {
    const std::string state = name + ".quant_state.";
    const auto& tensors = checkpoint_.tensors;  // sorted by name
    const auto at = std::ranges::lower_bound(tensors, state, {}, &StoredTensor::name);
    return at != tensors.end() && at->name.starts_with(state);
  }

  DifferenceKind kind_of(const StoredTensor& tensor, const std::string& name, bool quantized) {
    if (beyond_layers(name)) return DifferenceKind::more_layers;
    if (quantized) return DifferenceKind::quantized;
    if (is_mask(tensor, checkpoint_.has_shapes)) return DifferenceKind::mask_buffer;
    if (ends_with_any(name, {"inv_freq", "rotary_emb.cos_cached", "rotary_emb.sin_cached"}))
      return DifferenceKind::rotary_buffer;
    if (name.ends_with("position_ids")) return DifferenceKind::index_buffer;
    if (is_other_part(name)) return DifferenceKind::other_part;
    return DifferenceKind::extra;
  }

  // "model.layers.61.…" where the rows of "model.layers." end at 60.
  bool beyond_layers(const std::string& name) const {
    for (const ParameterRow& row : model_.parameters) {
      const std::size_t at = row.name.find("{}");
      if (at == std::string::npos || name.compare(0, at, row.name, 0, at) != 0) continue;
      std::size_t end = at;
      while (end < name.size() && end - at < 9 && is_digit(name[end])) ++end;
      if (end == at) continue;
      const std::int64_t index = std::stoll(name.substr(at, end - at));
      if (index < layer_count(row.name.substr(0, at))) return false;
      return true;
    }
    return false;
  }

  std::int64_t layer_count(const std::string& prefix) const {
    std::int64_t count = 0;
    for (const ParameterRow& row : model_.parameters)
      if (row.name.starts_with(prefix + "{}"))
        count = std::max(count,
                         row.ranges[0].first + (row.ranges[0].count - 1) * row.ranges[0].step + 1);
    return count;
  }

  void look_for(const std::string& name, const ParameterRow& row) {
    if (row.tied || seen_.contains(name)) return;
    const bool packed = packed_.contains(name);
    note(packed ? DifferenceKind::quantized : DifferenceKind::missing, name,
         checkpoint_.has_shapes ? Count(0) - row.shape.elements() : Count(0));
  }

  std::string text_of(const Difference& d) const;

  std::vector<Difference> differences() {
    if (renamed_ > 0) {
      Difference& naming = found_[{DifferenceKind::naming, std::string(renaming_.strip) + "*"}];
      naming.tensors = renamed_;
    }
    for (const auto& [dtype, tensors] : dtypes_)
      if (model_.checkpoint_dtype && dtype_from(dtype) != model_.checkpoint_dtype)
        found_[{DifferenceKind::dtype, dtype}].tensors = tensors;
    std::vector<Difference> out;
    for (auto& [key, difference] : found_) {
      difference.kind = key.first;
      difference.pattern = key.second;
      difference.text = text_of(difference);
      out.push_back(difference);
    }
    return out;
  }

  const ModelSpec& model_;
  const Checkpoint& checkpoint_;
  const Names expected_;
  Renaming renaming_{};
  std::int64_t renamed_ = 0;
  std::vector<Match> matches_;
  std::unordered_set<std::string> seen_, packed_;
  std::map<std::string, std::int64_t> dtypes_;  // of tensors that match in shape
  std::map<std::pair<DifferenceKind, std::string>, Difference> found_;
};

std::string Comparison::text_of(const Difference& d) const {
  std::string which = fmt::format("{} x {}", d.tensors, d.pattern);
  const std::string count = checkpoint_.has_shapes && d.elements != Count(0)
                                ? fmt::format(" ({:+} elements)", d.elements.value())
                                : "";
  switch (d.kind) {
    case DifferenceKind::naming:
      return fmt::format("{} names were matched after '{}' became '{}'", d.tensors, renaming_.strip,
                         renaming_.add);
    case DifferenceKind::mask_buffer:
      return which + ": causal masks stored beside the weights, not parameters" + count;
    case DifferenceKind::rotary_buffer:
      return which + ": rotary frequencies stored beside the weights, not parameters" + count;
    case DifferenceKind::index_buffer:
      return which + ": position indices stored beside the weights, not parameters" + count;
    case DifferenceKind::tied_copy:
      return which + ": a tied tensor stored a second time, counted once" + count;
    case DifferenceKind::quantized:
      return which + ": packed weights or their scales" + count;
    case DifferenceKind::other_part:
      return which + ": of a part that " + model_.architecture + " does not have" + count;
    case DifferenceKind::more_layers:
      return which + ": beyond the config's last layer, not loaded" + count;
    case DifferenceKind::dtype:
      return fmt::format("{} tensors are stored as {}, the config says {}", d.tensors, d.pattern,
                         name_of(*model_.checkpoint_dtype));
    case DifferenceKind::missing:
      return which + ": in the model, not in the checkpoint" + count;
    case DifferenceKind::extra:
      return which + ": in the checkpoint, not in the model" + count;
    case DifferenceKind::shape:
      return which + ": another shape than the config gives" + count;
  }
  return which;
}
}  // namespace

std::string_view name_of(DifferenceKind kind) {
  constexpr std::array<std::string_view, 12> names{
      "naming",     "mask buffer", "rotary buffer", "index buffer", "tied copy", "quantized",
      "other part", "more layers", "dtype",         "missing",      "extra",     "shape"};
  return names[static_cast<std::size_t>(kind)];
}

bool CheckpointCheck::agrees() const {
  return unexplained == Count(0) && std::ranges::none_of(differences, [](const Difference& d) {
           return d.kind == DifferenceKind::missing || d.kind == DifferenceKind::extra ||
                  d.kind == DifferenceKind::shape;
         });
}

CheckpointCheck check_checkpoint(const ModelSpec& model, const Checkpoint& checkpoint) {
  return Comparison(model, checkpoint).run();
}

}  // namespace plimsoll::models
