#include "tests/runtime/goldens.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>

#include "kernels/number.h"

namespace plimsoll::runtime::test {

namespace {
namespace fs = std::filesystem;

std::vector<char> bytes_of(const models::StoredTensor& tensor, std::int64_t width) {
  std::vector<char> bytes(static_cast<std::size_t>(tensor.elements().value() * width));
  std::ifstream in(tensor.file, std::ios::binary);
  in.seekg(tensor.begin);
  in.read(bytes.data(), std::ssize(bytes));
  check(static_cast<bool>(in), ErrorKind::internal, tensor.file + " is too short");
  return bytes;
}

template <class T, class Result>
std::vector<Result> read_as(const models::StoredTensor& tensor, Result (*convert)(T)) {
  const std::vector<char> bytes = bytes_of(tensor, sizeof(T));
  std::vector<Result> out;
  for (std::size_t at = 0; at < bytes.size(); at += sizeof(T)) {
    T value;
    std::memcpy(&value, bytes.data() + at, sizeof(T));
    out.push_back(convert(value));
  }
  return out;
}

template <class T>
double wide(T x) {
  return kernels::widened(x);
}

std::string folder_of(const std::string& name) {
  return std::string(PLIMSOLL_GOLDEN) + "/numerics/" + name;
}

models::Checkpoint weights_of(const std::string& folder) {
  const fs::path adapter = fs::path(folder) / "adapter_model.safetensors";
  if (fs::exists(adapter)) return models::read_safetensors_header(adapter);
  const fs::path whole = fs::path(folder) / "model.safetensors";
  return fs::exists(whole) ? models::read_safetensors_header(whole)
                           : *models::find_checkpoint(folder);
}
}  // namespace

bool StoredTensors::has(std::string_view name) const {
  return std::ranges::any_of(checkpoint_.tensors, [&](const auto& t) { return t.name == name; });
}

const models::StoredTensor& StoredTensors::find(std::string_view name) const {
  for (const models::StoredTensor& tensor : checkpoint_.tensors)
    if (tensor.name == name) return tensor;
  fail(ErrorKind::internal, checkpoint_.source + " has no tensor " + std::string(name));
}

std::vector<std::int64_t> StoredTensors::shape(std::string_view name) const {
  return find(name).shape;
}

std::vector<double> StoredTensors::values(std::string_view name) const {
  const models::StoredTensor& tensor = find(name);
  if (tensor.dtype == "F32") return read_as<float, double>(tensor, wide);
  if (tensor.dtype == "BF16") return read_as<kernels::Bf16, double>(tensor, wide);
  if (tensor.dtype == "F16") return read_as<kernels::Fp16, double>(tensor, wide);
  fail(ErrorKind::internal, tensor.name + " is of type " + tensor.dtype);
}

std::vector<std::int32_t> StoredTensors::integers(std::string_view name) const {
  const models::StoredTensor& tensor = find(name);
  check(tensor.dtype == "I32", ErrorKind::internal, tensor.name + " is not I32");
  return read_as<std::int32_t, std::int32_t>(tensor, [](std::int32_t x) { return x; });
}

std::vector<std::string> StoredTensors::names(std::string_view prefix) const {
  std::vector<std::string> out;
  for (const models::StoredTensor& tensor : checkpoint_.tensors)
    if (tensor.name.starts_with(prefix)) out.push_back(tensor.name.substr(prefix.size()));
  return out;
}

GoldenModel::GoldenModel(const std::string& name)
    : folder_(folder_of(name)),
      weights_(weights_of(folder_)),
      results_(models::read_safetensors_header(folder_ + "/goldens.safetensors")),
      shape_(results_.shape("ids")) {}

std::vector<std::int32_t> GoldenModel::batch(const char* which, int step) const {
  const std::vector<std::int32_t> all = results_.integers(which);
  const std::int64_t tokens = sequences() * length();
  check(step >= 0 && step < shape_[0], ErrorKind::internal, "no such golden step");
  return {all.begin() + step * tokens, all.begin() + (step + 1) * tokens};
}

double GoldenModel::own_deviation(const std::string& name) const {
  return counted_in(name) == name ? results_.values("deviation." + name)[0] : 0;
}

std::string counted_in(const std::string& result) {
  constexpr std::string_view keys = ".k_proj.bias";
  const bool nothing =
      result.find("grad.model.decoder.layers.") != std::string::npos && result.ends_with(keys);
  return nothing ? result.substr(0, result.size() - keys.size()) + ".v_proj.bias" : result;
}

double deviation(const std::vector<double>& actual, const std::vector<double>& expected,
                 const std::vector<double>& scale) {
  if (actual.size() != expected.size()) return std::numeric_limits<double>::infinity();
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    difference += (actual[i] - expected[i]) * (actual[i] - expected[i]);
  }
  for (const double value : scale) norm += value * value;
  if (!std::isfinite(difference)) return std::numeric_limits<double>::infinity();
  return difference == 0 ? 0 : std::sqrt(difference / norm);
}

}  // namespace plimsoll::runtime::test
