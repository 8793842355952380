#include "tools/run/saved_weights.h"

#include <algorithm>
#include <filesystem>
#include <optional>

#include "models/base/file_error.h"
#include "runtime/io/weight_file.h"

namespace plimsoll::tools {

namespace {
namespace io = runtime::io;
using Values = runtime::Model::Values;

// A folder that was made for files which then could not be written is taken away again.
struct MadeFolder {
  std::filesystem::path path;
  bool remove;
  ~MadeFolder() {
    std::error_code ignored;
    if (remove) std::filesystem::remove(path, ignored);  // nothing, where something is in it
  }
};
}  // namespace

void save_weights(const std::string& folder, const std::string& config, runtime::Model& model,
                  DType compute, bool writes) {
  const std::vector<Values> weights = model.whole(runtime::shard::State::weights);
  const std::vector<Values> masters = model.whole(runtime::shard::State::masters);
  if (!writes) return;
  std::error_code error;
  MadeFolder made{folder, std::filesystem::create_directories(folder, error)};
  check(!error, kind_of_write_failure(error.value()),
        [&] { return "--save-weights " + folder + ": " + error.message(); });
  const bool adapters =
      std::ranges::any_of(weights, [](const Values& values) { return values.parameter->adapter; });
  std::vector<const Values*> saved;
  std::vector<io::SavedTensor> tensors;
  for (const Values& values : weights) {
    if (values.parameter->adapter != adapters) continue;
    const auto master = std::ranges::find(masters, values.parameter, &Values::parameter);
    const bool precise = master != masters.end();
    saved.push_back(precise ? &*master : &values);
    tensors.push_back({values.parameter->name, precise || adapters ? DType::fp32 : compute,
                       values.parameter->shape});
  }
  const std::filesystem::path path = folder;
  io::WeightFile file(path / (adapters ? "adapter_model.safetensors" : "model.safetensors"),
                      tensors);
  for (const Values* values : saved)
    file.write(
        values->parameter->name, 0,
        {values->values.data(), DType::fp32, {static_cast<std::int64_t>(values->values.size())}});
  // Both are whole before either has its name: a fault leaves what was saved before.
  std::optional<io::OutputFile> about;
  if (!adapters) {
    about.emplace(path / "config.json");
    about->write(0, std::as_bytes(std::span(config)));
    about->write(std::ssize(config), std::as_bytes(std::span("\n", 1)));
  }
  file.finish();
  if (about) about->finish();
  made.remove = false;
}

}  // namespace plimsoll::tools
