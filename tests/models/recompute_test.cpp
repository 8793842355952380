// What is recomputed, as options and documents write it.
#include "models/recompute.h"

#include <doctest/doctest.h>

#include "models/base/error.h"
#include "models/model_catalog.h"
#include "models/model_reader.h"

namespace plimsoll::tests {

using models::Recompute;
using models::recompute_from;
using models::RecomputeKind;

TEST_CASE("every form reads back as it was written, names sorted") {
  for (const char* text :
       {"none", "selective", "full", "sqrt", "every:1", "every:999999", "block:1", "block:999999",
        "nth:2", "recursive:1", "recursive:999999", "ops:attention", "ops:attention+q_proj",
        "ops:mlp.c_proj", "ops:torchtitan"}) {
    CAPTURE(text);
    const auto read = recompute_from(text);
    REQUIRE(read.has_value());
    CHECK(text_of(*read) == text);
  }
  CHECK(text_of(recompute_from("ops:q_proj+attention").value()) == "ops:attention+q_proj");
}

TEST_CASE("what is no form of it is not read") {
  for (const char* text : {"",
                           "None",
                           "none:",
                           "full:2",
                           "every",
                           "every:",
                           "every:0",
                           "every:-1",
                           "every:1000000",
                           "every:2x",
                           "every:99999999999999999999",
                           "block",
                           "block:",
                           "block:0",
                           "block:1000000",
                           "block:2:3",
                           "recursive",
                           "recursive:",
                           "recursive:0",
                           "recursive:1000000",
                           "ops",
                           "ops:",
                           "ops:+",
                           "ops:q_proj+",
                           "ops:q_proj+q_proj",
                           "ops:q proj",
                           "ops:Q_PROJ",
                           "ops:torchtitan+attention",
                           "ops:a:b"}) {
    CAPTURE(text);
    CHECK_FALSE(recompute_from(text).has_value());
  }
}

namespace {
std::vector<std::string> kept_nodes(const models::Block& block, const char* policy) {
  const Recompute recompute = recompute_from(policy).value();
  std::vector<std::string> out;
  int number = 0;
  for (const models::Node& node : block.nodes) {
    const bool linear = node.kind == models::OpKind::linear;
    if (keeps(recompute, node, linear ? number++ : 0)) out.emplace_back(node.name);
  }
  return out;
}
using Names = std::vector<std::string>;
}  // namespace

TEST_CASE("a name keeps what ends with its parts; torchtitan's list every second GEMM") {
  const models::ModelSpec llama = models::catalog_model("llama-3.2-1b");
  const models::Block& block = *llama.blocks.front();
  CHECK(kept_nodes(block, "ops:attention") == Names{"self_attn"});
  CHECK(kept_nodes(block, "ops:o_proj+mlp.up_proj") == Names{"self_attn.o_proj", "mlp.up_proj"});
  CHECK(kept_nodes(block, "ops:proj").empty());  // no part of a part
  // q, (k), v, attention, (o), gate, (up), down.
  CHECK(kept_nodes(block, "ops:torchtitan") == Names{"self_attn.q_proj", "self_attn.v_proj",
                                                     "self_attn", "mlp.gate_proj",
                                                     "mlp.down_proj"});
  // GPT-2 has two modules of one name.
  const models::ModelSpec gpt2 = models::catalog_model("gpt2");
  CHECK(kept_nodes(*gpt2.blocks.front(), "ops:c_proj") == Names{"attn.c_proj", "mlp.c_proj"});
  CHECK(kept_nodes(*gpt2.blocks.front(), "ops:mlp.c_proj") == Names{"mlp.c_proj"});
  CHECK(keepable(*gpt2.blocks.front()) == Names{"c_attn", "attention", "c_proj", "c_fc"});
}

TEST_CASE("a name that fits nothing is refused with what is accepted") {
  const models::ModelSpec llama = models::catalog_model("llama-3.2-1b");
  CHECK_NOTHROW(check_kept(recompute_from("ops:attention+q_proj").value(), llama.blocks));
  try {
    check_kept(recompute_from("ops:q_prj").value(), llama.blocks);
    FAIL("accepted");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::bad_input);
    CHECK(std::string(error.what())
              .starts_with("--recompute ops: 'q_prj' names nothing in this model's layers; did you "
                           "mean 'q_proj'? "
                           "(accepted: q_proj, k_proj, v_proj, attention, o_proj, gate_proj, "
                           "up_proj, down_proj)"));
  }
}

TEST_CASE("each name of a list must fit, in one of a model's kinds of layers; a long one is cut") {
  const auto refusal = [](const char* policy, const models::ModelSpec& model) -> std::string {
    try {
      check_kept(recompute_from(policy).value(), model.blocks);
    } catch (const Error& error) {
      return error.message();
    }
    return "accepted";
  };
  const models::ModelSpec llama = models::catalog_model("llama-3.2-1b");
  const char* const accepted =
      " (accepted: q_proj, k_proj, v_proj, attention, o_proj, gate_proj, up_proj, down_proj)";
  // Behind one that fits, too.
  CHECK(refusal("ops:attention+zzzzzz", llama) ==
        "--recompute ops: 'zzzzzz' names nothing in this model's layers" + std::string(accepted));
  const std::string long_name(90, 'z');
  CHECK(refusal(("ops:" + long_name).c_str(), llama) ==
        "--recompute ops: '" + std::string(57, 'z') + "...' names nothing in this model's layers" +
            accepted);
  // The first layer alone has an MLP that is none of experts.
  const models::ModelSpec mixed = models::read_model(
      R"({"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "hidden_size": 64,
          "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4,
          "num_key_value_heads": 2, "vocab_size": 100, "num_experts": 4, "num_experts_per_tok": 2,
          "moe_intermediate_size": 32, "mlp_only_layers": [0], "decoder_sparse_step": 1})",
      "mixed", "mixed", {});
  REQUIRE(mixed.blocks.size() >= 2);
  CHECK(refusal("ops:mlp.up_proj", mixed) == "accepted");
  // What asks for no number of layers has the one that a plan writes.
  CHECK(recompute_from("ops:attention")->layers == 1);
}

TEST_CASE("Megatron's names of what is here by another") {
  CHECK(recompute_from("uniform:3") == recompute_from("every:3"));
  CHECK(recompute_from("core_attn") == recompute_from("selective"));
  for (const char* text : {"uniform", "uniform:", "uniform:0", "uniform:uniform:2", "uniform:ops",
                           "uniform:block:2", "core_attn:1", "ops:core_attn+"}) {
    CAPTURE(text);
    CHECK(!recompute_from(text));
  }
}

}  // namespace plimsoll::tests
