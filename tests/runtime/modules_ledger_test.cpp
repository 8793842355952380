// What the eager modules leave in the ledger, op by op, against tables made by hand from
// models/decisions/: layer.h, loss.h, names.h.
//
// Elements for each token; h 8, 2 heads of 4, V 16.
#include <doctest/doctest.h>

#include "models/model_reader.h"
#include "tests/runtime/ledger_lines.h"

namespace plimsoll::runtime::test {
namespace {

using models::Loss;
using models::Precision;
using models::RecomputeKind;
using models::Strategy;

// Keys of one head: kv 4; f 12.
models::ModelSpec llama() {
  return models::read_model(
      R"({"model_type": "llama", "hidden_size": 8, "num_attention_heads": 2,
          "num_key_value_heads": 1, "intermediate_size": 12, "vocab_size": 16,
          "num_hidden_layers": 1})",
      "llama", "llama", {});
}
Strategy fp32() {
  Strategy strategy;
  strategy.precision = Precision::fp32;
  return strategy;
}

// Saved at the end: x 8, n1 8 and 1, q 8, k 4, v 4, o 8 and 2, m 8, n2 8 and 1, gate, up 24: 84.
Lines llama_forward(Phase phase, std::int64_t x) {
  return behind("layers.0.", phase,
                {{"input_layernorm", x + 9},
                 {"self_attn.q_proj", x + 17},
                 {"self_attn.k_proj", x + 21},
                 {"self_attn.v_proj", x + 25},
                 {"self_attn.rotary", x + 25},
                 {"self_attn.attention", x + 35},
                 {"self_attn.o_proj", x + 43},
                 {"self_attn.residual", x + 43},
                 {"post_attention_layernorm", x + 52},
                 {"mlp.gate_proj", x + 64},
                 {"mlp.up_proj", x + 76}});
}
const Lines kLlamaEnd = {{"layers.0.mlp.act", 96},
                         {"layers.0.mlp.down_proj", 92, 104},  // p dies
                         {"layers.0.residual", 92}};
// From 84 saved and d 8 to d.
Lines llama_backward() {
  return behind("layers.0.", Phase::backward,
                {{"mlp.down_proj.input.grad", 104},
                 {"mlp.act", 104},
                 {"mlp.down_proj.weight.grad", 92},  // p
                 {"mlp.gate_proj.weight.grad", 92},
                 {"mlp.up_proj.weight.grad", 84},  // n2
                 {"mlp.gate_proj.input.grad", 80, 92},  // + 8, d_gate
                 {"mlp.up_proj.input.grad", 68},  // d_up
                 {"post_attention_layernorm", 51},  // m 8, 1, d_n2 8
                 {"self_attn.o_proj.weight.grad", 51},
                 {"self_attn.o_proj.input.grad", 59},
                 {"self_attn.attention", 41, 75},  // + 16; d_o 8, q, k, v 16, o 8, lse 2
                 {"self_attn.rotary", 41},
                 {"self_attn.q_proj.weight.grad", 41},
                 {"self_attn.k_proj.weight.grad", 41},
                 {"self_attn.v_proj.weight.grad", 33},  // n1
                 {"self_attn.q_proj.input.grad", 33, 41},  // + 8, d_q 8
                 {"self_attn.k_proj.input.grad", 29},
                 {"self_attn.v_proj.input.grad", 25},
                 {"input_layernorm", 8}});  // x 8, 1, d_n1 8
}
const Lines kFullLoss = {{"norm", 101},  // from 92
                         {"lm_head", 117},
                         {"loss", 118},
                         {"loss.sum", 117},
                         {"lm_head.weight.grad", 109, 0, Phase::backward},  // the normalized
                         {"lm_head.input.grad", 101, 117, Phase::backward},  // + 8, logits 16
                         {"norm", 92, 0, Phase::backward}};  // x 8, 1
const Lines kEmbeddingBackward = {{"embeddings", 0, 0, Phase::backward}};

TEST_CASE("a Llama layer: what is saved, and when each tensor dies") {
  check_ledger(llama(), fp32(), 1,
               together({{{"embeddings", 8}},
                         llama_forward(Phase::forward, 8),
                         kLlamaEnd,
                         kFullLoss,
                         llama_backward(),
                         kEmbeddingBackward}));
}

TEST_CASE("the loss in chunks keeps the log-sum-exp and makes logits twice, fused neither") {
  const Lines forward =
      together({{{"embeddings", 8}}, llama_forward(Phase::forward, 8), kLlamaEnd});
  Strategy strategy = fp32();
  strategy.loss = Loss::chunked;
  check_ledger(llama(), strategy, 1,
               together({forward,
                         {{"norm", 101},
                          {"loss.chunks.0.lm_head", 117},
                          {"loss.chunks.0.loss", 103, 119},  // + 2, logits
                          {"loss.sum", 102},
                          {"loss.chunks.0.lm_head", 118, 0, Phase::recompute},
                          {"loss.chunks.0.loss", 117, 0, Phase::backward},
                          {"loss.chunks.0.lm_head.weight.grad", 117, 0, Phase::backward},
                          {"loss.chunks.0.lm_head.input.grad", 101, 0, Phase::backward},
                          {"norm", 92, 0, Phase::backward}},
                         llama_backward(),
                         kEmbeddingBackward}));
  strategy.loss = Loss::fused;
  check_ledger(llama(), strategy, 1,
               together({forward,
                         {{"norm", 101},
                          {"loss.chunks.0.lm_head", 117},
                          {"loss.chunks.0.loss", 118},
                          {"loss.chunks.0.lm_head.weight.grad", 118, 0, Phase::backward},
                          {"loss.chunks.0.lm_head.input.grad", 102, 0, Phase::backward},
                          {"loss.sum", 101},
                          {"norm", 92, 0, Phase::backward}},
                         llama_backward(),
                         kEmbeddingBackward}));
}

TEST_CASE("a layer that is made again saves its input alone, and ends with gate and up") {
  Strategy strategy = fp32();
  strategy.recompute = {RecomputeKind::full};
  const Lines forward = behind("layers.0.", Phase::forward,
                               {{"input_layernorm", 16},  // no statistics
                                {"self_attn.q_proj", 24},
                                {"self_attn.k_proj", 28},
                                {"self_attn.v_proj", 24, 32},  // + 4, n1
                                {"self_attn.rotary", 24},
                                {"self_attn.attention", 16, 32},  // + 8, q, k, v
                                {"self_attn.o_proj", 16, 24},  // + 8, o
                                {"self_attn.residual", 16},
                                {"post_attention_layernorm", 24},
                                {"mlp.gate_proj", 36},
                                {"mlp.up_proj", 40, 48},  // + 12, n2
                                {"mlp.act", 28},  // p in gate's place; up
                                {"mlp.down_proj", 24, 36},  // + 8, p
                                {"residual", 16}});  // m
  check_ledger(llama(), strategy, 1,
               together({{{"embeddings", 8}},
                         forward,
                         {{"norm", 25},
                          {"lm_head", 41},
                          {"loss", 42},
                          {"loss.sum", 41},
                          {"lm_head.weight.grad", 33, 0, Phase::backward},
                          {"lm_head.input.grad", 25, 41, Phase::backward},
                          {"norm", 16, 0, Phase::backward}},
                         llama_forward(Phase::recompute, 16),
                         llama_backward(),
                         kEmbeddingBackward}));
}

TEST_CASE("selective recomputation drops the norms' outputs and makes them when they are read") {
  Strategy strategy = fp32();
  strategy.recompute = {RecomputeKind::selective};
  const Lines forward = behind("layers.0.", Phase::forward,
                               {{"input_layernorm", 17},
                                {"self_attn.q_proj", 25},
                                {"self_attn.k_proj", 29},
                                {"self_attn.v_proj", 25, 33},  // + 4, n1
                                {"self_attn.rotary", 25},
                                {"self_attn.attention", 35},
                                {"self_attn.o_proj", 43},
                                {"self_attn.residual", 43},
                                {"post_attention_layernorm", 52},
                                {"mlp.gate_proj", 64},
                                {"mlp.up_proj", 68, 76},  // + 12, n2
                                {"mlp.act", 80},
                                {"mlp.down_proj", 76, 88},
                                {"residual", 76}});  // 84 - 16 + 8
  const Lines backward = behind("layers.0.", Phase::backward,
                                {{"mlp.down_proj.input.grad", 88},
                                 {"mlp.act", 88},
                                 {"mlp.down_proj.weight.grad", 76},
                                 {"post_attention_layernorm", 84, 0, Phase::recompute},
                                 {"mlp.gate_proj.weight.grad", 84},
                                 {"mlp.up_proj.weight.grad", 76},
                                 {"mlp.gate_proj.input.grad", 72, 84},
                                 {"mlp.up_proj.input.grad", 60},
                                 {"post_attention_layernorm", 43},
                                 {"self_attn.o_proj.weight.grad", 43},
                                 {"self_attn.o_proj.input.grad", 51},
                                 {"self_attn.attention", 33, 67},
                                 {"self_attn.rotary", 33},
                                 {"input_layernorm", 41, 0, Phase::recompute},
                                 {"self_attn.q_proj.weight.grad", 41},
                                 {"self_attn.k_proj.weight.grad", 41},
                                 {"self_attn.v_proj.weight.grad", 33},
                                 {"self_attn.q_proj.input.grad", 33, 41},
                                 {"self_attn.k_proj.input.grad", 29},
                                 {"self_attn.v_proj.input.grad", 25},
                                 {"input_layernorm", 8}});
  check_ledger(llama(), strategy, 1,
               together({{{"embeddings", 8}},
                         forward,
                         {{"norm", 85},
                          {"lm_head", 101},
                          {"loss", 102},
                          {"loss.sum", 101},
                          {"lm_head.weight.grad", 93, 0, Phase::backward},
                          {"lm_head.input.grad", 85, 101, Phase::backward},
                          {"norm", 76, 0, Phase::backward}},
                         backward,
                         kEmbeddingBackward}));
}

TEST_CASE("names of tensors are those of the modules that made them") {
  TinyModel model(llama(), fp32(), six_tokens(1));
  model.set_random();
  model.step(true);
  std::vector<std::string> names;
  for (const TensorRecord& tensor : model.record().tensors)
    if (tensor.born != kBeforeStep) names.push_back(tensor.name);
  const std::vector<std::string> expected = {
      "embeddings.out",
      "layers.0.input_layernorm.out",
      "layers.0.input_layernorm.statistics",
      "layers.0.self_attn.q_proj.out",
      "layers.0.self_attn.k_proj.out",
      "layers.0.self_attn.v_proj.out",
      "layers.0.self_attn.attention.out",
      "layers.0.self_attn.attention.logsumexp",
      "layers.0.self_attn.residual",
      "layers.0.post_attention_layernorm.out",
      "layers.0.post_attention_layernorm.statistics",
      "layers.0.mlp.gate_proj.out",
      "layers.0.mlp.up_proj.out",
      "layers.0.mlp.product",
      "layers.0.out",
      "norm.out",
      "norm.statistics",
      "lm_head.out",
      "loss.rows",
      "lm_head.input.grad",  // the stream's gradient, all the way down
      "layers.0.mlp.down_proj.input.grad",
      "layers.0.post_attention_layernorm.out.grad",
      "layers.0.self_attn.attention.out.grad",
      "layers.0.self_attn.q.grad",
      "layers.0.self_attn.k.grad",
      "layers.0.self_attn.v.grad",
      "layers.0.input_layernorm.out.grad",
  };
  CHECK(names == expected);
}

}  // namespace
}  // namespace plimsoll::runtime::test
