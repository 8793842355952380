// The modules that decoder layers are made of: norms, linears, rotary embedding, attention, MLP.
#pragma once

#include "planner/stacks/pytorch/step_writer.h"

namespace plimsoll::planner::pytorch {

// Sizes of one micro-batch.
struct Tokens {
  std::int64_t sequences = 1, length = 1;
  std::int64_t total() const { return checked_multiply(sequences, length); }
};

// The gradients of a run of layers that outlive the op that makes them.
class GradientSink {
 public:
  virtual ~GradientSink() = default;
  // The tensor that `op` shall write, for a parameter of `elements` values. Called before the op.
  virtual TensorId begin(const ModuleNames& names, std::int64_t elements, bool adapter = false) = 0;
  // After the op: adds a later micro-batch's gradient to the first one's.
  virtual void end(const ModuleNames& names, TensorId written) = 0;
};

class LayerWriter {
 public:
  LayerWriter(ProgramBuilder& builder, const models::Decoder& decoder, const Regime& regime,
              const Rules& rules, const models::Strategy& strategy, Tokens tokens)
      : b_(builder),
        d_(decoder),
        regime_(regime),
        rules_(rules),
        strategy_(strategy),
        tokens_(tokens) {}

  // Where ops belong from now on. `saves`: autograd records; false in a checkpointed forward.
  void set(Phase phase, bool saves) {
    phase_ = phase;
    saves_ = saves;
  }
  // A checkpoint's input, which its frame holds until the last layer's first norm is done.
  void hold(Ref input) { held_ = input; }
  // The last layer of a checkpoint: its recomputation ends with the last tensor that autograd
  // saved, the input of the last product (torch/utils/checkpoint.py, set_checkpoint_early_stop).
  void stop_early(bool stops) { stops_early_ = stops; }
  void set_sink(GradientSink* sink) { sink_ = sink; }
  // The rotary tables that every layer reads.
  void set_rotary(TensorId cos, TensorId sin) {
    cos_ = cos;
    sin_ = sin;
  }

  // One layer: reads `input`, writes `output`.
  void forward(const LayerPart& layer, Ref input, Ref output, bool input_grad, LayerSaved& saved);
  // Reads d(output), writes d(input) (nothing where input_grad is false).
  void backward(const LayerPart& layer, Ref input, Ref d_output, Ref d_input, bool input_grad,
                const LayerSaved& saved);

  // Building blocks, also used for the ends of the model. `rows` × `width` values are normalized.
  void norm_forward(const ModuleNames& names, const NormPart& part, Ref input, std::int64_t rows,
                    std::int64_t width, bool input_grad, NormSaved& saved);
  TensorId norm_backward(const ModuleNames& names, const NormPart& part, Ref input,
                         std::int64_t rows, std::int64_t width, bool input_grad,
                         const NormSaved& saved, TensorId d_out, Ref into = {});
  void linear_forward(const ModuleNames& names, const LinearPart& part, Ref input,
                      DType input_dtype, bool input_grad, Category category, LinearSaved& saved);
  // Writes the gradient of the input as `input_dtype`; kNoTensor where it is not needed.
  TensorId linear_backward(const ModuleNames& names, const LinearPart& part, DType input_dtype,
                           bool input_grad, const LinearSaved& saved, TensorId d_out,
                           TensorId also_release = kNoTensor);

  Bytes bytes(std::int64_t values, DType dtype) const {
    return b_.rounded(storage(Count(values), dtype));
  }
  // native_dropout on CUDA keeps a bool mask; on the CPU the scaled noise itself.
  Bytes dropout_mask(std::int64_t values, DType dtype) const {
    return storage(Count(values), rules_.sdpa == Rules::Sdpa::cpu ? dtype : DType::boolean);
  }
  Bytes low(std::int64_t values) const { return bytes(values, regime_.compute); }
  Bytes fp32(std::int64_t values) const { return bytes(values, DType::fp32); }

 private:
  TensorId make(const char* name, std::int64_t values, DType dtype,
                Category category = Category::activations);
  TensorId temporary(const char* name, std::int64_t values, DType dtype) {
    return make(name, values, dtype, Category::temporaries);
  }
  OpBuilder op(const char* name) { return b_.op(name, phase_); }
  OpBuilder& read(OpBuilder& op, Ref r) { return op.touch(r.tensor, r.delta, r.beyond); }
  OpBuilder& write(OpBuilder& op, Ref r) {
    return op.touch(r.tensor, r.delta, r.beyond, models::Access::write);
  }
  void release_held() {
    op("checkpoint").touch(held_.tensor, held_.delta, held_.beyond, models::Access::release);
  }

  // Llama-like layers (layer_llama.cpp).
  void llama_forward(const LayerPart&, Ref, Ref, bool, LayerSaved&);
  void llama_backward(const LayerPart&, Ref, Ref, Ref, bool, const LayerSaved&);
  void llama_mlp_forward(const LayerPart&, LayerSaved&);
  TensorId llama_mlp_backward(const LayerPart&, const LayerSaved&, TensorId d_out, bool grad);
  void qkv_forward(const LayerPart&, bool input_grad, LayerSaved&);
  TensorId qkv_backward(const LayerPart&, bool input_grad, const LayerSaved&,
                        std::array<TensorId, 3> d_qkv);
  TensorId rotate(const char* name, TensorId from, std::int64_t width);
  TensorId rotate_backward(const char* name, TensorId d_rotated, std::int64_t width);
  TensorId add_gradients(const char* name, TensorId a, TensorId b, DType dtype,
                         std::int64_t values);

  // Attention (attention.cpp).
  void attention_forward(LayerSaved& saved, TensorId q, TensorId k, TensorId v, bool grad);
  std::array<TensorId, 3> attention_backward(const LayerSaved& saved, TensorId q, TensorId k,
                                             TensorId v, TensorId d_out);
  Bytes attention_workspace() const;

  // GPT-2 layers (layer_gpt2.cpp).
  void gpt2_forward(const LayerPart&, Ref, Ref, bool, LayerSaved&);
  void gpt2_backward(const LayerPart&, Ref, Ref, Ref, bool, const LayerSaved&);

  TensorId dropout(const char* name, const char* mask_name, double p, TensorId from,
                   std::int64_t values, TensorId& mask);
  TensorId dropout_backward(const char* name, TensorId d, TensorId mask, std::int64_t values);
  void gelu_forward(LayerSaved& saved);
  TensorId gelu_backward(const LayerSaved& saved, TensorId d);

  ProgramBuilder& b_;
  const models::Decoder& d_;
  const Regime& regime_;
  const Rules& rules_;
  const models::Strategy& strategy_;
  Tokens tokens_;
  Phase phase_ = Phase::forward;
  bool saves_ = true;
  GradientSink* sink_ = nullptr;
  Ref held_;
  bool stops_early_ = false;
  TensorId cos_ = kNoTensor, sin_ = kNoTensor;
};

}  // namespace plimsoll::planner::pytorch
