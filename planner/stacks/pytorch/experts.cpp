// A mixture's layer between its router's GEMM and the sum with the stream: Transformers 5 with
// torch's grouped GEMM. Nothing depends on where tokens go: every count is of visits, tokens
// times the experts that each of them visits.
#include "planner/stacks/pytorch/block_writer.h"
#include "planner/stacks/pytorch/functions.h"

namespace plimsoll::planner::pytorch {

using tape::Function;
using tape::Kind;
using tape::ValueId;

namespace {

// kAll: rows of x, one a visit.
enum : tape::Extent {
  kStream = 1,  // x
  kBoth,  // gate and up of each visit
  kGated,
  kVisits,
  kTokens,
  kLogits,
  kExperts,
  kGateUp,
  kDown,
  kOne,
  // Bytes:
  kVisitIds,  // as int64
  kIdSort,  // cub's for sorting the visits by their experts
  kTokenSort,  // … by their tokens
  kVisitSort,  // … by their places
  kRunningSum,
  kTables,  // of a grouped GEMM's arguments
  kWorkspace,
  // Adapters: A and B of all experts, B as it is copied, in bytes; axes of a GEMM.
  kGateUpA,
  kGateUpB,
  kGateUpCopy,
  kDownA,
  kDownB,
  kDownCopy,
  kGateUpRank,
  kDownRank,
  kHidden,
  kFfn,
  kTwoFfn,
  // Rows of all experts beside a product's weight; bytes: cub's for sorting visits by experts.
  kGateUpBias,
  kDownBias,
  kExpertSort,
};
constexpr std::array<tape::Extent, 2> kGrouped{kTables, kWorkspace};

// A local variable until the function returns.
ValueId local(Function& f, ValueId value, const char* suffix) {
  f.hold(value);
  return f.named(value, suffix);
}

// transformers models/mixtral/modeling_mixtral.py, MixtralTopKRouter.forward, and Qwen3-MoE's: the
// probabilities of the experts in fp32, the largest of them, and where they are.
struct RouteExtents {
  tape::Extent visits = kVisits, tokens = kTokens;
};
Function::Pair route(Function& f, ValueId logits, const models::Node& node, DType to,
                     RouteExtents extents = {}) {
  const DType own = f.value(logits).size.dtype;
  // softmax(…, dtype=float32) reads fp16 as it is (SoftMax.cpp, half_to_float).
  const bool reads_half = own == DType::fp16 && !node.wide_scores;
  const ValueId wide = reads_half ? logits : f.cast(logits, DType::fp32);
  const ValueId all = f.named(f.softmax(wide, DType::fp32), ".probabilities");
  const Function::Pair top = f.top(all, extents.visits, ".chosen");
  ValueId scores = top.first;
  if (node.normalizes) {
    const ValueId sum = f.sum(Kind::sum, scores, {extents.tokens, DType::fp32});
    scores = f.divide_in_place(scores, f.named(sum, ".scores.sum"), ".scores.copy");
  }
  if (!node.wide_scores) scores = f.cast(scores, to);
  f.leave(all);
  return {scores, top.second};
}

// models/gpt_oss/modeling_gpt_oss.py, GptOssTopKRouter.forward.
Function::Pair route_chosen(Function& f, ValueId logits) {
  const Function::Pair top = f.top(logits, kVisits, ".chosen");
  f.named(top.first, ".chosen.logits");
  return {f.softmax(top.first, f.value(top.first).size.dtype), top.second};
}

// GptOssExperts._apply_gate: gate and up are every other column, views; its frame and the caller's
// hold what they name until the product is there.
ValueId clamped_gate(Function& f, ValueId both) {
  const ValueId gates = f.slice(both, kGated), ups = f.slice(both, kGated);
  const ValueId gate = f.named(f.clamp(Kind::clamp_above, gates, kOne), ".gate");
  const ValueId up = f.named(f.clamp(Kind::clamp, ups, kOne), ".up");
  const ValueId scaled = f.named(f.apply(Kind::scale, gate), ".gate.scaled");
  const ValueId sigmoid = f.named(f.apply(Kind::sigmoid, scaled), ".gate.sigmoid");
  const ValueId glu = f.named(f.apply(Kind::multiply, gate, sigmoid), ".activated");
  const ValueId more = f.named(f.apply(Kind::add_number, up), ".up.plus");
  const ValueId product = f.named(f.apply(Kind::multiply, more, glu), ".product");
  for (const ValueId local : {gate, up, glu, both}) f.leave(local);
  return product;
}

ValueId plain_gate(Function& f, ValueId both) {
  const Function::Pair halves = f.chunk(both, kGated);
  const ValueId silu = f.named(f.apply(Kind::silu, halves.first), ".activated");
  return f.named(f.apply(Kind::multiply, silu, halves.second), ".product");
}

// One of the two stacked weights with an adapter (peft 0.21, tuners/lora/layer.py, ParamWrapper).
struct AdaptedWeight {
  bool adapted;
  tape::Extent weight, a, b, copy;
  std::array<tape::Extent, 4> shape;  // out, in, rank, experts
};

// What a wrapper makes before the experts run: the factors in the weight's dtype, B's with its axes
// in another order; and the whole weight once, since registering a parametrization tries it.
struct Factors {
  ValueId lhs = tape::kNone, rhs = tape::kNone;
};
Factors factors(Function& f, const AdaptedWeight& of, std::array<ValueId, 2> matrices,
                DType weight) {
  if (!of.adapted) return {};
  const auto [a, b] = matrices;
  Factors made;
  const ValueId by_expert = f.apply(Kind::view, a);  // reshape: the last of all backward
  made.lhs = f.named(f.cast(f.apply(Kind::laid_out, b), weight), ".lora_B.cast");
  made.rhs = f.named(f.cast(by_expert, weight), ".lora_A.cast");
  f.hold(made.lhs);
  f.hold(made.rhs);
  f.integers(made.lhs, {of.weight, weight}, {of.copy, tape::kAll});
  return made;
}

// _LoraFactorsProxy: W + scaling · B·A of all experts in one, when the weight is first asked for.
// nn.utils.parametrize holds it until the wrapper returns.
ValueId folded(Function& f, const AdaptedWeight& of, const Factors& by, ValueId weight,
               const char* suffix) {
  if (!of.adapted) return weight;
  const ValueId all = f.bmm(Kind::fold, {by.lhs, by.rhs, weight}, of.weight, of.shape, of.copy);
  f.hold(all);
  return f.named(all, suffix);
}

// Visits by their experts, and what of each is read: all is named until the function returns.
struct Sorted {
  ValueId ids, order, rows, weights, offsets, mask;
};
Sorted sorted(Function& f, ValueId x, ValueId scores, ValueId chosen) {
  Sorted by{};
  const Function::Pair pairs = f.sort(chosen, {kVisitIds, kIdSort});
  by.ids = local(f, pairs.first, ".ids");
  by.order = local(f, pairs.second, ".order");
  const ValueId tokens = f.named(f.integers(by.order, {kVisits, DType::int64}), ".tokens");
  by.rows = local(f, f.index(x, tokens, tape::kAll, {kOne, kTokenSort}), ".rows");
  by.weights = local(f, f.index(scores, by.order, kVisits, {kOne, kVisitSort}), ".weights");
  const ValueId narrow = local(f, f.integers(by.ids, {kVisits, DType::int32}), ".ids.int32");
  const ValueId counts = local(f, f.integers(narrow, {kExperts, DType::int32}), ".counts");
  by.offsets =
      local(f, f.integers(counts, {kExperts, DType::int32}, {kRunningSum, tape::kAll}), ".offsets");
  by.mask = local(f, f.integers(by.ids, {kVisits, DType::boolean}), ".mask");
  return by;
}

// Each token's visits, in their order again. Autocast runs sums in fp32.
ValueId summed(Function& f, ValueId weighted, ValueId order, const ExpertsDtypes& of) {
  const ValueId empty = local(f, f.integers(order, {kVisits, DType::int64}), ".back");
  const ValueId back = f.write_in_place({empty, order, f.integers(order, {kVisits, DType::int64})});
  const ValueId by_token = f.index(weighted, back, tape::kAll, {kOne, kVisitSort});
  f.hold(by_token);
  const DType to = of.autocast ? DType::fp32 : f.value(by_token).size.dtype;
  const ValueId sum = f.sum(Kind::sum_groups, by_token, {kStream, to});
  f.hold(sum);
  return sum;
}

// transformers integrations/moe.py, grouped_mm_experts_forward.
Function experts_function(const models::Node& node, const ExpertsPart& part,
                          const ExpertsDtypes& of) {
  Function f;
  f.part_nodes();
  const ValueId logits = f.given({kLogits, of.logits}, of.grad_logits, ".logits");
  const ValueId x = f.given({kStream, of.x}, of.grad_x, ".input");
  const ValueId gate_up = f.parameter({kGateUp, of.weight}, part.train_gate_up);
  const ValueId down = f.parameter({kDown, of.weight}, part.train_down);
  const auto bias_of = [&](tape::Extent extent, bool trains) {
    return part.bias ? f.parameter({extent, of.weight}, trains) : tape::kNone;
  };
  const ValueId gate_up_bias = bias_of(kGateUpBias, part.train_gate_up_bias);
  const ValueId down_bias = bias_of(kDownBias, part.train_down_bias);
  const AdaptedWeight adapted_gate_up{part.gate_up_rank > 0,
                                      kGateUp,
                                      kGateUpA,
                                      kGateUpB,
                                      kGateUpCopy,
                                      {kTwoFfn, kHidden, kGateUpRank, kExperts}};
  const AdaptedWeight adapted_down{
      part.down_rank > 0, kDown, kDownA, kDownB, kDownCopy, {kHidden, kFfn, kDownRank, kExperts}};
  const auto matrices = [&](const AdaptedWeight& weight) -> std::array<ValueId, 2> {
    if (!weight.adapted) return {tape::kNone, tape::kNone};
    const ValueId a = f.parameter({weight.a, of.adapter}, true);
    return {a, f.parameter({weight.b, of.adapter}, true)};
  };
  const std::array<ValueId, 2> of_gate_up = matrices(adapted_gate_up),
                               of_down = matrices(adapted_down);
  const Function::Pair routed =
      node.clamps ? route_chosen(f, logits) : route(f, logits, node, of.logits);
  const ValueId scores = local(f, routed.first, ".scores"),
                chosen = local(f, routed.second, ".chosen");
  if (node.clamps) {
    f.also_result(scores);
    f.also_result(chosen);
  }

  // The wrapper of the parameter that comes first is inside of the other one.
  const Factors down_factors = factors(f, adapted_down, of_down, of.weight);
  const Factors gate_up_factors = factors(f, adapted_gate_up, of_gate_up, of.weight);
  const Sorted by = sorted(f, x, scores, chosen);
  const ValueId whole_gate_up =
      folded(f, adapted_gate_up, gate_up_factors, gate_up, ".gate_up_proj.folded");
  // Each visit's row of the bias; one name holds first the one, then the other.
  const auto biases = [&](ValueId all, tape::Extent to, const char* suffix) {
    if (all == tape::kNone) return all;
    return f.named(f.index(all, by.ids, to, {kOne, kExpertSort}), suffix);
  };
  const ValueId to_gate_up = biases(gate_up_bias, kBoth, ".gate_up_proj_bias.rows");
  const ValueId filled = f.fill(Kind::fill_in_place, by.rows, by.mask);
  const auto product = [&](ValueId in, ValueId weight, ValueId bias, tape::Extent to,
                           const char* suffix) {
    ValueId made = f.grouped_mm({f.cast(in, of.weight), weight, by.offsets}, to, kGrouped);
    if (bias != tape::kNone) made = f.apply(Kind::add_in_place, made, bias);
    return f.named(f.fill(Kind::fill, made, by.mask), suffix);
  };
  const ValueId both = product(filled, whole_gate_up, to_gate_up, kBoth, ".gate_up");
  const ValueId gated = node.clamps ? clamped_gate(f, both) : plain_gate(f, both);
  const ValueId whole_down = folded(f, adapted_down, down_factors, down, ".down_proj.folded");
  const ValueId to_down = biases(down_bias, tape::kAll, ".down_proj_bias.rows");
  if (part.bias) {
    f.hold_through({to_gate_up, tape::kNone, tape::kNone});
    f.hold(to_down);
  }
  const ValueId out = product(gated, whole_down, to_down, tape::kAll, ".down");
  f.hold(out);
  const ValueId sum = summed(f, f.apply(Kind::multiply, out, by.weights), by.order, of);
  f.result(f.named(f.cast(sum, of.x), ".out"));
  return f;
}

}  // namespace

TapePart experts_tape(const char* name, const models::Node& node, const ExpertsPart& part,
                      const ExpertsDtypes& of) {
  static tape::Rules<1u << 13> rules;
  std::size_t key = tape::dtype_bits(of.logits);
  key = key << 2 | tape::dtype_bits(of.x);
  key = key << 2 | tape::dtype_bits(of.weight);
  for (const bool bit : {of.autocast, of.grad_logits, of.grad_x, part.train_gate_up,
                         part.train_down, node.normalizes, node.wide_scores})
    key = key << 1 | bit;
  if (!part.adapted() && !node.clamps)
    return tape_part(name, rules.find(key, [&] { return experts_function(node, part, of); }));
  key = key << 2 | tape::dtype_bits(of.adapter);
  for (const bool bit : {part.gate_up_rank > 0, part.down_rank > 0, node.clamps,
                         part.train_gate_up_bias, part.train_down_bias})
    key = key << 1 | bit;
  return tape_part(name, tape::known_rule(key, [&] { return experts_function(node, part, of); }));
}

TapePart route_tape(const char* name, const models::Node& node, DType logits, DType to, bool grad) {
  static tape::Rules<1u << 6> rules;
  std::size_t key = tape::dtype_bits(logits) << 2 | tape::dtype_bits(to);
  for (const bool bit : {grad, node.normalizes}) key = key << 1 | bit;
  return tape_part(name, rules.find(key, [&] {
    Function f;
    const ValueId read = f.given({kRoutedLogits, logits}, grad, ".logits");
    const Function::Pair routed =
        route(f, read, node, to, {.visits = kRoutedVisits, .tokens = kRoutedTokens});
    f.also_result(routed.second);
    f.result(routed.first);
    f.named(f.result(), ".scores");
    return f;
  }));
}

TapePart BlockWriter::experts_part(const NodePlan& at) const {
  const models::ValueId logits = at.node->in[0], x = at.node->in[1];
  return experts_tape(at.node->name, *at.node, *at.experts,
                      {dtype_of(logits), dtype_of(x), regime_.weight, regime_.adapter,
                       regime_.autocast, grad_of(logits), grad_of(x)});
}

// torch.sort of more than 4096 values sorts pairs by all bits (ATen/native/cuda/Sort.cpp,
// should_use_small_sort). A grouped GEMM of any other dtype is a loop.
TapeCounts BlockWriter::experts_counts(const NodePlan& at) const {
  constexpr std::int64_t kSmallSort = 4096, kIdBits = 64, kTableBytes = 60;
  const ExpertsPart& part = *at.experts;
  const SymInt tokens = tokens_.total();
  const SymInt visits = checked_multiply(tokens, part.active);
  const bool grouped = regime_.weight == DType::bf16 && rules_.gpu.grouped > 0;
  TapeCounts counts{};
  counts[tape::kAll] = checked_multiply(visits, part.hidden);
  counts[kStream] = checked_multiply(tokens, part.hidden);
  counts[kBoth] = checked_multiply(visits, 2 * part.ffn);
  counts[kGated] = checked_multiply(visits, part.ffn);
  counts[kVisits] = visits;
  counts[kTokens] = tokens;
  counts[kLogits] = checked_multiply(tokens, part.experts);
  counts[kExperts] = part.experts;
  counts[kGateUp] = part.gate_up();
  counts[kDown] = part.down();
  counts[kGateUpBias] = checked_multiply(part.experts, 2 * part.ffn);
  counts[kDownBias] = checked_multiply(part.experts, part.hidden);
  counts[kExpertSort] = pair_sort_bytes(visits, bits_of(part.experts - 1));
  counts[kOne] = 1;
  counts[kVisitIds] = checked_multiply(8, visits);
  counts[kIdSort] = visits > kSmallSort ? pair_sort_bytes(visits, kIdBits) : SymInt(0);
  counts[kTokenSort] = pair_sort_bytes(visits, bits_of(tokens - 1));
  counts[kVisitSort] = pair_sort_bytes(visits, bits_of(visits - 1));
  counts[kRunningSum] = 1023;  // cub's for a sum of fewer values than a block has
  counts[kTables] = grouped ? kTableBytes * part.experts : 0;
  counts[kWorkspace] = grouped ? rules_.gpu.grouped * rules_.gpu.count : 0;
  if (part.adapted()) count_adapters(part, counts);
  return counts;
}

void BlockWriter::count_adapters(const ExpertsPart& part, TapeCounts& counts) const {
  const auto times = [&](std::int64_t rank, std::int64_t axis) {
    return checked_multiply(checked_multiply(part.experts, rank), axis);
  };
  const auto in_bytes = [&](std::int64_t elements) {
    return storage(Count(elements), regime_.weight).value();
  };
  counts[kGateUpA] = times(part.gate_up_rank, part.hidden);
  counts[kGateUpB] = times(part.gate_up_rank, 2 * part.ffn);
  counts[kGateUpCopy] = in_bytes(times(part.gate_up_rank, 2 * part.ffn));
  counts[kDownA] = times(part.down_rank, part.ffn);
  counts[kDownB] = times(part.down_rank, part.hidden);
  counts[kDownCopy] = in_bytes(times(part.down_rank, part.hidden));
  counts[kGateUpRank] = part.gate_up_rank;
  counts[kDownRank] = part.down_rank;
  counts[kHidden] = part.hidden;
  counts[kFfn] = part.ffn;
  counts[kTwoFfn] = 2 * part.ffn;
}

// As many visits of each expert; `summed`: the weight's gradient, over them.
void BlockWriter::experts_work(const NodePlan& at, bool summed) {
  const ExpertsPart& part = *at.experts;
  const auto experts = static_cast<double>(part.experts);
  const double visits = tokens_.total().real() * static_cast<double>(part.active);
  const auto hidden = static_cast<double>(part.hidden), ffn = static_cast<double>(part.ffn);
  const auto product = [&](double out, double in) {
    Gemm gemm{regime_.weight, visits / experts, out, in, experts};
    if (summed) gemm = {regime_.weight, out, in, visits / experts, experts};
    b_.work().gemm(gemm);
  };
  if (!summed || part.train_gate_up || part.gate_up_rank > 0) product(2 * ffn, hidden);
  if (!summed || part.train_down || part.down_rank > 0) product(hidden, ffn);
}

void BlockWriter::run_experts(const NodePlan& at, bool stops, LayerSaved& s) {
  const std::array<Ref, 2> given{{{s.of(at.node->in[0])}, {s.of(at.node->in[1])}}};
  tape_forward(experts_part(at), experts_counts(at), given, s.experts[at.place], stops);
  experts_work(at, false);
  s.of(at.node->out[0]) = s.experts[at.place].out;
  for (std::size_t i = 1; i < at.node->out.size(); ++i)
    s.of(at.node->out[i]) = s.experts[at.place].also[i - 1];
}

void BlockWriter::experts_back(const NodePlan& at, const LayerSaved& s) {
  const models::ValueId logits = at.node->in[0], x = at.node->in[1];
  const std::array<Ref, 2> given{{{s.of(logits)}, {s.of(x)}}};
  TensorId d_x = kNoTensor;
  const ExpertsNames& names = *at.experts_names;
  TapeGradients d{
      .result = gradient(at.node->out[0]).tensor,
      .flowing = gradient(logits).tensor,
      .parameters = {&names.gate_up, &names.down, &names.gate_up_bias, &names.down_bias},
      .adapters = at.experts->bias ? 4U : 2U,
      .held = frame(),
      .others = {&d_x, 1}};
  std::size_t next = d.adapters;
  for (const auto& [rank, a, b] :
       {std::tuple(at.experts->gate_up_rank, &names.gate_up_a, &names.gate_up_b),
        std::tuple(at.experts->down_rank, &names.down_a, &names.down_b)}) {
    if (rank == 0) continue;
    d.parameters[next++] = a;
    d.parameters[next++] = b;
  }
  const TensorId d_logits =
      tape_backward(experts_part(at), experts_counts(at), given, s.experts[at.place], d);
  experts_work(at, true);
  if (grad_of(x) || grad_of(logits)) experts_work(at, false);  // of what went in
  gradient(logits) = {d_logits};
  gradient(x) = {d_x};
}

}  // namespace plimsoll::planner::pytorch
