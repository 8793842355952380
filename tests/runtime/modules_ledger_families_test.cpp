// The ledger of layers that are not plain Llama, against tables made by hand from
// models/decisions/layer.h. Elements for each token; h 8, 2 heads of 4, V 16.
#include <doctest/doctest.h>

#include "models/model_reader.h"
#include "tests/runtime/ledger_lines.h"

namespace plimsoll::runtime::test {
namespace {

using models::Attention;
using models::Precision;
using models::Strategy;

// Keys of one head: kv 4; f 12.
models::ModelSpec model(const std::string& type) {
  return models::read_model(R"({"model_type": ")" + type + R"(", "hidden_size": 8,
      "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4, "intermediate_size": 12,
      "vocab_size": 16, "num_hidden_layers": 1, "tie_word_embeddings": false})",
                            type, type, {});
}
Strategy fp32() {
  Strategy strategy;
  strategy.precision = Precision::fp32;
  return strategy;
}

// f 32. Two sequences of 3: a row of the matrix has 2 heads · 3 keys for each token.
TEST_CASE("a GPT-2 layer with a stored matrix and every dropout") {
  const models::ModelSpec gpt2 = models::read_model(
      R"({"model_type": "gpt2", "n_embd": 8, "n_head": 2, "n_layer": 1, "vocab_size": 16})", "gpt2",
      "gpt2", {});
  Strategy strategy = fp32();
  strategy.attention = Attention::eager;
  // Saved: x 8 and 2, n1 8, qkv 24, p 6, o 8, m 8 and 2, n2 8, c_fc 32: 106.
  const Lines forward = behind("layers.0.", Phase::forward,
                               {{"ln_1", 18},
                                {"attn.c_attn", 42},
                                {"attn.attention.scores", 48},
                                {"attn.attention.softmax", 48},
                                {"attn.attention.dropout", 54},
                                {"attn.attention", 56, 62},  // + 8, the dropped
                                {"attn.c_proj", 64},
                                {"attn.residual", 64},
                                {"ln_2", 74},
                                {"mlp.c_fc", 106},
                                {"mlp.act", 138},
                                {"mlp.c_proj", 114, 146},
                                {"residual", 114}});
  const Lines backward = behind("layers.0.", Phase::backward,
                                {{"residual.dropout", 122},
                                 {"mlp.c_proj.input.grad", 154},
                                 {"mlp.act", 154},
                                 {"mlp.c_proj.weight.grad", 114},  // p 32, the masked 8
                                 {"mlp.c_fc.weight.grad", 106},  // n2
                                 {"mlp.c_fc.input.grad", 82, 114},  // + 8, d_fc 32
                                 {"ln_2", 64},  // m 8, 2, d_n2 8
                                 {"residual.dropout", 72},
                                 {"attn.c_proj.weight.grad", 64},  // o
                                 {"attn.c_proj.input.grad", 64, 72},  // + 8, the masked 8
                                 {"attn.attention.dropout", 70},
                                 {"attn.attention", 88, 94},  // + d_qkv 24; the dropped 6
                                 {"attn.attention.probabilities.grad", 86, 94},  // + d_p 6; d_o 8
                                 {"attn.attention.softmax", 80},  // p
                                 {"attn.attention.scores", 50},  // d_p 6, qkv 24
                                 {"attn.c_attn.weight.grad", 42},  // n1
                                 {"attn.c_attn.input.grad", 26, 50},  // + 8, d_qkv
                                 {"ln_1", 8}});  // x 8, 2, d_n1 8
  check_ledger(gpt2, strategy, 2,
               together({{{"embeddings", 8}},
                         forward,
                         {{"norm", 124},
                          {"lm_head", 140},
                          {"loss", 141},
                          {"loss.sum", 140},
                          {"lm_head.weight.grad", 132, 0, Phase::backward},
                          {"lm_head.input.grad", 124, 140, Phase::backward},
                          {"norm", 114, 0, Phase::backward}},
                         backward,
                         {{"embeddings", 0, 0, Phase::backward}}}));
}

// Elements of 2 bytes; statistics in fp32 are 2 for each value. Adapters of rank 4 in fp32. Nothing
// is trained below: x, q's and the first norm's backward are not needed.
TEST_CASE("adapters with dropout on a frozen base in bf16") {
  Strategy strategy;
  strategy.precision = Precision::bf16_mixed;
  strategy.lora = models::Lora{.rank = 4, .dropout = 0.1};
  strategy.lora->targets = {"v_proj", "down_proj"};
  const Lines forward = behind("layers.0.", Phase::forward,
                               {{"input_layernorm", 16},
                                {"self_attn.q_proj", 24},
                                {"self_attn.k_proj", 28},
                                {"self_attn.v_proj.lora_dropout", 36},
                                {"self_attn.v_proj.lora_A", 32, 40},  // a 4, the masked 8
                                {"self_attn.v_proj.lora_B", 36},
                                {"self_attn.v_proj", 36},
                                {"self_attn.rotary", 36},
                                {"self_attn.attention", 48},  // o 8, lse 4
                                {"self_attn.o_proj", 56},
                                {"self_attn.residual", 48},  // x
                                {"post_attention_layernorm", 58},
                                {"mlp.gate_proj", 70},
                                {"mlp.up_proj", 74, 82},  // + 12, n2
                                {"mlp.act", 86},
                                {"mlp.down_proj.lora_dropout", 98},
                                {"mlp.down_proj.lora_A", 90, 102},  // a 4, the masked 12
                                {"mlp.down_proj.lora_B", 98},
                                {"mlp.down_proj", 86},  // p
                                {"residual", 86}});
  // n1 8, q 8, k 4, v 4, a 4, o 8, lse 4, m 8 and 2, gate, up 24, a 4: 78, and d 8.
  const Lines backward =
      behind("layers.0.", Phase::backward,
             {{"mlp.down_proj.lora_B", 86, 90},  // + d_a 4, a
              {"mlp.down_proj.lora_A.input.grad", 98, 110},  // + 12; 12 for the dropout's sake
              {"mlp.down_proj.input.grad", 98},
              {"mlp.act", 98},
              {"mlp.down_proj.lora_dropout", 98, 110},  // + 12, p
              {"mlp.down_proj.lora_A", 82},  // the masked 12, d_a 4
              {"mlp.gate_proj.input.grad", 78, 90},
              {"mlp.up_proj.input.grad", 66},
              {"post_attention_layernorm", 48},  // m 8, 2, d_n2 8
              {"self_attn.o_proj.input.grad", 48, 56},  // + 8, d
              {"self_attn.attention", 16, 64},  // + 16; d_o, q, k, v, o, lse 36; dq, dk 12
              {"self_attn.v_proj.lora_B", 12, 20},  // + d_a 4; a 4, dv 4
              {"self_attn.v_proj.lora_dropout", 12, 20},  // + 8, n1
              {"self_attn.v_proj.lora_A", 0}});
  check_ledger(model("llama"), strategy, 1,
               together({{{"embeddings", 8}},
                         forward,
                         {{"norm", 96},
                          {"lm_head", 104, 112},  // + 16, the normalized
                          {"loss", 106},
                          {"loss.sum", 104},
                          {"lm_head.input.grad", 96, 112, Phase::backward},
                          {"norm", 86, 0, Phase::backward}},
                         backward}));
}

// Beside what Llama saves: the inputs of the head norms 12, and 1 / rms of 2 heads and of 1.
TEST_CASE("norms of q and k save their inputs, and turn gradients in place") {
  const Lines forward = behind("layers.0.", Phase::forward,
                               {{"input_layernorm", 17},
                                {"self_attn.q_proj", 25},
                                {"self_attn.k_proj", 29},
                                {"self_attn.v_proj", 33},
                                {"self_attn.q_norm", 43},
                                {"self_attn.k_norm", 48},
                                {"self_attn.rotary", 48},
                                {"self_attn.attention", 58},
                                {"self_attn.o_proj", 66},
                                {"self_attn.residual", 66},
                                {"post_attention_layernorm", 75},
                                {"mlp.gate_proj", 87},
                                {"mlp.up_proj", 99},
                                {"mlp.act", 111},
                                {"mlp.down_proj", 107, 119},
                                {"residual", 107}});
  const Lines backward = behind("layers.0.", Phase::backward,
                                {{"mlp.down_proj.input.grad", 119},
                                 {"mlp.act", 119},
                                 {"mlp.down_proj.weight.grad", 107},
                                 {"mlp.gate_proj.weight.grad", 107},
                                 {"mlp.up_proj.weight.grad", 99},
                                 {"mlp.gate_proj.input.grad", 95, 107},
                                 {"mlp.up_proj.input.grad", 83},
                                 {"post_attention_layernorm", 66},
                                 {"self_attn.o_proj.weight.grad", 66},
                                 {"self_attn.o_proj.input.grad", 74},
                                 {"self_attn.attention", 56, 90},
                                 {"self_attn.rotary", 56},
                                 {"self_attn.k_norm", 51},  // 4 and 1
                                 {"self_attn.q_norm", 41},  // 8 and 2
                                 {"self_attn.q_proj.weight.grad", 41},
                                 {"self_attn.k_proj.weight.grad", 41},
                                 {"self_attn.v_proj.weight.grad", 33},
                                 {"self_attn.q_proj.input.grad", 33, 41},
                                 {"self_attn.k_proj.input.grad", 29},
                                 {"self_attn.v_proj.input.grad", 25},
                                 {"input_layernorm", 8}});
  check_ledger(model("qwen3"), fp32(), 1,
               together({{{"embeddings", 8}},
                         forward,
                         {{"norm", 116},
                          {"lm_head", 132},
                          {"loss", 133},
                          {"loss.sum", 132},
                          {"lm_head.weight.grad", 124, 0, Phase::backward},
                          {"lm_head.input.grad", 116, 132, Phase::backward},
                          {"norm", 107, 0, Phase::backward}},
                         backward,
                         {{"embeddings", 0, 0, Phase::backward}}}));
}

// The frozen head saves no input. Of the layer only p is read: it takes gate's place and stays.
TEST_CASE("with down_proj alone trained its input is all that a layer saves") {
  Strategy strategy = fp32();
  strategy.train = {"*down_proj*"};
  const Lines forward = behind("layers.0.", Phase::forward,
                               {{"input_layernorm", 16},
                                {"self_attn.q_proj", 24},
                                {"self_attn.k_proj", 28},
                                {"self_attn.v_proj", 24, 32},  // + 4, n1
                                {"self_attn.rotary", 24},
                                {"self_attn.attention", 16, 32},  // + 8, q, k, v
                                {"self_attn.o_proj", 16, 24},  // + 8, o
                                {"self_attn.residual", 8},  // x
                                {"post_attention_layernorm", 16},
                                {"mlp.gate_proj", 28},
                                {"mlp.up_proj", 32, 40},  // + 12, n2
                                {"mlp.act", 20},  // up
                                {"mlp.down_proj", 28},
                                {"residual", 20}});  // m
  check_ledger(model("llama"), strategy, 1,
               together({{{"embeddings", 8}},
                         forward,
                         {{"norm", 29},
                          {"lm_head", 37, 45},  // + 16, the normalized
                          {"loss", 38},
                          {"loss.sum", 37},
                          {"lm_head.input.grad", 29, 45, Phase::backward},
                          {"norm", 20, 0, Phase::backward},
                          {"layers.0.mlp.down_proj.weight.grad", 0, 0, Phase::backward}}}));
}

}  // namespace
}  // namespace plimsoll::runtime::test
