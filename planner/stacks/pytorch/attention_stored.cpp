// Attention that stores its scores: Transformers' eager code and SDPA's math backend.
#include "planner/stacks/pytorch/attention.h"
#include "planner/stacks/pytorch/functions.h"

namespace plimsoll::planner::pytorch {

using models::EagerSoftmax;
using tape::Extent;
using tape::Function;
using tape::Kind;
using tape::kNone;
using tape::ValueId;

namespace {

// What the function depends on beside sizes.
struct StoredAttention {
  enum class Groups : std::uint8_t { none, copied, viewed } groups = Groups::none;
  EagerSoftmax softmax = EagerSoftmax::fp32;
  DType q, k, v, kernel, compute, mask, biases;
  bool math, masks, soft_cap, alibi, dropout, autocast, sinks, sinks_grad;
  bool lays_out, lays_out_q, lays_out_k, lays_out_v;
  bool q_grad, k_grad, v_grad;
  int slices;  // that the repetition of keys and values begins with
};

// kAll: scores.
enum : Extent {
  kQueries = 1,
  kKeys,
  kRepeated,  // keys, over the query heads of their group
  kMask,
  kBiases,
  kSquare,
  kSinks,  // one of each head
  kRows,  // one of each row of scores
  kJoined,  // scores, and one more in each row
  // Of the products:
  kLength,
  kKeyLength,
  kHeadDim,
  kHeads,  // of all sequences
  // Bytes:
  kScoreBooleans,
  kRowBooleans,  // and one value
  kSquareBooleans,
  kTwoValues,
};
constexpr std::array<Extent, 4> kOfScores{kLength, kKeyLength, kHeadDim, kHeads},
    kOfRows{kLength, kHeadDim, kKeyLength, kHeads};

struct Given {
  ValueId q, k, v, mask, biases;
};
Given given(Function& f, const StoredAttention& of) {
  return {f.given({kQueries, of.q}, of.q_grad, ".q"), f.given({kKeys, of.k}, of.k_grad, ".k"),
          f.given({kKeys, of.v}, of.v_grad, ".v"), f.given({kMask, of.mask}, false),
          f.given({kBiases, of.biases}, false)};
}

// A batched product reads [batch·heads, s, d] with plain strides.
ValueId laid_out(Function& f, ValueId x, bool copies, const char* suffix) {
  return copies ? f.named(f.copy(x), suffix) : x;
}
ValueId cast(Function& f, ValueId x, DType to, const char* suffix) {
  const ValueId made = f.cast(x, to);
  return made == x ? x : f.named(made, suffix);
}

// The rows of each head: their gradient comes with the heads side by side.
ValueId by_head(Function& f, ValueId product, bool several) {
  f.named(product, ".product");
  return several ? f.named(f.apply(Kind::laid_out, product), ".product") : product;
}

// Gemma 2: scores / cap, tanh, · cap.
ValueId soft_cap(Function& f, ValueId scores) {
  const ValueId divided = f.named(f.apply(Kind::scale, scores), ".scores.divided");
  const ValueId tanh = f.named(f.apply(Kind::tanh, divided), ".scores.tanh");
  return f.named(f.apply(Kind::scale, tanh), ".scores.capped");
}

// matmul(q, kᵀ), whose arguments C++ holds, · scaling. BLOOM: alibi.baddbmm(q, kᵀ, beta=1,
// alpha=1/√d); autocast casts the biases in every layer.
ValueId eager_scores(Function& f, const StoredAttention& of, ValueId q_given, ValueId k_given,
                     ValueId biases) {
  const ValueId k_cast = cast(f, k_given, of.kernel, ".k.cast");
  const ValueId q_cast = cast(f, q_given, of.kernel, ".q.cast");
  const ValueId q = laid_out(f, q_cast, of.lays_out_q, ".q.contiguous");
  const bool repeated = of.groups == StoredAttention::Groups::copied;
  const ValueId k = laid_out(f, k_cast, of.lays_out_k && !repeated, ".k.contiguous");
  if (of.alibi) {
    const ValueId alibi = cast(f, biases, of.kernel, ".alibi");
    const ValueId scores = f.bmm(Kind::baddbmm, {q, k, alibi}, tape::kAll, kOfScores);
    return f.named(scores, ".scores");
  }
  const ValueId scores = f.bmm(Kind::transposed_bmm, {q, k, kNone}, tape::kAll, kOfScores);
  f.hold_through({q_cast, k_cast, kNone});
  const ValueId scaled =
      f.named(f.apply(Kind::scale, f.named(scores, ".scores")), ".scores.scaled");
  return of.soft_cap ? soft_cap(f, scaled) : scaled;
}

// Llama: softmax(…, dtype=fp32).to(query's dtype), in one expression, until whose end the masked
// scores keep their name; GPT-2: softmax, which autocast runs in fp32, then .type(value's dtype);
// BERT: without that. A mask in fp32 has promoted the scores. Softmax of fp16 into fp32 reads the
// fp16 scores themselves (ATen/native/SoftMax.cpp, half_to_float: fp16 alone, not bf16).
ValueId eager_softmax(Function& f, const StoredAttention& of, ValueId masked) {
  const DType narrow = f.value(masked).size.dtype;
  const bool at_once = of.softmax == EagerSoftmax::fp32;
  const DType wide = at_once || of.autocast ? DType::fp32 : narrow;
  const DType returned = at_once ? of.q : of.softmax == EagerSoftmax::as_computed ? of.v : wide;
  const bool reads_half = narrow == DType::fp16 && wide == DType::fp32;
  const ValueId from = reads_half ? masked : cast(f, masked, wide, ".scores.masked.fp32");
  const ValueId softmax = f.named(f.softmax(from, wide), ".softmax");
  if (!at_once) f.hold_through({masked, kNone, kNone});
  const ValueId weights = cast(f, softmax, returned, ".probabilities");
  if (at_once && weights != softmax) f.leave(masked);
  return of.dropout ? f.named(f.dropout(weights, ".dropout.mask"), ".probabilities.dropped")
                    : weights;
}

// models/gpt_oss/modeling_gpt_oss.py, eager_attention_forward: a column of sinks beside the masked
// scores, from which each row's largest is taken; softmax in their own dtype; without the sinks
// again, which is a view. The scores lose their name when the probabilities take it.
ValueId sink_softmax(Function& f, const StoredAttention& of, ValueId masked, ValueId sinks) {
  const ValueId column = f.resize(Kind::expand, sinks, kRows);
  const ValueId joined = f.named(f.concatenate(masked, column, kJoined), ".scores.joined");
  const Function::Pair highest = f.top(joined, kRows, ".scores.places");
  f.named(highest.first, ".scores.highest");
  const ValueId shifted =
      f.named(f.apply(Kind::subtract, joined, highest.first), ".scores.shifted");
  const ValueId all = f.named(f.softmax(shifted, f.value(shifted).size.dtype), ".softmax");
  const ValueId scores = f.slice(all, tape::kAll);
  const ValueId kept =
      of.dropout ? f.named(f.dropout(scores, ".dropout.mask"), ".probabilities.dropped") : scores;
  const ValueId weights = cast(f, kept, of.v, ".probabilities");
  f.hold_through({masked, kNone, kNone});
  for (const ValueId local : {shifted, all}) f.hold(local);
  return weights;
}

// transformers eager_attention_forward (models/llama, models/gpt2): repeat keys and values over the
// query heads of their group; scores; + mask (in the stream's dtype, so autocast's scores are
// promoted); softmax; dropout; matmul with v; transposed and laid out anew. Python holds the
// repeated keys and values until it returns.
Function eager_function(const StoredAttention& of) {
  using Groups = StoredAttention::Groups;
  Function f;
  f.part_operations(true);
  const Given in = given(f, of);
  const ValueId sinks = of.sinks ? f.parameter({kSinks, of.mask}, of.sinks_grad) : kNone;
  const auto repeated = [&](ValueId x, const char* suffix) {
    if (of.groups == Groups::none) return x;
    const bool copies = of.groups == Groups::copied;
    for (int i = 0; i < of.slices; ++i) x = f.slice(x, kKeys);
    return f.named(f.resize(copies ? Kind::repeat : Kind::expand, x, kRepeated), suffix);
  };
  const ValueId k = repeated(in.k, ".k.repeated"), v = repeated(in.v, ".v.repeated");
  const ValueId scores = eager_scores(f, of, in.q, k, in.biases);
  const ValueId masked =
      of.masks ? f.named(f.apply(Kind::add, scores, in.mask), ".scores.masked") : scores;
  const ValueId weights =
      of.sinks ? sink_softmax(f, of, masked, sinks) : eager_softmax(f, of, masked);
  f.also_result(weights);
  if (of.alibi) {
    f.also_result(scores);
    f.also_result(masked);
  }
  const ValueId v_cast = cast(f, v, of.compute, ".v.cast");  // torch.matmul's last argument first
  const ValueId probabilities = cast(f, weights, of.compute, ".probabilities");
  const ValueId rows =
      laid_out(f, v_cast, of.lays_out_v && of.groups != Groups::copied, ".v.contiguous");
  const ValueId product = f.bmm(Kind::bmm, {probabilities, rows, kNone}, kQueries, kOfRows);
  f.result(f.named(f.copy(by_head(f, product, of.lays_out)), ".attention"));
  f.leave(k);
  f.leave(v);
  return f;
}

// _scaled_dot_product_attention_math (ATen/native/transformers/attention.cpp): 16-bit operands are
// computed in fp32; q and k are scaled by the root of the scale; a causal mask [s, s] is made from
// booleans; keys and values are repeated for grouped queries; _safe_softmax; 16-bit probabilities
// are made and dropped. C++ holds the rest until it returns.
Function math_function(const StoredAttention& of) {
  constexpr DType wide = DType::fp32;
  Function f;
  f.part_operations(false);
  const Given in = given(f, of);
  const ValueId k_low = cast(f, in.k, of.kernel, ".k.cast");
  const ValueId q_low = cast(f, in.q, of.kernel, ".q.cast");
  const ValueId q = cast(f, q_low, wide, ".q.cast.fp32"), k = cast(f, k_low, wide, ".k.cast.fp32");
  const ValueId v = cast(f, in.v, wide, ".v.cast");
  const ValueId q_scaled = f.named(f.apply(Kind::scale, q), ".q.scaled");
  ValueId mask = kNone;
  if (of.masks)
    mask = f.named(f.integers(kNone, {kSquare, wide}, {kSquareBooleans, kTwoValues}), ".mask");
  const auto repeated = [&](ValueId x, const char* suffix) {
    return of.groups == StoredAttention::Groups::none
               ? x
               : f.named(f.resize(Kind::repeat, x, kRepeated), suffix);
  };
  const ValueId k_repeated = repeated(k, ".k.repeated"), v_repeated = repeated(v, ".v.repeated");
  const ValueId k_scaled = f.named(f.apply(Kind::scale, k_repeated), ".k.scaled");
  const bool copies = of.groups == StoredAttention::Groups::none;
  const ValueId q_rows = laid_out(f, q_scaled, of.lays_out_q, ".q.contiguous");
  const ValueId k_rows = laid_out(f, k_scaled, of.lays_out_k && copies, ".k.contiguous");
  const ValueId scores =
      f.bmm(Kind::transposed_bmm, {q_rows, k_rows, kNone}, tape::kAll, kOfScores);
  f.hold_through({k_scaled, kNone, kNone});
  f.named(scores, ".scores");
  const ValueId masked =
      of.masks ? f.named(f.apply(Kind::add, scores, mask), ".scores.masked") : scores;
  const ValueId softmax =
      f.named(f.safe_softmax(masked, {kScoreBooleans, kRowBooleans}), ".softmax");
  const ValueId probabilities =
      of.dropout ? f.named(f.dropout(softmax, ".dropout.mask"), ".probabilities.dropped") : softmax;
  const ValueId narrow = cast(f, probabilities, of.kernel, ".probabilities");
  const ValueId rows = laid_out(f, v_repeated, of.lays_out && copies, ".v.contiguous");
  const ValueId product = f.bmm(Kind::bmm, {probabilities, rows, kNone}, kQueries, kOfRows);
  const ValueId low = cast(f, by_head(f, product, of.lays_out), of.compute, ".product.cast");
  for (const ValueId held : {q_low, k_low, q, k, v, q_scaled, mask, k_repeated, product})
    if (held != kNone) f.leave(held);
  if (narrow != probabilities) f.leave(narrow);
  f.result(f.named(f.copy(low), ".attention"));
  return f;
}

TapePart stored_attention_tape(const char* module, const StoredAttention& of) {
  std::uint64_t key =
      static_cast<std::uint64_t>(of.groups) << 2 | static_cast<std::uint64_t>(of.softmax);
  for (const DType dtype : {of.q, of.k, of.v, of.kernel, of.compute, of.mask, of.biases})
    key = key << 2 | tape::dtype_bits(dtype);
  for (const bool bit : {of.math, of.masks, of.soft_cap, of.alibi, of.dropout, of.autocast,
                         of.lays_out, of.lays_out_q, of.lays_out_k, of.lays_out_v, of.q_grad,
                         of.k_grad, of.v_grad, of.slices > 0, of.sinks, of.sinks_grad})
    key = key << 1 | bit;
  const tape::Rule& rule =
      tape::known_rule(key, [&] { return of.math ? math_function(of) : eager_function(of); });
  return tape_part(module, rule);
}

}  // namespace

TapePart AttentionWriter::stored(const AttentionNames& names, const AttentionInput& in) const {
  using Groups = StoredAttention::Groups;
  const bool math = path() == AttentionPath::math;
  const Groups groups = !grouped()                ? Groups::none
                        : math || copies_groups() ? Groups::copied
                                                  : Groups::viewed;
  // A view of one head for all, which a product wants laid out; a cast is, of each.
  const auto spread = [&](DType dtype) {
    return groups == Groups::viewed && dtype == regime_.compute;
  };
  return stored_attention_tape(names.module,
                               {groups,
                                in.softmax,
                                in.dtype,
                                in.k_dtype,
                                in.v_dtype,
                                kernel(in),
                                regime_.compute,
                                regime_.weight,
                                regime_.residual,
                                math,
                                math ? !d_.bidirectional : needs_mask(),
                                in.soft_cap,
                                in.alibi,
                                d_.attention_dropout > 0,
                                regime_.autocast,
                                in.sinks,
                                in.sinks_grad,
                                lays_out(),
                                lays_out() && !in.heads_first,
                                lays_out() && (!in.k_heads_first || spread(in.k_dtype)),
                                lays_out() && (!in.v_heads_first || spread(in.v_dtype)),
                                in.q_grad,
                                in.k_grad,
                                in.v_grad,
                                math ? 0 : slices_of_groups()});
}

TapeCounts AttentionWriter::stored_counts() const {
  const SymInt t = tokens_.total(), s = tokens_.length, keys = tokens_.keys();
  const SymInt scores = checked_multiply(checked_multiply(t, keys), d_.heads);
  TapeCounts counts{};
  counts[tape::kAll] = counts[kScoreBooleans] = scores;
  counts[kQueries] = q_values();
  counts[kKeys] = kv_values();
  counts[kRepeated] = repeated_values();
  counts[kMask] = checked_multiply(t, keys);
  counts[kBiases] = checked_multiply(tokens_.all_keys(), d_.heads);
  counts[kSquare] = counts[kSquareBooleans] = checked_multiply(s, s);
  counts[kSinks] = d_.heads;
  counts[kRows] = checked_multiply(t, d_.heads);
  counts[kJoined] = scores + counts[kRows];
  counts[kLength] = s;
  counts[kKeyLength] = keys;
  counts[kHeadDim] = d_.head_dim;
  counts[kHeads] = checked_multiply(tokens_.sequences, d_.heads);
  counts[kRowBooleans] = (bytes(counts[kRows], DType::boolean) + fp32(1)).value();
  counts[kTwoValues] = (fp32(1) * 2).value();
  return counts;
}

void AttentionWriter::stored_forward(const AttentionNames& names, const AttentionInput& in,
                                     bool stops, AttentionSaved& s) {
  const std::array<Ref, 5> given{{{in.q}, {in.k}, {in.v}, {model_mask()}, {alibi_}}};
  tape_forward(stored(names, in), stored_counts(), given, s.scored, stops);
  s.out = s.scored.out;
}

AttentionWriter::Grads AttentionWriter::stored_backward(const AttentionNames& names,
                                                        const AttentionInput& in,
                                                        const AttentionSaved& s, TensorId d_out,
                                                        std::span<const Ref> held) {
  const std::array<Ref, 5> given{{{in.q}, {in.k}, {in.v}, {model_mask()}, {alibi_}}};
  std::array<TensorId, 2> others{kNoTensor, kNoTensor};
  TapeGradients d{.result = d_out, .held = held, .others = others};
  if (in.sinks) d.parameters[0] = &names.sinks;
  const TensorId d_q = tape_backward(stored(names, in), stored_counts(), given, s.scored, d);
  return {d_q, others[0], others[1]};
}

}  // namespace plimsoll::planner::pytorch
