#include "planner/search/front.h"

#include <algorithm>
#include <optional>

#include "planner/search/family.h"

namespace plimsoll::planner::search {

namespace {

constexpr std::size_t kRound = 128;

struct Candidate {
  std::size_t family, index;
  Need need;
  Pace pace;
};

// a is at least as good in both, and comes first where they are equal.
bool beats(const Candidate& a, const Candidate& b) {
  const auto key = [](const Candidate& c) { return std::pair(c.family, c.index); };
  if (a.need.least() > b.need.least() || a.pace.tokens_per_second < b.pace.tokens_per_second)
    return false;
  return a.need.least() < b.need.least() || a.pace.tokens_per_second > b.pace.tokens_per_second ||
         key(a) < key(b);
}

class FrontFinder {
 public:
  FrontFinder(const Scope& scope, const Space& space, const std::vector<Setting>& settings,
              std::vector<Evaluator>& evaluators, Workers& workers)
      : scope_(scope), space_(space), evaluators_(evaluators), workers_(workers) {
    // Points of the front differ in speed, whatever the objective is.
    front_scope_ = scope;
    front_scope_.objective = Objective::throughput;
    std::vector<std::optional<Family>> made(settings.size());
    workers_.for_each(settings.size(), [&](std::size_t i, std::size_t) {
      made[i].emplace(front_scope_, space_, settings[i], static_cast<std::uint32_t>(i));
    });
    for (std::optional<Family>& family : made) families_.push_back(std::move(*family));
  }

  Front run() {
    std::vector<std::size_t> order(families_.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::erase_if(order, [&](std::size_t i) { return families_[i].exhausted(); });
    std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) {
      return families_[a].bound() < families_[b].bound();
    });
    for (std::size_t begin = 0; begin < order.size(); begin += kRound) {
      const std::size_t n = std::min(kRound, order.size() - begin);
      std::vector<std::vector<Candidate>> found(n);
      workers_.for_each(n, [&](std::size_t k, std::size_t thread) {
        look_at(order[begin + k], evaluators_[thread], found[k]);
      });
      for (const auto& candidates : found)
        for (const Candidate& c : candidates) insert(c);
    }
    Front front;
    verify();
    std::ranges::sort(front_, [](const Candidate& a, const Candidate& b) {
      return a.need.least() < b.need.least();
    });
    for (const Candidate& c : front_)
      front.points.push_back({families_[c.family].point(c.index), c.need, c.pace});
    for (const Family& family : families_) front.evaluated += family.evaluated();
    return front;
  }

 private:
  bool beaten(const Candidate& c) const {
    return std::ranges::any_of(front_, [&](const Candidate& f) { return beats(f, c); });
  }

  // Sizes upwards. A point whose memory cannot be less than that of one already seen in this
  // family needs no evaluation where the front beats it even so.
  void look_at(std::size_t f, Evaluator& evaluator, std::vector<Candidate>& out) {
    Family& family = families_[f];
    std::optional<Need> floor;
    for (std::size_t i = 0; i < family.points(); ++i) {
      const Pace pace = family.pace(i);
      if (i > 0 && family.batch(i).grad_accum != family.batch(i - 1).grad_accum) floor.reset();
      if (floor && !scope_.exhaustive) {
        Need least = *floor;
        least.peak -= least.scratch;
        if (space_.usable() && least.counted() > *space_.usable()) continue;
        if (beaten({f, i, least, pace})) continue;
      }
      const Need* n = family.need(i, evaluator);
      if (n == nullptr) return;
      floor = *n;
      if (space_.usable() && n->counted() > *space_.usable()) continue;
      out.push_back({f, i, *n, pace});
    }
  }

  void insert(const Candidate& c) {
    all_.push_back(c);
    if (beaten(c)) return;
    std::erase_if(front_, [&](const Candidate& f) { return beats(c, f); });
    front_.push_back(c);
  }

  // What the allocator's gaps push over the edge leaves, and what it had beaten returns.
  void verify() {
    for (bool again = true; again;) {
      again = false;
      std::vector<Candidate> open;
      for (const Candidate& c : front_)
        if (!sure(c)) open.push_back(c);
      std::vector<char> fit(open.size());
      workers_.for_each(open.size(), [&](std::size_t k, std::size_t) {
        fit[k] = fits(scope_, space_, families_[open[k].family].point(open[k].index)) ? 1 : 0;
      });
      for (std::size_t k = 0; k < open.size(); ++k) {
        sure_.push_back(open[k]);
        if (fit[k] != 0) continue;
        again = true;
        std::erase_if(all_, [&](const Candidate& c) { return same(c, open[k]); });
      }
      if (!again) return;
      front_.clear();
      for (const Candidate& c : std::vector<Candidate>(std::move(all_))) insert(c);
    }
  }

  static bool same(const Candidate& a, const Candidate& b) {
    return a.family == b.family && a.index == b.index;
  }
  bool sure(const Candidate& c) const {
    return std::ranges::any_of(sure_, [&](const Candidate& s) { return same(s, c); });
  }

  const Scope& scope_;
  Scope front_scope_;
  const Space& space_;
  std::vector<Evaluator>& evaluators_;
  Workers& workers_;
  std::vector<Family> families_;
  std::vector<Candidate> all_, front_, sure_;
};

}  // namespace

Front pareto_front(const Scope& scope, const Space& space, const std::vector<Setting>& families,
                   std::vector<Evaluator>& evaluators, Workers& workers) {
  return FrontFinder(scope, space, families, evaluators, workers).run();
}

}  // namespace plimsoll::planner::search
