// Linears that another program's code keeps as one (models/model_spec.h, JoinedModules).
#pragma once

#include <string>
#include <vector>

#include "models/lora.h"
#include "models/trainable.h"
#include "planner/model_parts.h"

namespace plimsoll::planner {

// The table with joined rows in place of their parts'; with `own_head` a tied head's is its own.
std::vector<models::TrainableRow> joined_rows(std::vector<models::TrainableRow> rows,
                                              const models::OtherForward* forward);

// An adapter in the layer's own terms.
struct PlacedAdapter {
  models::LoraModule module;
  std::string name;  // of the linear in its layer; outside of layers its whole name
  JoinedAdapter joined;
};
std::vector<PlacedAdapter> placed_adapters(const models::ModelSpec& model, const models::Lora& lora,
                                           const models::OtherForward* forward);

}  // namespace plimsoll::planner
