// What of a family's config keeps its step from being described, a row each: the fields and the
// words, and beside them the nearest fields that do not.
#include <doctest/doctest.h>

#include <string>

#include "models/model_reader.h"

using namespace plimsoll;

namespace {
// Why there is no decoder; "" where there is one.
std::string why(const std::string& type, const std::string& more) {
  const bool gpt = type == "gpt2" || type == "gpt_bigcode";
  const std::string sizes = gpt ? R"("n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 32)"
                                : R"("hidden_size": 64, "num_hidden_layers": 2,
      "num_attention_heads": 4, "intermediate_size": 128, "max_position_embeddings": 32,
      "num_key_value_heads": 4)";
  const std::string bloom = type == "bloom" ? R"(, "n_layer": 2, "n_head": 4)" : "";
  const models::ModelSpec model =
      models::read_model("{\"model_type\": \"" + type + "\", \"vocab_size\": 100, " + sizes +
                             bloom + (more.empty() ? "" : ", ") + more + "}",
                         "m", "m", {});
  CHECK(model.no_decoder.empty() == model.decoder.has_value());
  return model.no_decoder;
}
struct Row {
  const char* type;
  const char* more;
  const char* why;
};
void check_rows(std::initializer_list<Row> rows) {
  for (const Row& row : rows) {
    CAPTURE(std::string(row.type) + " " + row.more);
    CHECK(why(row.type, row.more) == std::string(row.why));
  }
}
}  // namespace

TEST_CASE("a config that a family's forward does not describe says why, field by field") {
  check_rows(
      {{"bert", R"("architectures": ["BertForMaskedLM"])", ""},
       {"bert", R"("architectures": ["BertModel"])", "architecture BertModel"},
       {"bert", R"("architectures": ["BertForMaskedLM"], "is_decoder": true)",
        "is_decoder of bert"},
       {"bert", R"("architectures": ["BertForMaskedLM"], "chunk_size_feed_forward": 1)",
        "chunk_size_feed_forward of bert"},
       {"bert", R"("architectures": ["BertForMaskedLM"], "chunk_size_feed_forward": 0)", ""},
       {"bert",
        R"("architectures": ["BertForMaskedLM"], "position_embedding_type": "relative_key")",
        "position_embedding_type 'relative_key'"},
       {"bert", R"("architectures": ["BertForMaskedLM"], "hidden_act": "relu")",
        "hidden_act 'relu' of bert"},
       {"bert", R"("architectures": ["BertForMaskedLM"], "hidden_act": "gelu_pytorch_tanh")", ""},
       {"phi", "", ""},
       {"phi", R"("architectures": ["PhiModel"])", "architecture PhiModel"},
       {"phi", R"("hidden_act": "mish")", "hidden_act 'mish'"},
       {"phi", R"("qk_layernorm": true)", "qk_layernorm of phi"},
       {"phi", R"("embd_pdrop": 0.5)", "embd_pdrop of phi"},
       {"phi", R"("embd_pdrop": 0.0)", ""},
       {"phi", R"("tie_word_embeddings": true)",
        "tie_word_embeddings of phi, whose head has a bias"},
       // A head has 16 elements.
       {"phi", R"("partial_rotary_factor": 0.125)", ""},
       {"phi", R"("partial_rotary_factor": 0.875)", ""},
       {"phi", R"("partial_rotary_factor": 0.0625)",
        "rotation of 1 of a head's 16 elements (partial_rotary_factor)"},
       {"phi", R"("partial_rotary_factor": 0.1875)",
        "rotation of 3 of a head's 16 elements (partial_rotary_factor)"},
       {"phi", R"("partial_rotary_factor": 1.0)",
        "rotation of 16 of a head's 16 elements (partial_rotary_factor)"},
       {"gpt2", "", ""},
       {"gpt2", R"("architectures": ["GPT2Model"])", "architecture GPT2Model"},
       {"bloom", "", ""},
       {"bloom", R"("architectures": ["BloomModel"])", "architecture BloomModel"},
       {"bloom", R"("apply_residual_connection_post_layernorm": true)",
        "apply_residual_connection_post_layernorm of bloom"},
       {"gpt_neox", "", ""},
       {"gpt_neox", R"("architectures": ["GPTNeoXModel"])", "architecture GPTNeoXModel"},
       {"gpt_neox", R"("hidden_act": "mish")", "hidden_act 'mish'"},
       {"opt", R"("ffn_dim": 128, "word_embed_proj_dim": 64)", ""},
       {"opt", R"("ffn_dim": 128, "architectures": ["OPTModel"])", "architecture OPTModel"},
       {"opt", R"("ffn_dim": 128, "activation_function": "mish")", "activation_function 'mish'"},
       {"opt", R"("ffn_dim": 128, "layer_norm_elementwise_affine": false)",
        "layer_norm_elementwise_affine false of opt"},
       {"bert", R"("architectures": ["BertForSequenceClassification"])", ""},
       {"llama", R"("architectures": ["LlamaForSequenceClassification"])", ""},
       {"llama", R"("architectures": ["LlamaForSequenceClassification"], "num_labels": 1)",
        "num_labels 1: a regression's loss"},
       {"gpt2",
        R"("architectures": ["GPT2ForSequenceClassification"],
           "problem_type": "single_label_classification")",
        ""},
       {"gpt2",
        R"("architectures": ["GPT2ForSequenceClassification"],
           "problem_type": "multi_label_classification")",
        "problem_type 'multi_label_classification'"},
       {"llama", R"("architectures": ["LlamaForTokenClassification"])",
        "architecture LlamaForTokenClassification"},
       {"llama", "", ""},
       {"llama", R"("architectures": ["LlamaModel"])", "architecture LlamaModel"},
       {"llama", R"("hidden_act": "gelu")", "hidden_act 'gelu' in a gated MLP"},
       {"gemma2", R"("head_dim": 16)", ""},
       {"gemma2", R"("head_dim": 16, "architectures": ["Gemma2Model"])",
        "architecture Gemma2Model"},
       {"mixtral", R"("num_local_experts": 4)", ""},
       {"mixtral", R"("num_local_experts": 4, "router_jitter_noise": 0.5)", "router_jitter_noise"},
       {"mixtral", R"("num_local_experts": 4, "output_router_logits": true)",
        "output_router_logits"},
       {"mixtral", R"("num_local_experts": 4, "hidden_act": "gelu")",
        "hidden_act 'gelu' in a gated MLP"}});
}

TEST_CASE("what of GPT's, OPT's, Gemma's and mixtures' configs is not described, field by field") {
  check_rows({
      {"gpt2", R"("add_cross_attention": true)", "add_cross_attention of gpt2"},
      {"gpt2", R"("reorder_and_upcast_attn": true)", "reorder_and_upcast_attn of gpt2"},
      {"gpt2", R"("scale_attn_by_inverse_layer_idx": true)",
       "scale_attn_by_inverse_layer_idx of gpt2"},
      {"gpt2", R"("activation_function": "mish")", "activation_function 'mish'"},
      {"gpt2", R"("activation_function": "relu")", ""},
      {"gpt_bigcode", "", ""},
      {"gpt_bigcode", R"("activation_function": "mish")", "activation_function 'mish'"},
      {"gpt_bigcode", R"("architectures": ["GPTBigCodeModel"])", "architecture GPTBigCodeModel"},
      {"bloom", R"("pretraining_tp": 2, "slow_but_exact": true)", "slow_but_exact of bloom"},
      {"bloom", R"("pretraining_tp": 2)", ""},
      {"bloom", R"("pretraining_tp": 1, "slow_but_exact": true)", ""},
      {"gpt_neox", R"("rotary_pct": 0.125)", ""},
      {"gpt_neox", R"("rotary_pct": 0.0625)", "rotation of 1 of a head's 16 elements (rotary_pct)"},
      {"gpt_neox", R"("rotary_pct": 0.1875)", "rotation of 3 of a head's 16 elements (rotary_pct)"},
      {"gpt_neox", R"("rotary_pct": 1.0)", "rotation of 16 of a head's 16 elements (rotary_pct)"},
      {"opt", R"("ffn_dim": 128, "word_embed_proj_dim": 32)",
       "word_embed_proj_dim that is not hidden_size"},
      {"opt", R"("ffn_dim": 128, "word_embed_proj_dim": 32, "do_layer_norm_before": false)", ""},
      {"opt", R"("ffn_dim": 128, "word_embed_proj_dim": 64, "do_layer_norm_before": false)",
       "do_layer_norm_before false of opt"},
      {"opt", R"("ffn_dim": 128, "_remove_final_layer_norm": true)",
       "_remove_final_layer_norm of opt"},
      {"opt", R"("ffn_dim": 128, "layerdrop": 0.5)", "layerdrop of opt"},
      {"opt", R"("ffn_dim": 128, "layerdrop": 0)", ""},
      {"phi3", R"("pad_token_id": 0, "partial_rotary_factor": 0.125)", ""},
      {"phi3", R"("pad_token_id": 0, "partial_rotary_factor": 1.0)", ""},
      {"phi3", R"("pad_token_id": 0, "partial_rotary_factor": 0.0625)",
       "rotation of 1 of a head's 16 elements (partial_rotary_factor)"},
      {"phi3", R"("pad_token_id": 0, "partial_rotary_factor": 0.1875)",
       "rotation of 3 of a head's 16 elements (partial_rotary_factor)"},
      {"gemma2", R"("head_dim": 16, "hidden_activation": "gelu")", "hidden_activation 'gelu'"},
      {"gemma2", R"("head_dim": 16, "use_bidirectional_attention": true)",
       "use_bidirectional_attention"},
      {"llama", R"("hidden_act": "swish")", ""},
      {"mixtral", R"("num_local_experts": 399)", ""},
      {"gpt_oss", R"("num_local_experts": 4)", ""},
      {"gpt_oss", R"("num_local_experts": 399)", ""},
      {"gpt_oss", R"("num_local_experts": 400)", "400 experts"},
      {"gpt_oss", R"("num_local_experts": 4, "hidden_act": "gelu")",
       "hidden_act 'gelu' in a gated MLP"},
      {"gpt_oss", R"("num_local_experts": 4, "output_router_logits": true)",
       "output_router_logits"},
      {"gpt_oss", R"("num_local_experts": 4, "architectures": ["GptOssModel"])",
       "architecture GptOssModel"},
      {"mixtral", R"("num_local_experts": 400)", "400 experts"},
      {"mixtral", R"("num_local_experts": 4, "hidden_act": "swish")", ""},
      {"mixtral", R"("num_local_experts": 4, "architectures": ["MixtralModel"])",
       "architecture MixtralModel"},
  });
}
