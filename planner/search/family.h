// One family of points: everything chosen but the batch. Finds its best point that fits.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "planner/search/evaluator.h"
#include "planner/search/search.h"

namespace plimsoll::planner::search {

// How much of what is usable is needed, in hundredths: less room than that decides nothing. 0 where
// nothing bounds it.
std::int64_t level(const Space& space, Bytes counted);
// So many hundredths lack to room worth the name; 0: none.
std::int64_t tightness(const Space& space, Bytes counted);

class Family {
 public:
  // `states`: as in Space::most_tokens.
  Family(const Scope& scope, const Space& space, Setting setting, std::uint32_t index,
         Bytes states = Bytes(0));

  const Setting& setting() const { return setting_; }
  std::size_t points() const { return count_; }  // that are left to look at
  std::size_t all_points() const { return all_; }
  // No point that is left ranks better.
  const Rank& bound() const { return bound_; }
  bool exhausted() const { return exhausted_; }
  const Found* found() const { return found_.get(); }

  // From now on points that the estimate cannot tell apart rank as `ties` say.
  void rank_by(const Ties* ties);

  // Looks for the best point that fits and ranks better than `threshold`. Afterwards found(), or
  // bound() is worse than the threshold, or exhausted().
  void resolve(const Rank* threshold, Evaluator& evaluator);
  // The found point does not fit after all (the allocator's gaps): the next one is looked for.
  void reject();
  bool is_rejected(std::size_t index) const;
  // With what the allocator reserves the found point is so tight. True: it ranks worse than it did,
  // and others may come before it.
  bool learn_tightness(std::int64_t tightness);
  std::size_t found_index() const { return found_index_; }

  // All points in ascending order of size, for the front and for exhaustive looks.
  Setting point(std::size_t index) const;
  models::Batch batch(std::size_t index) const;
  const Need* need(std::size_t index, Evaluator& evaluator);  // nullptr: refused
  Throughput throughput(std::size_t index) const;
  std::int64_t evaluated() const { return evaluated_; }
  const std::string& refusal() const { return refusal_; }

 private:
  static constexpr std::size_t kClasses = 4;  // by accumulation: 1, 2, 3 and more

  bool divide(std::int64_t global_batch);
  void rank_by_speed();
  bool by_size() const;
  std::size_t in_order(std::size_t at) const;
  std::size_t class_of(std::size_t index) const;
  Rank rank(std::size_t index, const Throughput& throughput, const Need* need) const;
  Rank optimistic(std::size_t index) const;
  void find_cap(std::size_t low, std::size_t high, Evaluator& evaluator);
  std::size_t least_eligible(std::size_t from, std::size_t index, const Rank* threshold) const;
  void resolve_by_rank(const Rank* threshold, Evaluator& evaluator);
  void resolve_by_ties(const Rank* threshold, Evaluator& evaluator);
  std::optional<std::pair<Rank, std::size_t>> best_of_equals(std::size_t end, const Rank* threshold,
                                                             Evaluator& evaluator);
  void look_at_equals(std::size_t begin, std::size_t end, const Rank* threshold,
                      Evaluator& evaluator, std::optional<std::pair<Rank, std::size_t>>& best);
  void resolve_by_memory(const Rank* threshold, Evaluator& evaluator);
  bool fits(const Need& need) const;
  bool hopeless(const Need& need) const;  // and so are all larger points of its class

  const Scope* scope_;
  const Space* space_;
  Setting setting_;
  std::uint32_t index_;
  const Ties* ties_ = nullptr;
  std::size_t all_ = 0, count_ = 0;
  std::span<const models::Batch> batches_;  // empty where points are sizes 1 … count_
  std::vector<Throughput> throughputs_;  // of each
  std::vector<std::uint16_t> order_;  // fastest first
  std::size_t cursor_ = 0;  // into the order
  std::array<std::size_t, kClasses> cap_{};  // first index of a class that cannot fit
  std::vector<std::pair<std::size_t, Need>> needs_;  // what was evaluated
  std::vector<std::size_t> rejected_;
  std::vector<std::pair<std::size_t, std::int64_t>> tight_;  // points, by what is reserved
  Rank bound_;
  bool exhausted_ = false;
  std::unique_ptr<Found> found_;  // large, and there are many families
  std::size_t found_index_ = 0;
  std::int64_t evaluated_ = 0;
  std::string refusal_;
};

}  // namespace plimsoll::planner::search
