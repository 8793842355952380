#include "planner/search/front.h"

#include <algorithm>
#include <optional>

#include "planner/memory/reserved.h"

namespace plimsoll::planner::search {

namespace {

constexpr std::size_t kRound = 128;

struct Candidate {
  std::size_t family, index;
  Need need;
  Throughput throughput;
};

// What the allocator takes from the card, in its smallest segments: less than one is no saving.
constexpr std::int64_t kSegment = 2 << 20;

std::int64_t segments(const Candidate& c) {
  return ceil_divide(c.need.least().value(), kSegment);
}

// a is at least as good in both, and comes first where they are equal.
bool beats(const Candidate& a, const Candidate& b) {
  const auto key = [](const Candidate& c) { return std::pair(c.family, c.index); };
  const std::int64_t x = segments(a), y = segments(b);
  if (x > y || a.throughput.tokens_per_second < b.throughput.tokens_per_second) return false;
  return x < y || a.throughput.tokens_per_second > b.throughput.tokens_per_second ||
         key(a) < key(b);
}

class FrontFinder {
 public:
  FrontFinder(const Scope& scope, const Space& space, const std::vector<Family*>& families,
              const KnownPeaks& known, std::vector<Evaluator>& evaluators, Workers& workers)
      : scope_(scope),
        space_(space),
        families_(families),
        sure_(known),
        evaluators_(evaluators),
        workers_(workers) {}

  // What is taken off the front because it does not fit may have beaten points that nobody has
  // looked at.
  std::vector<ParetoPoint> run() {
    const std::vector<std::size_t> order = fastest_first();
    do {
      look_at_all(order);
    } while (!verify());
    // Fastest first: what the allocator hands out whole may make a point need more than a faster
    // one after all.
    std::ranges::sort(front_, [](const Candidate& a, const Candidate& b) {
      return a.need.least() > b.need.least();
    });
    std::vector<ParetoPoint> points;
    for (const Candidate& c : front_) {
      const Bytes peak = sure_.at(place_of(c));
      if (points.empty() || peak < points.back().peak)
        points.push_back({families_[c.family]->point(c.index), c.need, c.throughput, peak});
    }
    std::ranges::reverse(points);
    return points;
  }

 private:
  std::vector<std::size_t> fastest_first() const {
    std::vector<std::pair<double, std::size_t>> order;
    for (std::size_t f = 0; f < families_.size(); ++f) {
      double fastest = 0;
      for (std::size_t i = 0; i < families_[f]->points(); ++i)
        fastest = std::max(fastest, families_[f]->throughput(i).tokens_per_second);
      if (families_[f]->points() > 0) order.emplace_back(-fastest, f);
    }
    std::ranges::sort(order);
    std::vector<std::size_t> out;
    out.reserve(order.size());
    for (const auto& [speed, family] : order) out.push_back(family);
    return out;
  }

  void look_at_all(const std::vector<std::size_t>& order) {
    for (std::size_t begin = 0; begin < order.size(); begin += kRound) {
      const std::size_t n = std::min(kRound, order.size() - begin);
      std::vector<std::vector<Candidate>> found(n);
      workers_.for_each(n, [&](std::size_t k, std::size_t thread) {
        look_at(order[begin + k], evaluators_[thread], found[k]);
      });
      for (const auto& candidates : found)
        for (const Candidate& c : candidates) {
          all_.push_back(c);
          insert(c);
        }
    }
  }

  bool beaten(const Candidate& c) const {
    return std::ranges::any_of(front_, [&](const Candidate& f) { return beats(f, c); });
  }

  // Sizes upwards. A point whose memory cannot be less than that of one already seen in this
  // family needs no evaluation where the front beats it even so.
  void look_at(std::size_t f, Evaluator& evaluator, std::vector<Candidate>& out) {
    Family& family = *families_[f];
    std::optional<Need> floor;
    for (std::size_t i = 0; i < family.points(); ++i) {
      const Throughput throughput = family.throughput(i);
      if (i > 0 && family.batch(i).grad_accum != family.batch(i - 1).grad_accum) floor.reset();
      if (floor && !scope_.exhaustive) {
        Need least = *floor;
        least.peak -= least.scratch;
        if (space_.usable() && least.counted() > *space_.usable()) continue;
        if (beaten({f, i, least, throughput})) continue;
      }
      const Need* n = family.need(i, evaluator);
      if (n == nullptr) return;
      floor = *n;
      if (space_.usable() && n->counted() > *space_.usable()) continue;
      const Candidate c{f, i, *n, throughput};
      if (!family.is_rejected(i) && !is_in(unfit_, c)) out.push_back(c);
    }
  }

  void insert(const Candidate& c) {
    if (beaten(c) || is_in(front_, c)) return;
    std::erase_if(front_, [&](const Candidate& f) { return beats(c, f); });
    front_.push_back(c);
  }

  // What the allocator's gaps push over the edge leaves: false.
  bool verify() {
    std::vector<Candidate> open;
    for (const Candidate& c : front_)
      if (!sure(c)) open.push_back(c);
    std::vector<Fit> fits(open.size());
    workers_.for_each(open.size(), [&](std::size_t k, std::size_t) {
      Replays replays;
      fits[k] = fit(scope_, space_, families_[open[k].family]->point(open[k].index), replays);
    });
    for (std::size_t k = 0; k < open.size(); ++k) {
      if (fits[k].fits)
        sure_[place_of(open[k])] = fits[k].peak;
      else
        unfit_.push_back(open[k]);
    }
    if (std::ranges::find(fits, false, &Fit::fits) == fits.end()) return true;
    std::erase_if(all_, [&](const Candidate& c) { return is_in(unfit_, c); });
    front_.clear();
    for (const Candidate& c : std::vector<Candidate>(std::move(all_))) insert(c);
    all_.clear();
    return false;
  }

  static bool same(const Candidate& a, const Candidate& b) {
    return a.family == b.family && a.index == b.index;
  }
  static bool is_in(const std::vector<Candidate>& some, const Candidate& c) {
    return std::ranges::any_of(some, [&](const Candidate& s) { return same(s, c); });
  }
  bool sure(const Candidate& c) const { return sure_.contains(place_of(c)); }
  KnownPeaks::key_type place_of(const Candidate& c) const { return {families_[c.family], c.index}; }

  const Scope& scope_;
  const Space& space_;
  const std::vector<Family*>& families_;
  KnownPeaks sure_;
  std::vector<Evaluator>& evaluators_;
  Workers& workers_;
  std::vector<Candidate> all_, front_, unfit_;
};

}  // namespace

std::vector<ParetoPoint> pareto_front(const Scope& scope, const Space& space,
                                      const std::vector<Family*>& families, const KnownPeaks& known,
                                      std::vector<Evaluator>& evaluators, Workers& workers) {
  return FrontFinder(scope, space, families, known, evaluators, workers).run();
}

}  // namespace plimsoll::planner::search
