// What layers and ends are made of: norms, linears and their adapters, gradients that meet.
#pragma once

#include <deque>

#include "planner/stacks/pytorch/saved_hooks.h"

namespace plimsoll::planner::pytorch {

class ModuleWriter {
 public:
  ModuleWriter(ProgramBuilder& builder, const models::Decoder& decoder, const Regime& regime,
               const Rules& rules, const models::Strategy& strategy, Tokens tokens)
      : b_(builder),
        d_(decoder),
        regime_(regime),
        rules_(rules),
        strategy_(strategy),
        tokens_(tokens) {}
  // Where ops belong from now on. `saves`: autograd records; false in a checkpointed forward.
  void set(Phase phase, bool saves) { phase_ = phase, saves_ = saves; }
  // cuBLAS's of the forward's thread and of autograd's, cuBLASLt's of both: for the first GEMM.
  void set_workspaces(const std::array<TensorId, 4>& all) { workspaces_ = all; }
  void take_workspace(OpBuilder gemm, bool adds_bias);
  void set_sink(GradientSink* sink) { sink_ = sink; }
  void set_tokens(SymInt total) { tokens_.set_total(total); }  // that GEMMs read from now on
  // `waits`: the backward that follows begins in front of a recomputation. `on`: it is a
  // checkpoint's; if not a reentrant one's, a node drops each saved tensor as soon as it is used.
  void set_checkpoint(Recomputation* waits, bool on);
  void set_hooks(SavedHooks* hooks) { hooks_.set(hooks); }  // of all that is saved from now on

  // `stops`: a recomputation, which ends with what this norm saves. `into`: what takes the result.
  void norm_forward(const ModuleNames& names, const NormPart& part, Ref input, const NormInput& x,
                    TapeSaved& saved, bool stops = false, Ref into = {});
  // The input's gradient, added to `residual` (what flows past) and in `at.into`, where given.
  TensorId norm_backward(const ModuleNames&, const NormPart&, const NormInput&, const TapeSaved&,
                         TensorId d_out, TensorId residual, const Place& at);
  DType norm_out(DType input_dtype) const;  // of the model's last norm
  // `stops`: a recomputation, which ends before the last GEMM. `kept`: the base's, if taken.
  void linear_forward(const LinearNames& names, const LinearPart& part, Ref input,
                      DType input_dtype, Category category, LinearSaved& saved, bool stops = false,
                      TensorId kept = kNoTensor);
  // Adds the input's gradient, in `input_dtype`, to `sum`; `at.into`, where given, is that.
  Sum linear_backward(const LinearNames& names, const LinearPart& part, DType input_dtype,
                      bool input_grad, const LinearSaved& saved, TensorId d_out, Sum sum = {},
                      const Place& at = {});
  // A function (tape/rule.h) of the values `given`. The forward's first op reads `also` too; `into`
  // takes the result, `d.into` the first value's gradient, which is returned elsewhere.
  void tape_forward(const TapePart& part, const TapeCounts& counts, std::span<const Ref> given,
                    TapeSaved& saved, bool stops = false, std::span<const Ref> also = {},
                    Ref into = {});
  TensorId tape_backward(const TapePart& part, const TapeCounts& counts, std::span<const Ref> given,
                         const TapeSaved& saved, const TapeGradients& d);
  SymBytes bytes(SymInt values, DType dtype) const {
    return bytes_of_.find(values, dtype, [&] { return b_.rounded(storage(values, dtype)); });
  }
  SymBytes fp32(SymInt values) const { return bytes(values, DType::fp32); }
  ColumnSumScratch column_sum(SymInt rows, std::int64_t columns) const {
    return column_sum_scratch(b_, rules_.gpu, rows, columns);
  }
  // Written into zeros as often as the value was sliced whole (slice_backward).
  TensorId into_zeros(const char* name, TensorId d, SymInt values, DType dtype, int slices);
  TapeCounts norm_counts(const NormPart& part, const NormInput& x) const;

 protected:
  friend class DoraWriter;  // parts of an adapted linear
  friend class VectorWriter;
  friend class Float8Writer;
  friend class Linear4bitWriter;
  friend class SequenceWriter;
  TensorId make(const char* name, SymInt values, DType dtype,
                Category category = Category::activations) {
    return b_.tensor_in(b_.open_group(), name, bytes(values, dtype), category);
  }
  TensorId temporary(const char* name, SymInt values, DType dtype) {
    return make(name, values, dtype, Category::temporaries);
  }
  OpBuilder op(const char* name) { return b_.op(name, phase_); }
  static OpBuilder& read(OpBuilder& op, Ref r) { return op.touch(r.tensor, r.delta, r.beyond); }
  static OpBuilder& write(OpBuilder& op, Ref r) {
    return op.touch(r.tensor, r.delta, r.beyond, models::Access::write);
  }
  // A node is about to read what the forward saved; it has run.
  void unpack(), node_done();
  static void release(OpBuilder& op, std::span<const Ref> held) {
    for (const Ref r : held) op.touch(r.tensor, r.delta, r.beyond, models::Access::release);
  }
  TensorId cast(const char* name, TensorId from, SymInt values, DType have, DType want,
                Category category = Category::temporaries);
  // A new tensor of the same values (another layout, another scale, a sum over groups, …).
  TensorId copy(const char* name, TensorId from, SymInt values, DType dtype,
                Category category = Category::temporaries);
  Sum add_gradient(const char* name, Sum sum, Sum next, DType dtype, SymInt values);
  TensorId dropout(const char* name, const char* mask_name, double p, TensorId from, SymInt values,
                   DType dtype, TensorId& mask);
  TensorId dropout_backward(const char* name, TensorId d, TensorId mask, SymInt values, DType);
  ProgramBuilder& b_;
  const models::Decoder& d_;
  const Regime& regime_;
  const Rules& rules_;
  const models::Strategy& strategy_;
  Tokens tokens_;
  Phase phase_ = Phase::forward;
  bool saves_ = true, checkpointed_ = false, checkpoint_hooks_ = false, input_grad_ = true;
  NodeHooks hooks_;
  bool through_hooks() const { return checkpoint_hooks_ || hooks_.any(); }
  GradientSink* sink_ = nullptr;
  Recomputation *recomputation_ = nullptr, *unpacked_ = nullptr;  // it has run for the node at hand
  std::array<TensorId, 4> workspaces_{kNoTensor, kNoTensor, kNoTensor, kNoTensor};

 private:
  void gemm_forward(const ModuleNames&, const ModuleNames& bias, const WeightGemm&, Ref input,
                    DType input_dtype, Category, bool stops, GemmSaved&);
  Sum gemm_backward(const ModuleNames&, const ModuleNames& bias, const WeightGemm&, DType input,
                    bool input_grad, const GemmSaved&, TensorId d_out, Sum, const Place&);
  Ref cast_input(const LinearNames&, Ref input, SymInt values, DType have, DType want);
  void packed_forward(const LinearNames&, const LinearPart&, Ref, DType, Category, GemmSaved&);
  Sum packed_backward(const LinearNames&, const LinearPart&, const PackedGradient&);
  void int8_forward(const LinearNames&, const LinearPart&, Ref, DType, Category, GemmSaved&);
  Sum int8_backward(const LinearNames&, const LinearPart&, const PackedGradient&);
  void torchao_forward(const LinearNames&, const LinearPart&, Ref, DType, Category, bool stops,
                       GemmSaved&);
  Sum torchao_backward(const LinearNames&, const LinearPart&, const PackedGradient&,
                       const GemmSaved&);
  void awq_forward(const LinearNames&, const LinearPart&, Ref, Category, GemmSaved&);
  Sum awq_backward(const LinearNames&, const LinearPart&, const PackedGradient&);
  Sum base_backward(const LinearNames&, const LinearPart&, DType input, bool input_grad,
                    const GemmSaved&, TensorId d_out, Sum, const Place&);
  Sum add_into(const ModuleNames& names, TensorId d_in, bool casts, Sum sum, Ref into);
  void base_forward(const LinearNames&, const LinearPart&, Ref, DType, Category, bool, GemmSaved&);
  std::pair<Ref, Ref> adapter_reads(const LinearNames&, Ref, SymInt, DType, DType, TensorId& mask);
  void adapter_forward(const LinearNames&, const LinearPart&, Ref input, DType input_dtype,
                       Category, bool stops, LinearSaved&);
  Sum adapter_backward(const LinearNames&, const LinearPart&, DType input, bool input_grad,
                       const LinearSaved&, TensorId d_out, Sum, const Place&);
  void joined_forward(const LinearNames&, const LinearPart&, LinearSaved&);  // joined_adapters.cpp
  TensorId joined_backward(const LinearNames&, const LinearPart&, const LinearSaved&, TensorId);
  void widen(const ModuleNames&, TensorId low, std::int64_t, const WeightGemm&), widen_late();
  const TapeBytes& evaluated(const tape::Lowered& of, const TapeCounts& counts);
  OpBuilder write_tape(const TapePart& part, const tape::Lowered& of, std::size_t i,
                       const TapeCounts& counts, const TapeBytes& known, const TapeSlots& slots);
  static BlockEvents tape_blocks(const tape::OpOf& op, std::span<const SymBytes> bytes,
                                 std::span<const Ref> slots);
  mutable BytesOfValues bytes_of_;
  std::deque<TapeBytes> evaluated_;
  std::array<TapeSlots, 2> slots_;  // forward's, backward's
  std::vector<LateGradient> late_;  // see WeightGemm::weight_is_cast
};

}  // namespace plimsoll::planner::pytorch
