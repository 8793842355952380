// What the ops of an optimizer's step ask of the GPU, counted by hand from the tensors of GPT-2:
// 84,934,656 values in matrices of layers, 39,383,808 in two embeddings, 121,344 in vectors (of
// less than 4,096 each); 148 tensors.
#include <doctest/doctest.h>

#include "models/model_catalog.h"
#include "planner/program/work.h"
#include "planner/stack_step.h"
#include "planner/stacks/stack_info.h"
#include "planner/time/compute_time.h"
#include "tests/near.h"

using namespace plimsoll;
using models::Optimizer;
using models::OptimizerImpl;
using models::Strategy;
using planner::WorkSum;

namespace {

constexpr double kMatrices = 84'934'656, kEmbeddings = 39'383'808, kVectors = 121'344;
constexpr double kAll = kMatrices + kEmbeddings + kVectors;

WorkSum optimizer_of(const Strategy& s, const char* name = "gpt2") {
  const models::ModelSpec model = models::catalog_model(name);
  models::StepProgram program;
  planner::Works works;
  planner::stack_info(s.stack).write_optimizer(planner::model_parts(model, s), s, program, works);
  return planner::optimizer_work(program, works);
}

Strategy with(OptimizerImpl impl) {
  Strategy s;
  s.optimizer_impl = impl;
  return s;
}

Strategy sharded(models::Stack stack, int zero, std::int64_t gpus) {
  Strategy s;
  s.stack = stack;
  s.gpus = gpus;
  s.data.zero = zero;
  return s;
}

}  // namespace

TEST_CASE("AdamW moves 28 bytes an fp32 value when fused, 80 in lists and loops") {
  const WorkSum fused = optimizer_of(with(OptimizerImpl::fused));
  CHECK(fused.moved == 28 * kAll);
  CHECK(fused.kernels == 1);
  const WorkSum lists = optimizer_of(with(OptimizerImpl::foreach));
  CHECK(lists.moved == 80 * kAll);
  CHECK(lists.kernels == 8);  // 148 tensors are one list
  const WorkSum loop = optimizer_of(with(OptimizerImpl::for_loop));
  CHECK(loop.moved == 80 * kAll);
  CHECK(loop.kernels == 8 * 148);
}

TEST_CASE("weights in 16 bits are stepped in 16 bits by torch.optim") {
  Strategy s = with(OptimizerImpl::fused);
  s.precision = models::Precision::bf16;
  CHECK(optimizer_of(s).moved == 14 * kAll);
}

TEST_CASE("momentum's lists pass over the buffer twice and over the weights once") {
  Strategy s;
  s.optimizer = Optimizer::momentum;  // buffer *= 2, buffer += g 3, p += 3
  CHECK(optimizer_of(s).moved == 8 * 4 * kAll);
  s.optimizer_impl = OptimizerImpl::fused;  // g, p and the buffer read, the last two written
  CHECK(optimizer_of(s).moved == 5 * 4 * kAll);
}

TEST_CASE("states in 8 bits move two bytes, and a scale for each 256 of them") {
  Strategy s;
  s.optimizer = Optimizer::adam8bit;
  const double in_8_bits = 12 + 2 * 2 + 2 * 2 * 4.0 / 256;
  const WorkSum work = optimizer_of(s);
  CHECK(work.moved == in_8_bits * kMatrices + 28 * (kEmbeddings + kVectors));
  CHECK(work.kernels == 148);  // one parameter after another
}

// ForeachUtils, chunk metadata: 320 tensors at a time. GPT-2 XL has 12 in each of 48 layers, and 4.
TEST_CASE("lists of more than 320 tensors take their kernels once more") {
  CHECK(optimizer_of(with(OptimizerImpl::foreach), "gpt2-xl").kernels == 2 * 8);
  CHECK(optimizer_of(with(OptimizerImpl::fused), "gpt2-xl").kernels == 2);
  CHECK(optimizer_of(with(OptimizerImpl::for_loop), "gpt2-xl").kernels == 580 * 8);
}

// A kernel for each parameter: gradient read, weight and states read and written.
TEST_CASE("bitsandbytes' optimizers move their own states, paged or not, in one kernel") {
  const auto moved = [](Optimizer kind) {
    Strategy s;
    s.optimizer = kind;
    const WorkSum work = optimizer_of(s);
    CHECK(work.kernels == 148);
    return work.moved;
  };
  CHECK(moved(Optimizer::paged_adamw) == 28 * kAll);
  CHECK(moved(Optimizer::lion) == (12 + 8) * kAll);
  CHECK(moved(Optimizer::rmsprop_bnb) == (12 + 8) * kAll);
  CHECK(moved(Optimizer::ademamix) == (12 + 16 + 8) * kAll);  // two averages in one tensor
  // A byte a value and four for each 256; embeddings and vectors in fp32.
  const double scale = 4.0 / 256;
  CHECK(moved(Optimizer::lion8bit) ==
        (12 + 2 + 2 * scale) * kMatrices + 20 * (kEmbeddings + kVectors));
  CHECK(moved(Optimizer::rmsprop8bit) == moved(Optimizer::lion8bit));
  CHECK(moved(Optimizer::ademamix8bit) ==
        (12 + 6 + 6 * scale) * kMatrices + 36 * (kEmbeddings + kVectors));
}

TEST_CASE("of sharded parameters a rank steps its own") {
  // 80 bytes of a quarter of the rows; those of the table do not divide by 4: rank 0 has one more.
  CHECK(tests::near(optimizer_of(sharded(models::Stack::pytorch, 3, 4)).moved, 20 * kAll, 1e-4));
  // Whole parameters of ZeroRedundancyOptimizer: the fullest of two ranks has more than half.
  const double half = optimizer_of(sharded(models::Stack::pytorch, 1, 2)).moved;
  CHECK(half >= 40 * kAll);
  CHECK(half < 40.1 * kAll);
}

TEST_CASE("our own kernels step masters beside 16-bit weights, after a norm of the gradients") {
  // Gradient 2, weight 2, master and two states read and written 24; the norm reads 2.
  const Strategy s = sharded(models::Stack::plimsoll, 1, 4);
  CHECK(tests::near(optimizer_of(s).moved, 30 * kAll / 4, 1e-3));  // parts are padded
}

TEST_CASE("DeepSpeed casts its partition's gradients, and copies what it stepped") {
  // The norm in fp64 2 + 8 + 8, flattened 2 + 2, in fp32 2 + 4, FusedAdam 28, copied back 4 + 2.
  CHECK(tests::near(optimizer_of(sharded(models::Stack::deepspeed, 3, 4)).moved, 62 * kAll / 4,
                    1e-3));
  // Stage 0: in fp32 2 + 4, flattened 4 + 4, FusedAdam 28, copied back 4 + 2.
  CHECK(tests::near(optimizer_of(sharded(models::Stack::deepspeed, 0, 4)).moved, 48 * kAll, 1e-9));
  // bitsandbytes' steps a flat sub-group: of 28 bytes 12 are left, states of two bytes are read and
  // written, and so is a scale of each for 256 of them, and the two maps of 256 values.
  Strategy blocks = sharded(models::Stack::deepspeed, 3, 4);
  blocks.optimizer = Optimizer::adam8bit;
  CHECK(tests::near(optimizer_of(blocks).moved,
                    (62 - 28 + 12 + 4 + 16.0 / 256) * kAll / 4 + 2 * 2048, 1e-5));
}

TEST_CASE("Muon multiplies each matrix of the layers fifteen times") {
  Strategy s;
  s.optimizer = Optimizer::muon;
  const WorkSum work = optimizer_of(s);
  CHECK(work.gemms.size() == 12 * 4 * 15);
  double flops = 0;
  for (const planner::Gemm& g : work.gemms) flops += 2 * g.count * g.m * g.n * g.k;
  // 2 s s (2 l + s) of an iteration: s = 768, and l = 2304, 768, 3072, 3072.
  CHECK(tests::near(flops, 12 * 5 * 2 * 768. * 768 * (2 * 9216 + 4 * 768), 1e-12));
  CHECK(work.kernels > 12 * 4 * 23);
}

TEST_CASE("an optimizer in the backward is part of the backward") {
  Strategy s = with(OptimizerImpl::fused);
  s.optimizer_in_backward = true;
  CHECK(optimizer_of(s).moved == 0);
  const models::ModelSpec model = models::catalog_model("gpt2");
  planner::Question question;
  question.batch = {.seq_len = 128, .micro_batch = 1, .grad_accum = 1};
  const auto moved = [&](bool in_backward) {
    s.optimizer_in_backward = in_backward;
    question.strategy = planner::computing_part(s);
    models::StepProgram program;
    planner::Works works;
    planner::stack_info(s.stack).write_compute(
        question, planner::model_parts(model, question.strategy), program, works);
    const planner::StepWork work = planner::work_of_step(program, works);
    return 12 * work.layers[0].backward.moved + work.ends.backward.moved;
  };
  CHECK(tests::near(moved(true) - moved(false), 28 * kAll, 1e-9));
}
