// A block as our own runtime runs it: the order of its ops, and what it refuses.
#include "models/decisions/layer_ops.h"

#include <doctest/doctest.h>

#include <fmt/format.h>

#include <string>

#include "models/base/error.h"
#include "models/decisions/requires_grad.h"
#include "models/model_reader.h"

using namespace plimsoll;
using namespace plimsoll::models;
using decisions::LayerOp;
using decisions::LayerOpKind;

namespace {

constexpr const char* kExperts =
    R"(, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 12)";

ModelSpec model(const std::string& type, const std::string& more = "") {
  return read_model(
      fmt::format(R"({{"model_type": "{}", "hidden_size": 32, "n_embd": 32,
      "num_attention_heads": 4, "n_head": 4, "num_key_value_heads": 2, "intermediate_size": 48,
      "vocab_size": 64, "num_hidden_layers": 2, "n_layer": 2{}{}}})",
                  type, more, type == "mixtral" || type == "qwen3_moe" ? kExperts : ""),
      type, "", {});
}

std::string ops_of(const std::string& type) {
  const ModelSpec of = model(type);
  std::string ops;
  for (const LayerOp& op : decisions::own_ops(*of.blocks.front()).ops) {
    ops += ops.empty() ? "" : " ";
    if (op.kind == LayerOpKind::gemms) {
      for (const auto& gemm : op.gemms) {
        ops += &gemm == op.gemms.data() ? "" : "+";
        ops += std::string(gemm.names.gemm).substr(std::string(gemm.names.gemm).rfind('.') + 1);
      }
    } else {
      ops += op.name;
    }
  }
  return ops;
}

std::string refusal(const ModelSpec& model, const Recompute& recompute = {}) {
  try {
    decisions::check_decoder(*model.decoder, recompute);
    for (const auto& block : model.blocks) decisions::own_ops(*block);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::unsupported);
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("GEMMs of one input stand together, and a gate is one op with its activation") {
  CHECK(ops_of("llama") ==
        "input_layernorm q_proj+k_proj+v_proj self_attn.rotary self_attn.attention o_proj "
        "self_attn.residual post_attention_layernorm gate_proj+up_proj mlp.act down_proj residual");
  CHECK(ops_of("qwen3") ==
        "input_layernorm q_proj+k_proj+v_proj self_attn.q_norm self_attn.k_norm self_attn.rotary "
        "self_attn.attention o_proj self_attn.residual post_attention_layernorm gate_proj+up_proj "
        "mlp.act down_proj residual");
  CHECK(ops_of("olmo2") ==
        "q_proj+k_proj+v_proj self_attn.q_norm self_attn.k_norm self_attn.rotary "
        "self_attn.attention o_proj post_attention_layernorm self_attn.residual gate_proj+up_proj "
        "mlp.act down_proj post_feedforward_layernorm residual");
  CHECK(ops_of("mixtral") ==
        "input_layernorm q_proj+k_proj+v_proj self_attn.rotary self_attn.attention o_proj "
        "self_attn.residual post_attention_layernorm gate block_sparse_moe.experts.sum residual");
  CHECK(ops_of("gpt2") ==
        "ln_1 c_attn attn.attention c_proj attn.residual ln_2 c_fc mlp.act c_proj residual");
  CHECK(ops_of("phi3") ==
        "input_layernorm qkv_proj self_attn.q.rotary self_attn.k.rotary self_attn.attention o_proj "
        "self_attn.residual post_attention_layernorm gate_up_proj mlp.act down_proj residual");
}

TEST_CASE("the branches of a parallel residual are added where they are made") {
  CHECK(ops_of("gpt_neox") ==
        "input_layernorm query_key_value attention.rotary attention.attention dense "
        "attention.residual post_attention_layernorm dense_h_to_4h mlp.act dense_4h_to_h residual");
  CHECK(ops_of("phi") ==
        "input_layernorm q_proj+k_proj+v_proj self_attn.rotary self_attn.attention dense "
        "self_attn.residual fc1 mlp.activation_fn fc2 residual");
  const ModelSpec of = model("gpt_neox");
  const decisions::LayerOps& layer = decisions::own_ops(*of.blocks.front());
  for (const LayerOp& op : layer.ops)
    if (op.out != kNoValue)
      CHECK(layer.ops.data() + layer.values[static_cast<std::size_t>(op.out)].producer == &op);
  CHECK(layer.ops[5].in[0].value == kBlockInput);
  CHECK(layer.ops[10].in[0].value == layer.ops[5].out);
  // Queries, keys and values of a head lie side by side: 8 elements each, of which 2 are rotated.
  const LayerOp &rotary = layer.ops[2], &attention = layer.ops[3];
  for (std::size_t i = 0; i < 3; ++i) {
    CHECK(attention.in[i].first == static_cast<std::int64_t>(8 * i));
    CHECK(attention.in[i].step == 24);
    CHECK(attention.in[i].width == 32);
    if (i < 2) CHECK(rotary.in[i].width == 8);
  }
}

TEST_CASE("what our own runtime has no op for is refused by name") {
  const auto refuses = [](const std::string& type, const char* what, const std::string& more = "") {
    const std::string said = refusal(model(type, more));
    CHECK_MESSAGE(said.find(what) != std::string::npos, type << ": " << said);
  };
  for (const char* type :
       {"gemma", "gemma2", "gemma3_text", "gpt2", "gpt_bigcode", "gpt_neox", "granite", "llama",
        "mixtral", "olmo2", "opt", "phi", "phi3", "qwen3", "qwen3_moe"})
    CHECK_MESSAGE(refusal(model(type)).empty(), type);
  refuses("bloom", "(ALiBi)");
  const ModelSpec windows = model(
      "qwen2", R"(, "use_sliding_window": true, "max_window_layers": 1, "sliding_window": 4)");
  CHECK(windows.decoder->full_layers == 1);
  for (const RecomputeKind kind :
       {RecomputeKind::none, RecomputeKind::selective, RecomputeKind::full})
    CHECK(refusal(windows, {kind}).empty());
  for (const RecomputeKind kind : {RecomputeKind::every, RecomputeKind::sqrt})
    CHECK(refusal(windows, {kind, 2}).find("makes them again one by one") != std::string::npos);
}

TEST_CASE("a gradient is required above what is trained, and what its backward reads is saved") {
  const ModelSpec llama = model("llama");
  const decisions::LayerOps& layer = decisions::own_ops(*llama.blocks.front());
  std::vector<decisions::Trained> trained(layer.modules.size());
  const auto of = [&](bool input) {
    return decisions::requires_grad(layer, trained, input, {}, Attention::flash);
  };
  CHECK(of(false).values.none());
  CHECK(of(false).last == -1);
  const decisions::RequiresGrad all = of(true);
  for (const LayerOp& op : layer.ops)
    if (op.out != kNoValue) CHECK(all.value(op.out));
  // Nothing reads a GEMM's input where only what lies below is trained.
  CHECK_FALSE(all.saves(layer.ops[0].out));
  // The value projection alone: no gradient reaches the first norm, but attention's backward needs
  // its operands.
  trained[2].weight = true;
  const decisions::RequiresGrad some = of(false);
  CHECK_FALSE(some.value(layer.ops[0].out));
  CHECK(some.saves(layer.ops[0].out));
  CHECK_FALSE(some.value(layer.ops[1].gemms[0].out));
  CHECK(some.saves(layer.ops[1].gemms[0].out));
  CHECK(some.value(layer.ops[1].gemms[2].out));
  CHECK(some.any(layer));
  // The last op that leaves anything: gate and up, which their activation's backward reads.
  CHECK(layer.ops[static_cast<std::size_t>(some.last)].kind == LayerOpKind::gemms);
  CHECK(layer.ops[static_cast<std::size_t>(some.last)].gemms.size() == 2);
}
