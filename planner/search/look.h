// A look at some families together: the best plans of each approach among them.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <optional>
#include <queue>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "planner/memory/reserved.h"
#include "planner/search/axes.h"
#include "planner/search/family.h"
#include "planner/search/workers.h"

namespace plimsoll::planner::search {

// Settings that differ only in these are one approach: the list shows the best of each. Sharding in
// groups is one idea, whatever their size, and so is recomputing layers, whatever the length of a
// checkpoint; attention alone is too little to be one.
using Approach = std::tuple<int, models::Stack, std::int64_t, models::Precision, int, bool, bool>;
Approach approach_of(const Setting& setting);

// A point that was found to fit, allocator and all.
struct Verified {
  Replays replays;
  Bytes peak;
};
using Points = std::map<std::pair<std::size_t, std::size_t>, Verified>;  // family, index in it

class Look {
 public:
  // `report`: after each round.
  Look(const Scope& scope, const Space& space, Workers& workers, std::vector<Evaluator>& evaluators,
       const std::atomic<bool>* stop, std::function<void(const Look&)> report);

  // `states`: as in Space::most_tokens.
  void add(const std::vector<Setting>& settings, const std::vector<Bytes>& states);
  // Until no family can change the first `top` places, and these fit. Where even the best of those
  // that were not tried yet is slower than `least_speed`, in tokens per second, that ends it: it
  // stays unverified.
  void find(std::size_t top, double least_speed = 0);
  // From now on the best is what Ties say, among plans on so many GPUs.
  void rank_by(const Ties& ties, std::int64_t gpus);

  // The best found family of each approach, best first.
  std::vector<std::size_t> places(std::size_t most) const;
  // Those of them that were found to fit.
  std::vector<std::size_t> verified_places(std::size_t most) const;
  std::vector<Family>& families() { return families_; }
  const std::vector<Family>& families() const { return families_; }
  Points& verified() { return verified_; }
  std::int64_t evaluated() const;
  std::int64_t points() const;  // in all

 private:
  bool stopped() const { return stop_ != nullptr && *stop_; }
  void push(std::size_t i);
  std::vector<std::optional<Rank>> best_ranks() const;
  void resolve_all(std::size_t top);
  bool verify(std::size_t top);

  const Scope& scope_;
  const Space& space_;
  Workers& workers_;
  std::vector<Evaluator>& evaluators_;
  const std::atomic<bool>* stop_;
  std::function<void(const Look&)> report_;
  Ties ties_;
  std::int64_t gpus_ = 0;  // only families of so many; 0: all
  std::vector<Family> families_;
  std::vector<std::size_t> approaches_;  // of each family, as numbers
  std::map<Approach, std::size_t> numbers_;
  // Families that cannot be the best of their approach while what was found there stands.
  std::vector<std::size_t> beaten_;
  using Open = std::pair<Rank, std::size_t>;
  struct Later {
    bool operator()(const Open& a, const Open& b) const { return b.first < a.first; }
  };
  std::priority_queue<Open, std::vector<Open>, Later> open_;
  Points verified_;
};

}  // namespace plimsoll::planner::search
