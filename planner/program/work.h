// What a step's ops ask of the GPU beside memory: GEMMs, bytes moved, kernels launched.
//
// Beside the program, and only for who asks (ProgramBuilder::keep_work). An op that says nothing is
// one kernel that reads what it reads and writes what it writes; one whose operands are not what it
// moves (a table of which rows are read, a sum made in several kernels) says so.
#pragma once

#include <cstdint>
#include <vector>

#include "models/base/dtype.h"
#include "models/step_program.h"

namespace plimsoll::planner {

// C[m, n] = A[m, k] B[k, n], `count` of them in one launch.
struct Gemm {
  // How one over all tokens is cut into several; where k counts them, all but one add to C.
  enum class Cut : std::uint8_t {
    none,
    rows,  // `rows` tokens at a time; m (or k) counts them all
    liger,  // as many as keep a chunk of logits about as large as the hidden states
  };
  DType dtype = DType::bf16;
  double m = 0, n = 0, k = 0, count = 1;
  Cut cut = Cut::none;
  double rows = 0;
  bool tokens_summed = false, unaligned = false;  // k counts tokens; rows not of whole 16 bytes
};

// One kernel that never stores the scores.
struct FusedAttention {
  bool backward = false;
  DType dtype = DType::bf16;
  double flops = 0;
};

// Of the forward of such a kernel: two GEMMs of what each token sees. Causal tiles are computed
// whole along the diagonal: 128 rows and columns (FlashAttention-2, arXiv 2307.08691, section 3.3).
struct AttentionShape {
  std::int64_t tokens = 0, length = 0, width = 0;  // width: of all query heads
  std::int64_t window = 0;  // 0: none
  bool causal = true;
};
double fused_attention_flops(const AttentionShape& shape);

// Of one op, bytes. `casts`: to another dtype by kernels of their own in eager code.
struct OpWork {
  bool given = false;  // otherwise the operands' bytes, one kernel
  double moved = 0, casts = 0, kernels = 0;
  double compiled = -1;  // what compiled code moves for it beside its neighbours; -1: as fused code
};

class Works {
 public:
  void clear();
  void gemm(std::size_t op, const Gemm& gemm);
  void attention(std::size_t op, const FusedAttention& attention);
  // In place of the operands' bytes, beside GEMMs; adds up.
  void moves(std::size_t op, double bytes, double kernels = 1);
  void casts(std::size_t op, double bytes, double kernels = 1);
  void compiled(std::size_t op, double bytes) { at(op).compiled = bytes; }

  struct GemmOf {
    std::size_t op;
    Gemm gemm;
  };
  struct AttentionOf {
    std::size_t op;
    FusedAttention attention;
  };
  const std::vector<GemmOf>& gemms() const { return gemms_; }
  const std::vector<AttentionOf>& attentions() const { return attentions_; }
  OpWork of(std::size_t op) const { return op < ops_.size() ? ops_[op] : OpWork{}; }

 private:
  OpWork& at(std::size_t op);
  std::vector<OpWork> ops_;
  std::vector<GemmOf> gemms_;
  std::vector<AttentionOf> attentions_;
};

// What an op says of itself, where somebody listens.
class WorkOfOp {
 public:
  WorkOfOp(Works* works, std::size_t op) : works_(works), op_(op) {}
  bool asked() const { return works_ != nullptr; }
  const WorkOfOp& gemm(const Gemm& gemm) const {
    if (asked()) works_->gemm(op_, gemm);
    return *this;
  }
  const WorkOfOp& attends(const FusedAttention& attention) const {
    if (asked()) works_->attention(op_, attention);
    return *this;
  }
  const WorkOfOp& moves(double bytes, double kernels = 1) const {
    if (asked()) works_->moves(op_, bytes, kernels);
    return *this;
  }
  const WorkOfOp& compiled(double bytes) const {
    if (asked()) works_->compiled(op_, bytes);
    return *this;
  }
  const WorkOfOp& casts(double bytes) const {
    if (asked()) works_->casts(op_, bytes);
    return *this;
  }

 private:
  Works* works_;
  std::size_t op_;
};

// The sum over some ops. Bytes that eager kernels move, one kernel for each op, and compiled code,
// which has one for neighbours; eager and fused code cast by kernels of their own beside that.
struct WorkSum {
  std::vector<Gemm> gemms;
  std::vector<FusedAttention> attentions;
  double moved = 0, fused = 0, compiled = 0, casts = 0;
  double kernels = 0, fused_kernels = 0, compiled_kernels = 0;
};

struct WorkOfPart {
  WorkSum forward, backward;  // backward: with what is computed again
};

// Of one micro-batch: each layer of each group of layers, by place in its pattern; and what runs
// once. Ops of messages (those that touch Category::communication) and of the optimizer are not
// counted: their time is the messages' (messages.h) and optimizer_work's.
struct StepWork {
  std::vector<WorkOfPart> layers;
  WorkOfPart ends;
};
// Whether the op's time is counted there; what one run of it asks for beside GEMMs.
bool is_computed(const models::StepProgram& program, const models::Op& op);
WorkSum rest_of_op(const models::StepProgram& program, const Works& works, std::size_t op);

StepWork work_of_step(const models::StepProgram& program, const Works& works);

// FLOPs of the GEMMs and attention of all that is computed, each as often as it runs.
double computed_flops(const models::StepProgram& program, const Works& works);
double flops_of(const Gemm& gemm);
// How often an op's GEMM runs: those that are cut say all their pieces in one.
double times_of(const models::StepProgram& program, const models::Segment& segment,
                const Gemm& gemm);

// Of the optimizer's ops, each as often as it runs.
WorkSum optimizer_work(const models::StepProgram& program, const Works& works);

}  // namespace plimsoll::planner
