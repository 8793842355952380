#include "tests/witness/case.h"

#include <algorithm>
#include <cmath>
#include <mutex>

#include "kernels/philox.h"
#include "models/decisions/offload.h"
#include "models/decisions/sharding.h"
#include "models/model_reader.h"
#include "models/run_names.h"
#include "models/storages.h"
#include "planner/memory/arena_replay.h"
#include "planner/model_parts.h"
#include "planner/stacks/plimsoll/stack.h"
#include "planner/stacks/plimsoll/step.h"
#include "runtime/comm/threads.h"

namespace plimsoll::witness {

namespace {

runtime::Device* chosen = nullptr;

runtime::Device& device() {
  return chosen != nullptr ? *chosen : runtime::host_device();
}

// A plan is for the device on which it runs: workspaces differ.
models::Strategy strategy_of(const Case& c) {
  models::Strategy strategy = c.strategy;
  if (chosen != nullptr) strategy.device = chosen->kind();
  // On a GPU too: all share it.
  if (!strategy.exchange) strategy.exchange = models::Exchange::threads;
  return strategy;
}

models::ModelSpec model_of(const Case& c) {
  const std::string config = c.config.empty() ? tiny_config(c.model) : c.config;
  return models::read_model(config, c.model, "", {});
}

// Numbers that depend on what they are for alone.
float number(std::uint32_t stream, std::uint64_t index) {
  const kernels::Philox block = kernels::random_block({.seed = 7, .stream = stream}, index / 4);
  return static_cast<float>(block[index % 4]) * 0x1p-32f - 0.5f;
}

std::uint32_t stream_of(const std::string& name) {
  std::uint32_t hash = 2166136261u;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  return hash;
}

void read_parameter(const runtime::ModelParameter& parameter, std::int64_t first,
                    std::span<float> to) {
  const bool norm = parameter.shape.rank == 1 && parameter.name.ends_with("weight");
  for (std::size_t i = 0; i < to.size(); ++i)
    to[i] = (norm ? 1.f : 0.f) +
            0.2f * number(stream_of(parameter.name), static_cast<std::uint64_t>(first) + i);
}

struct AtEnd {
  const std::function<void()>& done;
  ~AtEnd() {
    if (done) done();
  }
};

models::Numerics numerics_of(const models::ModelSpec& model) {
  if (model.numerics) return *model.numerics;
  models::Numerics numerics;
  if (model.decoder->position == models::PositionKind::rope) numerics.rotary = models::Rotary{};
  numerics.attention_scale = 1 / std::sqrt(static_cast<double>(model.decoder->head_dim));
  return numerics;
}

}  // namespace

void run_on(runtime::Device& device) {
  chosen = &device;
}

namespace {

std::string list(const char* what, const std::vector<std::string>& patterns) {
  std::string text;
  for (const std::string& pattern : patterns) text += (text.empty() ? "" : ",") + pattern;
  return text.empty() ? "" : what + text;
}

std::string text(const models::Lora& lora) {
  return list(" lora ", lora.targets) + " rank " + std::to_string(lora.rank) + " " +
         std::string(name_of(lora.dtype)) + (lora.dropout > 0 ? " dropout" : "");
}

}  // namespace

std::string text(const Case& c) {
  const models::Strategy& s = c.strategy;
  const auto choice = [](const char* name, const auto& value) {
    return value ? std::string(name) + std::string(name_of(*value)) : std::string();
  };
  return (c.config.empty() ? c.model : c.config) + " ranks " + std::to_string(s.gpus) + " zero " +
         std::to_string(s.data.zero) + " group " + std::to_string(s.data.shard_group) + " bucket " +
         std::to_string(s.data.bucket_cap.value()) + " " + std::string(name_of(s.precision)) +
         choice(" gradients ", s.grad_dtype) + choice(" reduced in ", s.data.reduce_dtype) +
         (s.master_weights ? *s.master_weights ? " masters" : " no masters" : "") + " " +
         std::string(name_of(s.optimizer)) +
         (s.galore_rank > 0 ? ":" + std::to_string(s.galore_rank) : "") + " recompute " +
         std::string(name_of(s.recompute.kind)) + ":" + std::to_string(s.recompute.layers) +
         " attention " + std::string(name_of(s.attention)) + " loss " +
         std::string(name_of(s.loss)) + (s.lora ? text(*s.lora) : "") +
         (s.quantize ? " on " + std::string(s.quantize->storage->name) : "") +
         list(" freeze ", s.freeze) + list(" train ", s.train) + " batch " +
         std::to_string(c.batch.micro_batch) + " x " + std::to_string(c.batch.seq_len) + " accum " +
         std::to_string(c.batch.grad_accum) + (s.offload.optimizer ? " offloaded" : "") +
         (s.offload.activations ? " inputs offloaded" : "") +
         (s.optimizer_in_backward ? " in backward" : "") +
         (c.deterministic ? " deterministic" : "") + (c.loss_scale > 1e6 ? " overflows" : "");
}

void project_where_whole(models::Strategy& strategy, std::int64_t rank) {
  if (strategy.optimizer != models::Optimizer::galore) return;
  const bool whole = models::decisions::sharding_of(strategy).shards == 1 && !strategy.lora &&
                     !strategy.offload.optimizer && kernels::host_kernels().eigenvectors != nullptr;
  if (whole)
    strategy.galore_rank = rank;
  else
    strategy.optimizer = models::Optimizer::adamw;
}

RankMeasured measured(const Case& c, runtime::comm::Communicator& world,
                      const std::function<void()>& done) {
  const models::ModelSpec model = model_of(c);
  runtime::TrainerOptions options{.strategy = strategy_of(c), .batch = c.batch};
  options.deterministic = c.deterministic;
  options.optimizer.kind = c.strategy.optimizer;
  options.optimizer.max_norm = c.max_norm;
  options.memory.poison = c.poison;
  options.loss_scaler.initial = c.loss_scale;
  runtime::Trainer trainer(model, numerics_of(model), options, device(), world);
  const AtEnd at_end{done};
  trainer.load(read_parameter);
  const runtime::Tokens tokens = [&](std::int64_t step, std::int64_t micro,
                                     std::span<std::int32_t> ids, std::span<std::int32_t> targets) {
    const std::int64_t vocab = model.decoder->vocab;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const auto at = static_cast<std::uint64_t>(
          ((step * c.batch.grad_accum + micro) * world.size() + world.rank()) *
              static_cast<std::int64_t>(ids.size()) +
          static_cast<std::int64_t>(i));
      const auto draw = [&](std::uint32_t stream) {
        return static_cast<std::int32_t>((number(stream, at) + 0.5f) *
                                         static_cast<float>(vocab - 1));
      };
      ids[i] = draw(1);
      targets[i] = i % 11 == 5 ? kernels::kIgnoreIndex : draw(2);
    }
  };
  RankMeasured out;
  for (int step = 0; step < c.steps; ++step) out.steps.push_back(trainer.step(tokens, 1e-2f));
  out.reserved = trainer.worker().memory.reserved();
  if (const auto& host = trainer.worker().host_memory) out.host_reserved = host->reserved();
  for (auto& values : trainer.model().whole(runtime::shard::State::weights))
    out.parameters.push_back(std::move(values.values));
  return out;
}

Measured measured(const Case& c, const std::function<void()>& done) {
  const auto ranks = static_cast<std::size_t>(c.strategy.gpus);
  Measured out;
  out.ranks.resize(ranks);
  out.reserved.resize(ranks);
  out.host_reserved.resize(ranks);
  namespace comm = runtime::comm;
  const bool on_gpu = device().kind() == models::Device::cuda;
  comm::run_ranks(static_cast<int>(ranks),
                  [&](comm::Communicator& world) {
                    const auto rank = static_cast<std::size_t>(world.rank());
                    RankMeasured one = measured(c, world, done);
                    out.ranks[rank] = std::move(one.steps);
                    out.reserved[rank] = one.reserved;
                    out.host_reserved[rank] = one.host_reserved;
                    if (rank == 0) out.parameters = std::move(one.parameters);
                  },
                  {.buffers = on_gpu ? &comm::cuda_buffers() : &comm::host_buffers()});
  return out;
}

Predicted predicted(const Case& c, std::int64_t granularity) {
  const models::ModelSpec model = model_of(c);
  models::Strategy strategy = strategy_of(c);
  const planner::ModelParts parts = planner::model_parts(model, strategy);
  Predicted out;
  planner::plimsoll_stack::StepWriter writer(
      out.program, parts, strategy, c.batch,
      {.granularity = granularity, .deterministic = c.deterministic});
  writer.write();
  out.states = writer.states();
  planner::Messages messages;
  strategy.deterministic = c.deterministic;
  planner::plimsoll_stack::write_messages(parts, strategy, messages);
  out.collectives = planner::collectives_of(messages, c.batch.grad_accum);
  out.timeline = planner::unroll(out.program, planner::Repeats::all);
  return out;
}

Predicted predicted_on_host(const Case& c) {
  const models::ModelSpec model = model_of(c);
  const models::Strategy strategy = strategy_of(c);
  const planner::ModelParts parts = planner::model_parts(model, strategy);
  Predicted out;
  models::StepProgram device;
  planner::plimsoll_stack::StepWriter writer(device, parts, strategy, c.batch,
                                             {.deterministic = c.deterministic});
  writer.write();
  writer.write_host(out.program);
  out.timeline = planner::unroll(out.program, planner::Repeats::all);
  return out;
}

namespace {

struct Life {
  std::string name;
  Bytes bytes;
  std::int64_t born, died;
  models::Category category;
  auto key() const { return std::tie(born, name, died, bytes, category); }
  bool operator<(const Life& other) const { return key() < other.key(); }
  bool operator==(const Life& other) const { return key() == other.key(); }
};

std::string text(const Life& life) {
  return std::string(name_of(life.category)) + " " + life.name + " of " +
         std::to_string(life.bytes.value()) + " B, born in op " + std::to_string(life.born) +
         ", dead after " + std::to_string(life.died);
}

std::vector<Life> lives_of(const Predicted& predicted) {
  std::vector<Life> lives;
  const auto ops = static_cast<std::int64_t>(predicted.timeline.steps.size());
  for (const planner::Lifetime& life : predicted.timeline.lifetimes) {
    const auto& decl = predicted.program.tensors[static_cast<std::size_t>(life.tensor)];
    const bool persistent = decl.residency == models::Residency::persistent;
    if (!persistent && life.birth < 0) continue;
    lives.push_back({planner::name_of_tensor(predicted.program, life.tensor, life.instance),
                     decl.bytes, persistent ? -1 : life.birth, persistent ? ops : life.death,
                     decl.category});
  }
  std::sort(lives.begin(), lives.end());
  return lives;
}

std::vector<Life> lives_of(const runtime::StepRecord& record) {
  std::vector<Life> lives;
  const auto ops = static_cast<std::int64_t>(record.ops.size());
  for (const runtime::TensorRecord& tensor : record.tensors)
    lives.push_back(
        {tensor.name, tensor.bytes, tensor.born, std::min(tensor.died, ops), tensor.category});
  std::sort(lives.begin(), lives.end());
  return lives;
}

}  // namespace

std::string first_difference(const Predicted& predicted, const runtime::StepRecord& measured) {
  const auto& steps = predicted.timeline.steps;
  for (std::size_t i = 0; i < std::max(steps.size(), measured.ops.size()); ++i) {
    const std::string planned =
        i < steps.size() ? std::string(name_of(predicted.program.ops[steps[i].at.op].phase)) + " " +
                               planner::name_of_op(predicted.program, steps[i].at)
                         : "nothing";
    const std::string ran = i < measured.ops.size() ? std::string(name_of(measured.ops[i].phase)) +
                                                          " " + measured.ops[i].name
                                                    : "nothing";
    if (planned != ran) return "op " + std::to_string(i) + ": planned " + planned + ", ran " + ran;
  }
  const std::vector<Life> planned = lives_of(predicted), lived = lives_of(measured);
  for (std::size_t i = 0; i < std::max(planned.size(), lived.size()); ++i) {
    if (i < planned.size() && i < lived.size() && planned[i] == lived[i]) continue;
    const auto describe = [&](const std::vector<Life>& lives) {
      if (i >= lives.size()) return std::string("nothing");
      const std::int64_t born = lives[i].born;
      return text(lives[i]) + (born >= 0 && born < static_cast<std::int64_t>(measured.ops.size())
                                   ? " (" + measured.ops[static_cast<std::size_t>(born)].name + ")"
                                   : "");
    };
    return "planned " + describe(planned) + "; lived " + describe(lived);
  }
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const runtime::OpRecord& ran = measured.ops[i];
    if (steps[i].after != ran.allocated || steps[i].high_water != ran.high_water)
      return "op " + std::to_string(i) + " " + ran.name + ": planned " +
             std::to_string(steps[i].after.value()) + " after and " +
             std::to_string(steps[i].high_water.value()) + " at most, measured " +
             std::to_string(ran.allocated.value()) + " and " +
             std::to_string(ran.high_water.value());
  }
  return "";
}

namespace {

// Of one of a rank's memories. `record`: of a step.
std::string difference_in(const Predicted& plan, const Measured& run,
                          runtime::StepRecord runtime::StepResult::*record,
                          const std::vector<Bytes>& reserved) {
  const Bytes planned = planner::arena_reserved(plan.program, plan.timeline);
  for (std::size_t rank = 0; rank < run.ranks.size(); ++rank) {
    for (const runtime::StepResult& step : run.ranks[rank]) {
      const std::string difference = first_difference(plan, step.*record);
      if (!difference.empty()) return "rank " + std::to_string(rank) + ": " + difference;
    }
    if (reserved[rank] != planned)
      return "rank " + std::to_string(rank) + ", reserved: planned " +
             std::to_string(planned.value()) + ", measured " +
             std::to_string(reserved[rank].value());
  }
  return "";
}

}  // namespace

std::string difference_of(const Case& c) {
  try {
    const Measured run = measured(c);
    const std::string difference =
        difference_in(predicted(c), run, &runtime::StepResult::memory, run.reserved);
    if (!difference.empty() || !models::decisions::uses_host(c.strategy)) return difference;
    const std::string on_host = difference_in(predicted_on_host(c), run,
                                              &runtime::StepResult::host_memory, run.host_reserved);
    return on_host.empty() ? "" : "on the host, " + on_host;
  } catch (const Error& error) {
    return error.message();
  }
}

}  // namespace plimsoll::witness
