// Learned keys and values (peft 0.21, peft_model.py, get_prompt; tuners/prefix_tuning/model.py):
// looked up for each sequence, for all layers at once, in fp32, or made so by a perceptron of two
// layers; cast to the model's dtype; copied into a cache, each layer's keys and values by
// themselves.
#include "models/prompt_adapters.h"
#include "planner/stacks/pytorch/ends/embedding.h"

namespace plimsoll::planner::pytorch {

using models::kNoGroup;

namespace {
constexpr const char* kMade = "past_key_values";
}  // namespace

void EmbeddingWriter::put_prefix() {
  hold_mask(parts_.prefix_tokens, tokens_.keys());
  copy_prompt_ids();
  DType dtype = DType::fp32;
  TensorId made = embed_prompt(dtype);
  if (dtype != regime_.weight) {
    const TensorId wide = std::exchange(
        made, activation(kMade, checked_multiply(prefix_values(), 2 * d_.layers), regime_.weight));
    b_.op(kMade, Phase::forward).read(wide).write(made);
  }
  TensorId positions = kNoTensor;  // that the cache is told
  if (models::fills_own_cache(parts_.model_type)) {
    positions = activation("past_key_values.positions", parts_.prefix_tokens, DType::int64);
    b_.op("past_key_values.positions", Phase::forward).write(positions);
  }
  b_.close();
  cache_prefix();
  b_.open(kNoGroup, false, s_.times);
  b_.op("past_key_values.cached", Phase::forward).release(made).release(positions);
  b_.work().moves(0, 0);
}

// torch.cat of nothing and of a view.
void EmbeddingWriter::cache_prefix() {
  const AttentionNames& names = attention_names(models::interned("self_attn"));
  const auto copy = [&](const OperandNames& of) {
    const TensorId cached = activation(of.prefix, prefix_values(), regime_.weight);
    b_.op(of.prefix, Phase::forward).write(cached);
    return cached;
  };
  for (Run& run : s_.runs) {
    b_.open(run.group, false, s_.times);
    for (std::size_t j = 0; j < run.stride(); ++j) {
      b_.at_layer(static_cast<std::uint16_t>(j));
      run.prefixes[j] = {};
      if (models::fills_own_cache(parts_.model_type) && run.plan(j).sliding) {
        run.prefixes[j].window = activation("past_key_values.window", 1, DType::int64);
        b_.op("past_key_values.window", Phase::forward).write(run.prefixes[j].window);
      }
      run.prefixes[j].k = copy(names.k);
      run.prefixes[j].v = copy(names.v);
    }
    b_.close();
  }
}

SymInt EmbeddingWriter::prefix_values() const {
  return checked_multiply(prompt_rows(), d_.kv_width());
}

// Autograd comes to them when all layers are done: a layer's two gradients, views of which
// CatBackward returned, are stacked (UnbindBackward), and written into zeros (SliceBackward): where
// DynamicCache was given tuples, of which it takes the first two, the stack; where PEFT filled the
// cache itself, what a window cut from the values, then from the keys.
void EmbeddingWriter::prefix_gradients() {
  const TensorId joined = split_gradients();
  const DType dtype = parts_.prompt.empty() ? regime_.adapter : regime_.gemm_dtype(regime_.adapter);
  const SymInt values = checked_multiply(prefix_values(), 2 * d_.layers);
  const auto temporary = [&](const char* name, DType of) {
    return b_.tensor(name, storage(values, of), Category::temporaries);
  };
  TensorId d = joined;
  // permute's, which view makes contiguous; of one token of one sequence it is.
  if (parts_.prefix_tokens > 1 || tokens_.sequences > 1) {
    d = temporary("past_key_values.grad.contiguous", regime_.weight);
    b_.op("past_key_values.grad.contiguous", Phase::backward).read(joined).write(d);
  }
  if (dtype != regime_.weight) {
    const TensorId narrow = std::exchange(d, temporary("past_key_values.grad", dtype));
    b_.op(kMade, Phase::backward).read(narrow).write(d);
  }
  perceptron_gradients(d, dtype);
}

TensorId EmbeddingWriter::split_gradients() {
  const auto gradient = [&](const char* name, SymInt values) {
    return b_.tensor(name, storage(values, regime_.weight), Category::temporaries);
  };
  const SymInt both = checked_multiply(prefix_values(), 2);
  std::vector<std::vector<TensorId>> parts(s_.runs.size());
  b_.close();
  for (std::size_t r = s_.runs.size(); r-- > 0;) {
    Run& run = s_.runs[r];
    b_.open(run.group, true, s_.times);
    parts[r].resize(run.stride());
    for (std::size_t j = run.stride(); j-- > 0;) {
      b_.at_layer(static_cast<std::uint16_t>(j));
      const bool own = models::fills_own_cache(parts_.model_type);
      const auto slice = [&](TensorId& d, SymInt values) {
        const TensorId whole = std::exchange(d, gradient("past_key_values.sliced.grad", values));
        b_.op("past_key_values.sliced.grad", Phase::backward).read(whole).write(d);
      };
      TensorId d_k = run.prefixes[j].d_k, d_v = run.prefixes[j].d_v;
      if (own && run.plan(j).sliding) {
        slice(d_v, prefix_values());
        slice(d_k, prefix_values());
      }
      TensorId& stacked = parts[r][j] = gradient("past_key_values.stacked.grad", both);
      b_.op("past_key_values.stacked.grad", Phase::backward).read(d_k).read(d_v).write(stacked);
      if (!own) slice(stacked, both);
    }
    b_.close();
  }
  b_.open(kNoGroup, true, s_.times);
  const TensorId joined =
      gradient("past_key_values.joined.grad", checked_multiply(both, d_.layers));
  b_.op("past_key_values.joined.grad", Phase::backward).write(joined);
  b_.close();
  for (std::size_t r = 0; r < s_.runs.size(); ++r) {
    b_.open(s_.runs[r].group, false, s_.times);
    for (std::size_t j = 0; j < s_.runs[r].stride(); ++j) {
      b_.at_layer(static_cast<std::uint16_t>(j));
      b_.op("past_key_values.joined.grad", Phase::backward).release(parts[r][j]);
      b_.work().moves(0, 0);
    }
    b_.close();
  }
  b_.open(kNoGroup, true, s_.times);
  return joined;
}

}  // namespace plimsoll::planner::pytorch
