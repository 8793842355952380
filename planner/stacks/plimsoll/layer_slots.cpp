#include "planner/stacks/plimsoll/layer_slots.h"

#include <string>

#include "models/decisions/layer_modules.h"

namespace plimsoll::planner::own {

namespace {

using models::OpKind;
using models::decisions::layer_module;
using models::decisions::LayerModule;

// In the order of LayerModule.
constexpr LinearPart LayerSlots::*kLinears[models::decisions::kLayerLinears] = {
    &LayerSlots::q,    &LayerSlots::k,  &LayerSlots::v,   &LayerSlots::o,
    &LayerSlots::gate, &LayerSlots::up, &LayerSlots::down};
constexpr NormPart LayerSlots::*kNorms[models::decisions::kLayerNorms] = {
    &LayerSlots::input_norm, &LayerSlots::post_norm, &LayerSlots::q_norm, &LayerSlots::k_norm};

// One letter a node, but for the norms of queries and keys, which may be missing, and for Python's
// frames, which this runtime does not have.
constexpr std::string_view kLlamaNodes = "NLLLRAL+NLXL*L+", kGpt2Nodes = "NLSALD+NLXLD+";

char letter(OpKind kind) {
  switch (kind) {
    case OpKind::norm:
      return 'N';
    case OpKind::linear:
      return 'L';
    case OpKind::split:
      return 'S';
    case OpKind::rotary:
      return 'R';
    case OpKind::attention:
      return 'A';
    case OpKind::activation:
      return 'X';
    case OpKind::multiply:
      return '*';
    case OpKind::add:
      return '+';
    case OpKind::dropout:
      return 'D';
    case OpKind::leave:
      return ' ';
  }
  return '?';
}

}  // namespace

LayerSlots slots_of(const LayerRun& run) {
  const LayerPart& layer = run.pattern.front();
  LayerSlots slots;
  for (NormPart LayerSlots::*norm : kNorms) slots.*norm = {.train_weight = false};
  for (const models::Module& module : layer.block->modules) {
    const LayerModule name = layer_module(module.name);
    if (is_linear(name))
      slots.*kLinears[place_of(name)] = layer.linears[module.place];
    else
      slots.*kNorms[place_of(name)] = layer.norms[module.place];
  }
  std::string nodes;
  for (const models::Node& node : layer.block->nodes) {
    const bool heads =
        node.kind == OpKind::norm && (layer_module(node.name) == LayerModule::q_norm ||
                                      layer_module(node.name) == LayerModule::k_norm);
    if (!heads && node.kind != OpKind::leave) nodes.push_back(letter(node.kind));
  }
  const bool known = nodes == kLlamaNodes || nodes == kGpt2Nodes;
  check(known && run.period() == 1, ErrorKind::unsupported,
        [] { return std::string("our own runtime has the layers of Llama and GPT-2 only"); });
  return slots;
}

}  // namespace plimsoll::planner::own
