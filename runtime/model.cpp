#include "runtime/model.h"

#include <algorithm>

#include "models/decisions/float8.h"
#include "models/decisions/low_rank.h"
#include "models/decisions/offload.h"
#include "models/decisions/unit_names.h"

namespace plimsoll::runtime {

namespace decisions = models::decisions;
using shard::Unit;

namespace {

// `low_rank`: to which matrices are projected; 0: none is.
std::vector<shard::UnitParameter> unit_parameters(const std::vector<ModelParameter>& parameters,
                                                  std::int64_t low_rank) {
  std::vector<shard::UnitParameter> list;
  list.reserve(parameters.size());
  for (const ModelParameter& p : parameters)
    list.push_back({p.name, p.shape, p.trained, p.adapter, p.packed,
                    p.trained && p.shape.rank == 2 ? low_rank : 0});
  return list;
}

// As a checkpoint has it.
void read_pieces(const ModelParameter& parameter, std::int64_t first, std::span<float> to,
                 const ReadParameter& read) {
  if (parameter.pieces.empty()) return read(parameter, first, to);
  std::int64_t begin = 0;
  for (const ModelParameter& piece : parameter.pieces) {
    const std::int64_t size = piece.shape.elements();
    const std::int64_t from = std::max(first, begin);
    const std::int64_t end = std::min(first + std::ssize(to), begin + size);
    if (from < end)
      read(
          piece, from - begin,
          to.subspan(static_cast<std::size_t>(from - first), static_cast<std::size_t>(end - from)));
    begin += size;
  }
}

std::string layer_prefix(std::size_t layer) {
  return "layers." + std::to_string(layer) + ".";
}

}  // namespace

// Making the model --------------------------------------------------------------------------------

Model::Model(Worker& worker, const models::ModelSpec& model, const models::Numerics& numerics,
             const models::Strategy& strategy, const shard::Group& group)
    : worker_(worker), strategy_(strategy), group_(group), layout_(layout_of(model, strategy)) {
  settings_ = settings_of(*model.decoder, numerics, strategy);
  std::int64_t first_element = 0;
  const auto make = [&](const decisions::UnitNames& names, std::string prefix,
                        const std::vector<ModelParameter>& parameters) {
    const std::vector<shard::UnitParameter> list = unit_parameters(
        parameters, &names == &decisions::kLayerUnit ? decisions::projected_rank(strategy) : 0);
    auto unit =
        std::make_unique<Unit>(worker_, group_, names, std::move(prefix), list, first_element);
    first_element += unit->layout().trained_elements();
    unit->allocate();
    if (unit->trains()) trained_.push_back(unit.get());
    return unit;
  };
  embedding_unit_ = make(decisions::kEmbeddingUnit, "", layout_.embedding);
  for (std::size_t i = 0; i < layout_.layers.size(); ++i)
    layer_units_.push_back(
        make(decisions::kLayerUnit, layer_prefix(i), layout_.layers[i].parameters));
  tail_unit_ = make(decisions::kTailUnit, "", layout_.tail);
  rotary_tables_ = RotaryTables(worker_, settings_);
  make_float8_scales();
  Unit& tail = *tail_unit_;
  EmbeddingParameters tables;
  tables.tokens = layout_.tied ? attach(tail, layout_.tail, layout_.token_table)
                               : attach(*embedding_unit_, layout_.embedding, layout_.token_table);
  tables.positions = attach(*embedding_unit_, layout_.embedding, layout_.position_table);
  embedding_ = std::make_unique<Embedding>(worker_, settings_, tables);
  add_layers();
  const bool below = layers_.empty() ? layout_.trains_embedding() : layers_.back().requires_grad();
  head_ = std::make_unique<Head>(worker_, settings_,
                                 HeadParameters{attach(tail, layout_.tail, layout_.final_norm),
                                                attach(tail, layout_.tail, layout_.head),
                                                attach(tail, layout_.tail, layout_.head_bias)},
                                 below);
  find_checkpoints(strategy.recompute);
  find_reversals(strategy.recompute);
  list_uses();
  if (!trained_.empty()) last_reduced_ = trained_.front();
  if (layout_.tied && tail.trains()) last_reduced_ = &tail;
  saved_.resize(layers_.size());
}

void Model::make_float8_scales() {
  if (!worker_.regime.float8) return;
  std::int64_t linears = 0;
  for (const LayerLayout& layer : layout_.layers) linears += layer.block->linears;
  worker_.prefix.clear();
  float8_scales_ =
      worker_.memory.allocate(decisions::kFloat8Scales, Category::workspace, DType::fp32,
                              {checked_multiply(linears, decisions::kFloat8ScaleWords)});
}

void Model::add_layers() {
  bool below = layout_.trains_embedding();
  auto* scales = float8_scales_ ? static_cast<float*>(float8_scales_.view().data) : nullptr;
  layers_.reserve(layer_units_.size());
  for (std::size_t i = 0; i < layout_.layers.size(); ++i) {
    const LayerLayout& layer = layout_.layers[i];
    below_.push_back(below);
    const LayerOps& ops = decisions::own_ops(*layer.block);
    LayerParameters parameters = attach(*layer_units_[i], layer, strategy_.lora);
    if (scales != nullptr)
      for (LinearParameters& linear : parameters.linears) {
        linear.float8_scales = {scales, DType::fp32, {decisions::kFloat8ScaleWords}};
        scales += decisions::kFloat8ScaleWords;
      }
    layers_.emplace_back(worker_, settings_, ops, std::move(parameters),
                         static_cast<std::int64_t>(i), rotary_tables_.of(ops), below);
    below = below || layer.trains();
  }
}

// Counted anew where a layer is trained differently from the one before it.
void Model::find_checkpoints(const models::Recompute& recompute) {
  const auto alike = [&](std::size_t a, std::size_t b) {
    const auto& left = layout_.layers[a].parameters;
    const auto& right = layout_.layers[b].parameters;
    return below_[a] == below_[b] &&
           std::equal(left.begin(), left.end(), right.begin(), right.end(),
                      [](const ModelParameter& p, const ModelParameter& q) {
                        return p.shape == q.shape && p.trained == q.trained &&
                               p.adapter == q.adapter;
                      });
  };
  for (std::size_t first = 0; first < layers_.size();) {
    std::size_t end = first + 1;
    while (end < layers_.size() && alike(first, end)) ++end;
    const auto k = static_cast<std::size_t>(
        decisions::layers_per_checkpoint(recompute, static_cast<std::int64_t>(end - first)));
    for (; first < end; first += std::min(k, end - first))
      checkpoints_.push_back(
          {first, std::min(k, end - first),
           decisions::recomputes_layer(recompute, static_cast<std::int64_t>(first))});
  }
}

// Which unit is used after which in a micro-batch; two uses that follow one another are one.
void Model::list_uses() {
  uses_ = {embedding_unit_.get()};
  for (const auto& unit : layer_units_) uses_.push_back(unit.get());
  uses_.push_back(tail_unit_.get());
  const auto use = [&](std::size_t layer) {
    if (uses_.back() != layer_units_[layer].get()) uses_.push_back(layer_units_[layer].get());
  };
  visit_reversals({.run_ahead =
                       [&](std::size_t first, std::size_t layers) {
                         for (std::size_t i = first; i < first + layers; ++i) use(i);
                       },
                   .reverse = use});
  for (auto at = checkpoints_.rbegin(); at != checkpoints_.rend(); ++at) {
    if (at->first >= reversed_from_) continue;
    if (!layers_[at->first].requires_grad()) break;
    if (at->recomputed)
      for (std::size_t i = 0; i < at->count; ++i) use(at->first + i);
    for (std::size_t i = at->count; i-- > 0;) use(at->first + i);
  }
}

std::vector<Model::UnitOf> Model::units() {
  std::vector<UnitOf> all{{*embedding_unit_, layout_.embedding}};
  for (std::size_t i = 0; i < layer_units_.size(); ++i)
    all.push_back({*layer_units_[i], layout_.layers[i].parameters});
  all.push_back({*tail_unit_, layout_.tail});
  return all;
}

void Model::load(const ReadParameter& read, const ReadPacked& packed) {
  for (const auto& [unit, parameters] : units()) {
    shard::PackedReader packed_of;
    if (packed)
      packed_of = [&list = parameters, &packed](std::size_t index) { return packed(list[index]); };
    unit.load(
        [&list = parameters, &read](std::size_t index, std::int64_t first, std::span<float> to) {
          read_pieces(list[index], first, to, read);
        },
        shard::State::weights, {}, packed_of);
  }
}

std::vector<Model::Values> Model::whole(shard::State state) {
  std::vector<Values> all;
  for (const auto& [unit, parameters] : units()) {
    std::vector<std::vector<float>> values = unit.whole(state);
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (values[i].empty()) continue;
      auto at = values[i].begin();
      for (const ModelParameter& piece : parameters[i].pieces) {
        const auto end = at + piece.shape.elements();
        all.push_back({&piece, std::vector<float>(at, end)});
        at = end;
      }
      if (parameters[i].pieces.empty()) all.push_back({&parameters[i], std::move(values[i])});
    }
  }
  return all;
}

Bytes Model::workspace() const {
  Bytes most = std::max(embedding_->workspace(), head_->workspace());
  for (const Layer& layer : layers_) most = std::max(most, layer.workspace());
  for (const auto& unit : layer_units_) most = std::max(most, unit->step_workspace());
  if (strategy_.optimizer_in_backward) return most;
  return std::max(most, gradient_norm_workspace(trained_));
}

// A micro-batch -----------------------------------------------------------------------------------

Tensor Model::forward_layers(Tensor x) {
  for (const Checkpoint& checkpoint : checkpoints_) {
    for (std::size_t i = checkpoint.first; i < checkpoint.first + checkpoint.count; ++i) {
      Unit& unit = *layer_units_[i];
      begin_use(unit, Phase::forward);
      Layer::Forward how = Layer::Forward::all;
      if (checkpoint.recomputed)
        how = i == checkpoint.first && keeps_input_[i] ? Layer::Forward::keeps_input
                                                       : Layer::Forward::keeps_nothing;
      const bool offloads = how == Layer::Forward::keeps_input && strategy_.offload.activations;
      if (offloads) offload_input(i, std::as_const(x).view());
      x = layers_[i].forward(std::move(x), how, saved_[i]);
      if (offloads) end_offload(i);
      end_use(unit, Phase::forward);
    }
  }
  return x;
}

void Model::offload_input(std::size_t layer, ConstTensorView x) {
  host_inputs_.resize(layers_.size());
  fetched_.resize(layers_.size());
  const Op op(worker_, decisions::kOffloadInput);
  const HostOp host(worker_, decisions::kOffloadInput);
  Tensor& held = host_inputs_[layer];
  held = worker_.host_memory->allocate(worker_.prefix + decisions::kHostInput,
                                       Category::activations, x.dtype, x.shape);
  offloading_ = worker_.device.start_copy_out(held.view().data, x.data, held.bytes());
}

void Model::end_offload(std::size_t layer) {
  Op op(worker_, decisions::kOffloaded);
  offloading_->wait();
  offloading_.reset();
  op.consume(std::move(input_of(saved_[layer])));
}

// Inside an op.
void Model::begin_fetch(std::size_t layer) {
  const Tensor& held = host_inputs_[layer];
  const ConstTensorView kept = held.view();
  fetched_[layer] =
      worker_.memory.allocate(layer_units_[layer]->prefix() + decisions::kFetchedInput,
                              Category::activations, kept.dtype, kept.shape);
  fetching_ = worker_.device.start_copy_in(fetched_[layer].view().data, kept.data, held.bytes());
}

void Model::fetch_first() {
  if (host_inputs_.empty() || !host_inputs_.back()) return;
  worker_.prefix.clear();
  worker_.phase = Phase::recompute;
  const Op op(worker_, decisions::kFetchInput);
  begin_fetch(layers_.size() - 1);
}

Tensor Model::fetch_input(std::size_t layer) {
  Tensor held = std::move(host_inputs_[layer]);
  const Op op(worker_, decisions::kFetchInput);
  const HostOp host(worker_, decisions::kFetchInput);
  const Tensor ends_here = std::move(held);
  fetching_->wait();
  fetching_.reset();
  if (layer > 0 && host_inputs_[layer - 1]) begin_fetch(layer - 1);
  return std::move(fetched_[layer]);
}

// A checkpoint's layers from its input, up to the last value that backward reads.
void Model::recompute(const Checkpoint& checkpoint) {
  const std::size_t end = checkpoint.first + checkpoint.count;
  Tensor x = std::move(input_of(saved_[checkpoint.first]));
  for (std::size_t i = checkpoint.first; i < end; ++i) {
    const bool last = i + 1 == end;
    begin_use(*layer_units_[i], Phase::recompute);
    if (i < host_inputs_.size() && host_inputs_[i]) x = fetch_input(i);
    x = layers_[i].forward(std::move(x), last ? Layer::Forward::to_last_saved : Layer::Forward::all,
                           saved_[i]);
    if (!last) end_use(*layer_units_[i], Phase::recompute);
  }
}

void Model::backward_layer(std::size_t layer, Tensor& d) {
  Unit& unit = *layer_units_[layer];
  worker_.prefix = unit.prefix();
  worker_.phase = Phase::backward;
  layers_[layer].backward(d, std::move(saved_[layer]));
  end_use(unit, Phase::backward);
  reduce(unit);
}

void Model::backward_layers(Tensor& d) {
  fetch_first();
  reverse_layers(d);
  for (auto at = checkpoints_.rbegin(); at != checkpoints_.rend(); ++at) {
    if (at->first >= reversed_from_) continue;
    if (!layers_[at->first].requires_grad()) return;  // nothing trained from here on down
    if (at->recomputed) recompute(*at);
    for (std::size_t i = at->count; i-- > 0;) {
      if (!at->recomputed || i + 1 < at->count)
        begin_use(*layer_units_[at->first + i], Phase::backward);
      backward_layer(at->first + i, d);
    }
  }
}

void Model::train(const MicroBatch& batch, TensorView loss) {
  step_ = batch.step;
  for (Unit* unit : trained_) unit->begin_micro_batch(batch.index, batch.count);
  first_gather();
  begin_use(*embedding_unit_, Phase::forward);
  Tensor x = embedding_->forward(batch.ids);
  if (embedding_unit_->gathers()) {
    Op op(worker_, embedding_unit_->names().free, Phase::forward);
    embedding_unit_->free_gathered(op);
    if (layout_.tied) tail_unit_->free_gathered(op);
  }
  x = forward_layers(std::move(x));
  worker_.prefix.clear();
  worker_.phase = Phase::forward;
  head_->forward(std::move(x), batch.targets, batch.factors, loss);
  if (!layers_.empty()) begin_use(*tail_unit_, Phase::backward);
  worker_.phase = Phase::backward;
  Tensor d = head_->backward(batch.targets);
  end_use(*tail_unit_, Phase::backward);
  if (!layout_.tied) reduce(*tail_unit_);
  backward_layers(d);
  worker_.prefix.clear();
  worker_.phase = Phase::backward;
  if (embedding_->trains()) embedding_->backward(batch.ids, std::move(d));
  reduce(*embedding_unit_);
  if (layout_.tied) reduce(*tail_unit_);
  end_reductions();
}

template <class Use>
void Model::while_gathered(std::initializer_list<Unit*> units, Use use) {
  worker_.phase = Phase::forward;
  const auto each = [&](auto act) {
    for (Unit* unit : units) {
      if (!unit->gathers()) continue;
      worker_.prefix = unit->prefix();
      act(*unit);
    }
    worker_.prefix = (*units.begin())->prefix();
  };
  each([&](Unit& unit) {
    Op op(worker_, unit.names().gather);
    unit.start_gather(op);
  });
  use();
  each([&](Unit& unit) {
    Op op(worker_, unit.names().free);
    unit.free_gathered(op);
  });
}

Tensor Model::logits(ConstTensorView ids) {
  Tensor x, logits;
  const auto embed = [&] { x = embedding_->forward(ids); };
  if (layout_.tied)
    while_gathered({embedding_unit_.get(), tail_unit_.get()}, embed);
  else
    while_gathered({embedding_unit_.get()}, embed);
  for (std::size_t i = 0; i < layers_.size(); ++i)
    while_gathered({layer_units_[i].get()}, [&] {
      LayerSaved saved;
      x = layers_[i].forward(std::move(x), Layer::Forward::keeps_nothing, saved);
    });
  while_gathered({tail_unit_.get()}, [&] { logits = head_->logits(x); });
  return logits;
}

}  // namespace plimsoll::runtime
