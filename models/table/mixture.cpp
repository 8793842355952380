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

// What is in the way, or nothing.
std::string difference(const Config& config, Head head, const LlamaLike& d,
                       const ModelSpec& model) {
  // ATen/native/cuda/TensorTopK.cu, should_use_sort: longer rows go to another kernel.
  constexpr std::int64_t kMostSorted = 400;
  if (head != Head::language_model) return "architecture " + model.architecture;
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
  const auto block = [&](std::size_t layer) {
    BlockBuilder b(model.parameters, d.hidden, ModuleClass::rms_norm,
                   static_cast<std::int64_t>(layer));
    return std::make_shared<const Block>(
        llama_block(std::move(b), d, [&](BlockBuilder& in, ValueId y) {
          return sparse[layer] ? mixture_mlp(in, y, mixture) : gated_mlp(in, y);
        }));
  };
  if (std::ranges::count(sparse, sparse.front()) == std::ssize(sparse)) {
    model.blocks = {block(0)};
    return;
  }
  std::array<std::shared_ptr<const Block>, 2> made;
  for (std::size_t layer = 0; layer < sparse.size(); ++layer) {
    auto& of = made[sparse[layer] ? 1 : 0];
    if (of == nullptr) of = block(layer);
    model.blocks.push_back(of);
  }
}

}  // namespace plimsoll::models::families
