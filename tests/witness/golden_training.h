// The training that the goldens of tests/golden/numerics are of.
#pragma once

#include <optional>

#include "tests/runtime/goldens.h"
#include "tests/witness/training.h"

namespace plimsoll::witness {

// How the sequences of a step are taken: by each rank so many at once, so many times.
struct Split {
  std::int64_t micro_batch = 2, grad_accum = 1;
};

// Bytes of the shipped text as ids, for the ranks and the batch of `training`.
RankTokens shipped_text_tokens(const Training& training);

// A golden model, with a golden adapter where there is one.
struct Golden {
  explicit Golden(const char* model, const char* adapter = nullptr);

  // Its weights from its files, the golden sequences in their order over steps, micro-batches and
  // ranks (two in a step are the golden steps), the golden optimizer.
  Training training(const models::Strategy& strategy, Split split = {}) const;
  // The optimizer and the learning rate of torch's defaults, bytes of the shipped text as ids.
  Training training_on_text(const models::Strategy& strategy, Split split = {}) const;

  models::ModelSpec model;
  runtime::test::GoldenModel results;  // the adapter's where there is one
  std::optional<models::Lora> lora;

 private:
  Training base(const models::Strategy& strategy, Split split) const;
  std::string folder_;
};

}  // namespace plimsoll::witness
