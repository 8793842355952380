// A prompt that is learned (peft 0.21, peft_model.py, PeftModelForCausalLM.forward and get_prompt):
// virtual tokens' embeddings are looked up once, in fp32, perhaps go through a perceptron
// (tuners/p_tuning/model.py), are repeated for each sequence, cast to the dtype of the text's, and
// joined with these. Labels, mask and positions are as much longer.
#include "models/block.h"
#include "planner/stacks/pytorch/ends/embedding.h"

namespace plimsoll::planner::pytorch {

using models::interned;

namespace {

struct PromptNames {
  const ModuleNames& embedding;
  std::array<const LinearNames*, 3> linears;
  std::array<const char*, 2> rectified, rectified_grad;
};

// PromptEncoder's, or PrefixEncoder's.
const PromptNames& names(bool prefix) {
  static const PromptNames prompts{
      module_names(interned("prompt_encoder.embedding")),
      {&linear_names(interned("prompt_encoder.mlp_head.0")),
       &linear_names(interned("prompt_encoder.mlp_head.2")),
       &linear_names(interned("prompt_encoder.mlp_head.4"))},
      {"prompt_encoder.mlp_head.1", "prompt_encoder.mlp_head.3"},
      {"prompt_encoder.mlp_head.1.grad", "prompt_encoder.mlp_head.3.grad"}};
  static const PromptNames prefixes{
      module_names(interned("prompt_encoder.embedding")),
      {&linear_names(interned("prompt_encoder.transform.0")),
       &linear_names(interned("prompt_encoder.transform.2")), nullptr},
      {"prompt_encoder.transform.1", ""},
      {"prompt_encoder.transform.1.grad", ""}};
  return prefix ? prefixes : prompts;
}

constexpr const char* kRepeated = "prompt.repeated";
constexpr const char* kCast = "prompt.cast";
constexpr const char* kJoined = "inputs_embeds";

}  // namespace

// A prompt is embedded once, a prefix for each sequence.
SymInt EmbeddingWriter::prompt_rows() const {
  if (parts_.prefix_tokens == 0) return parts_.virtual_tokens;
  return checked_multiply(tokens_.sequences, parts_.prefix_tokens);
}

std::int64_t EmbeddingWriter::prompt_table_rows() const {
  return std::max(parts_.virtual_tokens, parts_.prefix_tokens);
}

std::int64_t EmbeddingWriter::prompt_width() const {
  if (!parts_.prompt.empty()) return parts_.prompt.front().in;
  return parts_.prefix_tokens == 0 ? d_.hidden : checked_multiply(2 * d_.layers, d_.kv_width());
}

void EmbeddingWriter::hold(const char* name, SymInt values, DType dtype) {
  s_.front.prompt.held.push_back(activation(name, values, dtype));
  b_.op(name, Phase::forward).write(s_.front.prompt.held.back());
  b_.work().moves(0, 0);
}

// PEFT's forward makes it in front of the model's, and holds it until that has returned: torch.ones
// in fp32 in front of the batch's mask, which takes that dtype. Of each sequence so many values.
void EmbeddingWriter::hold_mask(SymInt ahead, SymInt all) {
  if (!brings_mask()) return;
  hold("prompt.mask", checked_multiply(tokens_.sequences, ahead), DType::fp32);
  hold("prompt.attention_mask", checked_multiply(tokens_.sequences, all), DType::fp32);
}

// Kept on the host; copied for each sequence.
void EmbeddingWriter::copy_prompt_ids() {
  s_.front.prompt.ids = activation(
      "prompt.tokens", checked_multiply(tokens_.sequences, prompt_table_rows()), DType::int64);
  b_.op("prompt.tokens", Phase::forward).write(s_.front.prompt.ids);
}

void EmbeddingWriter::put_prompt() {
  hold_mask(parts_.virtual_tokens, tokens_.length);
  hold("prompt.labels.ahead", checked_multiply(tokens_.sequences, parts_.virtual_tokens),
       DType::int64);
  hold("prompt.labels", tokens_.total(), DType::int64);
  copy_prompt_ids();
  DType dtype = DType::fp32;
  const TensorId made = embed_prompt(dtype);
  repeat_prompt(made, dtype);
  const TensorId text = s_.front.embedded;
  s_.front.embedded =
      activation(kJoined, checked_multiply(tokens_.total(), d_.hidden), regime_.weight);
  b_.op(kJoined, Phase::forward).read(s_.front.prompt.repeated).read(text).write(s_.front.embedded);
  s_.front.prompt.held.push_back(s_.front.prompt.repeated);
  s_.front.prompt.held.push_back(s_.front.embedded);
}

// `dtype`: of what is made.
TensorId EmbeddingWriter::embed_prompt(DType& dtype) {
  PromptSaved& saved = s_.front.prompt;
  const SymInt rows = prompt_rows();
  const PromptNames& of = names(parts_.prefix_tokens > 0);
  dtype = regime_.adapter;
  TensorId x = activation(of.embedding.out, checked_multiply(rows, prompt_width()), dtype);
  b_.op(of.embedding.module, Phase::forward).read(saved.ids).write(x);
  if (parts_.prompt.empty()) return x;
  const TensorId embedded = x;
  layer_.set_tokens(rows);
  const DType computed = regime_.gemm_dtype(regime_.adapter);
  for (std::size_t i = 0; i < parts_.prompt.size(); ++i) {
    layer_.linear_forward(*of.linears[i], parts_.prompt[i], {x}, dtype, Category::activations,
                          saved.linears[i]);
    dtype = computed;
    x = saved.linears[i].out;
    if (i + 1 == parts_.prompt.size()) break;
    const TensorId before = x;
    x = saved.rectified[i] =
        activation(of.rectified[i], checked_multiply(rows, parts_.prompt[i].out), computed);
    b_.op(of.rectified[i], Phase::forward).read(before).write(x);
  }
  layer_.set_tokens(tokens_.total());
  b_.op("prompt_encoder", Phase::forward)
      .release(embedded);  // PromptEncoder.forward's input_embeds, PrefixEncoder's prefix_tokens
  b_.work().moves(0, 0);
  return x;
}

// Tensor.repeat copies, one sequence too; Tensor.to does not where the dtype is the same.
void EmbeddingWriter::repeat_prompt(TensorId made, DType dtype) {
  const SymInt values = checked_multiply(checked_multiply(tokens_.sequences, parts_.virtual_tokens),
                                         SymInt(d_.hidden));
  TensorId& repeated = s_.front.prompt.repeated;
  repeated = activation(kRepeated, values, dtype);
  b_.op(kRepeated, Phase::forward).read(made).write(repeated);
  if (dtype == regime_.weight) return;
  const TensorId wide = std::exchange(repeated, activation(kCast, values, regime_.weight));
  b_.op(kCast, Phase::forward).read(wide).write(repeated);
}

// The joined gradient is cut in two views. Where PEFT asked the text's embeddings for a gradient
// (checkpoints), these are a leaf, whose .grad comes first: the view itself, if its values stand
// side by side, or else a copy.
TensorId EmbeddingWriter::prompt_gradients(TensorId d) {
  TensorId text = d;
  if (s_.leaf_input() && tokens_.sequences > 1) {
    text = b_.tensor("embed_tokens.out.grad",
                     storage(checked_multiply(s_.text.total(), d_.hidden), regime_.weight),
                     Category::temporaries);
    b_.op("embed_tokens.out.grad", Phase::backward).read(d).write(text);
  }
  const std::int64_t tokens = parts_.virtual_tokens;
  const SymInt of_one = checked_multiply(tokens, d_.hidden);
  const DType dtype = parts_.prompt.empty() ? regime_.adapter : regime_.gemm_dtype(regime_.adapter);
  const auto temporary = [&](const char* name, SymInt values) {
    return b_.tensor(name, storage(values, dtype), Category::temporaries);
  };
  TensorId d_prompt = d;
  if (dtype != regime_.weight) {
    d_prompt = temporary("prompt.cast.grad", checked_multiply(tokens_.sequences, of_one));
    b_.op(kCast, Phase::backward).read(d).write(d_prompt);
  }
  if (tokens_.sequences > 1) {  // of one sequence it is a view
    const TensorId all = std::exchange(d_prompt, temporary("prompt.repeated.grad", of_one));
    b_.op(kRepeated, Phase::backward).read(all).write(d_prompt);
  }
  perceptron_gradients(d_prompt, dtype);
  return text;
}

// Back to the embeddings' table, which is one for all sequences.
void EmbeddingWriter::perceptron_gradients(TensorId d, DType dtype) {
  const PromptSaved& saved = s_.front.prompt;
  const SymInt rows = prompt_rows();
  const PromptNames& of = names(parts_.prefix_tokens > 0);
  s_.unit = &s_.root;
  layer_.set_tokens(rows);
  layer_.set_checkpoint(nullptr, false);
  for (std::size_t i = parts_.prompt.size(); i-- > 0;) {
    const bool first = i == 0;
    const DType input = first ? regime_.adapter : dtype;
    d = layer_.linear_backward(*of.linears[i], parts_.prompt[i], input, true, saved.linears[i], d)
            .tensor;
    if (first) break;
    const TensorId rectified = saved.rectified[i - 1];
    const TensorId after =
        std::exchange(d, b_.tensor(of.rectified_grad[i - 1],
                                   storage(checked_multiply(rows, parts_.prompt[i - 1].out), dtype),
                                   Category::temporaries));
    b_.op(of.rectified[i - 1], Phase::backward).read(after).read(rectified).write(d);
  }
  layer_.set_tokens(tokens_.total());
  const std::int64_t values = checked_multiply(prompt_table_rows(), prompt_width());
  const TensorId grad = wrapper_.begin(of.embedding, values, true);
  auto backward = b_.op(of.embedding.module, Phase::backward).read(d).read(saved.ids).write(grad);
  take_blocks(b_, backward, embedding_scratch(b_, rows, prompt_table_rows(), prompt_width()));
  wrapper_.end(of.embedding, grad);
}

}  // namespace plimsoll::planner::pytorch
