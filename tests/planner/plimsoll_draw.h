// Models, strategies and batches drawn at random for stack plimsoll.
#pragma once

#include <random>
#include <string>

#include "tests/planner/plimsoll_step.h"

namespace plimsoll::planner::plimsoll_stack {

class Draw {
 public:
  explicit Draw(unsigned seed) : random_(seed) {}

  std::int64_t pick(std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>(low, high)(random_);
  }
  template <class T>
  T of(std::initializer_list<T> values) {
    return values.begin()[pick(0, static_cast<std::int64_t>(values.size()) - 1)];
  }

  models::ModelSpec model() {
    const std::int64_t layers = pick(1, 9), kv = pick(1, 3), heads = kv * pick(1, 3);
    const std::int64_t head_dim = 2 * pick(1, 9), hidden = heads * head_dim;
    const auto number = [](std::int64_t n) { return std::to_string(n); };
    if (pick(0, 3) == 0) {
      const std::string p = of<const char*>({"0", "0.1"});
      return models::read_model(R"({"model_type": "gpt2", "n_embd": )" + number(hidden) +
                                    R"(, "n_head": )" + number(heads) + R"(, "n_layer": )" +
                                    number(layers) + R"(, "vocab_size": )" + number(pick(10, 300)) +
                                    R"(, "resid_pdrop": )" + p + R"(, "attn_pdrop": )" + p + "}",
                                "gpt2", "gpt2", {});
    }
    const std::string type = of<const char*>({"llama", "mistral", "qwen2", "qwen3"});
    return models::read_model(
        R"({"model_type": ")" + type + R"(", "hidden_size": )" + number(hidden) +
            R"(, "num_attention_heads": )" + number(heads) + R"(, "num_key_value_heads": )" +
            number(kv) + R"(, "head_dim": )" + number(head_dim) + R"(, "intermediate_size": )" +
            number(pick(3, 200)) + R"(, "vocab_size": )" + number(pick(10, 300)) +
            R"(, "num_hidden_layers": )" + number(layers) + R"(, "tie_word_embeddings": )" +
            of<const char*>({"true", "false"}) + "}",
        type, type, {});
  }

  models::Strategy strategy(const models::ModelSpec& model) {
    using namespace models;
    Strategy s;
    s.stack = Stack::plimsoll;
    s.device = of({Device::cuda, Device::cpu});
    s.gpus = of<std::int64_t>({1, 2, 3, 4, 8});
    s.data.zero = static_cast<int>(pick(0, 3));
    if (s.data.zero > 0 && s.gpus % 2 == 0 && pick(0, 3) == 0) s.data.shard_group = s.gpus / 2;
    s.precision =
        of({Precision::fp32, Precision::bf16_mixed, Precision::fp16_mixed, Precision::bf16});
    if (pick(0, 3) == 0) s.grad_dtype = DType::fp32;
    s.optimizer = of({Optimizer::adamw, Optimizer::sgd, Optimizer::momentum, Optimizer::lion});
    s.recompute = {of({RecomputeKind::none, RecomputeKind::selective, RecomputeKind::full,
                       RecomputeKind::sqrt, RecomputeKind::every}),
                   pick(1, 5)};
    s.attention = of({Attention::flash, Attention::eager, Attention::math});
    s.loss = of({Loss::full, Loss::chunked, Loss::fused});
    const bool gpt2 = model.model_type == "gpt2";
    const std::string prefix = gpt2 ? "transformer.h." : "model.layers.";
    const std::int64_t kind = pick(0, 4);
    if (kind == 0) {
      s.lora = Lora{.rank = pick(1, 9), .dropout = of({0.0, 0.1})};
      s.lora->targets = {of<std::string>({"all-linear", gpt2 ? "c_attn" : "q_proj", "attention",
                                          gpt2 ? "mlp.c_proj" : "down_proj"})};
      if (s.precision == Precision::bf16) s.lora->dtype = of({DType::fp32, DType::bf16});
    } else if (kind == 1) {
      const std::string first = prefix + "0.";
      s.train = {of<std::string>({first + "mlp.*", prefix + "*.bias", first + "*", "*norm*.weight",
                                  "*ln_*", "*wte*", "*embed_tokens*", "*mlp*", "*v_proj*"})};
    }
    if (pick(0, 2) == 0)
      s.data.reduce_dtype = s.precision == Precision::fp16_mixed ? DType::fp16 : DType::bf16;
    return s;
  }

  models::Batch batch() {
    return {.seq_len = pick(1, 33), .micro_batch = pick(1, 3), .grad_accum = pick(1, 5)};
  }

 private:
  std::mt19937 random_;
};

}  // namespace plimsoll::planner::plimsoll_stack
