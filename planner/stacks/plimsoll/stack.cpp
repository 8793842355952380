#include "planner/stacks/plimsoll/stack.h"

#include <algorithm>

#include "models/decisions/float8.h"
#include "models/decisions/low_rank.h"
#include "models/decisions/mesh.h"
#include "models/decisions/offload.h"
#include "models/decisions/packed_weights.h"
#include "models/gpu_catalog.h"
#include "models/lora.h"
#include "models/optimizers.h"
#include "models/run_names.h"
#include "planner/memory/arena_replay.h"
#include "planner/stacks/plimsoll/step.h"

namespace plimsoll::planner::plimsoll_stack {

using models::Strategy;
namespace decisions = models::decisions;

namespace {

void refuse_parallelism(const Strategy& s) {
  check(s.data.zero > 0 || s.data.shard_group <= 1, ErrorKind::bad_input,
        "--shard-group shards nothing with --zero 0");
  check(s.tp == 1 && s.pp == 1 && s.cp == 1 && s.ep == 1, ErrorKind::unsupported,
        "--tp, --pp, --cp and --ep are not modelled for stack plimsoll yet");
  check(s.data.reshard_after_forward, ErrorKind::bad_input,
        "plimsoll's ZeRO-3 always reshards after forward; --zero 2 keeps whole parameters");
  check(!s.data.fsdp_upcast, ErrorKind::bad_input, "--fsdp-upcast is for --stack pytorch");
}

void refuse(const Strategy& s) {
  refuse_parallelism(s);
  check(s.compile == models::Compile::no, ErrorKind::bad_input, "--compile is for --stack pytorch");
  check(s.kernels == models::Kernels::eager || s.kernels == models::Kernels::fused,
        ErrorKind::bad_input, "--kernels: plimsoll has its own (fused)");
  check(!is_flash(s.attention) || s.attention == models::Attention::flash, ErrorKind::bad_input,
        "--attention flash-1, flash-2, flash-3, cudnn, efficient, flex: plimsoll's attention is "
        "its own "
        "(flash, eager, math)");
  check(s.loss != models::Loss::tiled, ErrorKind::bad_input,
        "--loss tiled is of TRL's trainers on --stack pytorch, not plimsoll");
  check(s.recompute.kind != models::RecomputeKind::ops, ErrorKind::unsupported,
        "--recompute ops needs --stack pytorch: our own runtime keeps no operators' results");
  check(s.rows == models::Rows::full, ErrorKind::unsupported, [&] {
    return std::string(models::option_of(s.rows)) +
           ": our own runtime's rows are full (--stack pytorch has it)";
  });
  const char* const further = s.lora ? models::further_option(*s.lora) : nullptr;
  check(further == nullptr, ErrorKind::unsupported, [&] {
    return std::string(further) +
           ": plimsoll's runtime has PEFT's plain adapters alone (stack "
           "pytorch is planned)";
  });
  decisions::check_packed(s);
  decisions::check_offload(s);
  check(!s.use_reentrant, ErrorKind::bad_input,
        "--use-reentrant: plimsoll does not use torch.utils.checkpoint");
  check(!s.optimizer_impl || *s.optimizer_impl == models::OptimizerImpl::fused,
        ErrorKind::bad_input, "--optimizer-impl: plimsoll's optimizer is always fused");
  models::check_optimizer(s);
  decisions::check_low_rank(s);
}

}  // namespace

void write_messages(const ModelParts& parts, const Strategy& strategy, Messages& out) {
  models::StepProgram program;
  StepWriter(program, parts, strategy, {}, {.deterministic = strategy.deterministic})
      .write_messages(out);
}

void write_step(const Question& question, const ModelParts& parts, StackStep& step) {
  refuse(question.strategy);
  decisions::check_step(question.strategy, question.batch);
  decisions::check_float8(*question.model, question.strategy, question.batch);
  if (question.cluster.gpu && question.strategy.device == models::Device::cuda)
    models::check_products(*question.cluster.gpu, question.strategy.precision);
  const Rules rules{.deterministic = question.strategy.deterministic};
  // Parts are padded to equal pieces (models/decisions/sharding.h): all ranks hold the same.
  step.rank = std::max<std::int64_t>(0, step.rank);
  StepWriter writer(step.program, parts, question.strategy, question.batch, rules);
  writer.write();
  if (step.program_only) return;
  step.ranks = equal_ranks(decisions::mesh_of(question.strategy).ranks(), 1,
                           [](std::int64_t) { return std::vector<std::int64_t>(); });
  step.states = writer.states();
  if (decisions::uses_host(question.strategy)) {
    models::StepProgram host;
    writer.write_host(host);
    const Bytes bytes = arena_reserved(host, unroll(host, Repeats::all));
    (decisions::pins_host(question.strategy) ? step.host.pinned : step.host.pageable) = bytes;
  }
  const auto say = [&](const char* what, Bytes bytes, const char* source) {
    step.assumptions.push_back({what, std::to_string(bytes.value()), "derived", source});
  };
  say("workspace of GEMMs, bytes",
      decisions::gemm_workspace(question.strategy.device, writer.regime().compute),
      "models/decisions/workspace.h");
  say("block of the allocator, bytes", Bytes(decisions::kBlock), "models/decisions/workspace.h");
}

}  // namespace plimsoll::planner::plimsoll_stack
