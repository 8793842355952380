// A published run as a golden file describes it: model, strategy, batch. Keys are those of
// tests/golden/throughput.json and tests/golden/published_memory.json.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "models/model_spec.h"
#include "models/run_spec.h"

namespace plimsoll::tests {

models::ModelSpec published_model(const nlohmann::json& row);
models::Strategy published_strategy(const nlohmann::json& row);
models::Batch published_batch(const nlohmann::json& row);
// The same question as a user types it; MODEL.json where the row brings a configuration.
std::string published_command(const nlohmann::json& row);

}  // namespace plimsoll::tests
