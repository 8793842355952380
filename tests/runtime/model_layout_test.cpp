#include "runtime/model_layout.h"

#include <doctest/doctest.h>

#include "models/model_reader.h"

namespace plimsoll::runtime {
namespace {

models::ModelSpec llama(bool tied) {
  return models::read_model(
      std::string(R"({"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4,
          "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 256,
          "num_hidden_layers": 3, "tie_word_embeddings": )") +
          (tied ? "true}" : "false}"),
      "llama", "llama", {});
}

models::ModelSpec gpt2() {
  return models::read_model(
      R"({"model_type": "gpt2", "n_embd": 64, "n_head": 4, "n_layer": 2, "vocab_size": 256})",
      "gpt2", "gpt2", {});
}

TEST_CASE("a table that is tied to the head is the tail's, and is the head") {
  const ModelLayout own = layout_of(llama(false), {});
  CHECK(own.embedding.size() == 1);
  CHECK(own.tail.size() == 2);  // norm, lm_head
  CHECK(own.tail[*own.head].name == "lm_head.weight");
  const ModelLayout tied = layout_of(llama(true), {});
  CHECK(tied.embedding.empty());
  CHECK(tied.tail.size() == 2);  // embed_tokens, norm
  CHECK(tied.head == tied.token_table);
  CHECK(tied.tail[*tied.head].name == "model.embed_tokens.weight");
}

TEST_CASE("every parameter of a layer is some module's, under its name in the checkpoint") {
  const ModelLayout layout = layout_of(llama(false), {});
  REQUIRE(layout.layers.size() == 3);
  const LayerLayout& layer = layout.layers[2];
  CHECK(layer.parameters.size() == 9);  // 7 GEMMs, 2 norms
  const ModuleSlots& k = layer.module("self_attn.k_proj");
  CHECK(layer.parameters[*k.weight].name == "model.layers.2.self_attn.k_proj.weight");
  CHECK(layer.parameters[*k.weight].shape == Extents{32, 64});
  CHECK_FALSE(k.bias);
  CHECK_THROWS_AS(layer.module("self_attn.q_norm"), Error);
  const ModelLayout old = layout_of(gpt2(), {});
  CHECK(old.layers[1].parameters.size() == 12);
  CHECK(old.layers[1].module("attn.c_attn").transposed);
  CHECK(old.layers[1].parameters[*old.layers[1].module("mlp.c_proj").weight].shape ==
        Extents{256, 64});
  CHECK(old.position_table);
}

// Else its parameters would be stored, and nothing computed with them.
TEST_CASE("a module of a layer that has no op is refused") {
  models::ModelSpec model = llama(false);
  for (models::ParameterRow row : model.parameters)
    if (row.name.ends_with("up_proj.weight")) {
      row.name = "model.layers.{}.mlp.shared_expert_gate.weight";
      model.parameters.push_back(row);
      break;
    }
  CHECK_THROWS_AS(layout_of(model, {}), Error);
}

TEST_CASE("adapters freeze the base and stand behind it, two for each module and layer") {
  models::Strategy strategy;
  strategy.lora = models::Lora{.rank = 4, .alpha = 8, .targets = {"v_proj"}};
  const ModelLayout layout = layout_of(llama(false), strategy);
  const LayerLayout& layer = layout.layers[1];
  REQUIRE(layer.parameters.size() == 11);
  CHECK(layer.module("self_attn.v_proj").lora_a == 9);
  CHECK(layer.parameters[9].shape == Extents{4, 64});
  CHECK(layer.parameters[10].shape == Extents{32, 4});
  CHECK(layer.parameters[10].adapter);
  CHECK_FALSE(layer.parameters[0].trained);
  CHECK_FALSE(layout.trains_embedding());
  CHECK(layer.trains());
}

TEST_CASE("patterns freeze single layers") {
  models::Strategy strategy;
  strategy.freeze = {"model.layers.0.*", "model.embed_tokens.*"};
  const ModelLayout layout = layout_of(llama(false), strategy);
  CHECK_FALSE(layout.layers[0].trains());
  CHECK(layout.layers[1].trains());
  CHECK_FALSE(layout.trains_embedding());
}

}  // namespace
}  // namespace plimsoll::runtime
