// What stays beside the model's states, whichever wrapper holds those.
#include "planner/stacks/pytorch/step_writer.h"

namespace plimsoll::planner::pytorch {

using models::Residency;

// What was written in each thread's first GEMM takes them, and they stay.
void StepWriter::declare_workspaces() {
  const auto workspace = [&](const char* name, SymBytes bytes) {
    return s_.b.tensor_in(models::kNoGroup, name, bytes, Category::workspace,
                          Residency::persistent);
  };
  workspaces_.fill(kNoTensor);
  if (!s_.rules.each_parameter) {
    workspace("cublas.workspace", workspaces_in_all(s_.rules.blas, s_.strategy));
    return;
  }
  const SymBytes lt = s_.rules.blas.lt;  // see workspaces_in_all
  const SymBytes first = lt + s_.rules.blas.lt_start;
  workspaces_ = {
      workspace("cublas.workspace", s_.rules.blas.forward),
      workspace("cublas.workspace.backward", s_.rules.blas.backward),
      workspace("cublaslt.workspace", first),
      workspace("cublaslt.workspace.backward", both_use_lt(s_.strategy) ? lt : SymBytes())};
  s_.layer.set_workspaces(workspaces_);
}

// LitGPT's: cosines and sines of a sequence's positions, which of the joined projection's columns
// have adapters, the logits that the loop holds; around a packed base also the embedding that was
// replaced, whose name main() keeps, and the new one's gradients, which nothing zeroes.
void StepWriter::declare_litgpt_inputs() {
  const auto persistent = [&](const char* name, SymBytes bytes, Category category) {
    s_.b.tensor_in(models::kNoGroup, name, bytes, category, Residency::persistent);
  };
  const SymInt positions = checked_multiply(s_.tokens.length, s_.d.rotated());
  persistent("rotary.tables", s_.layer.bytes(positions, s_.layer.joined_tables()) * 2,
             Category::parameters);
  for (const LayerRun& run : s_.parts.runs)
    for (const LayerPart& layer : run.pattern)
      for (const LinearPart& linear : layer.linears)
        if (linear.joined.pads && s_.strategy.code != models::ModelCode::litgpt_0_3_0)
          persistent("lora.places",
                     s_.layer.bytes(linear.joined.width(), DType::int64) * run.repeats(),
                     Category::parameters);
  persistent("logits", head_.held_logits(), Category::logits);
  head_.declare_held_graph();
  if (s_.d.embedding_norm) {
    const SymBytes table =
        s_.layer.bytes(checked_multiply(s_.d.vocab, s_.d.hidden), s_.regime.weight);
    persistent("embed_tokens.replaced", table, Category::parameters);
    persistent("embed_tokens.weight.grad", table, Category::gradients);
    persistent("embed_tokens.norm.grad", s_.layer.bytes(s_.d.hidden, s_.regime.weight) * 2,
               Category::gradients);
  }
  declare_batch();
}

// What stays beside the model's states: workspaces, tables, the batch.
void StepWriter::declare_inputs() {
  declare_workspaces();
  const auto persistent = [&](const char* name, SymBytes bytes) {
    s_.b.tensor_in(models::kNoGroup, name, bytes, Category::parameters, Residency::persistent);
  };
  // freqs_cis: a row for each token of a sequence; of March 2024 twice as many as the model's
  // configurations take, whatever a job's sequences are (ModelArgs.max_seq_len).
  constexpr std::int64_t kRowsOfMarch = std::int64_t{2} * 32768;
  if (models::is_torchtitan(s_.strategy.code)) {
    const bool march = s_.strategy.code == models::ModelCode::torchtitan_2024_03;
    persistent("rotary.freqs_cis",
               s_.layer.fp32(checked_multiply(march ? SymInt(kRowsOfMarch) : s_.tokens.length,
                                              s_.d.head_dim)));
  }
  if (models::is_litgpt(s_.strategy.code)) return declare_litgpt_inputs();
  if (s_.regime.patch.own_decoder) return declare_unsloth_inputs();
  // torchtune's theta and cache, cosines and sines of every position that the model takes; and
  // what is put behind the labels (ignore_labels_cache of its recipes).
  if (s_.d.rotary_rows > 0) {
    persistent("rotary.theta", s_.layer.fp32(s_.d.head_dim / 2));
    persistent("rotary.cache", s_.layer.fp32(checked_multiply(s_.d.rotary_rows, s_.d.head_dim)));
    persistent("loss.ignored", s_.layer.bytes(s_.tokens.sequences, DType::int64));
  }
  const SymInt rows = s_.parts.position_rows;
  // LlamaRotaryEmbedding's buffers inv_freq and original_inv_freq, which were one before 5.0.
  if (s_.d.position == models::PositionKind::rope && !s_.d.bare)
    persistent("rotary.inv_freq",
               s_.layer.bytes(s_.d.rotated() / 2, wrapper_->buffer_dtype()) *
                   (s_.strategy.transformers < models::kRotaryCopiesFrequencies ? 1 : 2) *
                   (s_.d.has_both_rotaries() ? 2 : 1));
  // GPT2Attention's causal masks, of booleans, one for each layer.
  if (s_.d.fused_qkv && s_.strategy.transformers < models::kGpt2WithoutMasks)
    persistent("attention.bias",
               s_.b.rounded(SymBytes(checked_multiply(rows, rows))) * s_.d.layers);
  if (s_.d.causal_table)
    persistent("causal_table", s_.b.rounded(SymBytes(checked_multiply(rows, rows))));
  // BertEmbeddings' position_ids and token_type_ids.
  if (s_.d.token_types > 0) persistent("embeddings.ids", s_.id_buffers());
  if (s_.parts.shared_a > 0) persistent("vera.shared", s_.shared_matrices());
  declare_batch();
}

// A classifier's labels are one of each sequence.
void StepWriter::declare_batch() {
  const bool classifies = s_.d.labels > 0;
  const std::int64_t whole =
      s_.rules.batch_tensors - (classifies && s_.rules.batch_tensors > 2 ? 1 : 0);
  const auto persistent = [&](const char* name, SymBytes bytes) {
    s_.b.tensor_in(models::kNoGroup, name, bytes, Category::activations, Residency::persistent);
  };
  const SymInt sequences = s_.tokens.sequences * s_.scattered();
  const SymInt tokens = s_.text.total() * s_.scattered();
  persistent("batch", s_.b.rounded(SymBytes(checked_multiply(8, tokens))) * whole);
  if (classifies) persistent("labels", s_.layer.bytes(sequences, DType::int64));
}

}  // namespace plimsoll::planner::pytorch
