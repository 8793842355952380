#include "runtime/trainer.h"

#include <algorithm>
#include <chrono>
#include <new>

#include "models/decisions/float8.h"
#include "models/decisions/low_rank.h"
#include "models/decisions/mesh.h"
#include "models/decisions/offload.h"
#include "models/decisions/sharding.h"
#include "models/decisions/step.h"
#include "models/decisions/unit_names.h"

namespace plimsoll::runtime {

namespace decisions = models::decisions;

namespace {

shard::Group group_of(const TrainerOptions& options, comm::Communicator& shards,
                      comm::Communicator& replicas) {
  shard::Group group;
  group.sharding = decisions::sharding_of(options.strategy);
  group.moment = decisions::reduce_moment(group.sharding.stage, options.deterministic);
  group.bucket_cap = options.strategy.data.bucket_cap;
  group.shards = &shards;
  group.replicas = &replicas;
  group.optimizer = options.strategy.optimizer;
  group.offloads_states = options.strategy.offload.optimizer;
  return group;
}

// The host's own memory may end anywhere in a step; only here it is known whose, and what lives.
template <class Act>
decltype(auto) naming_what_lives(const std::unique_ptr<Worker>& worker, Act act) {
  try {
    return act();
  } catch (const std::bad_alloc&) {
    if (worker) worker->memory.fail_without_host_memory();
    throw;
  }
}

}  // namespace

Trainer::Trainer(const models::ModelSpec& model, const models::Numerics& numerics,
                 const TrainerOptions& options, Device& device, comm::Communicator& world)
    : options_(options), world_(world) {
  naming_what_lives(worker_, [&] { build(model, numerics, device); });
}

void Trainer::build(const models::ModelSpec& model, const models::Numerics& numerics,
                    Device& device) {
  const TrainerOptions& options = options_;
  comm::Communicator& world = world_;
  const models::Strategy& strategy = options.strategy;
  const decisions::Mesh mesh = decisions::mesh_of(strategy);
  check(world.size() == mesh.ranks(), ErrorKind::bad_input, [&] {
    return "the plan is for " + std::to_string(mesh.ranks()) + " ranks, and there are " +
           std::to_string(world.size());
  });
  const auto split = [&](decisions::Axis axis) {
    return world.split(static_cast<int>(mesh[axis].index_of(world.rank())));
  };
  shards_ = split(decisions::Axis::shard);
  replicas_ = split(decisions::Axis::replicate);
  worker_ = std::make_unique<Worker>(device, world.rank(), options.memory);
  Worker& worker = *worker_;
  worker.regime = decisions::regime_of(strategy);
  worker.sequences = options.batch.micro_batch;
  worker.length = options.batch.seq_len;
  worker.seed = options.seed;
  decisions::check_offload(strategy);
  runtime_rule(strategy.optimizer);  // or it is refused
  decisions::check_low_rank(strategy);
  check(decisions::projected_rank(strategy) == 0 || worker.kernels.eigenvectors != nullptr,
        ErrorKind::unsupported,
        "--optimizer galore: this build of plimsoll has no library that finds eigenvectors (an "
        "OpenBLAS with LAPACK; on a GPU cuSOLVER)");
  decisions::check_step(strategy, options.batch);
  decisions::check_float8(model, strategy, options.batch);
  if (decisions::uses_host(strategy))
    worker.host_memory =
        std::make_unique<Memory>(device.host(strategy.offload.pinned), world.rank(),
                                 MemoryOptions{.poison = options.memory.poison});
  model_ = std::make_unique<Model>(worker, model, numerics, strategy,
                                   group_of(options, *shards_, *replicas_));
  worker.prefix.clear();
  const auto tokens = [&](const char* name) {
    return worker.memory.allocate(name, Category::activations, decisions::kTokenIds,
                                  {worker.tokens()});
  };
  ids_ = tokens(decisions::kIds);
  targets_ = tokens(decisions::kTargets);
  worker.workspace = worker.memory.allocate(decisions::kWorkspace, Category::workspace,
                                            DType::uint8, {model_->workspace().value()});
  scalar_block_ = worker.memory.allocate(decisions::kScalarBlock, Category::workspace, DType::uint8,
                                         {decisions::kScalars.value()});
  scalars_ = std::make_unique<Scalars>(scalar_block_.view());
  if (strategy.offload.optimizer)
    host_scalar_block_ = worker.host_memory->allocate(decisions::kHostScalars, Category::workspace,
                                                      DType::uint8, {decisions::kScalars.value()});
  allocate_staging();
  scaler_ = std::make_unique<LossScaler>(worker.regime.loss_scaling, options.loss_scaler);
}

Trainer::~Trainer() = default;

// The communicator's block, where it needs one: reductions follow one another.
void Trainer::allocate_staging() {
  if (!world_.stages()) return;
  Bytes largest;
  for (const shard::Unit* unit : model_->trained_units())
    largest = std::max(largest, unit->largest_message());
  staging_ = worker_->memory.allocate(decisions::kStaging, Category::communication, DType::uint8,
                                      {largest.value()});
  if (!staging_) return;
  shards_->use_staging(staging_.view());
  replicas_->use_staging(staging_.view());
}

// The step's tokens; how many of all ranks' count in the loss.
std::int64_t Trainer::read_batches(const Tokens& tokens) {
  batches_.resize(static_cast<std::size_t>(options_.batch.grad_accum));
  std::int64_t counted = 0;
  for (std::size_t micro = 0; micro < batches_.size(); ++micro) {
    HostBatch& batch = batches_[micro];
    batch.ids.resize(static_cast<std::size_t>(worker_->tokens()));
    batch.targets.resize(batch.ids.size());
    tokens(step_, static_cast<std::int64_t>(micro), batch.ids, batch.targets);
    counted += std::count_if(batch.targets.begin(), batch.targets.end(),
                             [](std::int32_t id) { return id != kernels::kIgnoreIndex; });
  }
  double all = 0;
  for (const double ranks : world_.gather(static_cast<double>(counted))) all += ranks;
  return static_cast<std::int64_t>(all);
}

void Trainer::place(const HostBatch& batch) {
  worker_->device.copy_in(ids_.view().data, batch.ids.data(), ids_.bytes());
  worker_->device.copy_in(targets_.view().data, batch.targets.data(), targets_.bytes());
}

void Trainer::optimize(float learning_rate) {
  Worker& worker = *worker_;
  worker.prefix.clear();
  worker.phase = Phase::optimizer;
  {
    Op op(worker, decisions::kGradientNorm);
    gradient_norm(worker, model_->trained_units(), *shards_, options_.optimizer.max_norm,
                  static_cast<float>(scaler_->scale()), *scalars_);
  }
  const Scalars where = host_scalar_block_ ? Scalars(host_scalar_block_.view()) : *scalars_;
  if (host_scalar_block_)
    worker.device.copy_out(host_scalar_block_.view().data, scalar_block_.view().data,
                           scalar_block_.bytes());
  OptimizerStep step = next_step(learning_rate);
  step.factor = where.factor();
  step.overflow = where.overflow();
  for (shard::Unit* unit : model_->trained_units()) model_->step(*unit, step);
}

OptimizerStep Trainer::next_step(float learning_rate) const {
  return {.options = options_.optimizer, .learning_rate = learning_rate, .number = taken_ + 1};
}

// Loss, norm and overflow, read back; the scale of the next step's loss.
void Trainer::read_scalars(bool optimizes, StepResult& result) {
  const auto read = [&](auto& value, TensorView from) {
    worker_->device.copy_out(&value, from.data, storage(Count(1), from.dtype));
  };
  double loss = 0;
  read(loss, scalars_->loss());
  for (const double ranks : world_.gather(loss)) result.loss += ranks;
  result.loss_scale = scaler_->scale();
  if (!optimizes) return;
  float norm = 0;
  std::int32_t overflow = 0;
  if (!options_.strategy.optimizer_in_backward) {
    read(norm, scalars_->norm());
    read(overflow, scalars_->overflow());
  }
  result.grad_norm = norm;
  result.skipped = overflow != 0;
  if (!result.skipped) ++taken_;
  scaler_->update(result.skipped);
}

StepResult Trainer::run(const Tokens& tokens, float learning_rate, bool optimizes) {
  using Clock = std::chrono::steady_clock;
  Worker& worker = *worker_;
  const std::int64_t counted = read_batches(tokens);
  StepResult result;
  result.tokens =
      checked_multiply(checked_multiply(worker.tokens(), options_.batch.grad_accum), world_.size());
  const double mean = counted > 0 ? 1 / static_cast<double>(counted) : 0;
  const LossFactors factors{static_cast<float>(mean * scaler_->scale()), mean};
  worker.step = static_cast<std::uint32_t>(step_);
  worker.device.synchronize();
  const Clock::time_point begin = Clock::now();
  worker.memory.ledger().begin_step();
  if (worker.host_memory) worker.host_memory->ledger().begin_step();
  worker.device.fill_bytes(scalars_->loss().data, 0, storage(Count(1), DType::fp64));
  const bool in_backward = options_.strategy.optimizer_in_backward;
  const OptimizerStep step = next_step(learning_rate);
  for (std::int64_t micro = 0; micro < options_.batch.grad_accum; ++micro) {
    place(batches_[static_cast<std::size_t>(micro)]);
    worker.first_sequence = (micro * world_.size() + world_.rank()) * worker.sequences;
    model_->train({std::as_const(ids_).view(), std::as_const(targets_).view(), micro,
                   options_.batch.grad_accum, factors, in_backward && optimizes ? &step : nullptr},
                  scalars_->loss());
  }
  if (optimizes && !in_backward) optimize(learning_rate);
  worker.device.synchronize();
  result.memory = worker.memory.ledger().end_step();
  if (worker.host_memory) result.host_memory = worker.host_memory->ledger().end_step();
  read_scalars(optimizes, result);
  result.seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  ++step_;
  return result;
}

void Trainer::load(const ReadParameter& read, const ReadPacked& packed) {
  naming_what_lives(worker_, [&] { model_->load(read, packed); });
}

TrainerCounts Trainer::counts() const {
  return {step_, taken_, scaler_->scale(), scaler_->good_steps()};
}

void Trainer::restore(const TrainerCounts& counts) {
  step_ = counts.steps;
  taken_ = counts.taken;
  scaler_->restore(counts.loss_scale, counts.good_steps);
}

StepResult Trainer::step(const Tokens& tokens, float learning_rate) {
  return naming_what_lives(worker_, [&] { return run(tokens, learning_rate, true); });
}

StepResult Trainer::gradients_only(const Tokens& tokens) {
  return naming_what_lives(worker_, [&] { return run(tokens, 0, false); });
}

void Trainer::drop_gradients() {
  worker_->phase = Phase::optimizer;
  for (shard::Unit* unit : model_->trained_units()) {
    worker_->prefix = unit->prefix();
    Op op(*worker_, "drop_gradients");
    unit->drop_gradients(op);
  }
}

std::vector<float> Trainer::logits(std::span<const std::int32_t> ids) {
  check(ids.size() == static_cast<std::size_t>(worker_->tokens()), ErrorKind::bad_input,
        "logits of one micro-batch");
  worker_->device.copy_in(ids_.view().data, ids.data(), ids_.bytes());
  Tensor logits = model_->logits(std::as_const(ids_).view());
  const std::int64_t elements = logits.view().elements();
  Tensor wide = worker_->memory.allocate("logits.fp32", Category::logits, DType::fp32, {elements});
  worker_->kernels.cast(logits.view().as({elements}), wide.view());
  std::vector<float> values(static_cast<std::size_t>(elements));
  worker_->device.copy_out(values.data(), wide.view().data, wide.bytes());
  const std::int64_t stride = logits.view().shape[1], vocabulary = model_->vocabulary();
  for (std::int64_t row = 0; row < worker_->tokens(); ++row)
    std::copy_n(values.begin() + row * stride, vocabulary, values.begin() + row * vocabulary);
  values.resize(static_cast<std::size_t>(worker_->tokens() * vocabulary));
  return values;
}

}  // namespace plimsoll::runtime
