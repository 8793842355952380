#include "tools/run/weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "models/lora.h"
#include "runtime/shard/packed_bytes.h"
#include "tools/run/packing.h"

namespace plimsoll::tools {

namespace {
namespace io = runtime::io;

// "runs/math/" is "math".
std::string folder_name(const std::string& path) {
  const auto whole = std::filesystem::path(path).lexically_normal();
  return (whole.has_filename() ? whole : whole.parent_path()).filename().string();
}

void expect_one_after_another(const RunOptions& options) {
  for (const char* option : {"save-checkpoint", "resume", "seconds"})
    check(!options.given.contains(option), ErrorKind::bad_input, [&] {
      return fmt::format("--{}: --adapter names {} adapters, and it is of one training", option,
                         options.adapters.size());
    });
}
}  // namespace

Weights::Weights(const Job& job, const RunOptions& options) {
  base_ = options.weights.empty() ? io::random_weights(job.model, options.seed)
                                  : io::stored_weights(job.model, options.weights);
  packed_ = check_packing(job.model, job.workload.strategy, *base_);
  check(job.workload.strategy.lora || options.adapters.empty(), ErrorKind::bad_input,
        [&] { return "--adapter " + options.adapters.front() + ": --lora-rank says its rank"; });
  if (!job.workload.strategy.lora) return;
  const auto modules = models::lora_modules(job.model, *job.workload.strategy.lora);
  if (options.adapters.empty()) adapters_.push_back(io::random_adapter(modules, options.seed));
  for (const std::string& folder : options.adapters)
    adapters_.push_back(io::stored_adapter(modules, folder));
  if (options.adapters.size() < 2) return;
  expect_one_after_another(options);
  for (const std::string& folder : options.adapters) {
    const std::string name = folder_name(folder);
    check(std::ranges::find(names_, name) == names_.end(), ErrorKind::bad_input, [&] {
      return fmt::format(
          "--adapter {}: another adapter's folder is named {} too, and what is saved "
          "is named after it",
          folder, name);
    });
    names_.push_back(name);
  }
}

void Weights::read(const runtime::ModelParameter& parameter, std::int64_t first,
                   std::span<float> to, std::size_t adapter) const {
  const io::WeightSource& source = parameter.adapter ? *adapters_.at(adapter) : *base_;
  source.read(parameter.name, first,
              {to.data(), DType::fp32, {static_cast<std::int64_t>(to.size())}});
}

std::vector<std::byte> Weights::packed(const runtime::ModelParameter& parameter) const {
  if (!packed_ || parameter.packed == nullptr) return {};
  return runtime::shard::packed_bytes(
      base_->packed(parameter.name).view(),
      runtime::shard::packed_places(*parameter.packed, parameter.shape));
}

}  // namespace plimsoll::tools
