#include "planner/plan.h"

#include <algorithm>

#include "models/decisions/mesh.h"
#include "models/mxfp4.h"
#include "models/optimizers.h"
#include "models/prompt_adapters.h"
#include "models/storages.h"
#include "planner/all_ranks.h"
#include "planner/details.h"
#include "planner/loading/loading.h"
#include "planner/loading/refusals.h"
#include "planner/memory/framework_overhead.h"
#include "planner/program/peak.h"
#include "planner/remedies.h"
#include "planner/stack_step.h"
#include "planner/stacks/stack_info.h"
#include "planner/states_only.h"
#include "planner/time/hardware_flops.h"
#include "planner/time/plan_time.h"

namespace plimsoll::planner {

using models::Category;
using reports::Plan;

void write_step(const Question& question, const ModelParts& parts, StackStep& step) {
  step.allocator = question.strategy.allocator;
  const StackInfo& stack = stack_info(question.strategy.stack);
  stack.write_step(question, parts, step);
  if (step.program_only) return;
  stack.write_messages(parts, question.strategy, step.messages);
  step.messages = of_batch(std::move(step.messages), question.batch.tokens());
}

// On the host device no card bounds the ranks; --gpu-memory does.
Capacity capacity_of(const Question& question) {
  const models::ClusterSpec& cluster = question.cluster;
  Capacity capacity;
  if (cluster.memory)
    capacity.total = cluster.memory;
  else if (cluster.gpu && question.strategy.device == models::Device::cuda)
    capacity.total = cluster.gpu->cuda_total.bytes;
  if (capacity.total) capacity.usable = *capacity.total - cluster.reserve;
  return capacity;
}

namespace {

void judge(const Capacity& capacity, Plan& plan) {
  plan.capacity = capacity.total;
  plan.usable = capacity.usable;
  plan.device = plan.reserved + plan.overhead.total();
  const auto judge_host = [&] {
    plan.fits = plan.fits && plan.host_fits;
    if (!plan.host_fits) plan.verdict = reports::Verdict::does_not_fit;
  };
  if (!capacity.usable) return judge_host();
  plan.headroom = *capacity.usable - plan.device;
  plan.fits = (plan.range ? plan.range->high : plan.device) <= *capacity.usable;
  const bool may_fit =
      plan.flushing || (plan.range ? plan.range->low : plan.device) <= *capacity.usable;
  plan.verdict = plan.fits ? reports::Verdict::fits
                 : may_fit ? reports::Verdict::borderline
                           : reports::Verdict::does_not_fit;
  judge_host();
}

// What the model takes while it is loaded, beside what its step takes: the larger one has to fit.
void judge_load(const Question& question, Plan& plan) {
  if (!question.load.asked) return;
  plan.load = load_of(question);
  reports::Load& load = *plan.load;
  if (models::is_published_in_mxfp4(question.model->model_type))
    plan.assumptions.push_back(
        {"checkpoint that is loaded", "\"in MXFP4, as it is published, and unpacked to bf16\"",
         "assumed",
         "transformers 5.17, quantizers/quantizer_mxfp4.py (Mxfp4Config(dequantize=True)); one "
         "that is in bf16 already is not unpacked"});
  const auto& quantize = question.strategy.quantize;
  if (quantize && quantize->storage->gemm == models::PackedGemm::awq)
    plan.assumptions.push_back(
        {"checkpoint that is loaded", "\"packed already, as AWQ is; gptqmodel's AwqGEMMLinear\"",
         "derived",
         "transformers 5.17, integrations/awq.py (AwqConfig(backend=\"auto_trainable\")); "
         "gptqmodel 7.3.4, utils/importer.py"});
  else if (question.load.packed)
    plan.assumptions.push_back({"checkpoint that is loaded",
                                "\"packed already, as the model's config says\"", "derived",
                                "transformers 5.17, integrations/bitsandbytes.py "
                                "(Bnb4bitDeserialize, Bnb8bitDeserialize)"});
  if (load.merges)
    plan.assumptions.push_back(
        {"adapter that is merged",
         "\"trained, its file in " + std::string(name_of(question.strategy.lora->dtype)) +
             "; in a process of its own, where nothing of the training is left\"",
         "assumed",
         "peft 0.21.2, peft_model.py (PeftModel.from_pretrained), tuners/tuners_utils.py "
         "(merge_and_unload)"});
  load.device = load.needed + plan.overhead.total();
  load.decides = load.device > plan.device;
  load.fits = !plan.usable || load.device <= *plan.usable;
  if (load.fits) return;
  plan.fits = false;
  plan.verdict = reports::Verdict::does_not_fit;
}

// torch/cuda/__init__.py, is_bf16_supported: below compute capability 8 bf16 is emulated.
void add_bf16(const Question& question, Plan& plan) {
  const models::Precision precision = question.strategy.precision;
  const bool bf16 =
      precision == models::Precision::bf16 || precision == models::Precision::bf16_mixed;
  if (!plan.gpu || plan.gpu->bf16_flops || !bf16) return;
  plan.advice.push_back(plan.gpu->title + " has no bf16 units (compute capability " +
                        plan.gpu->compute_capability +
                        ", bf16 begins with 8.0): PyTorch emulates bf16 there, slowly; how slowly "
                        "is not modelled. --precision fp16-mixed is what the card is made for.");
  plan.assumptions.push_back(
      {"bf16 arithmetic", "\"emulated\"", "derived", "torch/cuda/__init__.py, is_bf16_supported"});
}

void add_common(const Question& question, const ParameterCounts& counts, Plan& plan) {
  plan.strategy = question.strategy;
  plan.batch = question.batch;
  if (question.strategy.device == models::Device::cuda) plan.gpu = question.cluster.gpu;
  plan.parameters = counts.total;
  plan.trainable_parameters = counts.trainable;
  plan.active_parameters = counts.active;
  if (question.model != nullptr) {
    plan.model_name = question.model->name;
    plan.architecture = question.model->architecture;
    plan.model_type = question.model->model_type;
  }
  if (plan.gpu) plan.time.peak_flops = plan.gpu->bf16_flops;
  if (plan.gpu && !question.cluster.memory)
    plan.assumptions.push_back({"capacity that CUDA reports, bytes",
                                std::to_string(plan.gpu->cuda_total.bytes.value()),
                                plan.gpu->cuda_total.basis == "assumed" ? "assumed" : "calibrated",
                                plan.gpu->cuda_total.source});
  add_bf16(question, plan);
}

// States that stand for the whole need, where no step is modelled.
void finish_states_only(const Question& question, Plan& plan) {
  plan.states_only = true;
  plan.at_peak[static_cast<std::size_t>(Category::parameters)] = plan.states.parameters;
  plan.at_peak[static_cast<std::size_t>(Category::gradients)] = plan.states.gradients;
  plan.at_peak[static_cast<std::size_t>(Category::optimizer)] = plan.states.optimizer;
  plan.peak = plan.reserved = plan.states.total();
  plan.resident = plan.states.parameters + plan.states.optimizer;
  plan.peak_place = {0, "backward", "model states"};
  const std::int64_t ranks = models::decisions::mesh_of(question.strategy).ranks();
  plan.ranks.push_back({.count = ranks,
                        .peak = plan.peak,
                        .at_peak = plan.at_peak,
                        .states = plan.states,
                        .spans = {{0, ranks - 1}}});
  judge(capacity_of(question), plan);
}

void validate(const Question& question) {
  const models::Strategy& s = question.strategy;
  const std::int64_t group = s.data.shard_group;
  check(s.gpus >= 1, ErrorKind::bad_input, "--gpus must be at least 1");
  check(s.tp >= 1 && s.gpus % s.tp == 0, ErrorKind::bad_input, [&] {
    return "--tp " + std::to_string(s.tp) + " does not divide --gpus " + std::to_string(s.gpus);
  });
  models::check_optimizer(s);
  const std::int64_t data = models::decisions::data_ranks(s);
  check(group == 0 || (group >= 1 && data % group == 0), ErrorKind::bad_input, [&] {
    return "--shard-group " + std::to_string(group) + " does not divide --gpus " +
           std::to_string(s.gpus) + (s.tp > 1 ? " / --tp " + std::to_string(s.tp) : std::string());
  });
  const std::int64_t longest = question.model != nullptr ? question.model->max_positions : 0;
  const std::int64_t ahead = models::virtual_tokens(s) + models::prefix_tokens(s);
  check(longest == 0 || question.batch.seq_len + ahead <= longest, ErrorKind::bad_input, [&] {
    return "--seq-len " + std::to_string(question.batch.seq_len) +
           (ahead > 0 ? " behind --virtual-tokens " + std::to_string(ahead) : "") + ": " +
           question.model->name + " takes at most " + std::to_string(longest) + " positions";
  });
}

// Whether tensors and overheads fit, before any replay of the allocator.
bool could_fit(const Question& question) {
  validate(question);
  StackStep step;
  step.program_only = true;
  write_step(question, model_parts(*question.model, question.strategy), step);
  PeakFinder finder;
  const Capacity capacity = capacity_of(question);
  return !capacity.usable ||
         finder.find(step.program).bytes + framework_overhead_of(question).most() <=
             *capacity.usable;
}

// Blocks that are larger than what they serve (handed out whole although the request was up to 1
// MiB smaller, or rounded up as PYTORCH_CUDA_ALLOC_CONF says): what they add at the peak stands in
// every figure of the step as one line of its own.
void add_slack(Bytes slack, Plan& plan) {
  if (slack <= Bytes(0)) return;
  const auto temporaries = static_cast<std::size_t>(Category::temporaries);
  plan.at_peak[temporaries] += slack;
  for (reports::TimelinePoint& point : plan.timeline) {
    point.allocated += slack;
    point.high_water += slack;
    point.by_category[temporaries] += slack;
  }
  if (plan.tensors.empty()) return;
  const bool plain = plan.strategy.allocator == models::AllocatorConf();
  plan.tensors.push_back({.name = plain ? "allocator.unsplit_blocks" : "allocator.larger_blocks",
                          .category = name_of(Category::temporaries),
                          .bytes = slack,
                          .born = "before the step",
                          .dies = "never",
                          .at_peak = true});
}

// Every micro-batch written out, as far as a document can hold it.
Timeline every_op(const models::StepProgram& program) {
  constexpr std::int64_t kMostOps = 2'000'000;
  const std::int64_t ops = ops_in_all(program);
  check(ops <= kMostOps, ErrorKind::bad_input, [&] {
    return "--detail: the step has " + std::to_string(ops) + " ops, a document at most " +
           std::to_string(kMostOps) + "; ask with a smaller --grad-accum";
  });
  return unroll(program, Repeats::all);
}

void add_range(const FrameworkOverhead& overhead, Plan& plan) {
  plan.calibration = overhead.calibration;
  if (overhead.range) {
    plan.range = {plan.reserved + overhead.range->low, plan.reserved + overhead.range->high,
                  overhead.range->why};
    return;
  }
  plan.assumptions.push_back(
      {"range of device bytes", "null", "assumed",
       overhead.calibration ? "nothing says by how much the measured overheads or this stack's "
                              "reserved bytes may be wrong"
                            : "no measurement on a GPU stands behind this plan yet"});
}

reports::Flushing flushing_of(const Reserved& reserved) {
  const DriverCalls& calls = reserved.calls;
  return {reserved.reserved, calls.malloced, calls.flushes, calls.frees, calls.mallocs, {}};
}

// What the ranks of a node keep in its memory.
void add_host(const Question& question, const StackStep& step, Plan& plan) {
  plan.host_pinned = step.host.pinned;
  plan.host_pageable = step.host.pageable + step.managed;
  plan.nvme = step.host.nvme;
  plan.host_node =
      step.host.total() * models::decisions::mesh_of(question.strategy).ranks_in_node();
  plan.host_memory = question.cluster.host_memory;
  plan.host_fits = !plan.host_memory || plan.host_node <= *plan.host_memory;
}

void add_step(const Question& question, Replays& replays, Plan& plan) {
  const ModelParts parts = model_parts(*question.model, question.strategy);
  const FrameworkOverhead overhead = framework_overhead_of(question);
  const Capacity capacity = capacity_of(question);
  AllRanks ranks = plan_all_ranks(question, parts, capacity, overhead, replays);
  const StackStep& step = ranks.step;
  const reports::RankKind& shown = ranks.kinds.front();
  plan.peak = shown.peak;
  plan.resident = ranks.allocator.resident;
  plan.reserved = ranks.reserved;
  plan.at_peak = categories_at(step.program, ranks.timeline, ranks.timeline.peak_step);
  plan.peak_place = place_of(step.program, ranks.timeline.steps[ranks.timeline.peak_step].at);
  plan.peak_place.rank = shown.rank;
  plan.states = step.states;
  add_host(question, step, plan);
  plan.overhead = overhead.typical;
  plan.collectives = collectives_of(step.messages, question.batch.grad_accum);
  plan.bytes_sent_per_gpu_per_step = bytes_sent(plan.collectives);
  const models::StepFlops flops =
      models::step_flops(*question.model, question.strategy, question.batch);
  plan.model_flops_per_step = flops.model;
  plan.hardware_flops_per_step = hardware_flops(question, parts);
  const auto assume = [&](const std::vector<reports::Assumption>& more) {
    plan.assumptions.insert(plan.assumptions.end(), more.begin(), more.end());
  };
  assume(step.assumptions);
  assume(overhead.assumptions);
  if (ranks.kinds_in_all > kMostKinds)
    plan.assumptions.push_back(
        {"kinds of ranks that are planned",
         "\"" + std::to_string(kMostKinds) + " of " + std::to_string(ranks.kinds_in_all) + "\"",
         "assumed", "the one with the highest peak, and others evenly among them"});
  add_range(overhead, plan);
  if (ranks.flushing) plan.flushing = flushing_of(*ranks.flushing);
  add_time(question, parts, flops, plan);
  judge(capacity, plan);
  if (plan.gpu && !plan.range) {
    plan.high_end = ranks.high_end;
    plan.high_end->fits = plan.high_end->fits && plan.fits;
  }
  judge_load(question, plan);
  if (question.detail == Detail::full)
    add_details(step.program, every_op(step.program), question.detail, plan);
  else
    add_details(step.program, ranks.timeline, question.detail, plan);
  add_slack(ranks.allocator.allocated - ranks.peak.bytes, plan);
  plan.ranks = std::move(ranks.kinds);
  if (!plan.fits && plan.host_fits && capacity.usable && question.remedies)
    plan.remedies = find_remedies(question, plan,
                                  {could_fit, [](const Question& q) { return planner::plan(q); }});
}

}  // namespace

Fit fit(const Question& question, const ModelParts& parts, Overheads overheads, Replays& replays) {
  const Capacity capacity = capacity_of(question);
  validate(question);
  return all_ranks_fit(question, parts, capacity, framework_overhead_of(question), overheads,
                       replays);
}

Plan plan(const Question& question) {
  Replays replays;
  return plan(question, replays);
}

Plan plan(const Question& question, Replays& replays) {
  validate(question);
  Plan plan;
  const ParameterCounts counts = count_parameters(*question.model, question.strategy);
  add_common(question, counts, plan);
  if (question.model->decoder) {
    add_step(question, replays, plan);
    return plan;
  }
  if (question.load.asked) loading::refuse_load(question);
  check(question.strategy.tp == 1, ErrorKind::unsupported,
        [&] { return "--tp: the states of " + question.model->name + " by it are not modelled"; });
  plan.states = table_states(counts, question.strategy);
  plan.advice.push_back(
      "Model states only: the training step of model_type '" + question.model->model_type +
      "' is not modelled yet" +
      (question.model->no_decoder.empty() ? "." : " (" + question.model->no_decoder + ")."));
  finish_states_only(question, plan);
  return plan;
}

Plan plan_states(Count parameters, const Question& question) {
  validate(question);
  Plan plan;
  add_common(question, {parameters, parameters, parameters, Count(0)}, plan);
  plan.states = zero_paper_states(parameters, question.strategy);
  finish_states_only(question, plan);
  return plan;
}

}  // namespace plimsoll::planner
