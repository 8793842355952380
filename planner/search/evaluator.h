// One point of the space, evaluated: its memory by the step's program, its throughput by the time
// model.
#pragma once

#include <array>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "planner/memory/framework_overhead.h"
#include "planner/program/peak.h"
#include "planner/search/cached_programs.h"
#include "planner/search/concessions.h"
#include "planner/search/scope.h"
#include "planner/search/setting.h"
#include "planner/time/step_time.h"

namespace plimsoll::planner::search {

struct Need {
  Bytes peak;  // allocated at once, over the whole step
  Bytes overhead;  // context, communicators
  // The largest allocation inside one op. Less this, the need is monotone in micro-batch and
  // sequence while the program's structure stays: every tensor is. (Inside an op PyTorch's column
  // sums may take less for more rows.)
  Bytes scratch;
  Bytes states;  // parameters and optimizer states: whatever the batch and the activations are
  Bytes overhead_counted;  // `overhead`, or its high end where the scope asks for that
  std::int64_t reserved_more = 0;  // thousandths, likewise
  Bytes least() const { return peak + overhead; }  // of device memory; reserved is no less
  // What must be usable for `allocated` bytes to fit as the scope wants it.
  Bytes counted(Bytes allocated) const {
    return allocated + Bytes(allocated.value() / 1000 * reserved_more) + overhead_counted;
  }
  Bytes counted() const { return counted(peak); }
  Bytes monotone() const { return counted(peak - scratch); }
};

struct Throughput {
  double tokens_per_second = 0;  // of all GPUs
  bool known = false;  // otherwise the figure only orders settings: tokens per operation and GPU
};

// The model's parts and the clock for each value of Setting::parts, with and without a gradient
// that checkpoints force, prepared once, when they are first asked for, and read by all threads.
class Space {
 public:
  explicit Space(const Scope& scope);
  const ModelParts& parts(const Setting& setting) const { return *prepared(setting).parts; }
  Throughput throughput(const Setting& family, const models::Batch& batch) const;
  std::vector<Throughput> throughputs(const Setting& family,
                                      std::span<const models::Batch> batches) const;
  std::optional<StepTime> time(const Setting& setting) const;
  // Tokens per second of one GPU that only computes, with each of the batches; nothing where the
  // stack refuses the setting.
  std::vector<double> compute_speeds(const Setting& setting,
                                     std::span<const models::Batch> batches) const;
  // A micro-batch of more tokens than this cannot fit, whatever is chosen beside the family.
  // `states`: parameters and optimizer states that are known to stay.
  std::int64_t most_tokens(const Setting& family, Bytes states = Bytes(0)) const;
  // As axes.h says, smallest first; lists are kept, since most families have the same.
  std::span<const models::Batch> batches(const Setting& family) const;
  // What one GPU may use, the cluster's reserve taken off; nothing: no end.
  std::optional<Bytes> usable() const { return usable_; }

 private:
  struct Prepared {
    std::once_flag once;
    std::optional<ModelParts> parts;
    std::optional<TimeModel> time;
    std::int64_t kept_layers = 0;  // whose input waits for the backward pass
  };
  const Prepared& prepared(const Setting& setting) const;

  const Scope& scope_;
  mutable std::mutex mutex_;  // of the lists
  // By what they follow from: the family's batch, its GPUs.
  mutable std::map<std::array<std::int64_t, 4>, std::vector<models::Batch>> batches_;
  mutable std::array<Prepared, 2 * kParts> prepared_;
  std::optional<Bytes> usable_;
};

// Reuses its memory from one point to the next; one for each thread.
class Evaluator {
 public:
  // `known`: shared by all threads; none: every strategy gets a program of its own.
  Evaluator(const Scope& scope, const Space& space, KnownSteps* known = nullptr);

  // Nothing where the stack refuses the setting; `refusal` then says why.
  std::optional<Need> need(const Setting& family, const models::Batch& batch);
  const std::string& refusal() const { return refusal_; }

 private:
  const FrameworkOverhead& overhead(const models::Strategy& strategy);
  std::unique_ptr<CachedProgram> written(const Setting& setting, const models::Batch& batch,
                                         Peak& peak);
  bool resized(CachedProgram& cached, const models::Batch& batch, Peak& peak);
  void name(const Setting& setting);
  Peak peak_of_own(const Setting& setting, const models::Batch& batch);
  Peak peak_of(const Setting& setting, const models::Batch& batch);

  const Space& space_;
  KnownSteps* known_;
  models::Strategy strategy_;  // the one that was asked for last
  SectionCache::Ids ids_;  // its
  models::Strategy shape_;
  std::int64_t shards_ = 1;
  bool has_ids_ = false;
  std::unique_ptr<CachedProgram> own_;  // where nothing is shared
  models::StepProgram::Lengths lengths_;  // of the program that was written last
  Question question_;
  PeakFinder finder_;
  std::map<std::tuple<models::Stack, std::int64_t, int>, FrameworkOverhead> overhead_;
  Overheads overheads_;
  std::string refusal_;
};

}  // namespace plimsoll::planner::search
