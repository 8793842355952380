// A decoder layer's parameters, as rows of the table become those of its modules.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "models/decisions/layer_modules.h"
#include "models/model_spec.h"
#include "planner/model_parts.h"

namespace plimsoll::planner {

// The block's modules, without parameters.
LayerPart part_of(const models::Block& block);
Parameter parameter_of(const models::Shape& shape, bool trainable);
// Which of the block's nodes uses it.
int node_of(const models::Block& block, const models::Module& module);
// Of a loop's experts: the module that `weight` ("….experts.{}.w1.weight") names, expert by expert.
template <class Do>
void for_each_expert(const models::Block& block, std::string_view weight,
                     const models::IndexRange& experts, Do&& act) {
  const std::string first = models::decisions::expert_module(weight, 0);
  const auto at = &models::decisions::layer_module(block, first) - block.modules.data();
  for (std::int64_t i = 0; i < experts.count; ++i)
    act(block.modules[static_cast<std::size_t>(at + (experts.first + i * experts.step) *
                                                        block.loop.modules)]);
}
// A row's parameters of one layer. Error{unsupported}: no op reads them, or experts that are one
// parameter would be trained in part; Error{bad_input}: what --quantize cannot pack.
void add_to_layer(LayerPart& layer, const models::ParameterRow& row, bool trainable,
                  const std::optional<models::Quantization>& quantize);
// What --quantize makes of a linear's weight. Packed GPT-2's Conv1D is a linear module.
Parameter pack(LinearPart& part, Parameter weight, const models::ParameterRow& row,
               const models::Quantization& how);
// As named_parameters() lists them: the table has one row for all experts.
void order_by_module(LayerPart& layer);
// Neighbouring layers that repeat the model's pattern of blocks, and stand alike to what is trained
// below them. What is left at the end, or is frozen in another way, makes a run of its own. `grad`:
// something in front of the layers is trained; `period`: of how many the pattern is.
void find_runs(ModelParts& parts, const std::vector<LayerPart>& layers, bool grad,
               std::size_t period);
// Makes runs of layers that are all checkpoints, or none, in the midst of a pattern too.
void split_at_checkpoints(ModelParts& parts, const models::Recompute& recompute);

}  // namespace plimsoll::planner
