#include "models/initial_values.h"

#include <cmath>

namespace plimsoll::models {

namespace {
bool is_embedding_adapter(const LoraModule& module) {
  return module.a.name.ends_with(".lora_embedding_A");
}
}  // namespace

InitialValues initial_values(const ModelSpec& model, const ParameterRow& row) {
  check(model.numerics.has_value(), ErrorKind::unsupported,
        [&] { return model.name + ": no rule to draw its weights from: " + model.no_numerics; });
  const Initialization& rule = model.numerics->initialization;
  const bool weight = row.name.ends_with("weight");
  if (row.module == ModuleKind::norm)
    return {.kind = weight && rule.norm_weight == 1 ? InitialKind::ones : InitialKind::zeros};
  if (!weight) return {.kind = InitialKind::zeros};
  // Only a family that divides has a divisor, and these are its names.
  const bool residual = row.name.ends_with(".c_proj.weight");
  InitialValues values{.kind = InitialKind::normal,
                       .spread = rule.deviation / (residual ? rule.residual_divisor : 1)};
  if (row.module == ModuleKind::embedding) values.zero_row = rule.padding_row;
  return values;
}

InitialValues initial_lora_a(const LoraModule& module) {
  if (is_embedding_adapter(module)) return {};
  // Of a convolution, "in" is all that one output sees.
  std::int64_t in = 1;
  for (int axis = 1; axis < module.a.shape.rank; ++axis)
    in = checked_multiply(in, module.a.shape.axes[static_cast<std::size_t>(axis)]);
  return {.kind = InitialKind::uniform, .spread = 1 / std::sqrt(static_cast<double>(in))};
}

InitialValues initial_lora_b(const LoraModule& module) {
  if (!is_embedding_adapter(module)) return {};
  return {.kind = InitialKind::normal, .spread = 1};
}

}  // namespace plimsoll::models
