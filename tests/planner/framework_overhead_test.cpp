// Device memory outside the allocator, in literal bytes. What is read is
// models/specs/overheads.json; what is held here is which of its figures count, how often, and for
// how many ranks.
#include "planner/memory/framework_overhead.h"

#include <doctest/doctest.h>

#include <ostream>

#include "models/calibration.h"
#include "models/gpu_catalog.h"
#include "models/model_catalog.h"

using namespace plimsoll;
using models::Stack;

namespace {

struct Figures {
  std::int64_t context = 0, nccl = 0, high_context = 0, high_nccl = 0;
  bool operator==(const Figures&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Figures& f) {
  return out << "context " << f.context << ", at most " << f.high_context << "; NCCL " << f.nccl
             << ", at most " << f.high_nccl;
}

struct Asked {
  const char* gpu = "";
  std::int64_t gpus = 1, shard_group = 0, per_node = 8;
  Stack stack = Stack::pytorch;
  int zero = 3;
};

planner::FrameworkOverhead overhead(const Asked& asked) {
  planner::Question question;
  question.cluster.gpu = models::find_gpu(asked.gpu);
  models::Strategy& s = question.strategy;
  s.stack = asked.stack;
  s.gpus = asked.gpus;
  s.gpus_per_node = asked.per_node;
  s.data.zero = asked.gpus == 1 ? 0 : asked.zero;
  s.data.shard_group = asked.shard_group;
  return planner::framework_overhead_of(question);
}

Figures figures(const Asked& asked) {
  const planner::FrameworkOverhead o = overhead(asked);
  CHECK(o.typical.libraries + o.high.libraries == 0_B);  // only a calibration knows them
  CHECK(o.most() == o.typical.total());
  return {o.typical.context.value(), o.typical.nccl.value(), o.high.context.value(),
          o.high.nccl.value()};
}

}  // namespace

// Hopper: what was seen of a communicator, 982 MiB (at most 1485), whatever its ranks.
TEST_CASE("NCCL has a communicator for each axis along which ranks send") {
  models::Strategy s;
  CHECK(planner::communicators_of(s) == 0);
  s.gpus = 16;
  CHECK(planner::communicators_of(s) == 1);
  s.data.zero = 3;
  CHECK(planner::communicators_of(s) == 1);
  s.tp = 2;
  CHECK(planner::communicators_of(s) == 2);
  s.data.shard_group = 4;  // and those of its replicas
  CHECK(planner::communicators_of(s) == 3);
  s.tp = 16;
  s.data.shard_group = 0;
  CHECK(planner::communicators_of(s) == 1);
}

TEST_CASE("an H100 holds a context, and a communicator where there are ranks to talk to") {
  constexpr std::int64_t kContext = 723517440, kHigh = 1223688192;  // 690 and 1167 MiB
  CHECK(figures({"h100"}) == Figures{kContext, 0, kHigh, 0});
  CHECK(figures({"h100", 8}) == Figures{kContext, 1029701632, kHigh, 1557135360});
  CHECK(figures({"h100", 16}) == Figures{kContext, 1029701632, kHigh, 1557135360});
  // Hybrid sharding: a group inside the node, and one across: 2 · 1029701632, 2 · 1557135360.
  CHECK(figures({"h100", 64, 8}) == Figures{kContext, 2059403264, kHigh, 3114270720});
  // A group of all ranks is none.
  CHECK(figures({"h100", 64, 64}) == Figures{kContext, 1029701632, kHigh, 1557135360});
  // DDP and ZeroRedundancyOptimizer know no groups.
  CHECK(figures({.gpu = "h100", .gpus = 64, .shard_group = 8, .zero = 1}) ==
        Figures{kContext, 1029701632, kHigh, 1557135360});
}

TEST_CASE("DeepSpeed's ranks are PyTorch processes, plimsoll's hold less; on a CPU nothing") {
  CHECK(figures({.gpu = "h100", .gpus = 8, .stack = Stack::deepspeed}) ==
        figures({.gpu = "h100", .gpus = 8}));
  // 530 MiB, at most 650.
  CHECK(figures({.gpu = "h100", .stack = Stack::plimsoll}) == Figures{555745280, 0, 681574400, 0});
  planner::Question question;
  question.strategy.gpus = 8;
  CHECK(planner::framework_overhead_of(question).typical.total() == 0_B);  // no card is named
  question.cluster.gpu = models::find_gpu("h100");
  question.strategy.device = models::Device::cpu;
  CHECK(planner::framework_overhead_of(question).high.total() == 0_B);
}

// Blackwell: no communicator was seen, so its parts are summed up. 12 MiB for each connection, 32
// channels of 2 (at most 4): 805306368 and 1610612736 B. NVLS: 48 MiB (64) for each rank of the
// node. NCCL's own 150 MiB (400) are there once in a process.
TEST_CASE("a communicator of a B200 has buffers for its channels, and for each rank of its node") {
  constexpr std::int64_t kContext = 746586112, kHigh = 1363148800;
  CHECK(figures({"b200"}) == Figures{kContext, 0, kHigh, 0});
  // 805306368 + 2 · 50331648 + 157286400; 1610612736 + 2 · 67108864 + 419430400.
  CHECK(figures({"b200", 2}) == Figures{kContext, 1063256064, kHigh, 2164260864});
  // 805306368 + 8 · 50331648 + 157286400; 1610612736 + 8 · 67108864 + 419430400.
  CHECK(figures({"b200", 8}) == Figures{kContext, 1365245952, kHigh, 2566914048});
  CHECK(figures({"b200", 16}) == figures({"b200", 8}));
  // Nodes of 4: 805306368 + 4 · 50331648 + 157286400; 1610612736 + 4 · 67108864 + 419430400.
  CHECK(figures({"b200", 16, 0, 4}) == Figures{kContext, 1163919360, kHigh, 2298478592});
  // 2 · (805306368 + 8 · 50331648) + 157286400; 2 · (1610612736 + 8 · 67108864) + 419430400.
  CHECK(figures({"b200", 64, 8}) == Figures{kContext, 2573205504, kHigh, 4714397696});
}

// 12 MiB · 2 channels · 2 connections and 150 MiB; at most 12 MiB · 8 · 4 and 400 MiB.
TEST_CASE("without NVLink a communicator is small") {
  CHECK(figures({"rtx-4090", 8}) == Figures{519045120, 207618048, 946864128, 822083584});
}

// reports/evidence/2026-11-26-h100-80gb-hbm3: device-overheads.json has 552402944 B after the
// context and 804061184 B when cuDNN's attention has run; the sweep's runs have the same.
TEST_CASE(
    "an H100 was measured: what was stays what is planned, and the published high end stays") {
  const auto measured = [](Stack stack) {
    planner::Question question;
    question.cluster.gpu = models::find_gpu("h100");
    question.cluster.calibrations = models::calibrations_of(question.cluster.gpu->name);
    question.strategy.stack = stack;
    return planner::framework_overhead_of(question);
  };
  const planner::FrameworkOverhead torch = measured(Stack::pytorch);
  CHECK(torch.typical.context == Bytes(552402944));
  CHECK(torch.typical.total() == Bytes(804061184));
  CHECK(torch.high.total() == Bytes(1223688192));  // its reserved bytes are an estimate: no range
  CHECK_FALSE(torch.range);
  for (const reports::Assumption& a : torch.assumptions) CHECK(a.basis == "calibrated");
  // Our own kernels are those that were measured: 569758720 B in the middle of four runs, of six
  // others 2643968 away at most.
  const planner::FrameworkOverhead own = measured(Stack::plimsoll);
  CHECK(own.typical.total() == Bytes(569758720));
  REQUIRE(own.range);
  CHECK(own.range->low == Bytes(569758720 - 2643968));
  CHECK(own.range->high == Bytes(569758720 + 2643968));
  CHECK(models::calibrations_of("h200-nvl-141gb").empty());
}

TEST_CASE("the high end adds what runs reserved beyond their plans: 5 %, of DeepSpeed 14.8 %") {
  CHECK(overhead({.gpu = "h100"}).reserved_more == 50);
  CHECK(overhead({.gpu = "h100", .stack = Stack::deepspeed}).reserved_more == 127);
  CHECK(overhead({.gpu = "h100", .stack = Stack::plimsoll}).reserved_more == 0);
  // In a plan: whole thousands of what unlucky steps reserve, and the parts at their high end.
  const models::ModelSpec model = models::catalog_model("gpt2");
  planner::Question question;
  question.model = &model;
  question.cluster.gpu = models::find_gpu("h100");
  question.strategy.gpus = 8;
  question.batch.seq_len = 1024;
  const reports::Plan plan = planner::plan(question);
  REQUIRE(plan.high_end.has_value());
  CHECK(plan.high_end->overhead == Bytes(2780823552));
  CHECK(plan.high_end->reserved_more == 50);
  // At least what is planned, and 5 % of it.
  CHECK(plan.high_end->reserved.real() >= 1.0499 * plan.reserved.real());
  CHECK(plan.high_end->device() == plan.high_end->reserved + plan.high_end->overhead);
  CHECK(plan.overhead.total() == Bytes(1753219072));
  CHECK(plan.device == plan.reserved + plan.overhead.total());
}
