// What one of the ranks of tensor parallelism has of a model.
#include <doctest/doctest.h>

#include <map>
#include <string>

#include "models/base/error.h"
#include "models/model_catalog.h"
#include "models/tensor_parallel.h"

using namespace plimsoll;
using models::ModelCode;
using models::Shape;

namespace {

models::Strategy of(std::int64_t tp, ModelCode code = ModelCode::torchtitan_0_2_2) {
  models::Strategy s;
  s.tp = tp;
  s.gpus = 16;
  s.code = code;
  return s;
}

std::map<std::string, Shape> shapes(const models::ModelSpec& model) {
  std::map<std::string, Shape> out;
  for (const models::ParameterRow& row : model.parameters) out[row.name] = row.shape;
  return out;
}

std::string refusal(const char* model, const models::Strategy& s, ErrorKind kind) {
  try {
    models::divided(models::catalog_model(model), s);
    return {};
  } catch (const Error& error) {
    CHECK(error.kind() == kind);
    return error.message();
  }
}

}  // namespace

TEST_CASE("rows of what makes heads and the MLP's inner axis, columns of what reads them") {
  // Llama 3.1 8B: hidden 4096, 32 heads of 128 with 8 of keys, inner 14336, vocabulary 128256.
  const models::ModelSpec own = models::divided(models::catalog_model("llama-3.1-8b"), of(4));
  const std::map<std::string, Shape> parts = shapes(own);
  const std::string layer = "model.layers.{}.";
  CHECK(parts.at(layer + "self_attn.q_proj.weight") == Shape{1024, 4096});
  CHECK(parts.at(layer + "self_attn.k_proj.weight") == Shape{256, 4096});
  CHECK(parts.at(layer + "self_attn.v_proj.weight") == Shape{256, 4096});
  CHECK(parts.at(layer + "self_attn.o_proj.weight") == Shape{4096, 1024});
  CHECK(parts.at(layer + "mlp.gate_proj.weight") == Shape{3584, 4096});
  CHECK(parts.at(layer + "mlp.up_proj.weight") == Shape{3584, 4096});
  CHECK(parts.at(layer + "mlp.down_proj.weight") == Shape{4096, 3584});
  CHECK(parts.at(layer + "input_layernorm.weight") == Shape{4096});
  CHECK(parts.at("model.norm.weight") == Shape{4096});
  CHECK(parts.at("model.embed_tokens.weight") == Shape{32064, 4096});
  CHECK(parts.at("lm_head.weight") == Shape{32064, 4096});
  // All but the 65 norms are a quarter: (8030261248 - 65·4096) / 4 + 65·4096.
  CHECK(own.parameter_count() == Count(2007764992));
}

TEST_CASE("a rank's decoder has its own heads, and the layer gathers and scatters the sequence") {
  const models::ModelSpec own = models::divided(models::catalog_model("llama-3.1-8b"), of(4));
  REQUIRE(own.other_forwards.size() == 1);
  const models::Decoder& d = own.other_forwards.front().decoder;
  CHECK(d.hidden == 4096);
  CHECK(d.heads == 8);
  CHECK(d.kv_heads == 2);
  CHECK(d.head_dim == 128);
  CHECK(d.ffn == 3584);
  CHECK(d.vocab == 32064);
  CHECK(d.sequence_parts == 4);
  REQUIRE(own.other_forwards.front().blocks.size() == 1);
  std::string gathers;
  for (const models::Node& node : own.other_forwards.front().blocks.front()->nodes) {
    if (node.kind == models::OpKind::gather_sequence) gathers += std::string("+") + node.name;
    if (node.kind == models::OpKind::scatter_sequence) gathers += std::string("-") + node.name;
  }
  CHECK(gathers == "+self_attn.gathered-self_attn.scattered+mlp.gathered-mlp.scattered");
}

TEST_CASE("what does not divide, and code that nobody divides, is refused by name") {
  constexpr ErrorKind kBad = ErrorKind::bad_input, kUnsupported = ErrorKind::unsupported;
  CHECK(refusal("llama-3.1-8b", of(8), kBad).empty());
  // Attention views its queries as heads of head_dim: torch stops at a part of one.
  CHECK(refusal("llama-3.1-8b", of(16), kBad) ==
        "--tp 16: llama-3.1-8b has 8 heads of keys and values, which do not divide");
  CHECK(refusal("llama-3.1-8b", of(3), kBad) ==
        "--tp 3: llama-3.1-8b has 32 heads of attention, which do not divide");
  // 40 heads of each; inner 13824 = 5·2764.8.
  CHECK(refusal("llama-2-13b", of(5), kUnsupported).find("13824 values inside its MLP") !=
        std::string::npos);
  // 27648 and 40 heads, 32000 = 5·6400, and 40 = 10·4: but 13824 is no multiple of 10.
  CHECK(refusal("llama-2-13b", of(2), kBad).empty());
  CHECK(refusal("llama-3.1-8b", of(2, ModelCode::transformers), kUnsupported)
            .find("--model-code torchtitan@2024-12 or torchtitan@0.2.2") != std::string::npos);
  CHECK(refusal("gpt2", of(2), kUnsupported).find("gpt2") != std::string::npos);
}
