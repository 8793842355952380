// What plimsoll-run is asked to do.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "models/base/quantity.h"
#include "models/run_spec.h"
#include "tools/cli/options.h"

namespace plimsoll::tools {

// The options that `plimsoll run` hands on.
std::span<const Option> training_options();

struct RunOptions {
  std::int64_t steps = 3;
  std::uint64_t seed = 42;
  double learning_rate = 1e-4;
  std::int64_t warmup = 100;  // steps over which the rate grows from nothing
  std::string weights;  // a folder; "": drawn by the seed
  std::string adapter;  // PEFT's; "": drawn by the seed
  std::string data;  // as runtime/io/tokens.h; "": the shipped text where the vocabulary holds it
  std::string save_weights;  // a folder; "": not saved
  bool poison = false;
  double timeout_seconds = 600;
  std::optional<models::Device> device;  // the plan's
  std::optional<std::int64_t> ranks;  // must be the plan's
  std::optional<Bytes> memory;  // of each rank; the plan's
  bool quiet = false;
};
RunOptions run_options_from(const Options& given);

}  // namespace plimsoll::tools
