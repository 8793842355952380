// What a plan of stack pytorch says that it assumed, and when: a row for each, beside a question
// of which it says nothing.
#include <doctest/doctest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "models/gpu_catalog.h"
#include "models/model_reader.h"
#include "models/storages.h"
#include "planner/plan.h"

using namespace plimsoll;
using models::Attention;
using models::Lora;
using models::Optimizer;
using models::Precision;
using models::Strategy;

namespace {

// Layers read 24 values four times in attention, twice in the MLP, and 40 once.
constexpr const char* kLlama = R"({"model_type": "llama", "hidden_size": 24, "vocab_size": 97,
    "intermediate_size": 40, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 512})";
// GPTQ's linears come in multiples of 32.
constexpr const char* kWide = R"({"model_type": "llama", "hidden_size": 128, "vocab_size": 97,
    "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 4, "max_position_embeddings": 512})";
constexpr const char* kMixture = R"({"model_type": "mixtral", "hidden_size": 24, "vocab_size": 97,
    "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2,
    "max_position_embeddings": 512, "sliding_window": null})";

struct Asked {
  Strategy s;
  const char* gpu = "h100";
  const char* model = kLlama;
};
using Change = std::function<void(Asked&)>;

// "value basis" of the assumption with this name; "": there is none.
std::string assumed(const std::string& what, const Change& change) {
  Asked asked;
  change(asked);
  const models::ModelSpec model = models::read_model(asked.model, "made-up", "test", {});
  planner::Question question;
  question.model = &model;
  question.strategy = asked.s;
  question.cluster.gpu = models::find_gpu(asked.gpu);
  question.batch = {.seq_len = 16, .micro_batch = 2};
  question.detail = planner::Detail::none;
  question.remedies = false;
  std::string found;
  for (const reports::Assumption& a : planner::plan(question).assumptions)
    if (a.what == what) {
      CHECK(found.empty());
      CHECK_FALSE(a.source.empty());
      found = a.value + " " + a.basis;
    }
  return found;
}

std::string nothing_of(const std::string& what) {
  return assumed(what, [](Asked&) {});
}

void pack(Asked& a, const char* storage, DType held_in = DType::uint8) {
  a.s.lora = Lora{.rank = 4, .targets = {"q_proj", "k_proj", "v_proj", "o_proj"}};
  a.s.param_dtype = DType::bf16;
  a.s.quantize = models::Quantization{
      .storage = models::find_packed_storage(storage), .held_in = held_in, .kbit_prep = false};
}

void pack_gptq(Asked& a) {
  pack(a, "gptq");
  a.model = kWide;
  a.s.precision = Precision::fp16_mixed;
  a.s.param_dtype = DType::fp16;
}

void fsdp(Asked& a, int version, int zero = 3) {
  a.s.gpus = 2;
  a.s.data.zero = zero;
  a.s.data.fsdp_version = version;
}

}  // namespace

TEST_CASE("which kernel runs behind SDPA follows from the card, and is said") {
  const std::string what = "kernel behind scaled_dot_product_attention";
  const auto on = [&](const char* gpu, Precision precision) {
    return assumed(what,
                   [=](Asked& a) { a.model = kWide, a.gpu = gpu, a.s.precision = precision; });
  };
  CHECK(on("h100", Precision::bf16_mixed) == "\"cudnn\" calibrated");
  CHECK(on("b200-sxm-180gb", Precision::bf16_mixed) == "\"cudnn\" derived");
  CHECK(nothing_of(what) == "\"flash\" derived");  // heads of 6
  CHECK(on("a100-80gb", Precision::bf16_mixed) == "\"flash\" derived");
  CHECK(on("t4", Precision::fp16_mixed) == "\"efficient\" derived");
  CHECK(on("t4", Precision::bf16_mixed) == "\"math\" derived");
  CHECK(on("t4", Precision::bf16) == "\"math\" derived");
  // One key in front of a sequence's own is enough for a mask; a prompt is of the sequence.
  const auto learned = [&](models::AdapterKind kind, const char* gpu) {
    return assumed(what, [=](Asked& a) {
      a.model = kWide, a.gpu = gpu;
      a.s.lora = Lora{.kind = kind, .virtual_tokens = 1};
    });
  };
  CHECK(learned(models::AdapterKind::prefix_tuning, "a100-80gb") == "\"efficient\" derived");
  CHECK(learned(models::AdapterKind::prompt_tuning, "a100-80gb") == "\"flash\" derived");
  CHECK(learned(models::AdapterKind::prefix_tuning, "h100") == "\"cudnn\" calibrated");
  for (const Attention other : {Attention::eager, Attention::flash_2})
    CHECK(assumed(what, [=](Asked& a) { a.s.attention = other; }).empty());
  CHECK(assumed("kernel of attention", [](Asked& a) { a.s.attention = Attention::flash_2; }) ==
        "\"flash_attn 2\" derived");
  CHECK(nothing_of("kernel of attention").empty());
  const std::string first = "memory of FlashAttention's first generation";
  CHECK(assumed(first, [](Asked& a) { a.s.attention = Attention::flash_1; }) ==
        "\"as the second's\" assumed");
  CHECK(nothing_of(first).empty());
}

TEST_CASE("which linears are in float8 is said, where there are any") {
  const std::string what = "linears in float8";
  CHECK(nothing_of(what).empty());
  CHECK(assumed(what, [](Asked& a) { a.s.precision = Precision::fp8_mixed; }) ==
        "\"all of the layers but the first\" derived");
}

TEST_CASE("what a packed base is, what its GEMMs make, and who has its adapters") {
  const std::string base = "packed base", gemms = "GEMMs of 5 to 1,536 tokens with packed weights";
  CHECK(nothing_of(base).empty());
  CHECK(assumed(base, [](Asked& a) { pack(a, "nf4"); }).starts_with("\"quantized as it is loaded"));
  CHECK(
      assumed(base, [](Asked& a) { pack(a, "int8"); }).starts_with("\"quantized as it is loaded"));
  CHECK(assumed(base, pack_gptq).starts_with("\"4 bits; triton v2 kernels"));
  CHECK(assumed(base, [](Asked& a) { pack(a, "torchao-int8"); }).starts_with("\"8 bits, a scale"));
  const auto awq = [&](models::Release transformers) {
    return assumed(base, [=](Asked& a) {
      pack_gptq(a);
      a.s.quantize->storage = models::find_packed_storage("awq");
      a.s.transformers = transformers;
    });
  };
  CHECK(awq({4, 57, 0}) == "\"4 bits in groups of 128; AutoAWQ's Triton kernels\" derived");
  CHECK(awq({5, 17, 0}) == "\"4 bits in groups of 128; backend auto_trainable\" derived");
  CHECK(awq({5, 23, 0}) == awq({5, 17, 0}));
  const std::string left = "what packing left in the allocator's cache";
  CHECK_FALSE(assumed(left, [](Asked& a) { pack(a, "torchao-int8"); }).empty());
  CHECK(assumed(left, [](Asked& a) { pack(a, "int8"); }).empty());
  CHECK_FALSE(assumed(gemms, [](Asked& a) { pack(a, "nf4"); }).empty());
  CHECK(assumed(gemms, [](Asked& a) { pack(a, "int8"); }).empty());
  CHECK(assumed(gemms, pack_gptq).empty());
  const Change fused = [](Asked& a) {
    pack(a, "nf4-dq");
    a.s.kernels = models::Kernels::fused;
  };
  const Change sharded = [](Asked& a) {
    pack(a, "nf4-dq", DType::bf16);
    a.s.kernels = models::Kernels::fused;
    fsdp(a, 1);
  };
  CHECK(assumed("fused adapters", fused).starts_with("\"queries, keys and values in one function"));
  CHECK_FALSE(assumed("fused adapters", sharded).empty());
  CHECK(assumed("fused adapters", [](Asked& a) { pack(a, "nf4-dq"); }).empty());
  CHECK(assumed("fused adapters under FSDP", fused).empty());
  CHECK(assumed("fused adapters under FSDP", sharded) ==
        "\"whole on each GPU, in 16 bits\" calibrated");
  const std::string start = "start of the run";
  CHECK(assumed(start, sharded).starts_with("\"not planned"));
  CHECK(assumed(start, fused).empty());
}

// 184 values a token and layer, of 32 tokens and four layers, in 16 bits.
TEST_CASE("what LLM.int8() would keep if every column stood out is said in bytes") {
  const std::string what = "if every column of LLM.int8() stood out: bytes more";
  const auto more = [&](bool prepared, bool reentrant) {
    return assumed(what, [=](Asked& a) {
      pack(a, "int8");
      a.s.quantize->kbit_prep = prepared;
      if (!reentrant) return;
      a.s.recompute.kind = models::RecomputeKind::full;
      a.s.use_reentrant = true;
    });
  };
  CHECK(more(false, false) == std::to_string(184 * 32 * 4 * 2) + " assumed");
  CHECK(more(true, false) == std::to_string(184 * 32 * 4 * 4) + " assumed");
  CHECK(more(false, true) == std::to_string(184 * 32 * 2) + " assumed");  // a layer at a time
  CHECK(assumed(what, [](Asked& a) { pack(a, "nf4"); }).empty());
}

TEST_CASE("compiled layers, steps in the backward, projections and paged states are said") {
  const Change compiled = [](Asked& a) { a.s.compile = models::Compile::block; };
  CHECK(assumed("compiled layers", compiled).ends_with(" derived"));
  CHECK(assumed("temporaries of compiled kernels", compiled).ends_with(" assumed"));
  CHECK(nothing_of("compiled layers").empty());
  CHECK_FALSE(assumed("optimizer", [](Asked& a) { a.s.optimizer_in_backward = true; }).empty());
  CHECK(nothing_of("optimizer").empty());
  CHECK(assumed("GaLore's projection", [](Asked& a) {
          a.s.optimizer = Optimizer::galore;
        }).ends_with(" assumed"));
  CHECK(assumed("GaLore's projection", [](Asked& a) {
          a.s.optimizer = Optimizer::apollo;
        }).empty());  // draws a basis
  const std::string paged = "paged optimizer states beside the device's figures, bytes";
  // No tensor has 100,000 elements.
  CHECK(assumed(paged, [](Asked& a) { a.s.optimizer = Optimizer::paged_adamw; }).empty());
  CHECK(nothing_of(paged).empty());
}

TEST_CASE("FSDP's units are those of who wraps the model") {
  const std::string units = "FSDP units";
  CHECK(nothing_of(units).empty());
  CHECK(assumed(units, [](Asked& a) { fsdp(a, 2); }) ==
        "\"each layer, the embedding, final norm with head\" derived");
  CHECK(assumed(units, [](Asked& a) { fsdp(a, 2, 2); }) ==
        "\"each layer, the embedding, final norm with head\" derived");
  CHECK(assumed(units, [](Asked& a) { fsdp(a, 1); }).starts_with("\"each layer, and the root"));
  CHECK(assumed(units, [](Asked& a) {
          fsdp(a, 2);
          a.s.code = models::ModelCode::torchtitan_2024_12;
        }).starts_with("\"each layer, the last one not resharded"));
  CHECK(assumed(units, [](Asked& a) {
          fsdp(a, 2);
          a.s.code = models::ModelCode::torchtune_0_6_1;
          a.s.precision = Precision::bf16;
        }).find("the root") != std::string::npos);
  const std::string streams = "blocks of FSDP1's streams";
  CHECK_FALSE(assumed(streams, [](Asked& a) { fsdp(a, 1); }).empty());
  CHECK(assumed(streams, [](Asked& a) { fsdp(a, 2); }).empty());
  CHECK_FALSE(assumed("--zero 2", [](Asked& a) { fsdp(a, 2, 2); }).empty());
  CHECK(assumed("--zero 2", [](Asked& a) { fsdp(a, 2); }).empty());
  const std::string host = "parameters, gradients and optimizer states";
  CHECK(assumed(host, [](Asked& a) { fsdp(a, 2), a.s.offload.params = true; }) ==
        "\"on the host, where the optimizer steps\" derived");
  CHECK(assumed(host, [](Asked& a) { fsdp(a, 2); }).empty());
}

TEST_CASE("experts of a loop: as many visits each, beside the peak if all visited one") {
  const std::string visits = "tokens that visit each expert";
  const std::string peak = "peak if every token visited the same expert of a layer, bytes";
  const Change loop = [](Asked& a) { a.model = kMixture, a.s.transformers = {4, 57, 0}; };
  const Change stacked = [](Asked& a) { a.model = kMixture; };
  CHECK(assumed(visits, loop) == "\"as many\" assumed");
  CHECK(assumed(visits, stacked).empty());
  CHECK(assumed(peak, loop).ends_with(" derived"));
  CHECK(std::stoll(assumed(peak, loop)) > 0);
  CHECK(assumed(peak, stacked).empty());
}

TEST_CASE("the versions that a plan is of stand first") {
  CHECK(nothing_of("versions modelled") == "\"torch 2.11.0, transformers 5.17.0\" derived");
  CHECK(assumed("versions modelled", [](Asked& a) {
          a.s.transformers = {4, 57, 0};
        }) == "\"torch 2.11.0, transformers 4.57.0\" derived");
  CHECK(assumed("versions modelled", [](Asked& a) {
          fsdp(a, 2);
          a.s.code = models::ModelCode::torchtitan_0_2_2;
        }) == "\"torch 2.11.0, torchtitan@0.2.2\" derived");
}
