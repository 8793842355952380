// A decoder layer's parameters, as rows of the table become those of its modules.
#pragma once

#include <optional>

#include "models/model_spec.h"
#include "planner/model_parts.h"

namespace plimsoll::planner {

// The block's modules, without parameters.
LayerPart part_of(const models::Block& block);
Parameter parameter_of(const models::Shape& shape, bool trainable);
// Which of the block's nodes uses it.
int node_of(const models::Block& block, const models::Module& module);
// A row's parameters of one layer. Error{unsupported}: no op reads them, or experts that are one
// parameter would be trained in part; Error{bad_input}: what --quantize cannot pack.
void add_to_layer(LayerPart& layer, const models::ParameterRow& row, bool trainable,
                  const std::optional<models::Quantization>& quantize);
// As named_parameters() lists them: the table has one row for all experts.
void order_by_module(LayerPart& layer);

}  // namespace plimsoll::planner
