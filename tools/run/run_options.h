// What plimsoll-run is asked to do.
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "models/base/quantity.h"
#include "models/run_spec.h"
#include "tools/cli/options.h"

namespace plimsoll::tools {

// The options that `plimsoll run` hands on.
inline constexpr std::array<Option, 20> kTrainingOptions{{
    {"steps", "N", "Run", "optimizer steps (3)"},
    {"seconds", "S", "Run", "and more steps, until they have taken so long (0)"},
    {"profile", "", "Run", "one step more, timed kernel by kernel"},
    {"seed", "N", "Run", "of weights, dropout and rounding (42)"},
    {"lr", "X", "Run", "learning rate (1e-4)"},
    {"warmup", "N", "Run", "steps over which the learning rate grows from 0 (100)"},
    {"max-norm", "X", "Run",
     "gradients are clipped to it; 0: they are not (1; with --optimizer-in-backward 0)"},
    {"weight-decay", "X", "Run", "(0.01)"},
    {"weights", "FOLDER", "Run", "safetensors to start from (drawn by the seed)"},
    {"adapter", "FOLDERS", "Run",
     "PEFT's adapter to start from (drawn by the seed); of several each takes --steps steps on "
     "the one base, and is saved below its folder's name"},
    {"data", "FILE", "Run", "a text, a .bin of token ids, or synthetic (the shipped text)"},
    {"save-weights", "FOLDER", "Run", "write the trained weights as safetensors"},
    {"save-merged", "FOLDER", "Run", "write the model with its adapters merged, unpacked"},
    {"save-packed", "FOLDER", "Run", "write the packed base as bitsandbytes' checkpoints have it"},
    {"save-checkpoint", "FOLDER", "Run", "write what --resume needs, when the run ends"},
    {"save-every", "N", "Run",
     "and every N steps; the one before stays until the new one is whole"},
    {"resume", "FOLDER", "Run", "go on from its checkpoint; --steps counts those made before"},
    {"poison", "", "Run", "fill memory with NaN at its birth and death"},
    {"timeout", "SECONDS", "Run", "a rank that keeps others waiting longer ends the job (600)"},
    {"html", "FILE", "Output", "write a page with pictures; - for standard output"},
}};

struct RunOptions {
  std::int64_t steps = 3;
  double seconds = 0;  // of the loop, at least
  bool profile = false;
  std::uint64_t seed = 42;
  double learning_rate = 1e-4;
  std::int64_t warmup = 100;  // steps over which the rate grows from nothing
  double max_norm = 1, weight_decay = 0.01;
  std::string weights;  // a folder; "": drawn by the seed
  std::vector<std::string> adapters;  // PEFT's; none: drawn by the seed
  std::string data;  // as runtime/io/tokens.h; "": the shipped text where the vocabulary holds it
  std::string save_weights, save_merged, save_packed;  // folders; "": not saved
  std::string save_checkpoint, resume;  // folders; "": not
  std::int64_t save_every = 0;  // steps; 0: only in the end
  bool poison = false;
  double timeout_seconds = 600;
  std::optional<models::Device> device;  // the plan's
  std::optional<std::int64_t> ranks;  // must be the plan's
  std::optional<Bytes> memory;  // of each rank; the plan's
  bool quiet = false;
  std::set<std::string, std::less<>> given;  // names of those that do not have their default
};
RunOptions run_options_from(const Options& given);

// "a,b": two; a folder whose name has a comma is one.
std::vector<std::string> adapter_folders(const std::string& value);

}  // namespace plimsoll::tools
