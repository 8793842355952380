// Which parameters are trained: shell patterns over checkpoint names.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "models/model_spec.h"
#include "models/run_spec.h"

namespace plimsoll::models {

// Does the whole `name` match the shell pattern (*, ?, [abc], [a-z], [!abc])? Case matters.
bool wildcard_match(std::string_view pattern, std::string_view name);

struct TrainableRow {
  ParameterRow row;  // a row of the table, or the instances of one that share their fate
  bool trainable;
};

// The parameter table, each row split where a pattern tells its instances apart
// ("model.layers.0.*"). All are trained, less what `freeze` matches, plus what `train` matches;
// with `train` alone, only what it matches. Rows without a gradient are never trained; a tied row
// follows its owner and is matched through the owner's name. Error{bad_input}: a pattern that
// matches nothing.
std::vector<TrainableRow> trainable_rows(const ModelSpec& model,
                                         const std::vector<std::string>& freeze,
                                         const std::vector<std::string>& train);

// Of a strategy: adapters freeze the base but for what its `train` and modules_to_save name.
std::vector<TrainableRow> trainable_rows(const ModelSpec& model, const Strategy& strategy);

Count trainable_parameter_count(const std::vector<TrainableRow>& rows);

}  // namespace plimsoll::models
