#include "planner/all_ranks.h"

#include <algorithm>
#include <tuple>

#include "planner/memory/fitting.h"
#include "planner/program/peak.h"

namespace plimsoll::planner {

using models::Category;
using reports::RankKind;

namespace {

// What every rank is planned with.
struct World {
  const Question& question;
  const ModelParts& parts;
  const Capacity& capacity;
  const FrameworkOverhead& overhead;
};

// One rank's step. Not to be copied: `fitting` refers to its parts.
class RankStep {
 public:
  RankStep(const World& world, std::int64_t rank, Replays& replays) : world_(world) {
    step.rank = rank;
    write_step(world.question, world.parts, step);
    PeakFinder finder;
    peak = finder.find(step.program);
    replays_ = rank < 0 ? &replays : &replays.of_rank(rank);
  }

  void unroll_step() { timeline = unroll(step.program); }
  Fitting fitting() const {
    return {step, timeline, peak, world_.capacity, world_.overhead, *replays_};
  }

  StackStep step;
  Peak peak;
  Timeline timeline;

 private:
  const World& world_;
  Replays* replays_ = nullptr;
};

const EqualRanks& kind_of(const std::vector<EqualRanks>& kinds, std::int64_t rank) {
  return *std::ranges::find_if(kinds, [&](const EqualRanks& kind) { return kind.has(rank); });
}

// The kind whose step has the highest peak.
std::size_t highest_kind(const World& world, const std::vector<EqualRanks>& kinds) {
  PeakFinder finder;
  std::size_t highest = 0;
  Bytes peak;
  for (std::size_t i = 0; i < kinds.size(); ++i) {
    StackStep step;
    step.rank = kinds[i].first();
    step.program_only = true;
    write_step(world.question, world.parts, step);
    const Bytes found = finder.find(step.program).bytes;
    if (found <= peak) continue;
    peak = found;
    highest = i;
  }
  return highest;
}

// The kinds that are planned: all, or where a partition cuts the model so that nearly every rank of
// a large world is a kind of its own, that of `step`, the one with the highest peak, and others
// evenly among them; each stands for those that follow it.
std::vector<EqualRanks> planned_kinds(const World& world, const StackStep& step) {
  const std::vector<EqualRanks>& all = step.ranks;
  if (all.size() <= kMostKinds) return all;
  const std::size_t highest = highest_kind(world, all);
  std::vector<EqualRanks> kinds;
  std::size_t even = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const bool chosen = i == even * all.size() / (kMostKinds - 2);
    if (chosen) ++even;
    if (chosen || i == highest || all[i].has(step.rank))
      kinds.push_back(all[i]);
    else
      kinds.back().spans.insert(kinds.back().spans.end(), all[i].spans.begin(), all[i].spans.end());
  }
  return kinds;
}

// One rank of each kind but that of `step`.
std::vector<std::int64_t> others(const std::vector<EqualRanks>& kinds, std::int64_t rank) {
  std::vector<std::int64_t> ranks;
  for (const EqualRanks& kind : kinds)
    if (!kind.has(rank)) ranks.push_back(kind.first());
  return ranks;
}

RankKind figures_of(const RankStep& rank, const std::vector<EqualRanks>& kinds,
                    const Reserved& allocator) {
  RankKind kind;
  kind.rank = rank.step.rank;
  kind.spans = kind_of(kinds, rank.step.rank).spans;
  kind.peak = allocator.allocated;
  kind.at_peak = categories_at(rank.step.program, rank.timeline, rank.timeline.peak_step);
  // Blocks that were handed out whole although the request was up to 1 MiB smaller.
  kind.at_peak[static_cast<std::size_t>(Category::temporaries)] +=
      std::max(Bytes(0), allocator.allocated - rank.peak.bytes);
  kind.states = rank.step.states;
  kind.reserved = allocator.reserved;
  return kind;
}

// Kinds that come out equal are one; ranks that neighbour each other are one span.
void fold(std::vector<RankKind>& kinds) {
  std::vector<RankKind> out;
  for (RankKind& kind : kinds) {
    const auto same = std::ranges::find_if(out, [&](const RankKind& other) {
      return other.peak == kind.peak && other.at_peak == kind.at_peak &&
             other.reserved == kind.reserved && other.states.parameters == kind.states.parameters &&
             other.states.gradients == kind.states.gradients &&
             other.states.optimizer == kind.states.optimizer;
    });
    if (same == out.end())
      out.push_back(std::move(kind));
    else
      same->spans.insert(same->spans.end(), kind.spans.begin(), kind.spans.end());
  }
  for (RankKind& kind : out) {
    std::ranges::sort(kind.spans, {}, &reports::RankSpan::first);
    std::vector<reports::RankSpan> joined;
    kind.count = 0;
    for (const reports::RankSpan& span : kind.spans) {
      kind.count += span.last - span.first + 1;
      if (!joined.empty() && joined.back().last + 1 == span.first)
        joined.back().last = span.last;
      else
        joined.push_back(span);
    }
    kind.spans = std::move(joined);
  }
  kinds = std::move(out);
}

// The one that is shown first, then in order of their ranks.
void order(std::int64_t shown, std::vector<RankKind>& kinds) {
  std::ranges::sort(kinds, {},
                    [&](const RankKind& kind) { return std::pair(kind.rank != shown, kind.rank); });
}

}  // namespace

AllRanks plan_all_ranks(const Question& question, const ModelParts& parts, const Capacity& capacity,
                        const FrameworkOverhead& overhead, Replays& replays) {
  const World world{question, parts, capacity, overhead};
  AllRanks out;
  std::vector<EqualRanks> kinds;
  bool runs = true;
  const auto take = [&](RankStep&& rank) {
    rank.unroll_step();
    const Fitting fitting = rank.fitting();
    const Reserved allocator = fitting.needed();
    out.kinds.push_back(figures_of(rank, kinds, allocator));
    const reports::HighEnd high = fitting.at_high_end();
    if (capacity.usable && overhead.typical.total() + allocator.reserved > *capacity.usable) {
      const std::optional<Reserved> flushing = fitting.flushing();
      runs = runs && flushing;
      if (flushing && (!out.flushing || flushing->reserved > out.flushing->reserved))
        out.flushing = flushing;
    }
    out.reserved = std::max(out.reserved, allocator.reserved);
    const bool fits = (out.kinds.size() == 1 || out.high_end.fits) && high.fits;
    if (high.device() > out.high_end.device()) out.high_end = high;
    out.high_end.fits = fits;
    const bool higher = std::tuple(allocator.allocated, allocator.reserved) >
                        std::tuple(out.allocator.allocated, out.allocator.reserved);
    if (out.kinds.size() > 1 && !higher) return;
    out.allocator = allocator;
    out.peak = rank.peak;
    out.timeline = std::move(rank.timeline);
    out.step = std::move(rank.step);
  };
  RankStep first(world, -1, replays);
  kinds = planned_kinds(world, first.step);
  out.kinds_in_all = first.step.ranks.size();
  const std::vector<std::int64_t> others_of = others(kinds, first.step.rank);
  take(std::move(first));
  for (const std::int64_t rank : others_of) take(RankStep(world, rank, replays));
  if (!runs) out.flushing.reset();
  order(out.step.rank, out.kinds);
  fold(out.kinds);
  return out;
}

Fit all_ranks_fit(const Question& question, const ModelParts& parts, const Capacity& capacity,
                  const FrameworkOverhead& overhead, Overheads overheads, Replays& replays) {
  const World world{question, parts, capacity, overhead};
  Fit out{.fits = true};
  const auto take = [&](RankStep& rank) {
    if (capacity.usable && rank.peak.bytes + overhead.most() > *capacity.usable) return false;
    rank.unroll_step();
    const Fitting fitting = rank.fitting();
    if (!fitting.fits(overheads)) return false;
    const Reserved needed = fitting.needed();
    const bool high = overheads == Overheads::high_end && !overhead.range;
    out.peak = std::max(out.peak, needed.allocated);
    if (capacity.usable)
      out.device = std::max(
          out.device, high ? fitting.at_high_end().device() : needed.reserved + overhead.most());
    return true;
  };
  RankStep first(world, -1, replays);
  if (!take(first)) return {};
  for (const std::int64_t rank : others(planned_kinds(world, first.step), first.step.rank)) {
    RankStep other(world, rank, replays);
    if (!take(other)) return {};
  }
  return out;
}

}  // namespace plimsoll::planner
