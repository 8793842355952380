// Which model of the catalog trains on which GPU, and how: fit, asked in a few usual ways.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/cluster_spec.h"

namespace plimsoll::tools {

struct WayToTrain {
  std::string_view name;
  std::vector<std::pair<std::string_view, std::string_view>> options;  // of fit
};
// All parameters or adapters, on one GPU or eight; at 2048 tokens (or what the model takes), all
// activations recomputed: what has the best chance to fit.
const std::vector<WayToTrain>& ways_to_train();
// "--lora-rank 16 …" of a way.
std::string options_text(const WayToTrain& way);

// For each model, for each way, whether it fits on each GPU; models whose step is not modelled fit
// nowhere. With a progress line on standard error where it takes over a second.
using CatalogFits = std::vector<std::vector<std::vector<bool>>>;
CatalogFits catalog_fits(std::span<const std::string> models, std::span<const models::Gpu> gpus,
                         bool quiet);

}  // namespace plimsoll::tools
