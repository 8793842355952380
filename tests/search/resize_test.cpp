// A program that gets another batch's sizes is the program that is written for that batch.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "models/model_catalog.h"
#include "models/run_names.h"
#include "planner/program/peak.h"
#include "planner/program/size_recorder.h"
#include "planner/search/axes.h"
#include "planner/search/evaluator.h"
#include "planner/search/shape.h"
#include "planner/stack_step.h"
#include "tests/sanitized.h"
#include "tests/search/scope_of.h"

using namespace plimsoll;
using namespace plimsoll::planner;
using namespace plimsoll::planner::search;
using models::StepProgram;
using tests::scope_of;

namespace {

// The first thing that differs, or "".
std::string difference(const StepProgram& a, const StepProgram& b) {
  const auto at = [](const char* what, std::size_t i) {
    return std::string(what) + " " + std::to_string(i);
  };
  if (a.tensors.size() != b.tensors.size() || a.ops.size() != b.ops.size() ||
      a.operands.size() != b.operands.size() || a.groups.size() != b.groups.size() ||
      a.segments.size() != b.segments.size())
    return "how many there are";
  for (std::size_t i = 0; i < a.tensors.size(); ++i) {
    const models::TensorDecl &x = a.tensors[i], &y = b.tensors[i];
    if (x.name != y.name || x.bytes != y.bytes || x.group != y.group || x.layer != y.layer ||
        x.category != y.category || x.stream != y.stream || x.residency != y.residency)
      return at("tensor", i) + " " + y.name + ": " + std::to_string(x.bytes.value()) +
             " bytes in the place of " + std::to_string(y.bytes.value());
  }
  for (std::size_t i = 0; i < a.ops.size(); ++i) {
    const models::Op &x = a.ops[i], &y = b.ops[i];
    if (x.name != y.name || x.operand_begin != y.operand_begin ||
        x.operand_count != y.operand_count || x.scratch != y.scratch ||
        x.scratch_category != y.scratch_category || x.phase != y.phase || x.layer != y.layer)
      return at("op", i) + " " + y.name;
  }
  for (std::size_t i = 0; i < a.operands.size(); ++i) {
    const models::Operand &x = a.operands[i], &y = b.operands[i];
    if (x.tensor != y.tensor || x.beyond != y.beyond || x.delta != y.delta || x.access != y.access)
      return at("operand", i);
  }
  for (std::size_t i = 0; i < a.groups.size(); ++i)
    if (a.groups[i].first != b.groups[i].first || a.groups[i].count != b.groups[i].count ||
        a.groups[i].stride != b.groups[i].stride)
      return at("group", i);
  for (std::size_t i = 0; i < a.segments.size(); ++i) {
    const models::Segment &x = a.segments[i], &y = b.segments[i];
    if (x.op_begin != y.op_begin || x.op_end != y.op_end || x.group != y.group ||
        x.descending != y.descending || x.times != y.times)
      return at("segment", i);
  }
  return "";
}

Bytes largest(const StepProgram& program) {
  Bytes out;
  for (const models::TensorDecl& tensor : program.tensors) out = std::max(out, tensor.bytes);
  for (const models::Op& op : program.ops) out = std::max(out, op.scratch);
  return out;
}

struct Written {
  std::int64_t resized = 0, anew = 0;
};

// Every `step`-th family of a scope: all batches, each resized from the one before it, and one back
// to the first.
Written check_families(const Scope& scope, std::size_t step) {
  Written count;
  const std::vector<Setting> all = families(scope);
  const Space space(scope);
  for (std::size_t f = 0; f < all.size(); f += tests::stride(step)) {
    Question question = scope.base;
    question.detail = Detail::none;
    question.strategy = all[f].strategy;
    std::vector<models::Batch> sizes = batches(scope, all[f]);
    if (sizes.empty()) continue;
    sizes.push_back(sizes.front());
    StackStep known, fresh;
    known.program_only = fresh.program_only = true;
    BatchSizes recorded;
    PeakFinder finder;
    PeakFinder::Known structure;
    for (const models::Batch& batch : sizes) {
      question.batch = batch;
      try {
        write_step(question, space.parts(all[f]), fresh);
      } catch (const Error&) {
        break;
      }
      const bool resized = recorded.write(batch, known.program);
      ++(resized ? count.resized : count.anew);
      if (!resized) {
        SizeRecorder recorder(batch, known.program);
        write_step(question, space.parts(all[f]), known);
        recorded = recorder.finish();
      }
      CAPTURE(options_of(all[f]));
      CAPTURE(batch.micro_batch);
      CAPTURE(batch.grad_accum);
      REQUIRE(difference(known.program, fresh.program) == "");
      if (resized) REQUIRE(largest(known.program) <= recorded.largest());
      const Peak peak = resized ? finder.find_resized(known.program, recorded.equal(),
                                                      recorded.largest(), structure)
                                : finder.find(known.program, 0, structure);
      REQUIRE(peak.bytes == PeakFinder().find(fresh.program).bytes);
    }
  }
  return count;
}

// Ranks, and how many of them share parameters: 0 is all.
struct World {
  std::int64_t gpus = 1, group = 0;
};

// Every `step`-th family that has a shape, written once and then given the sizes of other worlds.
Written check_worlds(const Scope& scope, std::size_t step) {
  constexpr World kWorlds[] = {{2, 0},  {3, 0},   {7, 0},    {8, 4},    {16, 0},     {48, 8},
                               {96, 0}, {100, 5}, {1000, 0}, {1024, 0}, {1024, 512}, {8, 0}};
  Written count;
  const std::vector<Setting> all = families(scope);
  const Space space(scope);
  for (std::size_t f = 0; f < all.size(); f += tests::stride(step)) {
    const models::Strategy shape = shape_of(all[f].strategy);
    if (shape == all[f].strategy) continue;
    Question question = scope.base;
    question.detail = Detail::none;
    question.batch = {.seq_len = scope.base.batch.seq_len, .micro_batch = 2};
    StackStep known, fresh;
    known.program_only = fresh.program_only = true;
    BatchSizes recorded;
    for (const World& world : kWorlds) {
      question.strategy = all[f].strategy;
      question.strategy.gpus = world.gpus;
      question.strategy.data.shard_group = world.group;
      REQUIRE(shape_of(question.strategy) == shape);
      const std::int64_t shards = world.group > 0 ? world.group : world.gpus;
      CAPTURE(options_of(all[f]));
      CAPTURE(shards);
      try {
        write_step(question, space.parts(all[f]), fresh);
      } catch (const Error&) {
        REQUIRE(world.gpus == kWorlds[0].gpus);  // what the first world is refused, all are
        REQUIRE(world.group == 0);
        break;
      }
      const bool resized = recorded.write(question.batch, known.program, shards);
      ++(resized ? count.resized : count.anew);
      if (!resized) {
        SizeRecorder recorder(question.batch, known.program, shards);
        write_step(question, space.parts(all[f]), known);
        recorded = recorder.finish();
      }
      REQUIRE(difference(known.program, fresh.program) == "");
    }
  }
  return count;
}

}  // namespace

TEST_CASE("sizes written into a program give the one that is written anew") {
  struct Case {
    const char *model, *gpu;
    std::int64_t gpus, seq_len;
    std::size_t step;
  };
  for (const Case& c :
       {Case{"llama-3.1-8b", "a100-80gb", 8, 1000, 61},
        Case{"llama-3.1-70b", "h100-sxm-80gb", 64, 8192, 149},
        Case{"gpt2-xl", "rtx-4090", 4, 777, 53}, Case{"qwen3-0.6b", "t4", 2, 512, 23},
        Case{"mistral-7b", "h100-sxm-80gb", 8, 8192, 71}}) {
    const models::ModelSpec model = models::catalog_model(c.model);
    const Written count = check_families(scope_of(model, c.gpu, c.gpus, c.seq_len), c.step);
    CAPTURE(c.model);
    // A first batch of one sequence, and the way back to it, are written anew: 3 of some 60.
    CHECK(count.resized > 9 * count.anew);
  }
}

TEST_CASE("so do micro-batches that are accumulated") {
  const models::ModelSpec model = models::catalog_model("llama-3.1-8b");
  Scope scope = scope_of(model, "h100-sxm-80gb", 8, 2048);
  scope.global_batch = 8 * 24;
  CHECK(check_families(scope, 41).resized > tests::draws(100));
}

TEST_CASE("and FSDP1, with checkpoints of old and new releases") {
  const models::ModelSpec model = models::catalog_model("llama-3.1-8b");
  Scope scope = scope_of(model, "h100-sxm-80gb", 8, 2048);
  scope.only["stack"] = {"pytorch"};
  scope.base.strategy.data.fsdp_version = 1;
  scope.only["zero"] = {"2", "3"};
  for (const models::Release release : {models::kTransformers, models::Release{4, 51, 0}}) {
    scope.base.strategy.transformers = release;
    CHECK(check_families(scope, 37).resized > tests::draws(100));
  }
  scope.global_batch = 8 * 24;
  CHECK(check_families(scope, 37).resized > tests::draws(20));
  scope.base.strategy.lora = models::Lora{.rank = 8, .dropout = 0.1, .targets = {"all-linear"}};
  scope.fixed.insert("adapters");
  CHECK(check_families(scope, 37).resized > tests::draws(20));
}

TEST_CASE("and adapters") {
  const models::ModelSpec model = models::catalog_model("llama-3.2-1b");
  Scope scope = scope_of(model, "rtx-4090", 2, 1024);
  scope.base.strategy.lora = models::Lora{.rank = 8, .dropout = 0.1, .targets = {"all-linear"}};
  scope.fixed.insert("adapters");
  CHECK(check_families(scope, 29).resized > tests::draws(100));
}

TEST_CASE("and other numbers of ranks that share parameters") {
  for (const char* name : {"llama-3.1-8b", "gpt2-xl", "qwen3-0.6b"}) {
    const models::ModelSpec model = models::catalog_model(name);
    Scope scope = scope_of(model, "h100-sxm-80gb", 8, 512);
    scope.only["stack"] = {"pytorch"};
    CAPTURE(name);
    const Written count = check_worlds(scope, 97);
    CHECK(count.resized > 10 * count.anew);
  }
}

// Their limits lie elsewhere for each number of ranks: written anew where one is crossed.
TEST_CASE("where a limit decides what is kept of a share, no size is another's") {
  const models::ModelSpec model = models::catalog_model("llama-3.2-1b");
  for (const models::Optimizer optimizer :
       {models::Optimizer::torchao_adam8bit, models::Optimizer::torchao_adam4bit,
        models::Optimizer::momentum}) {
    Scope scope = scope_of(model, "h100-sxm-80gb", 8, 512);
    scope.only["stack"] = {"pytorch"};
    scope.only["zero"] = {"3"};
    scope.base.strategy.optimizer = optimizer;
    scope.fixed.insert("optimizer");
    const Written count = check_worlds(scope, 61);
    CAPTURE(static_cast<int>(optimizer));
    CHECK(count.resized + count.anew > tests::draws(20));
    if (optimizer == models::Optimizer::momentum) CHECK(count.resized > 10 * count.anew);
  }
}
