#include "planner/loading/peft.h"

#include <array>
#include <map>
#include <string>
#include <string_view>

#include "models/lora.h"
#include "models/storages.h"
#include "planner/stacks/pytorch/regime.h"

namespace plimsoll::planner::loading {

namespace {

// A and B of a module.
struct Sizes {
  std::size_t weight;
  Count a, b;
};

// By module, as named_modules() lists them: where the weights do.
std::vector<Sizes> sizes_of(const Question& question, const LoadedModel& model) {
  std::map<std::string, std::array<Count, 2>, std::less<>> by_weight;
  const models::ModelSpec& spec = *question.model;
  for (const models::LoraModule& module : models::lora_modules(spec, *question.strategy.lora)) {
    for (const std::string& name : models::tensor_names(spec.parameters[module.base]))
      by_weight[name] = {module.a.shape.elements(), module.b.shape.elements()};
  }
  std::vector<Sizes> sizes;
  for (std::size_t i = 0; i < model.weights.size(); ++i)
    if (const auto found = by_weight.find(model.weights[i].name); found != by_weight.end())
      sizes.push_back({i, found->second[0], found->second[1]});
  return sizes;
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
    if (model.weights[i].packed != nullptr || !is_low) continue;
    device.at(model.weights[i].name);
    const Device::Block wide = device.take(model.weights[i].elements, DType::fp32);
    device.free(model.blocks[i].front());
    model.blocks[i] = {wide};
  }
  device.empty_cache();
}

Adapters add_adapters(const Question& question, const LoadedModel& model, Device& device) {
  const DType first = adapters_made_in(question.strategy, model.dtype),
              last = question.strategy.lora->dtype;
  Adapters adapters;
  const std::vector<Sizes> sizes = sizes_of(question, model);
  for (const Sizes& of : sizes) {
    device.at(model.weights[of.weight].name);
    const Device::Block a = device.take(of.a, first);
    adapters.pairs.push_back({of.weight, a, device.take(of.b, first)});
  }
  // cast_adapter_dtype
  if (first == last) return adapters;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    device.at(model.weights[sizes[i].weight].name);
    const auto cast = [&](Device::Block& block, Count elements) {
      const Device::Block made = device.take(elements, last);
      device.free(block);
      block = made;
    };
    cast(adapters.pairs[i].a, sizes[i].a);
    cast(adapters.pairs[i].b, sizes[i].b);
  }
  return adapters;
}

namespace {

// _remap_adapter_state_dict_for_load asks for the model's state_dict: of each weight whose scales
// are packed a copy of their table is made for it (bitsandbytes, QuantState.as_dict).
void ask_for_state_dict(const LoadedModel& model, Device& device) {
  std::vector<Device::Block> copies;
  for (const Weight& weight : model.weights) {
    if (weight.packed == nullptr || !weight.packed->doubly_quantized()) continue;
    device.at(weight.name);
    copies.push_back(device.take(Count(weight.packed->scale_table), DType::fp32));
  }
  for (const Device::Block copy : copies) device.free(copy);
}

}  // namespace

Adapters load_adapters(const Question& question, const LoadedModel& model, Device& device) {
  Adapters adapters = add_adapters(question, model, device);
  // load_peft_weights: what the file has, in its order, until set_peft_model_state_dict is done.
  std::map<std::string, Count, std::less<>> stored;
  for (const Sizes& of : sizes_of(question, model)) {
    std::string module = model.weights[of.weight].name;
    module.resize(module.size() - std::string_view("weight").size());
    stored[module + "lora_A.weight"] = of.a;
    stored[module + "lora_B.weight"] = of.b;
  }
  std::vector<Device::Block> read;
  for (const auto& [name, elements] : stored) {
    device.at(name);
    read.push_back(device.take(elements, question.strategy.lora->dtype));
  }
  ask_for_state_dict(model, device);
  for (const Device::Block block : read) device.free(block);
  return adapters;
}

void move_to_device(const Question& question, const LoadedModel& model, Device& device) {
  std::map<std::size_t, Sizes> adapters;
  if (question.strategy.lora)
    for (const Sizes& of : sizes_of(question, model)) adapters.emplace(of.weight, of);
  for (std::size_t i = 0; i < model.weights.size(); ++i) {
    device.at(model.weights[i].name);
    device.take(model.weights[i].elements, model.dtype);
    const auto pair = adapters.find(i);
    if (pair == adapters.end()) continue;
    device.take(pair->second.a, question.strategy.lora->dtype);
    device.take(pair->second.b, question.strategy.lora->dtype);
  }
  take_buffers(question, device);
}

}  // namespace plimsoll::planner::loading
