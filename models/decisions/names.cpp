#include "models/decisions/names.h"

#include <string>

#include "models/block.h"

namespace plimsoll::models::decisions {

namespace {
const char* joined(std::string_view module, const char* what) {
  return interned(std::string(module) + what);
}
Float8Names float8_names_of(std::string_view module, const std::string& what) {
  return {.values = joined(module, (what + ".float8").c_str()),
          .transposed = joined(module, (what + ".float8.transposed").c_str()),
          .scale = joined(module, (what + ".float8.scale").c_str())};
}
}  // namespace

LinearNames linear_names_of(std::string_view m) {
  return {.gemm = joined(m, ""),
          .out = joined(m, ".out"),
          .weight_grad = joined(m, ".weight.grad"),
          .input_grad = joined(m, ".input.grad"),
          .adapter_dropout = joined(m, ".lora_dropout"),
          .adapter_input = joined(m, ".lora_dropout.out"),
          .adapter_a = joined(m, ".lora_A"),
          .adapter_a_out = joined(m, ".lora_A.out"),
          .adapter_b = joined(m, ".lora_B"),
          .adapter_a_out_grad = joined(m, ".lora_A.out.grad"),
          .adapter_input_grad = joined(m, ".lora_A.input.grad"),
          .dequantized = joined(m, ".weight.dequantized"),
          .input8 = float8_names_of(m, ".input"),
          .weight8 = float8_names_of(m, ".weight"),
          .out_grad8 = float8_names_of(m, ".out.grad")};
}

NormNames norm_names_of(std::string_view m) {
  return {.norm = joined(m, ""),
          .out = joined(m, ".out"),
          .statistics = joined(m, ".statistics"),
          .out_grad = joined(m, ".out.grad")};
}

ExpertsNames experts_names_of(std::string_view m) {
  return {.route = joined(m, ".route"),
          .act = joined(m, ".act"),
          .sum = joined(m, ".sum"),
          .routes = joined(m, ".routes"),
          .scores = joined(m, ".scores"),
          .scores_grad = joined(m, ".scores.grad"),
          .product = joined(m, ".product"),
          .gate_up = linear_names_of(joined(m, ".gate_up_proj")),
          .down = linear_names_of(joined(m, ".down_proj"))};
}

AttentionNames attention_names_of(std::string_view m) {
  return {.attention = joined(m, ".attention"),
          .out = joined(m, ".attention.out"),
          .out_grad = joined(m, ".attention.out.grad"),
          .logsumexp = joined(m, ".attention.logsumexp"),
          .scores = joined(m, ".attention.scores"),
          .softmax = joined(m, ".attention.softmax"),
          .dropout = joined(m, ".attention.dropout"),
          .probabilities = joined(m, ".attention.probabilities"),
          .probabilities_grad = joined(m, ".attention.probabilities.grad"),
          .probabilities_dropped = joined(m, ".attention.probabilities.dropped"),
          .q_grad = joined(m, ".q.grad"),
          .k_grad = joined(m, ".k.grad"),
          .v_grad = joined(m, ".v.grad")};
}

}  // namespace plimsoll::models::decisions
