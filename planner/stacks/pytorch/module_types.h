// What writers of modules hand to each other.
#pragma once

#include <span>
#include <utility>
#include "planner/stacks/pytorch/regime.h"
#include "planner/stacks/pytorch/saved.h"
#include "planner/stacks/pytorch/tape_names.h"

namespace plimsoll::planner::pytorch {

// Sizes of one micro-batch.
struct Tokens {
  // `ahead`: virtual tokens in front of each sequence. `keys_ahead`: keys and values alone.
  Tokens(const models::Batch& batch, models::Rows of, std::int64_t ahead = 0,
         std::int64_t keys_ahead = 0);
  SymInt total() const { return total_; }
  void set_total(SymInt total) { total_ = total; }
  // Of one of `ranks` that share each sequence, which they divide (refused elsewhere).
  SymInt part(std::int64_t ranks) const {
    return ranks == 1 ? total_ : sequences * (length / ranks);
  }
  SymInt keys() const { return prefix > 0 ? length + prefix : length; }  // of a sequence
  SymInt all_keys() const { return prefix > 0 ? sequences * keys() : total_; }

  models::Rows rows;
  SymInt sequences, length;
  std::int64_t prefix;
  SymInt samples, real;  // how many there are; tokens that are no padding

 private:
  SymInt total_;
};

// The gradients of a run of layers that outlive the op that makes them.
class GradientSink {
 public:
  virtual ~GradientSink() = default;
  // The tensor that `op` shall write, for a parameter of `elements` values. Called before the op.
  virtual TensorId begin(const ModuleNames& names, std::int64_t elements, bool adapter = false) = 0;
  // Whether what `begin` names outlives its op, or is added to another tensor and dies.
  virtual bool keeps(std::int64_t elements) const = 0;
  // Whether something is done with each as it arrives, in front of what the backward does next.
  virtual bool acts() const { return false; }
  // After the op: adds a later micro-batch's gradient to the first one's.
  virtual void end(const ModuleNames& names, TensorId written) = 0;
};

// A checkpoint's forward, run again when its backward first asks for a saved tensor.
class Recomputation {
 public:
  virtual ~Recomputation() = default;
  virtual void recompute() = 0;
  virtual void node_done() = 0;  // the node that asked
};

// The gradients of a tensor that have arrived so far, summed. Autograd adds the next one in place
// unless this is a view of another tensor (torch/csrc/autograd/input_buffer.cpp,
// can_accumulate_inplace): a GEMM's gradient, made for [tokens, width] and viewed as
// [batch, s, width], is one; a cast or a sum is not.
struct Sum {
  TensorId tensor = kNoTensor;
  bool view = false;
  // Strided like a transposed view: what the copy is called that a GEMM needs; else nothing.
  const char* laid_out = nullptr;
  bool of_input = false;  // it is in the layer's d(input) already (KernelPatch::sums_apart)
  // A view in which the sequences' rows stand apart: what the copy is called that a GEMM needs.
  const char* apart = nullptr;
};

// What a norm reads: so many rows of its width, in this dtype, of a tensor that requires a
// gradient.
struct NormInput {
  SymInt rows;
  DType dtype;
  bool grad;
  NormKernel kernel = NormKernel::eager;
  bool copies = false;  // Liger's wants it contiguous, and its result's gradient
};

// What a module's backward has to do with its place in the layer.
struct Place {
  Ref input;  // as the forward read it
  Ref into;  // the layer's own d(input), where this module is the last to add to it
  std::span<const Ref> held;  // let go with the module's own node
  bool of_view = false;  // the input is a view made for it: its gradient is added behind the module
  // The gradient that comes in is not the module's to add to; nor what flows past it.
  bool d_shared = false, d_flowing_shared = false;
  bool of_rows = false;  // it reads [rows, width]: its input's gradient is no view of a GEMM's
};

// What reaches a GEMM with a packed weight backward: the result's gradient, and what flows past.
struct PackedGradient {
  DType input;  // the dtype of what it read
  bool input_grad;  // asks for one
  TensorId d_out;
  Sum sum;
  const Place& at;
};

// Elements of a function's extents (tape/function.h).
struct TapeCounts : std::array<SymInt, 32> {
  tape::Extent logits = 0;  // values of so many of the first extents are logits
};

// A function with these counts: its bytes by `Lowered::sizes`, and behind them the scratch of each
// of its ops.
struct TapeBytes {
  const tape::Lowered* of = nullptr;
  TapeCounts counts;
  std::vector<SymBytes> all;
  std::span<const SymBytes> bytes() const { return {all.data(), of->sizes.size()}; }
  SymBytes scratch(std::size_t op) const { return all[of->sizes.size() + op]; }
};
// Tensors by `Lowered::slots`: of the function that is being written.
using TapeSlots = std::array<Ref, tape::kMostSlots>;

// What a function's backward is given.
struct TapeGradients {
  TensorId result = kNoTensor;
  TensorId flowing = kNoTensor;  // of the first value, so far; the sum takes its place
  // Whose gradients it makes, in their order.
  std::array<const ModuleNames*, 6> parameters{};
  std::size_t adapters = 6;  // from which one on they are an adapter's
  Ref into;  // the first value's gradient, where that is the layer's own
  std::span<const Ref> held;  // let go with the oldest node that reads what the forward left
  std::span<TensorId> others{};  // take the further values'
  // What flows past holds the result's, too; a frame holds `flowing`.
  bool result_shared = false, flowing_shared = false;
};

// A GEMM with a weight as autograd sees it.
struct WeightGemm {
  std::int64_t in = 0, out = 0;
  DType weight = DType::fp32;
  bool trains_weight = true, bias = false, trains_bias = false;
  bool adapter = false;
  bool conv1d = false;  // GPT-2's addmm(bias, x, weight) and not F.linear(x, weight, bias)
  // Autocast's copy of its weight was made for another GEMM, and so its gradient is cast back
  // only where that one's node would run (ModuleWriter::widen_late).
  bool weight_is_cast = false;
  bool reads_made = false;  // what another GEMM of its adapter made
};
struct LateGradient {
  const ModuleNames* of = nullptr;
  TensorId low = kNoTensor;
  std::int64_t elements = 0;
};

}  // namespace plimsoll::planner::pytorch
