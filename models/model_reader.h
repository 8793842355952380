// From a Hugging Face config.json to a ModelSpec.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/model_spec.h"
#include "models/safetensors_reader.h"

namespace plimsoll::models {

struct ReadOptions {
  // Read the config as this model_type, whatever it says ("llama"); empty: as it says.
  std::string assume;
};

// The model of a config.json's text; `name` becomes ModelSpec::name and `source` stands in
// messages. Missing fields take the defaults of Transformers. A multimodal config whose own
// model_type is not known but whose text_config is, gives the text model and a note.
// Error{bad_input}: not JSON, a field of the wrong kind or range, counts beyond 2^63.
// Error{unsupported}: a model_type or architecture that is not known (with the nearest one).
ModelSpec read_model(std::string_view config_text, std::string name, std::string source,
                     const ReadOptions& options = {});

// Where a config says the rates of its model's dropouts: every one that the family reads, there or
// not. `part`: the section that they stand in, or "".
struct DropoutKeys {
  std::string part;
  std::vector<std::string> names;
};
DropoutKeys dropout_keys(std::string_view config_text, std::string source,
                         const ReadOptions& options = {});

// The class of a model_type that classifies sequences; "" where Transformers has none.
std::string classifier_of(std::string_view model_type);

// A config.json, or a folder that has one. Where safetensors files or their index lie beside it,
// their headers are compared with the parameter table (models/checkpoint_check.h) and each
// difference becomes a note; a header that cannot be read is Error{bad_input}.
ModelSpec model_from_path(const std::filesystem::path& path, const ReadOptions& options = {});

// The same notes, of a checkpoint that is not beside its config.json.
void compare_with_checkpoint(ModelSpec& model, const Checkpoint& checkpoint);

}  // namespace plimsoll::models
