#include "planner/loading/peft.h"

#include <algorithm>
#include <map>
#include <string>

#include "models/lora.h"
#include "models/storages.h"
#include "planner/stacks/pytorch/regime.h"

namespace plimsoll::planner::loading {

namespace {

// A and B of a module.
struct Pair {
  std::string module;
  Count a, b;
};

// By module, as named_modules() lists them: where the weights do.
std::vector<Pair> pairs_of(const Question& question, const LoadedModel& model) {
  std::map<std::string, Pair, std::less<>> by_weight;
  const models::ModelSpec& spec = *question.model;
  for (const models::LoraModule& module : models::lora_modules(spec, *question.strategy.lora)) {
    for (const std::string& name : models::tensor_names(spec.parameters[module.base]))
      by_weight[name] = {name, module.a.shape.elements(), module.b.shape.elements()};
  }
  std::vector<Pair> pairs;
  for (const Weight& weight : model.weights)
    if (const auto found = by_weight.find(weight.name); found != by_weight.end())
      pairs.push_back(found->second);
  return pairs;
}

}  // namespace

DType adapters_made_in(const models::Strategy& s, DType loaded) {
  if (!s.quantize) return loaded;
  const models::PackedGemm gemm = s.quantize->storage->gemm;
  // Beside integers PEFT leaves them in torch's own dtype (_move_adapter_to_device_of_base_layer).
  if (gemm == models::PackedGemm::int8 || gemm == models::PackedGemm::awq) return DType::fp32;
  return s.precision == models::Precision::fp32 ? DType::fp32 : pytorch::low_dtype(s.precision);
}

void prepare_for_kbit(LoadedModel& model, Device& device) {
  const bool is_low = model.dtype != DType::fp32;
  for (std::size_t i = 0; i < model.weights.size(); ++i) {
    if (!model.blocks[i] || !is_low) continue;
    device.at(model.weights[i].name);
    const Device::Block wide = device.take(model.weights[i].elements, DType::fp32);
    device.free(*model.blocks[i]);
    model.blocks[i] = wide;
  }
  device.empty_cache();
}

void add_adapters(const Question& question, const LoadedModel& model, Device& device) {
  const DType first = adapters_made_in(question.strategy, model.dtype),
              last = question.strategy.lora->dtype;
  std::vector<Device::Block> blocks;
  const std::vector<Pair> pairs = pairs_of(question, model);
  for (const Pair& pair : pairs) {
    device.at(pair.module);
    for (const Count elements : {pair.a, pair.b}) blocks.push_back(device.take(elements, first));
  }
  // cast_adapter_dtype
  if (first == last) return;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    device.at(pairs[i / 2].module);
    device.take(i % 2 == 0 ? pairs[i / 2].a : pairs[i / 2].b, last);
    device.free(blocks[i]);
  }
}

void move_to_device(const Question& question, const LoadedModel& model, Device& device) {
  std::map<std::string, Pair, std::less<>> adapters;
  if (question.strategy.lora)
    for (Pair& pair : pairs_of(question, model)) adapters[pair.module] = std::move(pair);
  for (const Weight& weight : model.weights) {
    device.at(weight.name);
    device.take(weight.elements, model.dtype);
    const auto pair = adapters.find(weight.name);
    if (pair == adapters.end()) continue;
    device.take(pair->second.a, question.strategy.lora->dtype);
    device.take(pair->second.b, question.strategy.lora->dtype);
  }
  take_buffers(question, device);
}

}  // namespace plimsoll::planner::loading
