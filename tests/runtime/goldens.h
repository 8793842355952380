// What Transformers, PyTorch and PEFT made of tiny models: tests/golden/numerics (README there).
//
//   const GoldenModel golden("llama");
//   CHECK(deviation(my_logits, golden.values("fp32.logits")) <= 1e-5);
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "models/safetensors_reader.h"

namespace plimsoll::runtime::test {

// Tensors of safetensors files, read whole. Error{internal} for a name that is not there.
class StoredTensors {
 public:
  explicit StoredTensors(models::Checkpoint checkpoint) : checkpoint_(std::move(checkpoint)) {}

  bool has(std::string_view name) const;
  std::vector<std::int64_t> shape(std::string_view name) const;
  std::vector<double> values(std::string_view name) const;  // F32, BF16, F16: exactly
  std::vector<std::int32_t> integers(std::string_view name) const;  // I32
  // Names that begin with `prefix`, without it, sorted.
  std::vector<std::string> names(std::string_view prefix = "") const;

 private:
  const models::StoredTensor& find(std::string_view name) const;
  models::Checkpoint checkpoint_;
};

// AdamW of the golden steps, on every parameter alike (torch.optim.AdamW(model.parameters())); no
// clipping.
inline constexpr double kGoldenLearningRate = 1e-3, kGoldenBeta1 = 0.9, kGoldenBeta2 = 0.95,
                        kGoldenEps = 1e-5, kGoldenWeightDecay = 0.1;
inline constexpr int kGoldenSteps = 10;

// Whole models; adapters beside them have folders of their own.
inline constexpr const char* kGoldenModels[] = {
    "gpt2",    "gemma", "gemma2",  "gemma3",  "gpt_bigcode", "gpt_neox",
    "granite", "llama", "mistral", "mixtral", "olmo2",       "opt",
    "phi",     "phi3",  "qwen2",   "qwen3",   "qwen3_moe"};

// One folder of tests/golden/numerics: its weights, its batches, its results.
class GoldenModel {
 public:
  explicit GoldenModel(const std::string& name);

  const std::string& folder() const { return folder_; }  // a MODEL for the program
  std::string config() const { return folder_ + "/config.json"; }
  // Of the model's own files under their names; of an adapter's folder, the adapter's.
  const StoredTensors& weights() const { return weights_; }
  const StoredTensors& results() const { return results_; }
  // "fp32.logits", "bf16.grad.model.norm.weight", …
  std::vector<double> values(std::string_view name) const { return results_.values(name); }

  std::int64_t sequences() const { return shape_[1]; }
  std::int64_t length() const { return shape_[2]; }
  // One batch's, sequences one after another; gradients and logits are of step 0's.
  std::vector<std::int32_t> ids(int step) const { return batch("ids", step); }
  std::vector<std::int32_t> targets(int step) const { return batch("targets", step); }
  // How far PyTorch's own result is from the same in fp64: what may be asked of anyone else.
  double own_deviation(const std::string& name) const;

 private:
  std::vector<std::int32_t> batch(const char* which, int step) const;

  std::string folder_;
  StoredTensors weights_, results_;
  std::vector<std::int64_t> shape_;  // steps, sequences, length
};

// ‖actual - expected‖ / ‖scale‖ in fp64, by itself of `expected`; inf where a value is not finite
// or the sizes differ.
double deviation(const std::vector<double>& actual, const std::vector<double>& expected,
                 const std::vector<double>& scale);
inline double deviation(const std::vector<double>& actual, const std::vector<double>& expected) {
  return deviation(actual, expected, expected);
}

// What a result's deviation is counted in: itself; of a gradient that is nothing but rounding, the
// neighbouring one. A bias of keys that are not rotated (OPT) adds the same to all scores of a
// query, and softmax takes that off again.
std::string counted_in(const std::string& result);

}  // namespace plimsoll::runtime::test
