// Writes the layers of our own runtime's step, op by op: the block's ops (models/decisions/
// layer_ops.h) forward, and from the end backward as models/decisions/layer.h decides.
#pragma once

#include "models/decisions/precision.h"
#include "planner/program/program_builder.h"
#include "planner/stacks/plimsoll/own_layer.h"

namespace plimsoll::planner::plimsoll_stack {

using models::decisions::Regime;

class LayerWriter {
 public:
  LayerWriter(ProgramBuilder& builder, const models::Decoder& decoder, const Regime& regime,
              const models::Strategy& strategy, Tokens tokens);

  // One layer: reads `input`, writes `output`. `gradients`: what its backward will compute; nothing
  // where that will find nothing saved. `to_last`: up to the last op that leaves something.
  void forward(Phase phase, const OwnLayer& layer, const RequiresGrad& gradients, Ref input,
               TensorId output, bool to_last, LayerTensors& t);
  // Turns `d`, the gradient of the stream after the layer, into the one before it, and writes into
  // `gradients`, those of the layer's parameters.
  void backward(const OwnLayer& layer, Ref input, TensorId d, TensorId gradients, LayerTensors& t);

  // Of all tokens of the micro-batch.
  SymBytes bytes(SymInt width, DType dtype) const { return storage(total_ * width, dtype); }
  TensorId make(const char* name, SymInt width, Category category = Category::activations) {
    return b_.tensor(name, bytes(width, regime_.compute), category);
  }
  TensorId make_statistics(const char* name, SymInt width) {
    return b_.tensor(name, bytes(width, models::decisions::kStatistics), Category::activations);
  }
  TensorId temporary(const char* name, SymInt width) {
    return make(name, width, Category::temporaries);
  }

 private:
  using Gradients = std::array<TensorId, models::decisions::kMostValues>;

  OpBuilder op(const char* name) { return b_.op(name, phase_); }
  // The layer that is being written.
  TensorId& value(ValueId id) { return t_->values[static_cast<std::size_t>(id)]; }
  TensorId& d(ValueId id) { return d_of_[static_cast<std::size_t>(id)]; }
  const models::decisions::LayerValue& about(ValueId id) const {
    return layer_->ops->values[static_cast<std::size_t>(id)];
  }
  bool wants(ValueId id) const { return gradients_of_->value(id); }
  // A new tensor for a value; the stream's after the layer is the caller's.
  TensorId make_value(ValueId id);
  // Reads a value, which may be the layer's input.
  void read(OpBuilder& op, ValueId id);

  void norm(const LayerOp& op, std::size_t at);
  void norm_again(const LayerOp& op, std::size_t at);
  void norm_backward(const LayerOp& op, std::size_t at);
  void activation(const LayerOp& op);
  void activation_backward(const LayerOp& op);
  void residual(const LayerOp& op);
  void residual_backward(const LayerOp& op);

  // GEMMs (linear.cpp).
  void gemms(const LayerOp& op, bool results);
  void gemms_backward(const LayerOp& op);
  TensorId drop_input(const GemmOp& linear, ValueId x);
  OpBuilder adapter_op(const GemmOp& linear, ValueId x, TensorId dropped);
  TensorId adapter_a(const GemmOp& linear, ValueId x);
  void dequantize(const GemmOp& linear, OpBuilder& reader);
  void gemm(SymInt m, SymInt n, SymInt k) { gemm(m, n, k, regime_.compute); }
  void gemm(SymInt m, SymInt n, SymInt k, DType dtype);

  // Those whose operands have 8 bits (float8.cpp).
  struct Float8Cast {
    // scale: of a gradient of a result alone; others have theirs in kFloat8Scales
    TensorId values = kNoTensor, transposed = kNoTensor, scale = kNoTensor;
    void read_by(OpBuilder& op) const { op.read(values).read(transposed).read(scale); }
  };
  bool in_float8(const GemmOp& linear) const;
  const GemmOp* first_in_float8(const LayerOp& op) const;
  // Whose scale is one of the cast's tensors, is found and kept, or is there.
  enum class Float8Scale { own, kept, known };
  Float8Cast cast_to_float8(OpBuilder& op, const models::decisions::Float8Names& names, SymInt rows,
                            SymInt columns, DType to, bool straight, bool turned,
                            Float8Scale scale);
  Float8Cast input8(const GemmOp& linear, ValueId x, bool turned);
  void weight8(const GemmOp& linear, OpBuilder& reader, bool backward);
  void forward8(const GemmOp& linear, const Float8Cast& x);
  Float8Cast gradient8(const GemmOp& linear, bool input);
  void weight_gradient8(const GemmOp& linear, const Float8Cast& x8, const Float8Cast& d8);
  void input_gradient8(const GemmOp& linear, ValueId x, const Float8Cast& d8);

  TensorId adapter_gradient(const GemmOp& linear);
  void weight_gradient(const GemmOp& linear, ValueId x, TensorId d_a);
  void input_gradient(const GemmOp& linear, ValueId x, TensorId d_a);

  // A mixture of experts (experts.cpp).
  void experts(const LayerOp& op, bool results);
  void experts_backward(const LayerOp& op);
  void experts_gemm(const ExpertsPart& part, std::int64_t width);

  // Rotation and attention (attention.cpp).
  template <class Visit>
  void each_operand(const LayerOp& op, std::size_t operands, Visit visit);
  void rotary(const LayerOp& op);
  void rotary_backward(const LayerOp& op);
  void attention(const LayerOp& op, std::size_t at);
  TensorId attention_matrix(const LayerOp& op, bool again);
  TensorId drop_matrix(const LayerOp& op, TensorId probabilities);
  void attention_backward(const LayerOp& op, std::size_t at);
  void stored_attention_backward(const LayerOp& op, std::size_t at);
  SymBytes matrix_bytes() const;
  Gemm of_scores() const, of_rows() const;
  double fused_flops(const LayerOp& op) const;

  ProgramBuilder& b_;
  const models::Decoder& d_;
  const Regime& regime_;
  models::decisions::Keeps keeps_;
  models::Attention attention_kind_;
  double adapter_dropout_;
  Tokens tokens_;
  SymInt total_;
  Phase phase_ = Phase::forward;
  TensorId gradients_ = kNoTensor;
  const OwnLayer* layer_ = nullptr;
  const RequiresGrad* gradients_of_ = nullptr;
  LayerTensors* t_ = nullptr;
  Ref input_;
  TensorId output_ = kNoTensor;
  Gradients d_of_{};
  models::decisions::ValueSet shared_;  // whose gradient is the stream's, too
  models::decisions::LayerOpSet made_again_;
  // A GEMM whose weight's gradient waits for its input, which the next op makes again.
  struct Waiting {
    const GemmOp* linear = nullptr;
    ValueId x = models::kNoValue;
    TensorId d_a = kNoTensor;
    Float8Cast d8{};
  } waiting_;
  void wait_over(const Waiting& waiting);
};

}  // namespace plimsoll::planner::plimsoll_stack
