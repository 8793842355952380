#include "planner/stacks/deepspeed/stack.h"

#include "planner/stacks/deepspeed/step.h"
#include "planner/stacks/pytorch/stack.h"

namespace plimsoll::planner::deepspeed {

namespace {

const char* name_of(Wrapper wrapper) {
  switch (wrapper) {
    case Wrapper::plain:
      return "the optimizer itself";
    case Wrapper::fused:
      return "FP16_Optimizer";
    case Wrapper::unfused:
      return "FP16_UnfusedOptimizer";
    case Wrapper::stage_1_and_2:
      return "DeepSpeedZeroOptimizer (stage_1_and_2.py)";
    case Wrapper::stage3:
      return "DeepSpeedZeroOptimizer_Stage3 (stage3.py)";
  }
  return "";
}

void add_assumptions(const Engine& engine, std::vector<reports::Assumption>& out) {
  const auto say = [&](const char* what, const std::string& value, const char* source) {
    out.push_back({what, "\"" + value + "\"", "derived", source});
  };
  say("versions modelled",
      "deepspeed 0.19.8, torch 2.11.0, transformers " + models::text_of(models::kTransformers),
      "allocator history of real steps, tests/golden/deepspeed_runs.json");
  if (engine.stage == 3)
    say("gathered parameters",
        "prefetched up to stage3_max_live_parameters (" +
            std::to_string(engine.options.max_live_parameters) + " elements)",
        "deepspeed 0.19.8, runtime/zero/partitioned_param_coordinator.py");
  say("optimizer wrapper", name_of(engine.wrapper),
      "deepspeed 0.19.8, runtime/engine.py, _do_optimizer_sanity_check");
  if (engine.stage >= 1)
    say("gradient buckets",
        std::to_string(engine.options.reduce_bucket_size) + " elements" +
            (engine.overlap ? ", two of them (overlap_comm)" : ""),
        "deepspeed 0.19.8, runtime/zero/config.py");
}

// deepspeed 0.19.8, estimate_zero2_model_states_mem_needs and estimate_zero3_…, without offloading,
// beside the plan's states: they know no bucket, no gather and no activation, and count the fp32
// copy of the gradients, which is there in the step only.
void add_estimate(const Engine& engine, const ModelParts& parts, const reports::States& states,
                  std::vector<reports::Assumption>& out) {
  if (engine.stage < 2 || !parts.trains_all) return;
  const FlatLayout layout(parts, engine);
  const std::int64_t shard = checked_multiply(18, layout.total()) / engine.ranks;
  const std::int64_t rest =
      engine.stage == 2 ? 2 * layout.total() : checked_multiply(4, layout.largest());
  out.push_back({"model states by DeepSpeed's own estimator, bytes", std::to_string(rest + shard),
                 "derived",
                 engine.stage == 2 ? "deepspeed 0.19.8, estimate_zero2_model_states_mem_needs"
                                   : "deepspeed 0.19.8, estimate_zero3_model_states_mem_needs"});
  out.push_back({"model states as planned, bytes", std::to_string(states.total().value()),
                 "derived", "parameters, gradients and optimizer at the end of backward"});
}

// A partition's gradients are allocated as one when the first bucket that holds some of them is
// reduced, which may be some layers into the backward: those layers stand in a run of their own.
ModelParts split_where_reduced(const ModelParts& parts, const Engine& engine) {
  const FlatLayout layout(parts, engine);
  const std::int64_t size = engine.options.reduce_bucket_size;
  std::int64_t content = 0;
  const std::vector<FlatLayout::Block>& blocks = layout.blocks();
  for (const std::int64_t elements : blocks.back().parameters) {
    if (elements > size) return parts;  // reduced by the next gradient
    content += elements;
  }
  if (content > size) return parts;
  for (std::size_t r = parts.runs.size(); r-- > 0;) {
    const FlatLayout::Block& block = blocks[r + 1];
    if (block.elements == 0) continue;
    const std::int64_t before = (size - content) / block.elements;  // whole layers that fit
    if (before >= block.count) {
      content += block.elements * block.count;
      continue;
    }
    if (before == 0) return parts;
    ModelParts split = parts;
    LayerRun last = split.runs[r];
    last.first += last.count - before;
    last.count = before;
    split.runs[r].count -= before;
    split.runs.insert(split.runs.begin() + static_cast<std::ptrdiff_t>(r) + 1, std::move(last));
    return split;
  }
  return parts;
}

bool checkpoints_by_layer(const models::Recompute& recompute) {
  return recompute.kind != models::RecomputeKind::sqrt &&
         (recompute.kind != models::RecomputeKind::every || recompute.every == 1);
}

// A writer with the parts that it refers to, where they are not the caller's.
class SplitStep : public StepSizer {
 public:
  explicit SplitStep(std::optional<ModelParts> own) : own_(std::move(own)) {}
  void write(models::StepProgram& program, const ModelParts& parts, const models::Strategy& s,
             const models::Batch& batch, const pytorch::Rules& rules, const Engine& engine) {
    writer_.emplace(program, own_ ? *own_ : parts, s, batch, rules, engine);
    writer_->write();
  }
  bool resize(const models::Batch& batch) override { return writer_->resize(batch); }
  const Alike& alike() const override { return writer_->alike(); }

 private:
  std::optional<ModelParts> own_;
  std::optional<StepWriter> writer_;
};

}  // namespace

void write_step(const Question& question, const ModelParts& parts, StackStep& step) {
  engine_of(question.strategy);  // refuses before anything is said
  if (step.program_only)
    write_step(question, parts, pytorch::quick_rules(question, parts), -1, step);
  else
    write_step(question, parts, pytorch::rules_for(question, parts, step.assumptions), -1, step);
}

void write_step(const Question& question, const ModelParts& parts, const pytorch::Rules& rules,
                std::int64_t rank, StackStep& step) {
  const models::Strategy& s = question.strategy;
  Engine engine = engine_of(s);
  if (rank >= 0) engine.rank = rank;
  step.caching_allocator = true;
  if (!step.program_only) add_assumptions(engine, step.assumptions);
  const bool splits = engine.stage == 2 && checkpoints_by_layer(s.recompute);
  if (step.program_only) {
    auto sizer = std::make_unique<SplitStep>(splits ? split_where_reduced(parts, engine)
                                                    : std::optional<ModelParts>());
    sizer->write(step.program, parts, s, question.batch, rules, engine);
    step.sizer = std::move(sizer);
    return;
  }
  const auto write = [&](const ModelParts& used) {
    StepWriter writer(step.program, used, s, question.batch, rules, engine);
    writer.write();
    step.states = writer.states();
    writer.add_collectives(step.collectives);
    writer.add_start(step.start);
  };
  if (splits)
    write(split_where_reduced(parts, engine));
  else
    write(parts);
  add_estimate(engine, parts, step.states, step.assumptions);
  step.sent = pytorch::bytes_sent(step.collectives);
}

}  // namespace plimsoll::planner::deepspeed
