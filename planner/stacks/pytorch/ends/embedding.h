// The model's start: embeddings, masks and tables for the layers; and the embeddings' gradients.
#pragma once

#include <utility>

#include "planner/stacks/pytorch/wrappers/wrapper.h"

namespace plimsoll::planner::pytorch {

inline constexpr const char* kScaledEmbedding = "embed_tokens.scaled";

class EmbeddingWriter : private StepPart {
 public:
  EmbeddingWriter(Step& step, Wrapper& wrapper) : StepPart(step), wrapper_(wrapper) {}
  void forward();
  void backward();
  void leave_leaf();  // an embedding's output that was asked to require a gradient, and that

 private:
  bool own_decoder() const { return d_.bare || regime_.patch.own_decoder; }
  TensorId activation(const char* name, SymInt values, DType dtype) {
    return b_.tensor(name, storage(values, dtype), Category::activations);
  }
  void look_up(), scale(SymInt tokens), normalize(), dropout();
  void put_prompt(), repeat_prompt(TensorId made, DType dtype);  // prompt.cpp
  TensorId embed_prompt(DType& dtype);
  TensorId prompt_gradients(TensorId d);  // returns the text's
  void perceptron_gradients(TensorId d, DType dtype);
  SymInt prompt_rows() const;  // that are looked up, and how many there are of what width
  std::int64_t prompt_table_rows() const, prompt_width() const;
  void hold(const char*name, SymInt values, DType dtype), hold_mask(SymInt ahead, SymInt all);
  void copy_prompt_ids();
  void put_prefix(), prefix_gradients(), cache_prefix();  // prefix.cpp
  SymInt prefix_values() const;  // of one layer's keys
  TensorId split_gradients();
  void embed_positions(), count_positions(), project_in(), alibi_biases();  // positions.cpp
  void gather_token_types(), embed_token_types(), leave();  // token_types.cpp
  SymBytes copied_type_ids() const;
  void masks(), rotary_tables();
  TensorId mask(bool sliding), boolean_mask(bool fills), mask_of_rows(), booleans_of_rows();
  TensorId mask_behind_prefix(), block_mask();
  bool brings_mask() const {  // the batch
    return rules_.batch_tensors > 2 || tokens_.rows == models::Rows::padded;
  }
  std::pair<TensorId, TensorId> rotary_table();  // cos, sin
  TensorId sum_gradient(), gradients(TensorId d), project_in_back(TensorId d);
  struct Ids {  // that were looked up: how many; where autograd keeps them, until then
    SymInt count = 0;
    const char* name = nullptr;
    TensorId saved = kNoTensor;
    SymBytes copied = {};
  };
  // Of a table whose rows are divided among ranks (vocab_parallel.cpp).
  bool vocab_parallel() const { return d_.sequence_parts > 1; }
  void look_up_vocab_parallel(), vocab_parallel_gradient(TensorId d);
  void dense_gradient(const ModuleNames& names, Unit& unit, SymInt rows, TensorId from,
                      const Ids& ids);
  void position_gradient(TensorId d), tied_gradient(TensorId d);

  Wrapper& wrapper_;
};

}  // namespace plimsoll::planner::pytorch
