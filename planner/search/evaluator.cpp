#include "planner/search/evaluator.h"

#include <cmath>
#include <limits>

#include "models/decisions/layer.h"
#include "models/decisions/mesh.h"
#include "planner/program/size_recorder.h"
#include "planner/search/axes.h"
#include "planner/search/concessions.h"
#include "planner/search/shape.h"
#include "planner/stack_step.h"
#include "planner/stacks/stack_info.h"
#include "planner/time/hardware_flops.h"

namespace plimsoll::planner::search {

namespace {
// A stack whose adapters force a gradient of the input (model_parts.h).
models::Stack of_transformers() {
  return (*std::ranges::find_if(stacks(), [](const StackInfo* s) { return s->runs_transformers; }))
      ->kind;
}
}  // namespace

Space::Space(const Scope& scope) : scope_(scope), usable_(capacity_of(scope.base).usable) {}

const Space::Prepared& Space::prepared(const Setting& setting) const {
  const bool forced = forces_input_gradient(setting.strategy);
  Prepared& out = prepared_[2 * std::size_t{setting.parts} + (forced ? 1 : 0)];
  std::call_once(out.once, [&] {
    models::Strategy strategy = with_parts(scope_.base, setting.parts);
    if (forced) strategy.stack = of_transformers();
    // No axis has checkpoints around some layers: who fixes them fixes them for all settings.
    if (models::leaves_layers(setting.strategy.recompute.kind))
      strategy.recompute = setting.strategy.recompute;
    else
      strategy.recompute = {forced ? models::RecomputeKind::full : models::RecomputeKind::none};
    out.parts = model_parts(*scope_.base.model, strategy);
    for (const LayerRun& run : out.parts->runs) out.kept_layers += run.input_grad ? run.count : 0;
    out.time.emplace(*out.parts, scope_.base.cluster);
  });
  return out;
}

Throughput Space::throughput(const Setting& family, const models::Batch& batch) const {
  return throughputs(family, {&batch, 1}).front();
}

std::span<const models::Batch> Space::batches(const Setting& family) const {
  const models::Batch& b = family.batch;
  const std::lock_guard lock(mutex_);
  const auto [entry, is_new] =
      batches_.try_emplace({b.micro_batch, b.seq_len, b.grad_accum, family.strategy.gpus});
  if (is_new) entry->second = search::batches(scope_, family);
  return entry->second;
}

namespace {

// What a step takes that waits for the host is not predicted.
bool predicts(const TimeModel& model, const models::Strategy& s) {
  return model.knows(s.precision) && !s.offload.any();
}

// False: the stack refuses the strategy, as who asks for its memory will be told.
bool add_throughputs(const TimeModel& model, const models::Strategy& s,
                     std::span<const models::Batch> batches, std::vector<Throughput>& out) {
  try {
    const StrategyTime time(model, s);
    const auto ranks = static_cast<double>(models::decisions::mesh_of(s).data().ranks);
    for (const models::Batch& batch : batches)
      out.push_back({static_cast<double>(checked_multiply(batch.tokens(), batch.grad_accum)) *
                         ranks / time(batch).step,
                     true});
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::unsupported && error.kind() != ErrorKind::bad_input) throw;
    return false;
  }
  return true;
}

// Of equally long rows each has as many, in whatever micro-batch.
std::vector<Throughput> tokens_per_flop(const Scope& scope, const ModelParts& parts,
                                        const models::Strategy& s,
                                        std::span<const models::Batch> batches) {
  Question question = scope.base;
  question.strategy = s;
  std::vector<Throughput> out;
  std::optional<std::int64_t> length;
  double speed = 0;
  for (models::Batch batch : batches) {
    const bool one_row = s.rows == models::Rows::flattened;
    if (one_row || length != batch.seq_len) {
      length = batch.seq_len;
      if (!one_row) batch.micro_batch = 1;
      batch.grad_accum = 1;
      question.batch = batch;
      try {
        const models::decisions::Mesh mesh = models::decisions::mesh_of(s);
        const double all =
            static_cast<double>(batch.tokens()) * static_cast<double>(mesh.data().ranks);
        speed = all * static_cast<double>(mesh.ranks()) / hardware_flops(question, parts);
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::unsupported && error.kind() != ErrorKind::bad_input) throw;
        speed = std::numeric_limits<double>::min();  // refused: as its memory will say
      }
    }
    out.push_back({speed, false});
  }
  return out;
}

}  // namespace

// Where the card's rates are not known, or the host's: its arithmetic alone.
std::vector<Throughput> Space::throughputs(const Setting& family,
                                           std::span<const models::Batch> batches) const {
  const models::Strategy& s = family.strategy;
  const TimeModel& model = *prepared(family).time;
  std::vector<Throughput> out;
  out.reserve(batches.size());
  if (predicts(model, s) && add_throughputs(model, s, batches, out)) return out;
  return tokens_per_flop(scope_, parts(family), s, batches);
}

std::optional<StepTime> Space::time(const Setting& setting) const {
  const TimeModel& time = *prepared(setting).time;
  if (!predicts(time, setting.strategy)) return std::nullopt;
  return time(setting.strategy, setting.batch);
}

std::vector<double> Space::compute_speeds(const Setting& setting,
                                          std::span<const models::Batch> batches) const {
  const TimeModel& model = *prepared(setting).time;
  if (!predicts(model, setting.strategy))
    return std::vector<double>(batches.size(), std::numeric_limits<double>::infinity());
  std::vector<double> speeds;
  try {
    const StrategyTime time(model, setting.strategy);
    for (const models::Batch& batch : batches)
      speeds.push_back(static_cast<double>(batch.tokens()) / time(batch).compute);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::unsupported && error.kind() != ErrorKind::bad_input) throw;
    return {};  // refused
  }
  return speeds;
}

// At the end of forward every checkpoint holds its input: hidden values of 16 bits at least for
// each token, one for each `stride` layers (the last of them may share its place).
std::int64_t Space::most_tokens(const Setting& family, Bytes states) const {
  if (!usable_) return std::numeric_limits<std::int64_t>::max();
  const models::Recompute& r = family.strategy.recompute;
  const std::int64_t layers = prepared(family).kept_layers;
  std::int64_t stride = 1;
  if (r.kind == models::RecomputeKind::every) stride = std::max<std::int64_t>(1, r.layers);
  if (r.kind == models::RecomputeKind::sqrt)
    stride = models::decisions::layers_per_checkpoint(r, layers) + 1;
  const std::int64_t inputs = std::max<std::int64_t>(1, layers / stride - 1);
  return std::max(Bytes(0), *usable_ - states).value() /
         (2 * parts(family).decoder.hidden * inputs);
}

Evaluator::Evaluator(const Scope& scope, const Space& space, KnownSteps* known)
    : space_(space), known_(known), question_(scope.base), overheads_(scope.overheads) {
  question_.detail = Detail::none;
}

// The same for all settings with the same communicators.
const FrameworkOverhead& Evaluator::overhead(const models::Strategy& s) {
  const auto [entry, is_new] = overhead_.try_emplace({s.stack, s.gpus, communicators_of(s)});
  if (is_new) {
    Question question = question_;
    question.strategy = s;
    entry->second = framework_overhead_of(question);
  }
  return entry->second;
}

namespace {
// What decides the structure of the program, roughly.
std::size_t likeness(const Setting& x, const models::Batch& batch) {
  const models::Strategy& s = x.strategy;
  std::size_t h = static_cast<std::size_t>(std::min<std::int64_t>(batch.grad_accum, 3));
  const auto mix = [&](auto value) {
    h = (h ^ static_cast<std::size_t>(value)) * 0x9E3779B97F4A7C15;
  };
  mix(s.stack);
  mix(s.data.zero);
  mix(s.recompute.kind);
  mix(s.recompute.layers);
  mix(s.kernels);
  mix(s.loss);
  mix(s.attention);
  mix(s.optimizer_impl.has_value());
  mix(s.gpus > 1);
  mix(x.parts);
  mix(s.data.shard_group > 0);
  mix(s.precision);
  mix(s.optimizer);
  mix(s.offload.any());
  return h >> 40;
}
}  // namespace

std::unique_ptr<CachedProgram> Evaluator::written(const Setting& setting,
                                                  const models::Batch& batch, Peak& peak) {
  auto cached = std::make_unique<CachedProgram>();
  question_.strategy = setting.strategy;
  cached->shape = shape_;
  cached->ids = ids_;
  cached->shards = shards_;
  cached->of = class_of(batch);
  StackStep step;
  step.program_only = true;
  step.program.reserve(lengths_);
  question_.batch = batch;
  SizeRecorder recorder(batch, step.program, shards_);
  write_step(question_, space_.parts(setting), step);
  cached->sizes = recorder.finish();
  cached->program = std::move(step.program);
  lengths_ = cached->program.lengths();
  peak = finder_.find(cached->program, likeness(setting, batch), cached->known);
  return cached;
}

// Batches of one family differ in sizes: the program stands, and so do its lifetimes. False: this
// batch has another structure.
bool Evaluator::resized(CachedProgram& cached, const models::Batch& batch, Peak& peak) {
  if (!cached.sizes.write(batch, cached.program, cached.shards)) return false;
  peak = finder_.find_resized(cached.program, cached.sizes.equal(), cached.sizes.largest(),
                              cached.known);
  return true;
}

// What is known of the strategy, where it is another than the last.
void Evaluator::name(const Setting& setting) {
  if (has_ids_ && strategy_ == setting.strategy) return;
  strategy_ = setting.strategy;
  shape_ = shape_of(strategy_);
  shards_ = shards_of(strategy_);
  if (known_ != nullptr)
    ids_ = known_->sections.ids_of(strategy_, space_.parts(setting).decoder.tied_head);
  has_ids_ = true;
}

Peak Evaluator::peak_of_own(const Setting& setting, const models::Batch& batch) {
  Peak peak;
  std::unique_ptr<CachedProgram> last = std::move(own_);
  if (last && last->shape == shape_) {
    last->shards = shards_;
    if (resized(*last, batch, peak)) {
      own_ = std::move(last);
      return peak;
    }
  }
  own_ = written(setting, batch, peak);
  return peak;
}

// From sections that are known; what is missing of them comes from the programs that have it and
// stand, else from the strategy's own.
Peak Evaluator::peak_of(const Setting& setting, const models::Batch& batch) {
  name(setting);
  if (known_ == nullptr) return peak_of_own(setting, batch);
  constexpr int kSections = 3;
  Peak peak;
  for (int look = 0; look < kSections; ++look) {
    if (const auto known = known_->sections.find(ids_, batch)) return *known;
    std::unique_ptr<CachedProgram> other = known_->programs.take(
        ids_, shards_, known_->sections.missing(ids_, batch), class_of(batch));
    if (!other || !resized(*other, batch, peak)) break;
    known_->sections.add(other->ids, batch, peak, finder_.section_peaks());
    const bool is_own = other->ids.strategy == ids_.strategy;
    known_->programs.put(std::move(other));
    if (is_own) return peak;
  }
  if (const auto known = known_->sections.find(ids_, batch)) return *known;
  std::unique_ptr<CachedProgram> own = written(setting, batch, peak);
  known_->sections.add(ids_, batch, peak, finder_.section_peaks());
  known_->programs.put(std::move(own));
  return peak;
}

std::optional<Need> Evaluator::need(const Setting& setting, const models::Batch& batch) {
  Peak peak;
  try {
    peak = peak_of(setting, batch);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::unsupported && error.kind() != ErrorKind::bad_input) throw;
    refusal_ = error.message();
    return std::nullopt;
  }
  const FrameworkOverhead& more = overhead(setting.strategy);
  Need need{peak.bytes, more.most(), peak.scratch, peak.states, more.most(), 0};
  if (overheads_ == Overheads::high_end && !more.range) {
    need.overhead_counted = more.high.total();
    need.reserved_more = more.reserved_more;
  }
  return need;
}

}  // namespace plimsoll::planner::search
