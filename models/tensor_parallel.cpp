#include "models/tensor_parallel.h"

#include <algorithm>
#include <string>

#include "models/decisions/layer_modules.h"
#include "models/run_names.h"

namespace plimsoll::models {

namespace {

// Read the axis that others were divided along, and sum over it.
constexpr std::string_view kRowwise[] = {"o_proj", "down_proj"};

// Which axis of a row's tensor is divided; none: each rank has all of it.
std::optional<std::size_t> divided_axis(const ParameterRow& row) {
  if (row.module == ModuleKind::norm) return std::nullopt;
  if (row.module != ModuleKind::linear) return 0;
  const std::string_view module = decisions::parameter_name(row.name).module;
  return std::ranges::any_of(kRowwise, [&](std::string_view n) { return module.ends_with(n); });
}

struct Parts {
  const ModelSpec& model;
  std::int64_t ranks;

  std::int64_t of(std::int64_t length, ErrorKind kind, const char* what) const {
    check(length % ranks == 0, kind, [&] {
      return "--tp " + std::to_string(ranks) + ": " + model.name + " has " +
             std::to_string(length) + " " + what;
    });
    return length / ranks;
  }
};

}  // namespace

ModelSpec divided(const ModelSpec& model, const Strategy& strategy) {
  const auto forward = std::ranges::find(model.other_forwards, strategy.code, &OtherForward::code);
  check(forward != model.other_forwards.end() && forward->divided != nullptr,
        ErrorKind::unsupported, [&] {
          return "--tp " + std::to_string(strategy.tp) +
                 " is modelled for torchtitan's Llama alone (--model-code torchtitan@2024-12 or "
                 "torchtitan@0.2.2), not for " +
                 model.model_type + " of " + std::string(name_of(strategy.code));
        });
  const Parts parts{model, strategy.tp};
  constexpr ErrorKind kFails = ErrorKind::bad_input, kUneven = ErrorKind::unsupported;
  constexpr const char* kUnevenVocabulary =
      "tokens, which do not divide: parts of unequal length are not modelled";
  ModelSpec own = model;
  OtherForward mine = *forward;
  Decoder& d = mine.decoder;
  d.sequence_parts = strategy.tp;
  d.heads = parts.of(d.heads, kFails, "heads of attention, which do not divide");
  d.kv_heads = parts.of(d.kv_heads, kFails, "heads of keys and values, which do not divide");
  d.ffn = parts.of(d.ffn, kUneven,
                   "values inside its MLP, which do not divide: parts of unequal length are not "
                   "modelled");
  d.vocab = parts.of(d.vocab, kUneven, kUnevenVocabulary);
  for (ParameterRow& row : own.parameters)
    if (const auto axis = divided_axis(row)) row.shape.axes[*axis] /= strategy.tp;
  mine.blocks = {std::make_shared<const Block>(mine.divided(own.parameters, d))};
  own.other_forwards = {std::move(mine)};
  return own;
}

}  // namespace plimsoll::models
