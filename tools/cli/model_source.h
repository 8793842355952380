// MODEL: a catalog name, a path, or a hub id: in the local Hugging Face cache, else on the hub.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "models/base/error.h"
#include "models/model_spec.h"

namespace plimsoll::tools {

struct LoadedModel {
  models::ModelSpec spec;
  std::string config;  // canonical: keys sorted, no whitespace
  std::string note;  // for standard error: a hub id that the catalog stood in for
};

// Models by name, each read once: a batch asks for few models many times.
class ModelSource {
 public:
  // `assume`: read the config as this model_type; "": as it says. Error{bad_input, unsupported}.
  std::shared_ptr<const LoadedModel> load(const std::string& name, const std::string& assume);
  // From now on `name` is the model of this configuration.
  void add(const std::string& name, const std::string& config);

 private:
  std::map<std::pair<std::string, std::string>, std::shared_ptr<const LoadedModel>> loaded_;
  std::map<std::string, Error> failed_;  // of the hub, which is asked once
};

// The model with every dropout at `rate`, in its configuration too. Error{bad_input}: its code has
// none.
std::shared_ptr<const LoadedModel> with_dropout(const LoadedModel& model, const std::string& assume,
                                                double rate);

// The model with the head of `task`: classification puts a classifier of sequences in the place of
// whatever the configuration names, in it too. Error{bad_input}: the head is another one, or there
// is none.
std::shared_ptr<const LoadedModel> with_task(std::shared_ptr<const LoadedModel> model,
                                             const std::string& assume, const std::string& task);

// Where huggingface_hub keeps what it has downloaded: HF_HUB_CACHE, HF_HOME/hub,
// XDG_CACHE_HOME/huggingface/hub, ~/.cache/huggingface/hub.
std::filesystem::path hub_cache();

// config.json of the revision that refs/main of org/name points to; "" where it is not there.
std::filesystem::path cached_config(const std::filesystem::path& cache, const std::string& hub_id);

}  // namespace plimsoll::tools
