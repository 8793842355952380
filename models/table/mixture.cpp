#include "models/table/mixture.h"

#include <algorithm>

namespace plimsoll::models::families {

namespace {

// transformers models/mixtral/modeling_mixtral.py, MixtralSparseMoeBlock.forward holds its input
// and what the router returned.
ValueId mixture_mlp(BlockBuilder& b, ValueId y, const Mixture& of) {
  const ValueId logits = b.linear(of.router, y);
  b.reshape_input();
  Node& experts = b.experts(of.experts, logits, y);
  experts.normalizes = of.normalizes;
  experts.wide_scores = of.wide_scores;
  const ValueId sum = experts.out[0];
  b.leave("mlp", {y, logits});
  return sum;
}

// transformers 4.57, models/mixtral/modeling_mixtral.py, MixtralSparseMoeBlock.forward, and
// Qwen3-MoE's: what a turn of the loop binds is held until the next turn binds it anew. The layer
// holds the router's `logits`, which are returned.
ValueId looped_mlp(BlockBuilder& b, ValueId y, const Mixture& of, ValueId& logits) {
  logits = b.linear(of.router, y);
  b.reshape_input();
  Node& route = b.route(of.experts, logits);
  route.in.push_back(y);
  route.normalizes = of.normalizes;
  const ValueList routed = route.out;
  const ValueId scores = routed[0], mask = routed[3];
  ValueId sum = routed[2];
  struct Turn {
    ValueId places = kNoValue, rows = kNoValue, weighted = kNoValue;
  } turn;
  const auto bind = [&](ValueId& name, ValueId value) {
    if (name != kNoValue) b.release({name});
    return name = value;
  };
  for (std::int64_t expert = 0; expert < b.loop().experts; ++expert) {
    const std::string name = std::string(of.experts) + "." + std::to_string(expert);
    const auto module = [&](std::string_view matrix) { return name + "." + std::string(matrix); };
    b.visit(expert);
    const ValueId places = bind(turn.places, b.visitors(name + ".places", mask));
    const ValueId rows = bind(turn.rows, b.gather(name + ".rows", y, places));
    const ValueId gate = b.linear(module(of.gate), rows);
    const ValueId activated = b.activation(name + ".act", gate, Activation::silu);
    const ValueId up = b.linear(module(of.up), rows);
    const ValueId product = b.multiply(name + ".product", activated, up);
    const ValueId down = b.linear(module(of.down), product);
    const ValueId score = b.gather(name + ".scores", scores, places);
    const ValueId weighted = bind(turn.weighted, b.weigh(name + ".weighted", down, score));
    sum = b.add_rows(name + ".sum", sum, weighted, places);
  }
  b.visit(-1);
  b.leave("mlp", {y, scores, routed[1], mask, routed[4], turn.places, turn.rows, turn.weighted});
  return sum;
}

Block looped_block(BlockBuilder b, const LlamaLike& d, const Mixture& of) {
  ValueId logits = kNoValue;
  Block block = llama_block(
      std::move(b), d, [&](BlockBuilder& in, ValueId y) { return looped_mlp(in, y, of, logits); });
  block.nodes.back().releases.push_back(logits);
  return block;
}

// What is in the way, or nothing.
std::string difference(const Config& config, Head head, const LlamaLike& d,
                       const ModelSpec& model) {
  // ATen/native/cuda/TensorTopK.cu, should_use_sort: longer rows go to another kernel.
  constexpr std::int64_t kMostSorted = 400;
  if (!has_step(head)) return "architecture " + model.architecture;
  if (d.activation != "silu" && d.activation != "swish")
    return "hidden_act '" + d.activation + "' in a gated MLP";
  if (config.real("router_jitter_noise", 0) != 0) return "router_jitter_noise";
  if (config.flag("output_router_logits", false)) return "output_router_logits";
  for (const ParameterRow& row : model.parameters)
    if (!row.stacked.empty() && row.ranges.back().count >= kMostSorted)
      return std::to_string(row.ranges.back().count) + " experts";
  return "";
}

}  // namespace

void set_mixture_decoder(ModelSpec& model, const Config& config, Head head, const LlamaLike& d,
                         const Mixture& mixture, const std::vector<bool>& sparse) {
  model.no_decoder = difference(config, head, d, model);
  if (!model.no_decoder.empty()) return;
  set_llama_facts(model, d);
  const auto blocks = [&](auto&& sparse_block) {
    std::array<std::shared_ptr<const Block>, 2> made;
    std::vector<std::shared_ptr<const Block>> all;
    for (std::size_t layer = 0; layer < sparse.size(); ++layer) {
      auto& of = made[sparse[layer] ? 1 : 0];
      const auto at = static_cast<std::int64_t>(layer);
      if (of == nullptr)
        of = std::make_shared<const Block>(
            sparse[layer]
                ? sparse_block(at)
                : llama_block(BlockBuilder(model.parameters, d.hidden, ModuleClass::rms_norm, at),
                              d, [](BlockBuilder& in, ValueId y) { return gated_mlp(in, y); }));
      all.push_back(of);
    }
    if (std::ranges::count(sparse, sparse.front()) == std::ssize(sparse)) all.resize(1);
    return all;
  };
  const auto builder = [&](std::int64_t layer, bool loops) {
    return BlockBuilder(model.parameters, d.hidden, ModuleClass::rms_norm, layer, loops);
  };
  model.blocks = blocks([&](std::int64_t layer) {
    return llama_block(builder(layer, false), d,
                       [&](BlockBuilder& in, ValueId y) { return mixture_mlp(in, y, mixture); });
  });
  model.other_forwards.push_back({.before = kExpertsAreStacked,
                                  .decoder = *model.decoder,
                                  .blocks = blocks([&](auto layer) {
                                    return looped_block(builder(layer, true), d, mixture);
                                  })});
}

}  // namespace plimsoll::models::families
