#include "planner/search/family.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "models/decisions/mesh.h"
#include "planner/search/axes.h"

namespace plimsoll::planner::search {

namespace {
// A plan with less room than so many hundredths of the card is no plan to sign while a roomier one
// is as fast: it leaves less than what people log, evaluate and checkpoint with.
constexpr std::int64_t kTight = 3;
constexpr std::int64_t kMostBatch = 1 << 12;
constexpr std::int64_t kContextStep = 256;  // tokens
constexpr std::int64_t kMostContext = 1 << 22;
}  // namespace

std::int64_t level(const Space& space, Bytes counted) {
  if (!space.usable()) return 0;
  return static_cast<std::int64_t>(std::ceil(100 * counted.real() / space.usable()->real()));
}

std::int64_t tightness(const Space& space, Bytes counted) {
  return std::max<std::int64_t>(0, level(space, counted) - (100 - kTight));
}

bool Family::by_size() const {
  return batches_.empty();
}

Family::Family(const Scope& scope, const Space& space, Setting setting, std::uint32_t index,
               Bytes states)
    : scope_(&scope), space_(&space), setting_(std::move(setting)), index_(index) {
  const std::int64_t longest = scope.base.model->max_positions;
  if (scope.objective == Objective::context) {
    count_ = static_cast<std::size_t>((longest > 0 ? longest : kMostContext) / kContextStep);
    if (scope.global_batch && !divide(*scope.global_batch)) count_ = 0;
  } else if (scope.objective == Objective::batch && !scope.global_batch) {
    count_ = kMostBatch;
  } else {
    batches_ = space.batches(setting_);
  }
  all_ = by_size() ? count_ : batches_.size();
  const std::int64_t most = space.most_tokens(setting_, states);
  if (!scope.exhaustive && !batches_.empty())  // the first stays, to be told how much is missing
    batches_ = batches_.first(static_cast<std::size_t>(
        1 + std::count_if(batches_.begin() + 1, batches_.end(),
                          [&](const models::Batch& b) { return b.tokens() <= most; })));
  if (by_size() && count_ > 0 && !scope.exhaustive) {
    const std::int64_t each = scope.objective == Objective::context
                                  ? kContextStep * setting_.batch.micro_batch
                                  : setting_.batch.seq_len;
    const auto most_size = static_cast<std::size_t>(std::max<std::int64_t>(1, most / each));
    count_ = std::min(count_, most_size);
  }
  if (!by_size()) {
    count_ = batches_.size();
    rank_by_speed();
  }
  cap_.fill(count_);
  exhausted_ = count_ == 0;
  if (!exhausted_) bound_ = optimistic(in_order(0));
}

// One row at a time, unless the user says how many: the rest is accumulated. False: the ranks' rows
// do not divide it.
bool Family::divide(std::int64_t global_batch) {
  models::Batch& batch = setting_.batch;
  if (!scope_->fixed.contains("micro-batch")) batch.micro_batch = 1;
  const std::int64_t rows =
      batch.micro_batch * models::decisions::mesh_of(setting_.strategy).data().ranks;
  batch.grad_accum = global_batch / rows;
  return global_batch % rows == 0;
}

void Family::rank_by_speed() {
  throughputs_ = space_->throughputs(setting_, batches_);
  order_.resize(count_);
  std::iota(order_.begin(), order_.end(), std::uint16_t{0});
  if (scope_->objective == Objective::memory) return;
  std::stable_sort(order_.begin(), order_.end(), [&](std::uint16_t a, std::uint16_t b) {
    return throughputs_[a].tokens_per_second > throughputs_[b].tokens_per_second;
  });
}

std::size_t Family::in_order(std::size_t at) const {
  return by_size() ? count_ - 1 - at : order_[at];
}

models::Batch Family::batch(std::size_t index) const {
  if (!by_size()) return batches_[index];
  models::Batch batch = setting_.batch;
  const auto size = static_cast<std::int64_t>(index) + 1;
  (scope_->objective == Objective::context ? batch.seq_len : batch.micro_batch) =
      scope_->objective == Objective::context ? size * kContextStep : size;
  return batch;
}

Setting Family::point(std::size_t index) const {
  Setting s = setting_;
  s.batch = batch(index);
  return s;
}

Throughput Family::throughput(std::size_t index) const {
  return by_size() ? space_->throughput(setting_, batch(index)) : throughputs_[index];
}

// Points of one class have one structure of program: memory is monotone among them.
std::size_t Family::class_of(std::size_t index) const {
  const std::int64_t accum = by_size() ? 1 : batches_[index].grad_accum;
  return static_cast<std::size_t>(std::min<std::int64_t>(accum, kClasses - 1));
}

// `need`: where it is known; else the best that it can be.
Rank Family::rank(std::size_t index, const Throughput& throughput, const Need* need) const {
  Rank r{
      .concession = setting_.concession, .speed = -throughput.tokens_per_second, .family = index_};
  const auto gpus = static_cast<double>(setting_.strategy.gpus);
  if (scope_->objective == Objective::gpus) r.first = gpus;
  if (scope_->objective == Objective::context) r.first = -static_cast<double>(index + 1);
  if (scope_->objective == Objective::batch && by_size())
    r.first = -static_cast<double>(index + 1) * gpus;
  if (ties_ == nullptr) return r;
  const Effort asked = effort(setting_);
  r.steps = ties_->steps_below(Ties::counted(setting_, throughput.tokens_per_second));
  r.same_kind_steps =
      ties_->steps_in_kind(Ties::counted_in_kind(setting_, throughput.tokens_per_second));
  r.kind = asked.kind;
  r.knobs = asked.knobs;
  if (need == nullptr) return r;
  r.need = level(*space_, need->counted());
  r.tight = tightness(*space_, need->counted());
  const auto learnt =
      std::ranges::find(tight_, index, &std::pair<std::size_t, std::int64_t>::first);
  if (learnt != tight_.end()) r.tight = std::max(r.tight, learnt->second);
  return r;
}

// Not worse than the rank of `index`, without asking for what is slow to know.
Rank Family::optimistic(std::size_t index) const {
  constexpr double best = -std::numeric_limits<double>::infinity();
  const bool by_memory = scope_->objective == Objective::memory;
  Rank r = rank(index, by_size() || by_memory ? Throughput{} : throughputs_[index], nullptr);
  if (by_memory) r.first = best;
  if (by_size() || by_memory)
    r.steps = r.same_kind_steps = std::numeric_limits<std::int64_t>::min();
  if (by_size() || by_memory || ties_ != nullptr) r.speed = best;
  return r;
}

const Need* Family::need(std::size_t index, Evaluator& evaluator) {
  for (const auto& [i, need] : needs_)
    if (i == index) return &need;
  const std::optional<Need> need = evaluator.need(setting_, batch(index));
  ++evaluated_;
  if (!need) {
    refusal_ = evaluator.refusal();
    exhausted_ = true;
    return nullptr;
  }
  return &needs_.emplace_back(index, *need).second;
}

bool Family::fits(const Need& need) const {
  return !space_->usable() || need.counted() <= *space_->usable();
}

bool Family::hopeless(const Need& need) const {
  return space_->usable() && need.monotone() > *space_->usable();
}

// `high` is hopeless. The first hopeless point of its class from `low` on becomes the cap.
void Family::find_cap(std::size_t low, std::size_t high, Evaluator& evaluator) {
  std::size_t& cap = cap_[class_of(high)];
  bool lowest = true;  // most families fit nowhere or almost everywhere: ask the low end first
  while (low < high) {
    const std::size_t middle = lowest ? low : low + (high - low) / 2;
    lowest = false;
    const Need* n = need(middle, evaluator);
    if (n == nullptr) return;
    if (hopeless(*n))
      high = middle;
    else
      low = middle + 1;
  }
  cap = high;
}

// The smallest point of index's class that still matters, from `from` on in the order.
std::size_t Family::least_eligible(std::size_t from, std::size_t index,
                                   const Rank* threshold) const {
  std::size_t least = index;
  if (by_size()) {
    least = 0;
    if (threshold == nullptr) return least;
    std::size_t high = index;
    while (least < high) {  // ranks fall with the size
      const std::size_t middle = least + (high - least) / 2;
      if (optimistic(middle) < *threshold)
        high = middle;
      else
        least = middle + 1;
    }
    return least;
  }
  for (std::size_t at = from; at < count_; ++at) {
    const std::size_t i = in_order(at);
    if (threshold != nullptr && !(optimistic(i) < *threshold)) break;
    if (class_of(i) == class_of(index)) least = std::min(least, i);
  }
  return least;
}

void Family::resolve_by_rank(const Rank* threshold, Evaluator& evaluator) {
  for (; cursor_ < count_ && !exhausted_; ++cursor_) {
    const std::size_t index = in_order(cursor_);
    if (index >= cap_[class_of(index)]) {
      if (by_size()) cursor_ = count_ - 1 - cap_[class_of(index)];  // the last one above the cap
      continue;
    }
    bound_ = optimistic(index);
    if (threshold != nullptr && !(bound_ < *threshold)) return;
    const Need* n = need(index, evaluator);
    if (n == nullptr) return;
    if (fits(*n)) {
      const Need found = *n;
      const Throughput speed = throughput(index);
      const Rank r = rank(index, speed, &found);
      bound_ = r;
      if (threshold != nullptr && !(r < *threshold)) return;
      found_ = std::make_unique<Found>(Found{point(index), r, found, speed, {}});
      found_index_ = index;
      return;
    }
    if (hopeless(*n)) find_cap(least_eligible(cursor_, index, threshold), index, evaluator);
    if (cap_[class_of(index)] <= index) --cursor_;  // looked at again, as capped
  }
  exhausted_ = exhausted_ || cursor_ >= count_;
}

// From the cursor on, of points that are as many steps below the fastest: the best that fits, and
// its place.
std::optional<std::pair<Rank, std::size_t>> Family::best_of_equals(std::size_t end,
                                                                   const Rank* threshold,
                                                                   Evaluator& evaluator) {
  std::optional<std::pair<Rank, std::size_t>> best;
  for (std::size_t begin = cursor_; begin < end && !(best && best->first.tight == 0);) {
    const std::int64_t steps = optimistic(order_[begin]).same_kind_steps;
    std::size_t next = begin + 1;
    while (next < end && optimistic(order_[next]).same_kind_steps == steps) ++next;
    look_at_equals(begin, next, threshold, evaluator, best);
    if (exhausted_) return std::nullopt;
    begin = next;
  }
  return best;
}

// Likewise, of points whose speeds are equal for their kind.
void Family::look_at_equals(std::size_t begin, std::size_t end, const Rank* threshold,
                            Evaluator& evaluator,
                            std::optional<std::pair<Rank, std::size_t>>& best) {
  std::vector<std::uint16_t> sizes(order_.begin() + static_cast<std::ptrdiff_t>(begin),
                                   order_.begin() + static_cast<std::ptrdiff_t>(end));
  std::ranges::sort(sizes);
  std::array<bool, kClasses> closed{};  // nothing larger of the class can be better
  for (const std::size_t i : sizes) {
    const std::size_t c = class_of(i);
    if (closed[c] || i >= cap_[c]) continue;
    const Need* n = need(i, evaluator);
    if (n == nullptr) return;
    if (hopeless(*n)) {
      find_cap(least_eligible(cursor_, i, threshold), i, evaluator);
      if (exhausted_) return;
      continue;
    }
    Rank least = optimistic(i);
    least.need = level(*space_, n->monotone());
    least.tight = tightness(*space_, n->monotone());
    closed[c] = best && best->first < least;
    if (!fits(*n) || is_rejected(i)) continue;
    const Rank r = rank(i, throughputs_[i], n);
    if (!best || r < best->first) best = {r, i};
  }
}

void Family::resolve_by_ties(const Rank* threshold, Evaluator& evaluator) {
  while (cursor_ < count_ && !exhausted_) {
    bound_ = optimistic(order_[cursor_]);
    if (threshold != nullptr && !(bound_ < *threshold)) return;
    std::size_t end = cursor_ + 1;
    while (end < count_ && optimistic(order_[end]).steps == bound_.steps) ++end;
    const auto best = best_of_equals(end, threshold, evaluator);
    if (exhausted_) return;
    if (best) {
      bound_ = best->first;
      if (threshold != nullptr && !(bound_ < *threshold)) return;
      found_index_ = best->second;
      found_ = std::make_unique<Found>(Found{.setting = point(found_index_),
                                             .rank = bound_,
                                             .need = *need(found_index_, evaluator),
                                             .throughput = throughputs_[found_index_]});
      return;
    }
    cursor_ = end;
  }
  exhausted_ = true;
}

void Family::resolve_by_memory(const Rank* threshold, Evaluator& evaluator) {
  std::optional<Found> best;
  std::array<bool, kClasses> closed{};  // nothing larger of the class can be better
  for (std::size_t i = 0; i < count_; ++i) {
    if (closed[class_of(i)]) continue;
    const Need* n = need(i, evaluator);
    if (n == nullptr) return;
    // Ranked by least(): its part that grows.
    closed[class_of(i)] = hopeless(*n) || (best && n->least() - n->scratch > best->need.least());
    if (!fits(*n) || is_rejected(i)) continue;
    const Rank r{.concession = setting_.concession,
                 .first = n->least().real(),
                 .speed = -throughputs_[i].tokens_per_second,
                 .family = index_};
    if (best && !(r < best->rank)) continue;
    best = Found{point(i), r, *n, throughput(i), {}};
    found_index_ = i;
  }
  if (!best) {
    exhausted_ = true;
    return;
  }
  bound_ = best->rank;
  if (threshold == nullptr || best->rank < *threshold)
    found_ = std::make_unique<Found>(*std::move(best));
}

void Family::resolve(const Rank* threshold, Evaluator& evaluator) {
  if (exhausted_ || found_) return;
  if (scope_->objective == Objective::memory)
    resolve_by_memory(threshold, evaluator);
  else if (ties_ != nullptr && !by_size())
    resolve_by_ties(threshold, evaluator);
  else
    resolve_by_rank(threshold, evaluator);
}

bool Family::is_rejected(std::size_t index) const {
  return std::ranges::find(rejected_, index) != rejected_.end();
}

void Family::reject() {
  rejected_.push_back(found_index_);
  found_.reset();
  if (scope_->objective == Objective::memory) return;
  if (ties_ == nullptr || by_size()) ++cursor_;  // else others are as fast
  exhausted_ = cursor_ >= count_;
  if (!exhausted_) bound_ = optimistic(in_order(cursor_));
}

bool Family::learn_tightness(std::int64_t tightness) {
  if (tightness == 0) return false;
  tight_.emplace_back(found_index_, tightness);
  if (ties_ == nullptr || scope_->objective == Objective::memory || found_->rank.tight >= tightness)
    return false;
  if (by_size()) {  // its rank is its size before all else
    found_->rank.tight = tightness;
    return true;
  }
  found_.reset();
  bound_ = optimistic(order_[cursor_]);
  return true;
}

// What is known of points stays.
void Family::rank_by(const Ties* ties) {
  ties_ = ties;
  found_.reset();
  cursor_ = 0;
  exhausted_ = count_ == 0 || !refusal_.empty();
  if (!exhausted_) bound_ = optimistic(in_order(0));
}

}  // namespace plimsoll::planner::search
