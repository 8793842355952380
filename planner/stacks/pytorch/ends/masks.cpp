// Masks of attention, which the model makes once for all layers.
#include "planner/stacks/pytorch/ends/masks.h"

#include <algorithm>
#include <array>

#include "planner/stacks/pytorch/ends/embedding.h"

namespace plimsoll::planner::pytorch {

std::int32_t number_samples(KernelsOfOp& kernels, const ModuleWriter& of, Tokens tokens) {
  const SymInt b = tokens.sequences, t = tokens.total();
  const auto first = kernels.take(of.bytes(b, DType::int64));
  const auto joined = kernels.take(of.bytes(t + b, DType::int64));
  const auto differences = kernels.take(of.bytes(t, DType::int64));
  kernels.drop(joined);
  const auto changes = kernels.take(of.bytes(t, DType::boolean));
  const auto numbers = kernels.take(of.bytes(t, DType::int64));
  const auto partial = kernels.take(of.bytes(t, DType::int64));
  kernels.drop(partial);
  kernels.drop(changes);
  kernels.drop(differences);
  kernels.drop(first);
  return numbers;
}

namespace {

void check_packing(ProgramBuilder& builder, const ModuleWriter& of, Tokens tokens) {
  auto op = builder.op("attention_mask.packing", Phase::forward);
  KernelsOfOp kernels(builder);
  number_samples(kernels, of, tokens);
  kernels.finish(op);
}

// The masks of one layer kind, joined one by one (masking_utils.py, and_masks): a square of each
// is joined to the square of those before it, in a new one.
struct Squares {
  KernelsOfOp& kernels;
  const ModuleWriter& of;
  Tokens tokens;

  std::int32_t take(SymInt values, DType dtype = DType::boolean) {
    return kernels.take(of.bytes(values, dtype));
  }
  // Of batch, head, queries and keys; the last two moved by an offset.
  std::array<std::int32_t, 4> indices() {
    const auto moved = [&](SymInt length) {
      const auto range = take(length, DType::int64);
      const auto sum = take(length, DType::int64);
      kernels.drop(range);
      return sum;
    };
    const auto sequences = take(tokens.sequences, DType::int64), heads = take(1, DType::int64);
    const auto queries = moved(tokens.length);
    return {sequences, heads, queries, moved(tokens.keys())};
  }
  std::int32_t square() { return take(checked_multiply(tokens.length, tokens.keys())); }
  std::int32_t joined(std::int32_t before, std::int32_t next) {
    const auto both = square();
    kernels.drop(next);
    kernels.drop(before);
    return both;
  }
  // A row or a column of what `numbers` are of, by indices, whose pointers are made in int64.
  std::int32_t picked(SymInt values, DType dtype) {
    const auto rows = take(values, DType::int64), columns = take(values, DType::int64);
    const auto out = take(values, dtype);
    kernels.drop(columns);
    kernels.drop(rows);
    return out;
  }
  std::int32_t causal(bool windowed) {
    const auto one = square(), and_true = square();
    kernels.drop(one);
    if (!windowed) return and_true;
    const auto both = joined(and_true, square()), again = square();
    kernels.drop(both);
    return again;
  }
  // Whose keys are padding: a mask for each sequence.
  std::int32_t padded(std::int32_t causal) {
    const auto keys = picked(tokens.all_keys(), DType::boolean);
    const auto all = take(checked_multiply(tokens.total(), tokens.keys()));
    kernels.drop(keys);
    kernels.drop(causal);
    return all;
  }
  // Of two samples.
  std::int32_t of_samples(std::int32_t causal) {
    const auto queries = picked(tokens.length, DType::int64);
    const auto keys = picked(tokens.length, DType::int64);
    const auto equal = square();
    kernels.drop(keys);
    kernels.drop(queries);
    return joined(causal, equal);
  }
};

}  // namespace

// A model whose layers alternate makes both, whichever its layers are.
void EmbeddingWriter::masks() {
  if (d_.window == 0 || d_.full_layers > 0) s_.masks[0] = mask(false);
  if (d_.window > 0) s_.masks[1] = mask(true);
}

// transformers masking_utils.py: sdpa_mask makes booleans [1, 1, s, s] from the indices of batch,
// head, queries and keys (le; for a sliding window gt, two ands, three at once); eager_mask fills
// [b, 1, s, s] in the stream's dtype from them.
// Before that it looks for packed sequences where it is given positions and no mask of its own
// (find_packed_sequence_indices): differences of positions, booleans, their running sum and
// scratch. Of a mask that the batch brings it makes booleans; SDPA asks whether all are set (a sum
// in int64). Eager attention joins them to the causal ones: two squares, then a square of each
// sequence; indexing needs int64 pointers twice.
TensorId EmbeddingWriter::mask(bool sliding) {
  const SymInt t = tokens_.total();
  const bool counted = d_.counts_positions();
  const SymBytes padding = counted ? layer_.bytes(t, DType::boolean) : SymBytes();
  const SymBytes ids = layer_.bytes(t, DType::int64);
  layer_.at_sliding(sliding);
  if (tokens_.prefix > 0) return mask_behind_prefix();
  if (tokens_.rows != models::Rows::full) return layer_.flexes() ? block_mask() : mask_of_rows();
  if (counted && layer_.path() != AttentionPath::eager && !layer_.flexes())
    b_.op("attention_mask.padding", Phase::forward)
        .scratch(padding + ids + layer_.bytes(1, DType::int64));
  if (rules_.checks_packing && !counted && !d_.bidirectional && !d_.bare &&
      !d_.masks_without_positions)
    check_packing(b_, layer_, tokens_);
  if (layer_.flexes()) return block_mask();
  if (!layer_.needs_mask()) return kNoTensor;
  const SymInt square = checked_multiply(tokens_.length, tokens_.length);
  const bool eager = layer_.path() == AttentionPath::eager;
  if (!eager && !counted && strategy_.transformers >= models::kMasksAreBoolean)
    return boolean_mask(false);
  const SymBytes booleans = layer_.bytes(square, DType::boolean);
  const SymBytes indices = layer_.bytes(tokens_.sequences, DType::int64) +
                           layer_.bytes(1, DType::int64) +
                           layer_.bytes(tokens_.length, DType::int64) * 2;
  const SymBytes all = counted ? layer_.bytes(checked_multiply(t, tokens_.length), DType::boolean)
                               : booleans;  // of each sequence
  const SymBytes made = counted ? padding + indices +
                                      larger(larger(booleans * 2, booleans + ids * 2 + padding),
                                             booleans + padding + all)
                                : indices + booleans * (layer_.windowed() ? 3 : 1);
  SymBytes most = made;
  TensorId mask = kNoTensor;
  if (eager) {
    const SymInt values = checked_multiply(tokens_.sequences, square);
    mask = b_.tensor("attention_mask", storage(values, layer_.mask_dtype()), Category::activations);
    const SymBytes filled = layer_.bytes(values, layer_.mask_dtype());
    const SymBytes values_filled =
        layer_.bytes(1, layer_.mask_dtype()) + layer_.bytes(1, DType::fp16);
    most = larger(made, padding + all + filled + values_filled) - filled;
  } else if (strategy_.transformers < models::kMasksAreBoolean) {
    // Added to the scores, and one column wider (_update_causal_mask): filled, then multiplied with
    // what is later than a query or too early for it, by the indices of keys and queries.
    const SymInt values = square + tokens_.length;
    mask = b_.tensor("attention_mask", storage(values, layer_.mask_dtype()), Category::activations);
    most = layer_.bytes(values, DType::boolean) * (layer_.windowed() ? 2 : 1) +
           layer_.bytes(tokens_.length + 1, DType::int64) +
           (layer_.windowed() ? layer_.bytes(tokens_.length, DType::int64) : SymBytes());
  } else {
    mask = b_.tensor("attention_mask", storage(square, DType::boolean), Category::activations);
    most -= booleans;
  }
  b_.op("attention_mask", Phase::forward).write(mask).scratch(most);
  return mask;
}

// Where keys stand in front of a sequence's own, no kernel's causal flag does. A mask of the
// batch's, or the model's own, is joined to the causal one for each sequence.
TensorId EmbeddingWriter::mask_behind_prefix() {
  if (!layer_.needs_mask()) return kNoTensor;
  const bool given = brings_mask() || d_.counts_positions();
  return given ? mask_of_rows() : boolean_mask(layer_.path() == AttentionPath::eager);
}

// sdpa_mask of what is full: the window's square joined to true, then to the causal one. `fills`:
// eager_mask, which fills one of each sequence in the stream's dtype from it.
TensorId EmbeddingWriter::boolean_mask(bool fills) {
  const SymInt square = checked_multiply(tokens_.length, tokens_.keys());
  const SymInt values = fills ? checked_multiply(tokens_.sequences, square) : square;
  const DType dtype = fills ? layer_.mask_dtype() : DType::boolean;
  const TensorId mask = b_.tensor("attention_mask", storage(values, dtype), Category::activations);
  auto op = b_.op("attention_mask", Phase::forward).write(mask);
  KernelsOfOp kernels(b_);
  Squares squares{kernels, layer_, tokens_};
  const auto make = [&] {
    if (fills)
      squares.square();
    else
      kernels.birth(mask, layer_.bytes(values, dtype));
  };
  const std::array<std::int32_t, 4> indices = squares.indices();
  if (layer_.windowed()) {
    const auto yes = squares.take(1), edges = squares.take(tokens_.length, DType::int64);
    const auto inside = squares.square();
    kernels.drop(edges);
    const auto and_true = squares.square();
    kernels.drop(inside);
    kernels.drop(yes);
    const auto causal = squares.square();
    make();
    kernels.drop(causal);
    kernels.drop(and_true);
  } else {
    make();
  }
  for (const std::int32_t index : indices) kernels.drop(index);
  if (fills) {
    squares.take(1, dtype);
    squares.take(1, DType::fp16);
    kernels.birth(mask, layer_.bytes(values, dtype));
  }
  kernels.finish(op);
  return mask;
}

// flash_attention_mask: where not all are set, the layers get them as they are.
TensorId EmbeddingWriter::booleans_of_rows() {
  const TensorId mask =
      b_.tensor("attention_mask", storage(tokens_.total(), DType::boolean), Category::activations);
  b_.op("attention_mask", Phase::forward).write(mask);
  return mask;
}

// Booleans of the mask that the batch brings, or numbers of its samples; indices of batch, head,
// queries and keys; what SDPA gets is [b, 1, s, s], in eager attention filled in the stream's
// dtype.
TensorId EmbeddingWriter::mask_of_rows() {
  const bool padded = tokens_.rows != models::Rows::flattened;
  if (padded && layer_.packaged()) return booleans_of_rows();
  if (!layer_.needs_mask()) return kNoTensor;
  const bool eager = layer_.path() == AttentionPath::eager;
  const SymInt values = checked_multiply(tokens_.total(), tokens_.keys());
  const DType dtype = eager ? layer_.mask_dtype() : DType::boolean;
  const TensorId mask = b_.tensor("attention_mask", storage(values, dtype), Category::activations);
  auto op = b_.op("attention_mask", Phase::forward).write(mask);
  KernelsOfOp kernels(b_);
  Squares squares{kernels, layer_, tokens_};
  if (padded)
    squares.take(tokens_.all_keys());
  else
    number_samples(kernels, layer_, tokens_);
  const std::array<std::int32_t, 4> indices = squares.indices();
  const auto causal = squares.causal(layer_.windowed());
  const auto booleans = padded ? squares.padded(causal) : squares.of_samples(causal);
  for (const std::int32_t index : indices) kernels.drop(index);
  if (eager) {
    squares.take(1, dtype);
    squares.take(1, DType::fp16);
  } else {
    kernels.drop(booleans);  // which is the mask
  }
  kernels.birth(mask, layer_.bytes(values, dtype));
  kernels.finish(op);
  return mask;
}

}  // namespace plimsoll::planner::pytorch
