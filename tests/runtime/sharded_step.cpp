#include "tests/runtime/sharded_step.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <mutex>

namespace plimsoll::runtime {

namespace {

using models::decisions::kEmbeddingUnit;
using models::decisions::kLayerUnit;
using models::decisions::kTailUnit;
using shard::State;
using shard::Unit;
using shard::UnitParameter;
using Units = std::vector<std::unique_ptr<Unit>>;

std::uint64_t key_of(std::initializer_list<std::uint64_t> words) {
  std::uint64_t key = 1469598103934665603u;
  for (const std::uint64_t word : words) key = (key ^ word) * 1099511628211u;
  return key;
}

// Sizes that no number of ranks divides; one tensor of three chunks of the norm.
Units make_units(ShardedRank& rank, bool lora) {
  Units units;
  units.push_back(
      rank.unit(kEmbeddingUnit, "", {{"table", {37, 9}, !lora}, {"positions", {5, 9}, false}}));
  units.push_back(
      rank.unit(kLayerUnit, "layers.0.",
                {{"norm", {11}, !lora}, {"weight", {301, 500}, !lora}, {"bias", {7}, !lora}}));
  if (lora)
    units.push_back(rank.unit(
        kTailUnit, "",
        {{"head", {13, 9}, false}, {"A", {3, 9}, true, true}, {"B", {13, 3}, true, true}}));
  else
    units.push_back(rank.unit(kTailUnit, "", {{"norm", {3}}, {"head", {13, 9}}}));
  return units;
}

void add_gradients(ShardedRank& rank, Unit& unit, std::size_t number, std::uint64_t micro_batch,
                   bool overflow) {
  const auto& places = unit.layout().places;
  std::vector<float> values;
  for (std::size_t i = 0; i < places.size(); ++i) {
    if (!shard::is_trained(places[i].part)) continue;
    values.resize(static_cast<std::size_t>(places[i].shape.elements()));
    const std::uint64_t key = key_of(
        {number, i, micro_batch, rank.worker.step, static_cast<std::uint64_t>(rank.world.rank())});
    for (std::size_t e = 0; e < values.size(); ++e) values[e] = drawn(key + e);
    if (overflow && rank.world.rank() == 0) values.back() = std::numeric_limits<float>::infinity();
    rank.worker.kernels.add({values.data(), DType::fp32, places[i].shape}, unit.gradient(i));
  }
}

void run_backward(ShardedRank& rank, const Units& units, std::uint64_t micro_batch, bool overflow) {
  Unit* held = nullptr;
  const auto take = [&] {
    if (held == nullptr) return;
    Op op(rank.worker, held->names().reduced, Phase::backward);
    held->take_reduced(op);
    held = nullptr;
  };
  for (std::size_t i = units.size(); i-- > 0;) {
    Unit& unit = *units[i];
    if (!unit.trains()) continue;
    {
      Op op(rank.worker, "backward", Phase::backward);
      add_gradients(rank, unit, i, micro_batch, overflow && i + 1 == units.size());
    }
    take();
    if (!unit.reduces()) continue;
    Op op(rank.worker, unit.names().reduce, Phase::backward);
    unit.start_reduce(op);
    held = &unit;
  }
  take();
}

void run_optimizer(ShardedRank& rank, const Units& units, const StepCase& c, ShardedStep& result) {
  std::vector<Unit*> all;
  for (const auto& unit : units) all.push_back(unit.get());
  const Scalars scalars(rank.scalar_block.view());
  {
    Op op(rank.worker, models::decisions::kGradientNorm, Phase::optimizer);
    gradient_norm(rank.worker, all, *rank.shards, c.max_norm, 1, scalars);
  }
  for (const auto& unit : units)
    for (std::vector<float>& values : unit->whole(State::gradients))
      result.gradients.push_back(std::move(values));
  OptimizerStep step;
  step.options.kind = c.optimizer;
  step.learning_rate = 0.01f;
  step.number = rank.worker.step;
  step.factor = scalars.factor();
  step.overflow = scalars.overflow();
  for (const auto& unit : units) {
    if (!unit->trains()) continue;
    {
      Op op(rank.worker, unit->names().step, Phase::optimizer);
      unit->step(op, step);
    }
    if (!unit->gathers_stepped()) continue;
    Op op(rank.worker, unit->names().gather_stepped, Phase::optimizer);
    unit->gather_stepped(op);
  }
  result.norm = *static_cast<const float*>(scalars.norm().data);
  result.factor = *static_cast<const float*>(scalars.factor().data);
  result.overflow = *static_cast<const std::int32_t*>(scalars.overflow().data);
}

bool same_bits(const std::vector<std::vector<float>>& a, const std::vector<std::vector<float>>& b) {
  const auto bits = [](float x) { return std::bit_cast<std::uint32_t>(x); };
  return std::ranges::equal(a, b, [&](const auto& left, const auto& right) {
    return std::ranges::equal(left, right, {}, bits, bits);
  });
}

models::Strategy strategy_of(const StepCase& c) {
  models::Strategy strategy;
  strategy.precision = c.precision;
  strategy.gpus = c.ranks;
  strategy.data.zero = c.stage;
  strategy.data.shard_group = c.shard_group;
  strategy.grad_dtype = c.gradients;
  strategy.data.reduce_dtype = c.reduce;
  if (c.lora) strategy.lora.emplace();
  return strategy;
}

}  // namespace

float drawn(std::uint64_t key) {
  key = (key ^ (key >> 31)) * 0x9E3779B97F4A7C15u;
  key = (key ^ (key >> 29)) * 0xBF58476D1CE4E5B9u;
  return static_cast<float>(static_cast<std::int32_t>(key >> 32)) * 0x1p-31f;
}

bool ShardedStep::same_values(const ShardedStep& o) const {
  return same_bits(weights, o.weights) && same_bits(masters, o.masters) &&
         same_bits(first_moments, o.first_moments) && same_bits(second_moments, o.second_moments) &&
         same_bits(gradients, o.gradients) && std::memcmp(&norm, &o.norm, sizeof norm) == 0 &&
         std::memcmp(&factor, &o.factor, sizeof factor) == 0 && overflow == o.overflow;
}

ShardedRank::ShardedRank(const StepCase& c, comm::Communicator& all)
    : world(all), worker(host_device(), all.rank(), {.limit = 1_GiB, .poison = true}) {
  const models::Strategy strategy = strategy_of(c);
  worker.regime = models::decisions::regime_of(strategy);
  worker.seed = 17;
  group.sharding = models::decisions::sharding_of(strategy);
  const int size = static_cast<int>(group.sharding.shards);
  shards = world.split(world.rank() / size);
  replicas = world.split(world.rank() % size);
  group.moment = models::decisions::reduce_moment(group.sharding.stage, c.deterministic);
  group.bucket_cap = c.bucket_cap;
  group.shards = shards.get();
  group.replicas = replicas.get();
  group.optimizer = c.optimizer;
  scalar_block = worker.memory.allocate("scalars", Category::workspace, DType::uint8,
                                        {models::decisions::kScalars.value()});
}

std::unique_ptr<shard::Unit> ShardedRank::unit(const models::decisions::UnitNames& names,
                                               std::string prefix,
                                               std::vector<shard::UnitParameter> parameters) {
  auto made = std::make_unique<shard::Unit>(worker, group, names, std::move(prefix), parameters,
                                            next_element);
  next_element += made->layout().trained_elements();
  return made;
}

ShardedStep run_rank_step(const StepCase& c, comm::Communicator& world) {
  ShardedRank rank(c, world);
  const Units units = make_units(rank, c.lora);
  std::vector<Unit*> all;
  for (std::size_t i = 0; i < units.size(); ++i) {
    units[i]->allocate();
    units[i]->load([&](std::size_t parameter, std::int64_t first, std::span<float> to) {
      for (std::size_t e = 0; e < to.size(); ++e)
        to[e] = drawn(key_of({i, parameter}) + static_cast<std::uint64_t>(first) + e);
    });
    all.push_back(units[i].get());
  }
  rank.worker.workspace = rank.worker.memory.allocate(
      "workspace", Category::workspace, DType::uint8, {gradient_norm_workspace(all).value()});
  ShardedStep result;
  for (std::int64_t step = 1; step <= c.steps; ++step) {
    rank.worker.step = static_cast<std::uint32_t>(step);
    result.gradients.clear();
    rank.worker.memory.ledger().begin_step();
    for (std::int64_t m = 0; m < c.accumulation; ++m) {
      for (const auto& unit : units) unit->begin_micro_batch(m, c.accumulation);
      run_backward(rank, units, static_cast<std::uint64_t>(m), c.overflow);
    }
    run_optimizer(rank, units, c, result);
    result.record = rank.worker.memory.ledger().end_step();
  }
  const auto export_to = [&](std::vector<std::vector<float>>& to, State state) {
    for (const auto& unit : units)
      for (std::vector<float>& values : unit->whole(state)) to.push_back(std::move(values));
  };
  export_to(result.weights, State::weights);
  export_to(result.masters, State::masters);
  export_to(result.first_moments, State::first_moment);
  export_to(result.second_moments, State::second_moment);
  return result;
}

std::vector<ShardedStep> run_step(const StepCase& c) {
  std::vector<ShardedStep> results(static_cast<std::size_t>(c.ranks));
  comm::run_ranks(c.ranks,
                  [&](comm::Communicator& world) {
                    results[static_cast<std::size_t>(world.rank())] = run_rank_step(c, world);
                  },
                  {.timeout_seconds = 60});
  return results;
}

void reduce_alone(Worker& worker, Unit& unit) {
  {
    Op op(worker, "reduce");
    unit.start_reduce(op);
  }
  Op op(worker, "reduced");
  unit.take_reduced(op);
}

StepRecord step_alone(Worker& worker, Unit& unit) {
  {
    Op op(worker, "step");
    unit.step(op, {});
  }
  return worker.memory.ledger().end_step();
}

}  // namespace plimsoll::runtime
