// What the model's start leaves to its backward.
#pragma once

#include "planner/stacks/pytorch/saved.h"

namespace plimsoll::planner::pytorch {

// A prompt's or a prefix's: the virtual tokens' numbers, what its perceptron read and made, its
// embeddings as they are repeated; and what PEFT's forward holds until it returns.
struct PromptSaved {
  TensorId ids = kNoTensor, repeated = kNoTensor;
  std::array<LinearSaved, 3> linears;
  std::array<TensorId, 2> rectified{kNoTensor, kNoTensor};
  std::vector<TensorId> held;
};
// What the model makes before its layers. `looked_up`: what the embedding's module returned, of
// which the model makes `embedded`.
struct FrontSaved {
  TensorId looked_up = kNoTensor, embedded = kNoTensor;
  TensorId looked_up_grad = kNoTensor;  // where it is a leaf
  TensorId position_ids = kNoTensor, position_rows = kNoTensor, positions = kNoTensor;
  TensorId padding_mask = kNoTensor;  // see count_positions()
  TensorId alibi = kNoTensor;
  TensorId type_ids = kNoTensor, types = kNoTensor;  // of tokens
  TensorId sum = kNoTensor;  // what the embedding's norm reads
  TensorId dropout_mask = kNoTensor;
  TapeSaved norm;
  PromptSaved prompt;
};

}  // namespace plimsoll::planner::pytorch
