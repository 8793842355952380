#include "tools/run/saved_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "models/base/file_error.h"
#include "runtime/adapters.h"
#include "runtime/io/bitsandbytes_checkpoint.h"
#include "runtime/io/weight_file.h"

namespace plimsoll::tools {

namespace {
namespace io = runtime::io;
using runtime::ModelParameter;
using runtime::shard::Part;
using runtime::shard::State;
using UnitOf = runtime::Model::UnitOf;

// A folder that was made for files which then could not be written is taken away again.
struct MadeFolder {
  std::filesystem::path path;
  bool remove;
  ~MadeFolder() {
    std::error_code ignored;
    if (remove) std::filesystem::remove(path, ignored);  // nothing, where something is in it
  }
};

// What a checkpoint has of a parameter: itself, or the matrices of single experts.
std::span<const ModelParameter> stored_as(const ModelParameter& parameter) {
  if (parameter.pieces.empty()) return {&parameter, 1};
  return parameter.pieces;
}

// The model's tensors, unit by unit. All ranks ask for the same.
class Saved {
 public:
  Saved(runtime::Model& model, const models::Strategy& strategy, DType compute, SavedAs as)
      : model_(model), strategy_(strategy), compute_(compute), as_(as) {
    for (const UnitOf& unit : model_.units())
      adapters_ = adapters_ || std::ranges::any_of(unit.parameters, &ModelParameter::adapter);
  }

  bool adapters_alone() const { return as_ == SavedAs::trained && adapters_; }

  std::vector<io::SavedTensor> tensors() const {
    std::vector<io::SavedTensor> all;
    for (const UnitOf& unit : model_.units()) {
      const auto packed = packed_of(unit);
      for (std::size_t i = 0; i < unit.parameters.size(); ++i) {
        if (!saves(unit.parameters[i])) continue;
        for (const io::SavedBytes& one : packed[i]) all.push_back(one.tensor);
        if (!packed[i].empty()) continue;
        for (const ModelParameter& stored : stored_as(unit.parameters[i]))
          all.push_back({stored.name, dtype_of(unit, i), stored.shape});
      }
    }
    return all;
  }

  // Nothing where another rank writes.
  void write(io::WeightFile* file) const {
    for (const UnitOf& unit : model_.units()) {
      auto weights = unit.unit.whole(State::weights);
      auto masters = unit.unit.whole(State::masters);
      const auto packed = packed_of(unit);
      if (file == nullptr) continue;
      for (std::size_t i = 0; i < unit.parameters.size(); ++i) {
        if (!saves(unit.parameters[i])) continue;
        for (const io::SavedBytes& one : packed[i]) file->write_bytes(one.tensor.name, one.bytes);
        if (!packed[i].empty()) continue;
        std::vector<float>& values = masters[i].empty() ? weights[i] : masters[i];
        if (as_ == SavedAs::merged) merge(unit, i, weights, values);
        write(*file, unit.parameters[i], values);
      }
    }
  }

 private:
  bool saves(const ModelParameter& parameter) const {
    return parameter.adapter == adapters_alone();
  }

  DType dtype_of(const UnitOf& unit, std::size_t index) const {
    if (as_ != SavedAs::trained) return compute_;
    const Part part = unit.unit.layout().places[index].part;
    return adapters_ || unit.unit.stored_part(State::masters, part) ? DType::fp32 : compute_;
  }

  // Of each parameter, where it is saved packed.
  std::vector<std::vector<io::SavedBytes>> packed_of(const UnitOf& unit) const {
    std::vector<std::vector<io::SavedBytes>> all(unit.parameters.size());
    if (as_ != SavedAs::packed) return all;
    const std::vector<std::vector<std::byte>> bytes = unit.unit.whole_packed();
    for (std::size_t i = 0; i < all.size(); ++i)
      if (!bytes[i].empty())
        all[i] = io::bitsandbytes_tensors(
            unit.parameters[i].name,
            runtime::shard::packed_view(bytes[i].data(), unit.unit.layout().places[i].packed),
            unit.parameters[i].shape, compute_);
    return all;
  }

  void merge(const UnitOf& unit, std::size_t index, const std::vector<std::vector<float>>& weights,
             std::vector<float>& values) const {
    for (const runtime::LayerLayout& layer : model_.layers()) {
      if (&layer.parameters != &unit.parameters) continue;
      for (const runtime::ModuleSlots& linear : layer.modules)
        if (linear.lora_a && linear.weight == index)
          runtime::add_adapter({.a = weights[*linear.lora_a],
                                .b = weights[*linear.lora_b],
                                .alpha = strategy_.lora->alpha,
                                .transposed = linear.transposed},
                               unit.parameters[index].shape, values);
    }
  }

  static void write(io::WeightFile& file, const ModelParameter& parameter,
                    const std::vector<float>& values) {
    const float* at = values.data();
    for (const ModelParameter& stored : stored_as(parameter)) {
      const std::int64_t elements = stored.shape.elements();
      file.write(stored.name, 0, {at, DType::fp32, {elements}});
      at += elements;
    }
  }

  runtime::Model& model_;
  const models::Strategy& strategy_;
  DType compute_;
  SavedAs as_;
  bool adapters_ = false;
};

std::string config_text(const Job& job, SavedAs as, DType compute) {
  const std::string& text = job.workload.model_config;
  if (as == SavedAs::trained) return text + "\n";
  const models::PackedStorage* storage =
      as == SavedAs::packed ? job.workload.strategy.quantize->storage : nullptr;
  return io::config_packed_as(text, storage, compute);
}

void expect_packed(const Job& job, const SaveOption& option) {
  const models::Strategy& strategy = job.workload.strategy;
  check(strategy.quantize.has_value(), ErrorKind::bad_input, [&] {
    return fmt::format("--{}: nothing is packed; --quantize nf4, nf4-dq or int8 packs the base",
                       option.name);
  });
  const models::PackedStorage& storage = *strategy.quantize->storage;
  check(storage.in_packages, ErrorKind::unsupported, [&] {
    return fmt::format("--{}: {} is our own runtime's; bitsandbytes has nf4, nf4-dq and int8",
                       option.name, storage.name);
  });
  for (const runtime::LayerLayout& layer : runtime::layout_of(job.model, strategy).layers)
    for (const runtime::ModuleSlots& module : layer.modules)
      check(
          !module.transposed || !layer.parameters[*module.weight].packed, ErrorKind::unsupported,
          [&] {
            return fmt::format(
                "--{}: {} is stored [in, out] and packed so here; bitsandbytes packs its transpose",
                option.name, layer.parameters[*module.weight].name);
          });
}

}  // namespace

SaveOption SaveOption::below(const std::string& inner) const {
  SaveOption option = *this;
  if (!inner.empty()) option.folder = (std::filesystem::path(folder) / inner).string();
  return option;
}

std::vector<SaveOption> save_options(const Job& job, const RunOptions& options) {
  std::vector<SaveOption> given;
  for (SaveOption option : {SaveOption{"save-weights", SavedAs::trained, options.save_weights},
                            SaveOption{"save-merged", SavedAs::merged, options.save_merged},
                            SaveOption{"save-packed", SavedAs::packed, options.save_packed}}) {
    if (option.folder.empty()) continue;
    if (option.as == SavedAs::packed) expect_packed(job, option);
    check(option.as != SavedAs::merged || job.workload.strategy.lora, ErrorKind::bad_input, [&] {
      return fmt::format(
          "--{}: there are no adapters; --lora-rank makes some, and --save-weights "
          "writes a model without",
          option.name);
    });
    for (const SaveOption& other : given)
      check(std::filesystem::path(other.folder).lexically_normal() !=
                std::filesystem::path(option.folder).lexically_normal(),
            ErrorKind::bad_input, [&] {
              return fmt::format("--{} {}: is the folder of --{} too; give another one",
                                 option.name, option.folder, other.name);
            });
    given.push_back(std::move(option));
  }
  return given;
}

void save_weights(const SaveOption& option, const Job& job, runtime::Model& model, DType compute,
                  bool writes) {
  const Saved saved(model, job.workload.strategy, compute, option.as);
  const std::vector<io::SavedTensor> tensors = saved.tensors();
  if (!writes) return saved.write(nullptr);
  std::error_code error;
  MadeFolder made{option.folder, std::filesystem::create_directories(option.folder, error)};
  check(!error, kind_of_write_failure(error.value()),
        [&] { return fmt::format("--{} {}: {}", option.name, option.folder, error.message()); });
  const std::filesystem::path path = option.folder;
  const bool adapter = saved.adapters_alone();
  io::WeightFile file(path / (adapter ? "adapter_model.safetensors" : "model.safetensors"),
                      tensors);
  saved.write(&file);
  // Both are whole before either has its name: a fault leaves what was saved before.
  std::optional<io::OutputFile> about;
  if (!adapter) {
    const std::string config = config_text(job, option.as, compute);
    about.emplace(path / "config.json");
    about->write(0, std::as_bytes(std::span(config)));
  }
  file.finish();
  if (about) about->finish();
  made.remove = false;
}

}  // namespace plimsoll::tools
