#include "planner/stacks/deepspeed/stack.h"

#include <algorithm>
#include <map>
#include <set>

#include "models/optimizers.h"
#include "planner/stacks/deepspeed/engine_wrapper.h"
#include "planner/stacks/deepspeed/fetches.h"
#include "planner/stacks/deepspeed/trace.h"
#include "planner/stacks/pytorch/refusals.h"
#include "planner/stacks/pytorch/stack.h"

namespace plimsoll::planner::deepspeed {

namespace {

const char* name_of(OptimizerWrapper wrapper) {
  switch (wrapper) {
    case OptimizerWrapper::plain:
      return "the optimizer itself";
    case OptimizerWrapper::fused:
      return "FP16_Optimizer";
    case OptimizerWrapper::unfused:
      return "FP16_UnfusedOptimizer";
    case OptimizerWrapper::stage_1_and_2:
      return "DeepSpeedZeroOptimizer (stage_1_and_2.py)";
    case OptimizerWrapper::stage3:
      return "DeepSpeedZeroOptimizer_Stage3 (stage3.py)";
  }
  return "";
}

// What the script's own optimizer steps.
const char* package_name(const Engine& engine) {
  switch (engine.wrapper) {
    case OptimizerWrapper::plain:
      return "the Trainer's, of each parameter";
    case OptimizerWrapper::fused:
    case OptimizerWrapper::unfused:
      return "the Trainer's, of an fp32 copy of each parameter: embeddings as all else";
    case OptimizerWrapper::stage_1_and_2:
      return "the Trainer's, of one flat partition: embeddings and small tensors as all else";
    case OptimizerWrapper::stage3:
      return "the Trainer's, of flat sub-groups: embeddings and small tensors as all else";
  }
  return "";
}

// Of packed weights that ZeRO-3 gathers.
const char* stay(const Engine& engine, const models::Strategy& s) {
  if (engine.packed_copy == PackedCopy::module)
    return "beside the module's own copy: the base is whole on each GPU, too";
  return models::decisions::recomputes_layers(s.recompute.kind) && s.use_reentrant.value_or(false)
             ? "stay from a checkpoint's second forward to the backward's end: all of them, by then"
             : "stay from the forward until the loss goes, with autograd's nodes: all of them";
}

void add_assumptions(const Engine& engine, const models::Strategy& s,
                     std::vector<reports::Assumption>& out) {
  const auto say = [&](const char* what, const std::string& value, const char* source) {
    out.push_back({what, "\"" + value + "\"", "derived", source});
  };
  say("versions modelled",
      "deepspeed 0.19.8, torch 2.11.0, transformers " + models::text_of(s.transformers),
      "allocator history of real steps, tests/golden/deepspeed_runs.json");
  if (s.quantize)
    say("packed base",
        std::string(engine.stage < 3 ? "whole on each GPU; all else in "
                                     : "cut, its scales are not; all else in ") +
            std::string(name_of(engine.model)) +
            ", what PEFT's or TRL's preparation cast to fp32 too",
        "bitsandbytes 0.50.2; deepspeed 0.19.8, runtime/engine.py, _configure_distributed_model; "
        "tests/golden/deepspeed_packed.json, deepspeed_packed_zero3.json");
  if (s.quantize && engine.stage == 3 && engine.ranks > 1)
    say("gathered packed weights", stay(engine, s),
        "bitsandbytes 0.50.2, autograd/_functions.py, MatMul4Bit, nn/modules.py, Linear8bitLt; "
        "deepspeed 0.19.8, runtime/zero/partitioned_param_coordinator.py, "
        "update_recompute_parameters");
  if (engine.holds_frozen && !s.quantize && engine.ranks > 1)
    say("frozen weights",
        "stay gathered from a reentrant checkpoint's second forward to the backward's end: all of "
        "them, by then; with --use-reentrant no they go layer by layer",
        "deepspeed 0.19.8, runtime/zero/partitioned_param_coordinator.py, "
        "update_recompute_parameters; tests/golden/deepspeed_held.json");
  if (models::rule_of(s.optimizer).deepspeed.type == nullptr)
    say("optimizer", package_name(engine),
        "transformers 5.17, integrations/deepspeed.py, deepspeed_optim_sched; "
        "tests/golden/deepspeed_bitsandbytes.json");
  if (s.kernels == models::Kernels::liger)
    say("kernels", "liger_kernel 0.8.5, as the Trainer's use_liger_kernel applies them",
        "liger_kernel 0.8.5, transformers/monkey_patch.py; tests/golden/deepspeed_liger.json");
  if (engine.stage == 3 && engine.ranks > 1 && reads_head_weight(s))
    say("head's weight", "gathered from a micro-batch's begin to its end: the model reads it",
        "deepspeed 0.19.8, runtime/zero/parameter_offload.py, ZeROOrderedDict");
  if (engine.stage == 3)
    say("gathered parameters",
        "prefetched up to stage3_max_live_parameters (" +
            std::to_string(engine.options.max_live_parameters) + " elements)",
        "deepspeed 0.19.8, runtime/zero/partitioned_param_coordinator.py");
  say("optimizer wrapper", name_of(engine.wrapper),
      "deepspeed 0.19.8, runtime/engine.py, _do_optimizer_sanity_check");
  if (engine.offload.nvme)
    say("files",
        "through buffers that mlock pins; aio as DeepSpeed has it, no pipelines, no fast_init",
        "deepspeed 0.19.8, runtime/swap_tensor; tests/golden/deepspeed_nvme.json");
  if (engine.offload.optimizer && !engine.offload.nvme)
    say("optimizer on the host",
        "masters, gradients and states; DeepSpeedCPUAdam; its temporaries are not counted",
        "deepspeed 0.19.8, offload_optimizer; tests/golden/deepspeed_offload.json");
  if (engine.offload.params && !engine.offload.nvme)
    say("parameters on the host",
        "a rank's parts, twice: as they were built, and in one flat buffer",
        "deepspeed 0.19.8, offload_param; tests/golden/deepspeed_offload.json");
  if (engine.options.round_robin_gradients && (engine.stage == 1 || engine.stage == 2))
    say("partitions", "parameters in turn (round_robin_gradients)",
        "deepspeed 0.19.8, runtime/zero/stage_1_and_2.py, _round_robin_reorder; "
        "tests/golden/deepspeed_round_robin.json");
  if (engine.stage >= 1)
    say("gradient buckets",
        std::to_string(engine.options.reduce_bucket_size) + " elements" +
            (engine.overlap ? ", two of them (overlap_comm)" : ""),
        "deepspeed 0.19.8, runtime/zero/config.py");
}

// stage3.py, model_to_params: the most elements that one module has itself, a weight with its bias,
// all stacked experts of a layer. Experts of a loop are modules of their own, without biases.
std::int64_t largest_module(const ModelParts& parts) {
  std::int64_t largest = 0, head = 0;
  for (const Parameter& table : parts.embedding) largest = std::max(largest, table.elements);
  for (const Parameter& p : parts.tail)
    if (!p.hidden) head += p.elements;
  largest = std::max(largest, head);
  for (const LayerRun& run : parts.runs)
    for (const LayerPart& layer : run.pattern) {
      std::map<int, std::int64_t> modules;
      for (const Parameter& p : layer.parameters) {
        std::int64_t& module = modules[p.node];
        module = layer.block->loop.experts > 0 ? p.elements : module + p.elements;
        largest = std::max(largest, module);
      }
    }
  return largest;
}

// deepspeed 0.19.8, estimate_zero2_model_states_mem_needs and estimate_zero3_…, without offloading,
// beside the plan's states: they know no bucket, no gather and no activation, and count the fp32
// copy of the gradients, which is there in the step only.
void add_estimate(const Engine& engine, const ModelParts& parts, const reports::States& states,
                  std::vector<reports::Assumption>& out) {
  if (engine.stage < 2 || !parts.trains_all || engine.offload.any()) return;
  const FlatLayout layout(parts, engine);
  const std::int64_t shard = checked_multiply(18, layout.total()) / engine.ranks;
  const std::int64_t rest =
      engine.stage == 2 ? 2 * layout.total() : checked_multiply(4, largest_module(parts));
  out.push_back({"model states by DeepSpeed's own estimator, bytes", std::to_string(rest + shard),
                 "derived",
                 engine.stage == 2 ? "deepspeed 0.19.8, estimate_zero2_model_states_mem_needs"
                                   : "deepspeed 0.19.8, estimate_zero3_model_states_mem_needs"});
  out.push_back({"model states as planned, bytes", std::to_string(states.total().value()),
                 "derived", "parameters, gradients and optimizer at the end of backward"});
}

// Where the layers' hooks differ from those of the layer before: at the first reductions of the
// bucket (a copy of it, beside more and fewer saved activations than later ones), and at the first
// that this rank owns some of, which allocates its partition's gradients, and the one after it.
// Layers count from the end of the model; gradients of a layer from its end.
std::vector<std::int64_t> layers_that_reduce(const FlatLayout& layout, const Engine& engine) {
  Together together(layout, engine.rank);
  const std::vector<FlatLayout::Block>& blocks = layout.blocks();
  std::vector<std::int64_t> found;
  std::int64_t content = 0, layer = 0;
  int reductions = 0, owned = 0;
  for (std::size_t r = blocks.size(); r-- > 0;) {
    const bool run = r > 0 && r + 1 < blocks.size();
    for (std::int64_t i = blocks[r].count; i-- > 0; layer += run ? blocks[r].layers : 0) {
      std::int64_t at = blocks[r].begin + (i + 1) * blocks[r].elements;
      const auto each = static_cast<std::int64_t>(blocks[r].parameters.size());
      for (std::int64_t p = each; p-- > 0;) {
        const std::int64_t elements = blocks[r].parameters[static_cast<std::size_t>(p)];
        if (content > 0 && content + elements > engine.options.reduce_bucket_size) {
          if (owned > 0 || together.owns_some()) ++owned;
          if (run && (++reductions <= 2 || owned == 1 || owned == 2)) found.push_back(layer);
          content = 0;
          together.clear();
        }
        content += elements;
        at -= elements;
        together.add(layout.begin_of(blocks[r].first + i * each + p, at), elements);
      }
      if (reductions >= 2 && owned >= 2) return found;
    }
  }
  return found;
}

// Stage 1 reduces when all gradients are there, from the front: the layer in which the first bucket
// is full, counted from the end.
std::vector<std::int64_t> layer_that_fills(const FlatLayout& layout, const Engine& engine) {
  const std::vector<FlatLayout::Block>& blocks = layout.blocks();
  std::int64_t content = 0, layer = -1, all = 0;
  for (std::size_t r = 1; r + 1 < blocks.size(); ++r) all += blocks[r].count * blocks[r].layers;
  for (std::size_t r = 0; r + 1 < blocks.size(); ++r)
    for (std::int64_t i = 0; i < blocks[r].count; ++i) {
      if (r > 0) layer += blocks[r].layers;
      content += blocks[r].elements;
      if (content > engine.options.reduce_bucket_size)
        return r > 0 ? std::vector{all - 1 - layer} : std::vector<std::int64_t>();
    }
  return {};
}

// Stage 1 with overlap reduces as stage 2 does, but what is larger than the bucket stays where it
// is another rank's: the layers in which this rank's partition begins and ends, counted from the
// end.
bool has_larger_than_bucket(const FlatLayout& layout, const Engine& engine) {
  return std::ranges::any_of(layout.blocks(), [&](const FlatLayout::Block& block) {
    return std::ranges::any_of(block.parameters, [&](std::int64_t elements) {
      return elements > engine.options.reduce_bucket_size;
    });
  });
}
std::vector<std::int64_t> layers_at_ends(const FlatLayout& layout, const Engine& engine) {
  const std::vector<FlatLayout::Block>& blocks = layout.blocks();
  const std::int64_t begin = layout.partition() * engine.rank, end = begin + layout.partition();
  std::int64_t all = 0, before = 0;
  for (std::size_t r = 1; r + 1 < blocks.size(); ++r) all += blocks[r].count * blocks[r].layers;
  std::vector<std::int64_t> found;
  // Dealt in turn, each layer has others.
  for (std::int64_t layer = 0; layout.deals() && layer < all; ++layer) found.push_back(layer);
  for (std::size_t r = 1; r + 1 < blocks.size(); ++r) {
    for (const std::int64_t at : {begin, end})
      if (blocks[r].elements > 0 && at > blocks[r].begin && at < blocks[r].end())
        found.push_back(all - 1 - before -
                        (at - blocks[r].begin) / blocks[r].elements * blocks[r].layers);
    before += blocks[r].count * blocks[r].layers;
  }
  return found;
}

// Those layers in runs of their own. Stage 3: runs for which as much is gathered.
ModelParts split_where_it_changes(const ModelParts& parts, const Engine& engine,
                                  const models::Strategy& s) {
  const FlatLayout layout(parts, engine);
  std::int64_t all = 0;
  for (const LayerRun& run : parts.runs) all += run.count;
  std::vector<std::int64_t> layers, cuts;
  if (engine.stage == 3)
    for (const Stretch& stretch : stretches_of(gathered_along(parts, layout, engine, s)))
      cuts.push_back(all - stretch.from_end);
  else if (engine.stage == 1 && !engine.overlap)
    layers = layer_that_fills(layout, engine);
  else if (engine.stage == 1 && has_larger_than_bucket(layout, engine))
    layers = layers_at_ends(layout, engine);
  else
    layers = layers_that_reduce(layout, engine);
  ModelParts split = parts;
  split.runs.clear();
  for (const LayerRun& run : parts.runs) {
    std::set<std::int64_t> begins{run.first, run.first + run.count};
    for (const std::int64_t from_end : layers) {
      const std::int64_t layer = all - 1 - from_end;
      if (layer < run.first || layer >= run.first + run.count) continue;
      // A pattern of layers stays whole.
      const std::int64_t begin = run.first + (layer - run.first) / run.period() * run.period();
      for (const std::int64_t at : {begin, begin + run.period()})
        if (at > run.first && at < run.first + run.count) begins.insert(at);
    }
    for (const std::int64_t cut : cuts)
      if (cut > run.first && cut < run.first + run.count)
        begins.insert(run.first + (cut - run.first) / run.period() * run.period());
    for (auto begin = begins.begin(); std::next(begin) != begins.end(); ++begin) {
      LayerRun& piece = split.runs.emplace_back(run);
      piece.first = *begin;
      piece.count = *std::next(begin) - *begin;
    }
  }
  return split;
}

bool checkpoints_by_layer(const models::Recompute& recompute) {
  return recompute.kind != models::RecomputeKind::sqrt &&
         (recompute.kind != models::RecomputeKind::every || recompute.layers == 1);
}

pytorch::Rules module_rules(pytorch::Rules rules, const Engine& engine, const ModelParts& parts) {
  rules.zero3_linear = engine.has_own_linear();
  // Its bias is part of a GEMM where the input has two axes: GPT-2's Conv1D, which is torch's own
  // where it is not packed, and OPT's feed-forward.
  const bool conv1d = parts.decoder.fused_qkv && engine.packed_copy == PackedCopy::nobody;
  if (engine.stage == 3 && !conv1d && parts.model_type != "opt") rules.blas.lt = Bytes(0);
  return rules;
}

std::unique_ptr<pytorch::StepWriter> step_writer(models::StepProgram& program,
                                                 const ModelParts& parts, const models::Strategy& s,
                                                 const models::Batch& batch,
                                                 const pytorch::Rules& rules,
                                                 const Engine& engine) {
  const auto wrapper = [&](pytorch::Step& step, pytorch::Checkpoints&) {
    return std::make_unique<EngineWrapper>(step, engine);
  };
  return std::make_unique<pytorch::StepWriter>(program, parts, module_strategy(s, engine), batch,
                                               module_rules(rules, engine, parts), wrapper);
}

// Experts that no token visits have no gradients, which the engine's buckets wait for or not.
void refuse_loops(const models::ModelSpec& model, const ModelParts& parts,
                  const models::Strategy& s) {
  const auto loops = [](const LayerPart& layer) { return layer.block->loop.experts > 0; };
  const bool any = std::ranges::any_of(
      parts.runs, [&](const LayerRun& run) { return std::ranges::any_of(run.pattern, loops); });
  check(!any, ErrorKind::unsupported, [&] {
    return "--stack deepspeed: --transformers-version " + models::text_of(s.transformers) +
           ", in which the experts of " + model.model_type +
           " are a loop over modules, is not modelled yet (from 5.0 on they are not)";
  });
}

}  // namespace

void write_step(const Question& question, const ModelParts& parts, StackStep& step) {
  const Engine engine = engine_of(question.strategy);  // refuses before anything is said
  pytorch::refuse_packed(module_strategy(question.strategy, engine));
  pytorch::refuse_adapters(*question.model, module_strategy(question.strategy, engine));
  pytorch::refuse_bitsandbytes(question.strategy);
  pytorch::refuse_rows(*question.model, question.strategy);
  pytorch::refuse_release(*question.model, question.strategy);
  refuse_loops(*question.model, parts, question.strategy);
  pytorch::refuse_of_model(question);
  if (step.program_only)
    write_step(question, parts, pytorch::quick_rules(question, parts), step);
  else
    write_step(question, parts, pytorch::rules_for(question, parts, step.assumptions), step);
}

void write_step(const Question& question, const ModelParts& parts, const pytorch::Rules& rules,
                StackStep& step) {
  const models::Strategy& s = question.strategy;
  Engine engine = engine_of(s);
  if (step.rank >= 0) engine.rank = step.rank;
  step.rank = engine.rank;
  step.caching_allocator = true;
  if (!step.program_only) add_assumptions(engine, s, step.assumptions);
  if (engine.offload.nvme) {
    const FlatLayout layout(parts, engine);
    refuse_buffers(layout, engine);
    refuse_few_buffers(parts, layout, engine, s);
  }
  const bool reduces = engine.stage == 1 || engine.stage == 2;
  const bool splits = (reduces || (engine.gathers_by_layer() && engine.ranks > 1)) &&
                      checkpoints_by_layer(s.recompute);
  const auto write = [&](const ModelParts& used) {
    const auto writer = step_writer(step.program, used, s, question.batch, rules, engine);
    writer->write();
    if (step.program_only) return;
    step.states = writer->states();
    writer->add_start(step.start);
    step.host = writer->host();
    step.managed = writer->managed();
  };
  if (splits)
    write(split_where_it_changes(parts, engine, s));
  else
    write(parts);
  if (step.program_only) return;
  pytorch::assume_managed(step.managed, step.assumptions);
  step.ranks = FlatLayout(parts, engine).ranks(engine.stage);
  add_estimate(engine, parts, step.states, step.assumptions);
}

void write_messages(const ModelParts& parts, const models::Strategy& strategy, Messages& out) {
  models::Strategy whole = strategy;
  whole.data.shard_group = 0;
  // Modules fetch for themselves, in a checkpoint of several layers too.
  if (models::decisions::recomputes_layers(whole.recompute.kind))
    whole.recompute = {models::RecomputeKind::full, 1};
  models::StepProgram program;
  step_writer(program, parts, whole, {}, {}, engine_of(whole))->write_messages(out);
}

void write_optimizer(const ModelParts& parts, const models::Strategy& strategy,
                     models::StepProgram& program, Works& works) {
  models::Strategy whole = strategy;
  whole.data.shard_group = 0;
  pytorch::Rules rules;
  rules.each_parameter = false;
  rules.works = &works;
  step_writer(program, parts, whole, {}, rules, engine_of(whole))->write_optimizer();
}

}  // namespace plimsoll::planner::deepspeed
