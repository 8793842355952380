#include "tools/cli/gpu_source.h"

#include <fmt/format.h>

#include <cctype>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "models/gpu_catalog.h"

namespace plimsoll::tools {

namespace fs = std::filesystem;

namespace {
constexpr std::string_view kVendor = "NVIDIA ";

std::string folded(std::string_view name) {
  if (name.starts_with(kVendor)) name.remove_prefix(kVendor.size());
  std::string text(name);
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

// The value of the line "Model: \t NVIDIA H200".
std::optional<std::string> model_line(const std::string& text) {
  constexpr std::string_view key = "Model:";
  std::size_t at = text.find(key);
  if (at == std::string::npos) return std::nullopt;
  at = text.find_first_not_of(" \t", at + key.size());
  if (at == std::string::npos) return std::nullopt;
  const std::string value = text.substr(at, text.find('\n', at) - at);
  return value.empty() || value == "Unknown" ? std::nullopt : std::optional(value);
}
// The first 4 KiB; the driver's files have no size and are read as streams.
std::string start_of(std::FILE* file) {
  std::string text(4096, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file));
  return text;
}

std::optional<std::string> asked_of_nvidia_smi() {
  std::FILE* pipe = ::popen("nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null", "r");
  if (pipe == nullptr) return std::nullopt;
  const std::string text = start_of(pipe);
  if (::pclose(pipe) != 0 || text.empty()) return std::nullopt;
  return text.substr(0, text.find('\n'));
}
}  // namespace

std::optional<std::string> local_gpu(const std::string& driver, const std::string& device) {
  std::error_code error;
  std::optional<fs::path> first;
  for (const fs::directory_entry& entry : fs::directory_iterator(driver, error))
    if (!first || entry.path() < *first) first = entry.path();
  if (first) {
    const auto close = [](std::FILE* file) { std::fclose(file); };
    const std::unique_ptr<std::FILE, decltype(close)> file(
        std::fopen((*first / "information").c_str(), "r"));
    if (file) return model_line(start_of(file.get()));
  }
  if (!fs::exists(device, error)) return std::nullopt;
  return asked_of_nvidia_smi();
}

std::optional<models::Gpu> gpu_by_driver_name(std::string_view name) {
  for (const models::Gpu& gpu : models::all_gpus())
    if (folded(gpu.title) == folded(name)) return gpu;
  return std::nullopt;
}

const models::Gpu& GpuSource::named(const std::string& name) {
  const auto it = known_.find(name);
  if (it != known_.end()) return it->second;
  return known_.emplace(name, models::find_gpu(name)).first->second;
}

const models::Gpu& GpuSource::standard() {
  if (standard_) return *standard_;
  const std::optional<std::string> local = local_gpu();
  if (!local) return standard_.emplace(models::find_gpu(kDefaultGpu));
  std::optional<models::Gpu> known = gpu_by_driver_name(*local);
  check(known.has_value(), ErrorKind::bad_input, [&] {
    return fmt::format(
        "this machine's GPU '{}' is not in the catalog: name one with --gpu "
        "(plimsoll gpus)",
        *local);
  });
  return standard_.emplace(std::move(*known));
}

}  // namespace plimsoll::tools
