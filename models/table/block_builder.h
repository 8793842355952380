// Writes a decoder layer's forward pass (models/block.h), node by node.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "models/block.h"
#include "models/model_spec.h"

namespace plimsoll::models::families {

// Of transformers/activations.py; nothing for those whose steps are not modelled. "gelu_new" is
// written in Python, the others are torch functions.
std::optional<Activation> activation_named(std::string_view name);
// Of an MLP that is not gated.
MlpKind mlp_of(Activation activation);

class BlockBuilder {
 public:
  // The layer's modules are those of the rows whose names hold "{}", in the rows' order; of `layer`
  // alone, where layers have different ones. `hidden`: the width of the residual stream; `rms`:
  // what the family's RMSNorm is; `loops`: each expert has modules, behind the router's.
  BlockBuilder(const std::vector<ParameterRow>& rows, std::int64_t hidden,
               ModuleClass rms = ModuleClass::rms_norm, std::int64_t layer = -1,
               bool loops = false);

  // Each adds a node and returns its result. `module`, `name`: relative to the layer.
  // Error{internal}: the table has no such module.
  ValueId norm(std::string_view module, ValueId x);
  ValueId linear(std::string_view module, ValueId x);
  ValueId activation(std::string_view name, ValueId x, Activation activation);
  ValueId multiply(std::string_view name, ValueId a, ValueId b);
  ValueId scale(std::string_view name, ValueId x);
  ValueId add(std::string_view name, ValueId stream, ValueId branch);
  ValueId dropout(std::string_view name, ValueId x, double probability);
  Node& experts(std::string_view module, ValueId logits, ValueId x);
  // GPT-OSS's. Of their sum, each token's scores, and whose these are.
  ValueList clamped_experts(std::string_view module, ValueId logits, ValueId x);
  // A loop over experts: what it is made of, and what follows is of this expert.
  const ExpertLoop& loop() const { return block_.loop; }
  void visit(std::int64_t expert) { expert_ = static_cast<std::int16_t>(expert); }
  Node& route(std::string_view name, ValueId logits);
  ValueId visitors(std::string_view name, ValueId mask);
  ValueId gather(std::string_view name, ValueId x, ValueId places);
  ValueId weigh(std::string_view name, ValueId rows, ValueId scores);
  ValueId add_rows(std::string_view name, ValueId sum, ValueId rows, ValueId places);
  // Views of x, one after another, of these widths; with `heads` one after another in each of them.
  ValueList split(std::string_view name, ValueId x, std::initializer_list<std::int64_t> widths,
                  std::int64_t heads = 0);
  ValueList slice(std::string_view name, ValueId x, std::initializer_list<std::int64_t> widths,
                  std::int64_t heads = 0);
  ValueId concatenate(std::string_view name, ValueId a, ValueId b);
  ValueId heads(std::string_view name, ValueId x);
  ValueId reshape(std::string_view name, ValueId x);
  ValueId expand(std::string_view name, ValueId x, std::int64_t width);
  ValueList rotary(std::string_view name, ValueId q, ValueId k, bool casts_back = false);
  // The first `rotated_q` and `rotated_k` elements of a token are rotated.
  ValueList joined_rotary(std::string_view name, ValueList of, std::int64_t rotated_q,
                          std::int64_t rotated_k);
  ValueId rotary(std::string_view name, ValueId x);  // `name`: of queries or of keys
  ValueList complex_rotary(std::string_view name, ValueId q, ValueId k);
  ValueId pair_rotary(std::string_view name, ValueId x);
  ValueList half_rotary(std::string_view name, ValueId q, ValueId k);
  // The result, and the probabilities that eager attention returns beside it.
  ValueList attention(std::string_view name, ValueId q, ValueId k, ValueId v, EagerSoftmax softmax);
  // The same beside the sinks of the module `name`.
  ValueList sink_attention(std::string_view name, ValueId q, ValueId k, ValueId v);
  // Of the result, the probabilities, and the scores before and after the mask.
  ValueList alibi_attention(std::string_view name, ValueId q, ValueId k, ValueId v);
  // The layer attends to the decoder's window only; its eager scores are capped.
  void slide();
  void cap_scores();
  // A Python frame returns: these values' names go.
  void leave(std::string_view name, ValueList values);
  // The model's loop holds them until the next layer has returned.
  void returned(ValueList values) { block_.returned = values; }
  // Of ranks that share each sequence: x of all of it; the sum of x, of a rank's part of it.
  ValueId gather_sequence(std::string_view name, ValueId x);
  ValueId scatter_sequence(std::string_view name, ValueId x);
  // The linear that was added last reads a view that is made for it.
  void reshape_input() { block_.nodes.back().of_view = true; }
  // They go when the node that was added last has run.
  void release(ValueList values) { block_.nodes.back().releases = values; }

  // Error{internal}: a module of the table is in no node.
  Block take();

 private:
  ValueId value(std::int64_t width);
  ValueId as_wide(OpKind kind, std::string_view name, ValueId x);  // one result, as wide as x
  Node& views(OpKind kind, std::string_view name, ValueId x,
              std::initializer_list<std::int64_t> widths);
  Node& node(OpKind kind, std::string_view name, ValueList in);
  Node& of_module(OpKind kind, std::string_view module, ValueId x);
  std::int64_t width(ValueId id) const { return block_.widths[static_cast<std::size_t>(id)]; }

  Block block_;
  std::int16_t expert_ = -1;
};

}  // namespace plimsoll::models::families
