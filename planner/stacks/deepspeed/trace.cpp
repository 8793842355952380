#include "planner/stacks/deepspeed/trace.h"

#include <algorithm>
#include <string_view>

#include "models/decisions/layer.h"
#include "planner/stacks/deepspeed/nvme.h"

namespace plimsoll::planner::deepspeed {

namespace {

using Part = Message::Part;
using When = Message::When;
using Step = TraceStep;

// Parameters of one module, by their place in the layer's list; a container has none. `depth`:
// modules that it is inside of.
struct Module {
  std::vector<std::size_t> parameters;
  std::size_t depth = 0;
  bool output_grad = false;
  bool input_grad = false;  // of a module with parameters of its own
  std::size_t inside = 0;  // modules that it contains
};

// The modules of a layer in the order of its forward. Names of values and modules are relative to
// the layer, whose own hook comes first.
class LayerModules {
 public:
  LayerModules(const LayerPart& layer, bool input_grad, bool calls_activations)
      : layer_(layer), calls_activations_(calls_activations) {
    grads_.assign(layer.block->widths.size(), false);
    if (!grads_.empty()) grads_[models::kBlockInput] = input_grad;
    inputs_.assign(layer.parameters.size(), false);
    modules_.emplace_back();
    const std::vector<models::Node>& nodes = layer.block->nodes;
    for (std::size_t i = 0; i < nodes.size(); ++i) add(nodes[i], static_cast<int>(i));
    close_until({});
    modules_.front().output_grad = grads_[static_cast<std::size_t>(layer.block->output())];
    reverse(0, modules_.size());
    for (std::vector<Module>* of : {&modules_, &backward_})
      for (auto module = of->begin(); module != of->end(); ++module) {
        const auto behind = std::find_if(module + 1, of->end(), [&](const Module& other) {
          return other.depth <= module->depth;
        });
        module->inside = static_cast<std::size_t>(behind - module) - 1;
      }
  }
  // A container's hook comes before those of what it contains, in either direction.
  const std::vector<Module>& forward() const { return modules_; }
  const std::vector<Module>& backward() const { return backward_; }
  const std::vector<bool>& inputs() const { return inputs_; }  // by parameter: take a gradient

 private:
  void reverse(std::size_t begin, std::size_t end) {
    if (begin == end) return;
    std::vector<std::size_t> roots;
    for (std::size_t i = begin; i < end; ++i)
      if (modules_[i].depth == modules_[begin].depth) roots.push_back(i);
    for (std::size_t r = roots.size(); r-- > 0;) {
      const std::size_t last = r + 1 < roots.size() ? roots[r + 1] : end;
      if (modules_[roots[r]].output_grad) backward_.push_back(modules_[roots[r]]);
      reverse(roots[r] + 1, last);
    }
  }

  bool inside(std::string_view name) const {
    const std::string_view open = open_.empty() ? "" : open_.back().first;
    return open.empty() || (name.starts_with(open) && name.substr(open.size()).starts_with('.'));
  }
  void close_until(std::string_view name) {
    while (!open_.empty() && (name.empty() || !inside(name))) open_.pop_back();
  }
  // Containers that `name` is in and that are not open.
  void enter(std::string_view name) {
    close_until(name);
    std::size_t from = open_.empty() ? 0 : open_.back().first.size() + 1;
    for (std::size_t dot = name.find('.', from); dot != std::string_view::npos;
         dot = name.find('.', dot + 1)) {
      open_.emplace_back(name.substr(0, dot), modules_.size());
      modules_.push_back({{}, open_.size(), false});
    }
  }
  void push(std::vector<std::size_t> parameters, bool output_grad, std::size_t deeper = 0) {
    modules_.push_back({std::move(parameters), open_.size() + 1 + deeper, output_grad});
    for (const auto& [name, container] : open_)
      modules_[container].output_grad = modules_[container].output_grad || output_grad;
  }

  void add(const models::Node& node, int index) {
    bool input = false;
    for (const models::ValueId id : node.in) input = input || grads_[static_cast<std::size_t>(id)];
    std::vector<std::size_t> own, adapters;
    bool trains = false, own_trains = false;
    for (std::size_t p = 0; p < layer_.parameters.size(); ++p) {
      const Parameter& parameter = layer_.parameters[p];
      if (parameter.node != index) continue;
      inputs_[p] = input;
      (parameter.adapter ? adapters : own).push_back(p);
      trains = trains || parameter.trainable;
      own_trains = own_trains || (parameter.trainable && !parameter.adapter);
    }
    for (const models::ValueId id : node.out)
      grads_[static_cast<std::size_t>(id)] = input || trains;
    const bool module = (node.kind == models::OpKind::activation && calls_activations_) ||
                        node.kind == models::OpKind::dropout;
    if (own.empty() && !module) return;
    enter(node.name);
    if (adapters.empty()) {
      push(std::move(own), input || trains);
      modules_.back().input_grad = input;
      return;
    }
    // PEFT's layer is around these, and asks A's weight for its dtype: that is its parameter too
    // (ZeROOrderedDict). Then its dropout.
    push({adapters.front()}, true);
    push(std::move(own), input || own_trains, 1);
    modules_.back().input_grad = input;
    push({}, input, 1);
    for (const std::size_t p : adapters) push({p}, true, 1);
  }

  const LayerPart& layer_;
  bool calls_activations_;
  std::vector<Module> modules_, backward_;
  std::vector<bool> grads_;  // of values
  std::vector<bool> inputs_;
  std::vector<std::pair<std::string_view, std::size_t>> open_;
};

// The whole model's.
class Tracer {
 public:
  Tracer(const ModelParts& parts, const FlatLayout& layout, const Engine& engine,
         const models::Strategy& strategy)
      : parts_(parts), layout_(layout), engine_(engine), strategy_(strategy) {}

  Trace run() {
    const std::vector<FlatLayout::Block>& blocks = layout_.blocks();
    hold(blocks.front(), 1);
    for (std::size_t r = 0; r < parts_.runs.size(); ++r) hold(blocks[r + 1], blocks[r + 1].count);
    hold(blocks.back(), 1);
    const std::size_t model = containers(When::forward);
    std::size_t first = blocks.front().all.size();
    front();
    layers(first);
    tail(When::forward);
    put_in_files();
    const std::size_t behind = trace_.steps.size();
    const std::size_t model_backward = containers(When::backward);
    tail(When::backward);
    for (auto back = backward_.rbegin(); back != backward_.rend(); ++back) layers_backward(*back);
    front_backward();
    if (reads_head_weight(strategy_)) {
      trace_.steps[model].last = behind - 1;
      trace_.steps[model_backward].last = trace_.steps.size() - 1;
    }
    return std::move(trace_);
  }

 private:
  // Of those whose parts are files, the trained ones leave them for good while max_in_cpu holds
  // their sub-group and all before it (nvme.cpp).
  void put_in_files() {
    if (!engine_.offload.nvme || !engine_.offload.params) return;
    const FlatLayout::Shards& shards = layout_.shards();
    const std::int64_t in_cpu = std::min(shards.trained, engine_.options.nvme.max_in_cpu);
    std::size_t group = 0;
    std::int64_t end = shards.sub_groups.front(), at = 0;
    for (Held& held : trace_.parameters) {
      const std::int64_t part = ceil_divide(held.elements, engine_.ranks);
      if (held.trained && at >= end) end += shards.sub_groups[++group];
      if (held.trained) at += part;
      if (goes_to_file(part, engine_.model) && !(held.trained && end <= in_cpu))
        held.file = InFile::only;
    }
  }

  void hold(const FlatLayout::Block& block, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i)
      for (std::size_t p = 0; p < block.all.size(); ++p) {
        const Parameter& parameter = block.all[p];
        const DType own = layout_.stored(parameter);
        const Count padded(ceil_divide(parameter.elements, engine_.ranks) * engine_.ranks);
        trace_.parameters.push_back({.elements = parameter.elements,
                                     .padded = storage(padded, own),
                                     .wide = own != engine_.model,
                                     .packed = parameter.packed != nullptr,
                                     .persistent = block.persistent[p],
                                     .trained = parameter.trainable,
                                     .there = block.persistent[p]});
      }
  }

  // The model and what wraps it; PEFT adds one, and calls the forward of the model that has the
  // head past its hooks. Returns the step of the module whose forward makes the loss.
  std::size_t containers(When when) {
    if (strategy_.lora) trace_.add({.when = when}, {});
    const bool reads = reads_head_weight(strategy_);
    trace_.add({.when = when, .finds_head = reads && when == When::forward},
               reads ? head() : std::vector<std::size_t>());
    trace_.add({.when = when}, {});
    return trace_.steps.size() - 2;
  }

  // Each table is a module, and the norm of what they give; then the model's dropout, or what makes
  // the rotary tables.
  void front() {
    const std::vector<Parameter>& all = layout_.blocks().front().all;
    for (std::size_t p = 0; p < all.size(); ++p)
      if (all[p].embedding) trace_.add({}, {p});
    if (const std::vector<std::size_t> norm = front_norm(); !norm.empty()) trace_.add({}, norm);
    trace_.add({}, {});
  }

  void front_backward() {
    const std::vector<Parameter>& all = layout_.blocks().front().all;
    const Step at{.when = When::backward};
    if (parts_.decoder.position != models::PositionKind::rope) trace_.add(at, {});
    if (const std::vector<std::size_t> norm = front_norm(); !norm.empty() && parts_.trains_front())
      trace_.add(at, norm);
    // PEFT's enable_input_require_grads asks the words' table for a gradient of what it gave.
    const bool asked = parts_.runs.front().input_grad && !parts_.trains_front();
    for (std::size_t p = all.size(); p-- > 0;)
      if (all[p].embedding && (all[p].trainable || (asked && p == 0))) trace_.add(at, {p});
  }

  std::vector<std::size_t> front_norm() const {
    const std::vector<Parameter>& all = layout_.blocks().front().all;
    std::vector<std::size_t> norm;
    for (std::size_t p = 0; p < all.size(); ++p)
      if (!all[p].embedding) norm.push_back(p);
    return norm;
  }

  // The final norm, and the head, of which a tied table is the embedding's.
  void tail(When when) {
    const Step at{.part = Part::tail, .when = when};
    if (when == When::forward) trace_.add(at, tail_parameters(true));
    if (!reads_head_weight(strategy_)) trace_.add(at, head());
    if (when == When::backward) trace_.add(at, tail_parameters(true));
  }

  // The tail's: the norm's, or the others.
  std::vector<std::size_t> tail_parameters(bool norm) const {
    const std::vector<Parameter>& all = layout_.blocks().back().all;
    std::vector<std::size_t> out;
    for (std::size_t p = 0; p < all.size(); ++p)
      if (all[p].hidden == norm) out.push_back(trace_.parameters.size() - all.size() + p);
    return out;
  }

  std::vector<std::size_t> head() const {
    std::vector<std::size_t> out = tail_parameters(false);
    if (parts_.decoder.tied_head) out.insert(out.begin(), 0);
    return out;
  }

  struct Back {
    std::size_t first = 0;  // parameter
    std::size_t layer = 0;  // place among the patterns
    std::size_t pattern = 0;
    bool recomputed = false;
    std::int64_t number = 0;
  };

  // `again`, `end`: those of `modules` that run forward in a backward.
  void add_layer(const std::vector<Module>& modules, std::size_t first, const Back& of, When when,
                 std::size_t again = 0, std::size_t end = 0) {
    for (std::size_t i = 0; i < modules.size(); ++i) {
      const bool runs_again = i >= again && i < end;
      trace_.add({.part = Part::layer,
                  .layer = of.layer,
                  .when = when,
                  .number = of.number,
                  .again = runs_again,
                  .leaves_copies =
                      (when == When::forward || runs_again) && leaves_copies(modules[i], of, when)},
                 modules[i].parameters, modules[i].inside, first);
    }
  }

  // The node of a 4-bit GEMM is made where its input takes a gradient, and goes early where a
  // checkpoint's forward makes none, or runs again.
  bool leaves_copies(const Module& module, const Back& of, When when) const {
    if (engine_.packed_copy != PackedCopy::graph) return engine_.packed_copy == PackedCopy::module;
    return when == When::forward && module.input_grad &&
           !(of.recomputed && strategy_.use_reentrant.value_or(false));
  }

  void layers(std::size_t first) {
    std::size_t place = 0;
    for (const LayerRun& run : parts_.runs) {
      const std::size_t begin = patterns_.size();
      const bool again = models::decisions::recomputes_layer(strategy_.recompute, run.first);
      // Liger's gates are no modules.
      for (const LayerPart& layer : run.pattern)
        patterns_.emplace_back(layer, run.input_grad, strategy_.kernels != models::Kernels::liger);
      for (std::int64_t i = 0; i < run.count; ++i) {
        const auto j = static_cast<std::size_t>(i % run.period());
        const LayerModules& modules = patterns_[begin + j];
        backward_.push_back({first, place + j, begin + j, again, run.first + i});
        add_layer(modules.forward(), first, backward_.back(), When::forward);
        first += run.pattern[j].parameters.size();
      }
      place += run.pattern.size();
    }
  }

  // Checkpoints of several layers are one by one here: what is read ahead is the same. One that is
  // not reentrant runs again when the first node of the backward asks for what it saved: that
  // node's module, and those around it, have begun before.
  void layers_backward(const Back& back) {
    const LayerModules& layer = patterns_[back.pattern];
    std::vector<Module> modules = layer.backward();
    if (modules.empty()) return;
    std::vector<Module> again;
    if (back.recomputed) again = layer.forward();
    auto begun = modules.begin();
    if (!again.empty() && !strategy_.use_reentrant.value_or(false)) {
      const auto leaf = [](const Module& module) { return module.inside == 0; };
      begun = std::next(std::find_if(modules.begin(), modules.end(), leaf));
      std::for_each(modules.begin(), begun, [&](Module& module) { module.inside += again.size(); });
    }
    const auto from = static_cast<std::size_t>(begun - modules.begin()), to = from + again.size();
    again.insert(again.begin(), modules.begin(), begun);
    again.insert(again.end(), begun, modules.end());
    add_layer(again, back.first, back, When::backward, from, to);
  }

  const ModelParts& parts_;
  const FlatLayout& layout_;
  const Engine& engine_;
  const models::Strategy& strategy_;
  Trace trace_;
  std::vector<LayerModules> patterns_;
  std::vector<Back> backward_;
};

}  // namespace

std::vector<bool> inputs_with_grad(const LayerPart& layer, bool input_grad) {
  return LayerModules(layer, input_grad, false).inputs();
}

bool reads_head_weight(const models::Strategy& s) {
  const bool fused = s.kernels == models::Kernels::liger && s.loss == models::Loss::fused;
  return fused || s.loss == models::Loss::tiled;
}

Trace trace_of(const ModelParts& parts, const FlatLayout& layout, const Engine& engine,
               const models::Strategy& strategy) {
  return Tracer(parts, layout, engine, strategy).run();
}

}  // namespace plimsoll::planner::deepspeed
