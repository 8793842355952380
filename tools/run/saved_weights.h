// Trained weights as files.
#pragma once

#include <span>
#include <string>

#include "runtime/model.h"
#include "tools/run/job.h"
#include "tools/run/run_options.h"

namespace plimsoll::tools {

enum class SavedAs : std::uint8_t {
  // What was trained: the model, with masters in fp32 where there are some; of a model with
  // adapters
  // adapter_model.safetensors alone.
  trained,
  // The model with its adapters' products added, in what it computes in; packed weights are
  // unpacked. Summed in fp32, rounded once (runtime/adapters.h).
  merged,
  // The frozen base as it is held: packed weights as bitsandbytes has them, and the configuration
  // says so. No adapters.
  packed,
};

// An option of `run`, and the folder that it names.
struct SaveOption {
  std::string_view name;
  SavedAs as = SavedAs::trained;
  std::string folder;

  // Into a folder of that name in it; "": itself.
  SaveOption below(const std::string& inner) const;
};
// Those that were given. Error{bad_input}, Error{unsupported}: the job has nothing to write so, or
// two have one folder.
std::vector<SaveOption> save_options(const Job& job, const RunOptions& options);

// Writes safetensors and, but for an adapter's, config.json into the folder, which is made. All
// ranks call it; `writes` on one of them, which holds a unit's values at a time. Error{bad_input}:
// cannot be written.
void save_weights(const SaveOption& option, const Job& job, runtime::Model& model, DType compute,
                  bool writes);

}  // namespace plimsoll::tools
