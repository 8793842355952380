#include "tests/runtime/tiny_model.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/number.h"
#include "models/decisions/step.h"
#include "models/decisions/unit_names.h"

namespace plimsoll::runtime::test {

namespace decisions = models::decisions;
using kernels::Bf16;
using kernels::Fp16;

// Values ------------------------------------------------------------------------------------------

std::vector<double> values_of(ConstTensorView view) {
  std::vector<double> values(static_cast<std::size_t>(view.elements()));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = view.dtype == DType::fp64   ? static_cast<const double*>(view.data)[i]
                : view.dtype == DType::fp32 ? static_cast<const float*>(view.data)[i]
                : view.dtype == DType::bf16 ? widened(static_cast<const Bf16*>(view.data)[i])
                                            : widened(static_cast<const Fp16*>(view.data)[i]);
  return values;
}

void set_values(TensorView view, const std::vector<double>& values) {
  check(static_cast<std::size_t>(view.elements()) == values.size(), ErrorKind::internal,
        "as many values as elements");
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto value = static_cast<float>(values[i]);
    if (view.dtype == DType::fp32)
      static_cast<float*>(view.data)[i] = value;
    else if (view.dtype == DType::bf16)
      static_cast<Bf16*>(view.data)[i] = kernels::narrowed<Bf16>(value);
    else
      static_cast<Fp16*>(view.data)[i] = kernels::narrowed<Fp16>(value);
  }
}

PlainStore::PlainStore(Worker& worker, const std::vector<ModelParameter>& parameters)
    : worker_(worker), parameters_(parameters) {
  for (const ModelParameter& p : parameters_) {
    const DType dtype = p.adapter ? worker.regime.adapters.weight : worker.regime.compute;
    values_.push_back(worker.memory.allocate(p.name, Category::parameters, dtype, p.shape));
  }
}

void PlainStore::allocate_gradients() {
  for (const ModelParameter& p : parameters_) {
    const DType dtype = p.adapter ? worker_.regime.adapters.gradient : worker_.regime.base.gradient;
    gradients_.push_back(p.trained
                             ? worker_.memory.allocate(p.name, Category::gradients, dtype, p.shape)
                             : Tensor());
    if (p.trained) worker_.kernels.fill(0, gradients_.back().view());
  }
}

TensorView PlainStore::gradient(std::size_t index) {
  if (gradients_.empty()) allocate_gradients();
  return gradients_[index].view();
}

// Making the model --------------------------------------------------------------------------------

namespace {

Tensor int32_tensor(Worker& worker, const char* name, const std::vector<std::int32_t>& values) {
  Tensor tensor = worker.memory.allocate(name, Category::activations, decisions::kTokenIds,
                                         {static_cast<std::int64_t>(values.size())});
  std::memcpy(tensor.view().data, values.data(), values.size() * sizeof(std::int32_t));
  return tensor;
}

std::string prefix_of(std::size_t layer) {
  return "layers." + std::to_string(layer) + ".";
}

}  // namespace

TinyModel::TinyModel(models::ModelSpec spec, const models::Strategy& strategy, Batch batch)
    : spec_(std::move(spec)),
      strategy_(strategy),
      batch_(std::move(batch)),
      worker_(host_device(), 0, {.poison = true}),
      layout_(layout_of(spec_, strategy)),
      settings_(settings_of(*spec_.decoder, *spec_.numerics, strategy)) {
  worker_.regime = decisions::regime_of(strategy);
  worker_.sequences = batch_.sequences;
  worker_.length = batch_.length;
  PlainStore& embedding = add_store(layout_.embedding);
  PlainStore& tail = add_store(layout_.tail);
  rotary_ = RotaryTables(worker_, settings_);
  embedding_.emplace(
      worker_, settings_,
      EmbeddingParameters{layout_.tied ? attach(tail, layout_.tail, layout_.token_table)
                                       : attach(embedding, layout_.embedding, layout_.token_table),
                          attach(embedding, layout_.embedding, layout_.position_table)});
  add_layers(strategy_.lora);
  head_.emplace(worker_, settings_,
                HeadParameters{attach(tail, layout_.tail, layout_.final_norm),
                               attach(tail, layout_.tail, layout_.head),
                               attach(tail, layout_.tail, layout_.head_bias)},
                layers_.back().requires_grad());
  ids_ = int32_tensor(worker_, decisions::kIds, batch_.ids);
  targets_ = int32_tensor(worker_, decisions::kTargets, batch_.targets);
  loss_ = worker_.memory.allocate("loss", Category::activations, DType::fp64, {1});
  allocate_workspace();
}

PlainStore& TinyModel::add_store(const std::vector<ModelParameter>& parameters) {
  PlainStore& store = stores_.emplace_back(worker_, parameters);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const ModelParameter& whole = parameters[i];
    std::int64_t first = 0;
    for (const ModelParameter& piece : whole.pieces) {
      places_[piece.name] = {&store, i, piece.trained, first, piece.shape.elements()};
      first += piece.shape.elements();
    }
    if (whole.pieces.empty())
      places_[whole.name] = {&store, i, whole.trained, 0, whole.shape.elements()};
  }
  return store;
}

void TinyModel::add_layers(const std::optional<models::Lora>& lora) {
  bool below = embedding_->trains();
  for (std::size_t i = 0; i < layout_.layers.size(); ++i) {
    PlainStore& store = add_store(layout_.layers[i].parameters);
    const LayerOps& ops = decisions::own_ops(*layout_.layers[i].block);
    layers_.emplace_back(worker_, settings_, ops, attach(store, layout_.layers[i], lora),
                         static_cast<std::int64_t>(i), rotary_.of(ops), below);
    below = layers_.back().requires_grad();
  }
  saved_.resize(layers_.size());
}

void TinyModel::allocate_workspace() {
  Bytes most = std::max(embedding_->workspace(), head_->workspace());
  for (const Layer& layer : layers_) most = std::max(most, layer.workspace());
  worker_.workspace = worker_.memory.allocate(decisions::kWorkspace, Category::workspace,
                                              DType::uint8, {most.value()});
}

// Parameters --------------------------------------------------------------------------------------

std::vector<std::string> TinyModel::names(bool trained) const {
  std::vector<std::string> names;
  for (const auto& [name, place] : places_)
    if (place.trained || !trained) names.push_back(name);
  return names;
}
std::vector<double> TinyModel::values(const std::string& name) {
  const Place& place = places_.at(name);
  return values_of(place.in(place.store->value(place.index)));
}
void TinyModel::set(const std::string& name, const std::vector<double>& values) {
  const Place& place = places_.at(name);
  set_values(place.in(place.store->stored(place.index)), values);
}
std::vector<double> TinyModel::gradient(const std::string& name) {
  const Place& place = places_.at(name);
  std::vector<double> values =
      values_of(place.in(ConstTensorView(place.store->gradient(place.index))));
  for (double& value : values) value /= loss_scale_;
  return values;
}

void TinyModel::set_random(double deviation) {
  for (const auto& [name, place] : places_) {
    std::uint64_t seed = 1;
    for (const char c : name) seed = seed * 131 + static_cast<unsigned char>(c);
    std::vector<double> values(static_cast<std::size_t>(place.elements));
    const bool norm =
        name.find("norm") != std::string::npos || name.find("ln_") != std::string::npos;
    const double centre = norm && name.ends_with("weight") ? 1 : 0;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const kernels::Philox word = kernels::random_block({seed, 0, 0}, i);
      double sum = -2;  // of four uniform numbers: variance 1 / 3
      for (const std::uint32_t w : word) sum += w * 0x1p-32;
      values[i] = centre + deviation * std::sqrt(3.0) * sum;
    }
    set(name, values);
  }
}

// Running -----------------------------------------------------------------------------------------

std::vector<TinyModel::Group> TinyModel::groups() const {
  const bool again = decisions::recomputes_layers(strategy_.recompute.kind);
  std::vector<Group> groups;
  for (std::size_t first = 0, end = 0; first < layers_.size();) {
    for (end = first + 1;
         end < layers_.size() && layers_[end].gradients() == layers_[first].gradients();)
      ++end;
    const auto k = static_cast<std::size_t>(
        again ? decisions::layers_per_checkpoint(strategy_.recompute,
                                                 static_cast<std::int64_t>(end - first))
              : 1);
    for (; first < end; first = groups.back().second)
      groups.emplace_back(first, std::min(first + k, end));
  }
  return groups;
}

Tensor TinyModel::forward(bool saves) {
  const bool again = decisions::recomputes_layers(strategy_.recompute.kind);
  worker_.prefix.clear();
  worker_.phase = Phase::forward;
  Tensor x = embedding_->forward(ids_.view());
  for (const auto& [first, end] : groups())
    for (std::size_t i = first; i < end; ++i) {
      worker_.prefix = prefix_of(i);
      Layer::Forward how = saves ? Layer::Forward::all : Layer::Forward::keeps_nothing;
      if (again)
        how = saves && i == first && layers_[i].saves() ? Layer::Forward::keeps_input
                                                        : Layer::Forward::keeps_nothing;
      x = layers_[i].forward(std::move(x), how, saved_[i]);
    }
  worker_.prefix.clear();
  return x;
}

void TinyModel::forward_again(const Group& group) {
  worker_.phase = Phase::recompute;
  Tensor x = std::move(input_of(saved_[group.first]));
  for (std::size_t i = group.first; i < group.second; ++i) {
    worker_.prefix = prefix_of(i);
    x = layers_[i].forward(
        std::move(x), i + 1 == group.second ? Layer::Forward::to_last_saved : Layer::Forward::all,
        saved_[i]);
  }
}

void TinyModel::backward(Tensor d) {
  const std::vector<Group> all = groups();
  for (auto group = all.rbegin(); group != all.rend(); ++group) {
    if (!layers_[group->first].requires_grad()) return;
    if (decisions::recomputes_layers(strategy_.recompute.kind)) forward_again(*group);
    worker_.phase = Phase::backward;
    for (std::size_t i = group->second; i-- > group->first;) {
      worker_.prefix = prefix_of(i);
      layers_[i].backward(d, std::move(saved_[i]));
    }
  }
  worker_.prefix.clear();
  if (embedding_->trains()) embedding_->backward(ids_.view(), std::move(d));
}

std::vector<double> TinyModel::logits() {
  const Tensor x = forward(false);
  const Tensor logits = head_->logits(x);
  const std::vector<double> padded = values_of(logits.view());
  const std::int64_t stride = logits.view().shape[1];
  std::vector<double> values;
  for (auto row = padded.begin(); row != padded.end(); row += stride)
    values.insert(values.end(), row, row + settings_.decoder.vocab);
  return values;
}

LossFactors TinyModel::factors() const {
  const auto counted = static_cast<double>(
      std::ranges::count_if(batch_.targets, [](std::int32_t t) { return t >= 0; }));
  return {static_cast<float>(loss_scale_ / counted), 1 / counted};
}

double TinyModel::loss() {
  *static_cast<double*>(loss_.view().data) = 0;
  Tensor x = forward(false);
  head_->forward(std::move(x), targets_.view(), factors(), loss_.view());
  for (PlainStore& store : stores_) store.drop_gradients();  // the fused loss has made some
  return values_of(std::as_const(loss_).view())[0];
}

double TinyModel::step(bool gradients_before) {
  for (PlainStore& store : stores_) {
    store.drop_gradients();
    if (gradients_before) store.allocate_gradients();
  }
  *static_cast<double*>(loss_.view().data) = 0;
  worker_.memory.ledger().begin_step();
  Tensor x = forward(true);
  head_->forward(std::move(x), targets_.view(), factors(), loss_.view());
  worker_.phase = Phase::backward;
  backward(head_->backward(targets_.view()));
  record_ = worker_.memory.ledger().end_step();
  return values_of(std::as_const(loss_).view())[0];
}

}  // namespace plimsoll::runtime::test
