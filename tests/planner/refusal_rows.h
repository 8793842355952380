// Tables of refusals: a row for what is refused, beside the nearest question that is not.
#pragma once

#include <doctest/doctest.h>

#include <functional>
#include <string>
#include <vector>

#include "models/model_catalog.h"
#include "models/storages.h"
#include "planner/stacks/pytorch/stack.h"

namespace plimsoll::tests {

inline constexpr const char* kNothing = "";

struct Refusable {
  models::Strategy s;
  models::Batch batch{.seq_len = 4096};
  std::string model = "llama-2-7b";
};

struct RefusalRow {
  const char* says;  // how the message begins
  std::function<void(Refusable&)> with;
};

// What stack pytorch says of a question; kNothing: it is planned.
inline std::string refusal_of(const Refusable& asked) {
  try {
    planner::pytorch::refuse(models::catalog_model(asked.model), asked.s, asked.batch);
  } catch (const Error& error) {
    return error.message();
  }
  return kNothing;
}

// `all`: what every row begins with.
inline void check_refusals(const std::vector<RefusalRow>& rows,
                           const std::function<void(Refusable&)>& all = nullptr) {
  int number = 0;
  for (const RefusalRow& row : rows) {
    Refusable asked;
    if (all) all(asked);
    row.with(asked);
    const std::string message = refusal_of(asked);
    ++number;
    CAPTURE(number);
    const std::string says = row.says;
    CHECK(message.substr(0, says.empty() ? message.npos : says.size()) == says);
  }
}

inline void shard_by_fsdp(Refusable& a, int version = 2, int zero = 3) {
  a.s.gpus = 8;
  a.s.data.zero = zero;
  a.s.data.fsdp_version = version;
}

// With adapters, as every packed base is trained.
inline void pack_base(Refusable& a, const char* storage, DType held_in = DType::uint8) {
  a.s.quantize =
      models::Quantization{.storage = models::find_packed_storage(storage), .held_in = held_in};
  a.s.lora = models::Lora{.targets = {"all-linear"}};
}

}  // namespace plimsoll::tests
