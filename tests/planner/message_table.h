// A plan's messages as a table, and a small model whose messages can be counted by hand.
#pragma once

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "models/model_reader.h"
#include "planner/plan.h"

namespace plimsoll::tests {

struct Message {
  std::string kind;
  std::int64_t count, array, group;
  auto operator<=>(const Message&) const = default;
};
using Table = std::vector<Message>;

// In one order, equal messages in one line.
inline Table table(Table messages) {
  std::sort(messages.begin(), messages.end(), [](const Message& a, const Message& b) {
    return std::tie(a.kind, a.group, a.array) < std::tie(b.kind, b.group, b.array);
  });
  Table out;
  for (const Message& m : messages) {
    const bool more = !out.empty() && out.back().kind == m.kind && out.back().group == m.group &&
                      out.back().array == m.array;
    if (more)
      out.back().count += m.count;
    else
      out.push_back(m);
  }
  return out;
}

inline Table table(const reports::Plan& plan) {
  Table out;
  for (const reports::Collective& c : plan.collectives)
    out.push_back({c.kind, c.count, c.array.value(), c.group});
  return table(out);
}

inline std::string text(const Table& messages) {
  std::string out;
  for (const Message& m : messages)
    out += "\n  " + std::to_string(m.count) + " x " + m.kind + " of " + std::to_string(m.array) +
           " B over " + std::to_string(m.group);
  return out;
}

inline reports::Plan plan_of(const models::ModelSpec& model, const models::Strategy& strategy,
                             const models::Batch& batch) {
  planner::Question question;
  question.model = &model;
  question.strategy = strategy;
  question.batch = batch;
  question.detail = planner::Detail::none;
  question.remedies = false;
  return planner::plan(question);
}

// Hidden 128, 4 heads of 32 with 2 key heads, inner width 192, vocabulary 199. Elements:
//   layer      q, o 128·128 = 16384 each; k, v 64·128 = 8192 each; gate, up 192·128 = 24576 each;
//              down 128·192 = 24576; two norms of 128                             sum 123136
//   embedding  199·128                                                                 25472
//   tail       norm 128, head 199·128                                                  25600
// With 1 layer 174208, with 2 layers 297344.
inline models::ModelSpec small(std::int64_t layers) {
  return models::read_model(
      R"({"model_type": "llama", "hidden_size": 128, "intermediate_size": 192, "vocab_size": 199,
          "num_attention_heads": 4, "num_key_value_heads": 2, "tie_word_embeddings": false,
          "max_position_embeddings": 2048, "num_hidden_layers": )" +
          std::to_string(layers) + "}",
      "small", "small", {});
}

inline models::Strategy strategy(models::Stack stack, int zero, std::int64_t gpus = 3) {
  models::Strategy s;
  s.stack = stack;
  s.data.zero = zero;
  s.gpus = gpus;
  if (stack == models::Stack::pytorch && zero >= 2)
    s.data.reduce_dtype = DType::fp32;  // Accelerate's
  return s;
}

inline reports::Plan plan_of(const models::Strategy& s, std::int64_t layers = 2) {
  return plan_of(small(layers), s, {.seq_len = 64, .micro_batch = 1, .grad_accum = 3});
}

}  // namespace plimsoll::tests
