#include "tests/planner/dry_plan.h"

#include "models/bitsandbytes.h"
#include "models/decisions/mesh.h"
#include "planner/program/timeline.h"
#include "planner/stacks/pytorch/stack.h"
#include "tests/planner/oracle_workload.h"
#include "tests/planner/well_formed.h"

namespace plimsoll::tests {

using nlohmann::json;

namespace {
// torch_measure.py makes an unsharded model on the device itself, where a tied head has a table of
// its own until it is tied.
void make_model_on_device(const models::Strategy& strategy, const planner::ModelParts& parts,
                          planner::Start& start) {
  const bool shards = strategy.data.zero >= 2;
  if (!parts.decoder.tied_head || (shards && strategy.data.fsdp_version == 1)) return;
  // unsloth/models/llama.py, get_peft_model gives back what is cached.
  if (strategy.kernels == models::Kernels::unsloth) return;
  const DType stored =
      strategy.param_dtype.value_or(strategy.precision == models::Precision::bf16   ? DType::bf16
                                    : strategy.precision == models::Precision::fp16 ? DType::fp16
                                                                                    : DType::fp32);
  const std::int64_t ranks =
      shards ? models::decisions::mesh_of(strategy)[models::decisions::Axis::shard].ranks : 1;
  const std::int64_t rows = (parts.decoder.vocab + ranks - 1) / ranks;
  const Bytes table = storage(Count(rows * parts.decoder.hidden), stored);
  // Shards are made of what is tied already, of which the first is let go.
  const auto first = shards ? start.hold(table) : 0;
  start.take_model();
  start.drop(shards ? first : start.hold(table));
}

// tools/oracle/xformers_package.py: a T4's. CublasHandlePool.cpp, :4096:2:16:8.
void set_old_card(planner::pytorch::Rules& rules) {
  rules.gpu = {.major = 7, .minor = 5, .count = 40, .threads = 1024, .grouped = 0};
  rules.blas.forward = rules.blas.backward = Bytes((2 * 4096 + 8 * 16) * 1024);
}
}  // namespace

DryPlan plan_dry_run(const json& workload, const models::ModelSpec& model,
                     planner::pytorch::Rules::Sdpa sdpa) {
  const models::Strategy strategy = strategy_of(workload);
  const planner::ModelParts parts = planner::model_parts(model, strategy);
  planner::pytorch::Rules rules;
  rules.rank = 0;  // dry_runs.py's, which need not be the fullest
  rules.sdpa = sdpa;
  rules.fsdp_autocast = workload["stack"]["fsdp_autocast"];
  rules.hold_outputs = strategy.hold_outputs;
  rules.batch_tensors = strategy.rows == models::Rows::full ? 1 : 2;
  if (workload["stack"]["fsdp_units"] == "layers" && models::is_transformers(strategy.code)) {
    rules.fsdp_units = planner::pytorch::FsdpUnits::root;
  } else if (workload["stack"]["fsdp_units"] == "layers") {
    planner::pytorch::Rules own;  // of that code's loop
    planner::pytorch::set_loop(own, parts.decoder, strategy);
    rules.fsdp_units = own.fsdp_units;
  }
  const bool bias = planner::pytorch::any_of_lt(parts);
  // sm_90: 32 MiB for the forward's and for the backward's thread; 1 MiB where GEMMs add a bias,
  // from 2.9 on, or multiply in float8.
  const bool stays = strategy.torch >= models::kLtKeepsWorkspace;
  const bool perceptron = !bias && !parts.prompt.empty();
  rules.blas = {32_MiB, 32_MiB, bias && stays ? 1_MiB : 0_MiB, perceptron && stays ? 1_MiB : 0_MiB};
  if (strategy.attention == models::Attention::xformers) set_old_card(rules);
  models::StepProgram program;
  const auto writer =
      planner::pytorch::step_writer(program, parts, strategy, batch_of(workload), rules);
  writer->write();
  if (const std::string wrong = ill_formed(program); !wrong.empty())
    fail(ErrorKind::internal, "the program is ill-formed\n" + wrong);
  planner::Start start;
  make_model_on_device(strategy, parts, start);
  writer->add_start(start);
  const planner::Timeline timeline = planner::unroll(program);
  DryPlan out;
  std::optional<Bytes> unlucky;
  out.planned = planner::replay_on(program, timeline, {}, start, strategy.allocator, unlucky);
  out.unlucky = unlucky.value();
  out.managed = writer->managed();
  out.host = writer->host();
  out.bitsandbytes = models::runs_bitsandbytes(strategy);
  return out;
}

}  // namespace plimsoll::tests
