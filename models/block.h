// One decoder layer's forward pass as data, in the order in which the model's own code runs it.
//
// A family writes its block once, beside its parameter table (models/families). A node computes
// values from values; what it saves for the backward, in which dtype it computes and which memory
// it takes is a stack's matter (planner/stacks). Eager Python decides when a value dies: a frame
// holds its local variables until it returns, which `releases` says.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "models/module_class.h"
#include "models/value_list.h"

namespace plimsoll::models {

namespace decisions {
struct LayerOps;
}

// `text` kept for as long as the process runs, equal texts at one address.
const char* interned(std::string_view text);

// A module with parameters. `name` is relative to the layer ("self_attn.q_proj"; interned). Widths
// are elements; a norm's `in` and `out` are the axis that it normalizes.
struct Module {
  const char* name = "";
  ModuleClass kind = ModuleClass::linear;
  std::int64_t in = 0, out = 0;
  bool bias = false;
  std::int64_t experts = 0, active = 0;  // how many, and how many a token visits
  std::uint16_t place = 0;  // among the block's linears, norms or experts
};

inline constexpr ValueId kBlockInput = 0;  // the residual stream before the layer

enum class OpKind : std::uint8_t {
  norm,  // in: x
  linear,  // in: x
  split,  // in: x; out: q, k, v as views of it
  slice,  // in: x; out: parts of it (by_head: of each head's elements), as views of it
  concatenate,  // in: parts of each head's elements; out: [batch, heads, s, head_dim]
  heads,  // in: x [b, s, width]; out: a view of it, [b, heads, s, d]
  reshape,  // in: x [b, heads, s, d], a strided view; out: [b·heads, s, d]
  expand,  // in: as reshape's; out: [b, heads, s, d], a copy in which a head may stand several
           // times
  rotary,  // in: q, k, or one of them; out: each rotated
  // in: q, k, v; out: the result, what eager attention returns beside it and, with `alibi`, the
  // scores before and after the mask, which its frame holds
  attention,
  activation,  // in: x
  multiply,  // in: a, b
  scale,  // in: x; out: x times a number
  add,  // in: the stream, a branch
  dropout,  // in: x; probability 0 returns its input
  // in: the router's logits, x; routes each token to its experts and sums their results
  experts,
  // The same as a loop over experts, which are linears of their own. in: the router's logits, x;
  // out: each token's scores, whose they are, zeros for the sum, a mask, the visited experts
  route,
  visitors,  // in: the mask; out: the places of those that visit the node's expert
  gather,  // in: a row for each token, places; out: those at the places
  weigh,  // in: rows, a score of each; out: their product
  add_rows,  // in: the sum, rows, places; out: the sum, changed in place
  gather_sequence,  // in: x of a rank's part of each sequence (tensor parallelism); out: of all
  scatter_sequence,  // in: x of all of it, a summand on each rank; out: the sum, of a rank's part
  leave,  // a Python frame returns: `releases` go
};

// gelu_python: "gelu_new", of torch functions; gelu_function: BLOOM's autograd.Function.
enum class Activation : std::uint8_t { silu, gelu, gelu_tanh, relu, gelu_python, gelu_function };

// How eager attention makes probabilities of scores: softmax(…, dtype=float32).to(q's dtype), or
// softmax(…).type(v's dtype), or softmax(…) as it comes, which the GEMM casts under autocast.
enum class EagerSoftmax : std::uint8_t { fp32, as_computed, uncast };

struct Node {
  OpKind kind = OpKind::leave;
  // The Python module that computes it ("self_attn", "mlp.act"; interned), or linear, or norm.
  const char* name = "";
  std::int16_t module = -1;  // of Block::modules; of attention: its sinks, if it has any
  ValueList in, out;
  ValueList releases;  // let go when the node has run
  Activation activation = Activation::silu;
  EagerSoftmax softmax = EagerSoftmax::fp32;
  bool sliding = false;  // rotary, attention: of a layer with the decoder's window
  bool soft_cap = false;  // attention: eager scores go through a scaled tanh
  bool alibi = false;  // attention: the GEMMs are added to a bias of each head (ALiBi)
  double probability = 0;  // dropout
  bool by_head = false;  // split, slice: x is [batch, heads, s, of each head]
  std::int64_t heads = 0;  // split, slice: whose parts lie side by side in x; 0: x is not cut so
  bool casts_back = false;  // rotary: the results have the operands' dtype, whatever the tables'
  bool complex = false;  // rotary: pairs of elements times complex numbers
  bool pairs = false;  // rotary: the same in Python, in fp32, and back in the operand's dtype
  // rotary: cast back as each is rotated, and joined with the rest of each head, even where there
  // is none. out: q, k, and of both the part that is rotated, which its frame holds.
  bool joins = false;
  bool halves = false;  // rotary: halves of x times tables of so many elements, and joined
  bool of_view = false;  // linear: x is reshaped for it, in a node of its own
  bool normalizes = false;  // experts: the chosen ones' probabilities are divided by their sum
  bool wide_scores = false;  // experts: those stay in fp32, whatever the logits are in
  bool clamps = false;  // experts: GPT-OSS's: the chosen logits' softmax, clamped gates
  std::int16_t expert = -1;  // whose visitors' rows it makes; none: each token's
};

struct ExpertLoop {
  std::int64_t experts = 0, active = 0;  // how many, and how many a token visits
  std::int64_t modules = 0;  // of each, one expert behind another
};

struct Block {
  std::vector<Module> modules;  // in the order of named_parameters()
  std::vector<Node> nodes;
  std::vector<std::int64_t> widths;  // of each value, in elements a token
  // What the layer returns beside its output: the model's loop holds it until the next returned.
  ValueList returned;
  std::uint16_t linears = 0, norms = 0, experts = 0;  // how many of `modules` are
  ExpertLoop loop;
  // The same nodes as our own runtime runs them (models/decisions/layer_ops.h).
  std::shared_ptr<const decisions::LayerOps> own;

  ValueId output() const;  // of the last node that computes anything
  const Module* find(std::string_view name) const;  // nullptr: there is none
};

}  // namespace plimsoll::models
